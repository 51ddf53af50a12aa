"""One writer a run: an advisory lock that dies with its holder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from kernelworks.errors import StoreError

LOCK = "run.lock"
ATTEMPTS = 4
PAUSE_S = 0.02

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
            _lock(self._descriptor)
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


def _lock(descriptor: int) -> None:
    """Take the lock, or raise ``BlockingIOError``; tried again for a moment, since ``is_locked`` may hold it then."""
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(PAUSE_S)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(folder: Path) -> bool:
    """Whether a process writes to this run now. A shared lock is tried for a moment, so nothing is written."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"{folder}: expected a readable run folder, found: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _drop_in_child() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_drop_in_child)
