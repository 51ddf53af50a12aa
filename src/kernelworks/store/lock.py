"""One writer a run: an advisory lock that dies with its holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from kernelworks.errors import StoreError

LOCK = "run.lock"

_held: set[int] = set()
"""Descriptors of the locks that this process holds."""


class RunLock:
    """``flock`` on ``run.lock`` in the run's folder; the file holds the holder's process id and is never removed.

    The lock goes when the process ends, however it ends. A child would share it and could keep it beyond that, so
    its descriptor is closed in every child, forked or executed.

    Raises:
        StoreError: another process (or another store in this one) holds the lock; or the folder is not writable.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"{folder}: expected a writable run folder, found: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StoreError(
                f"{folder}: expected a run that nobody writes to, found it in use by process {holder}",
                mend="wait for it or stop it",
            ) from error
        _held.add(self._descriptor)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Give the lock back; nothing happens in a child, which never held it."""
        if self._descriptor in _held:
            _held.remove(self._descriptor)
            os.close(self._descriptor)


def _drop_in_child() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_drop_in_child)
