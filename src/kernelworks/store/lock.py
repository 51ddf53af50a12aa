"""One writer a run: an advisory lock that dies with its holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from kernelworks.errors import StoreError

LOCK = "run.lock"


class RunLock:
    """``flock`` on ``run.lock`` in the run's folder; the file holds the holder's process id and is never removed.

    The kernel releases the lock when the process ends, however it ends. The descriptor is closed in children that
    execute a program, so that a compiler or a candidate that outlives the run does not keep it locked.

    Raises:
        StoreError: another process (or another store in this one) holds the lock; or the folder is not writable.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Give the lock back; once."""
        os.close(self._descriptor)
