"""How long, and in how much memory, the user's reference may run: watched in the judge and from outside.

The judge's process ends itself when one run of the reference takes too long, so that no lock, loop or library can keep
it. The harness, while it waits for an answer, says after some seconds what it waits for, and ends the judge before the
reference has taken the last of the memory: the system would otherwise choose a victim, or stand still.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from kernelworks.targets.hardware_cpu import available_memory_bytes

REFERENCE_TIMEOUT_S = 120.0
"""Default limit of one run of the reference."""
OVERRUN_EXIT = 75
"""Exit code of a judge whose reference took too long."""
NOTICE_S = 10.0
"""Waiting becomes worth a word after this."""
_WATCH_S = 0.25
_POLL_MS = 20
_LEAST_GROWTH_BYTES = 512 << 20
"""A judge that grew by less in this request is not what fills the memory."""
_LEAST_RESERVE_BYTES = 256 << 20
"""Memory that must stay free: this, or a twentieth of what was free."""

Notice = Callable[[str], None]
"""Tells the user something while an answer is awaited."""


class MemorySpentError(Exception):
    """The judge grew until the memory was nearly spent; carries by how many bytes."""

    def __init__(self, grown_bytes: int) -> None:
        super().__init__(f"the reference took {grown_bytes / 2**30:.1f} GiB")
        self.grown_bytes = grown_bytes


class RunLimit:
    """Ends this process when what runs inside ``running`` takes longer than the limit. One at a time."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._deadline_s: float | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="reference-limit", daemon=True).start()

    @contextmanager
    def running(self, runs: int = 1) -> Generator[None]:
        """One run of the reference, or several that take the limit together. Nested ones count as one."""
        if self._deadline_s is not None:
            yield
            return
        with self._lock:
            self._deadline_s = time.monotonic() + runs * self._limit_s
        try:
            yield
        finally:
            with self._lock:
                self._deadline_s = None

    def _watch(self) -> None:
        while True:
            time.sleep(_WATCH_S)
            with self._lock:
                if self._deadline_s is None:
                    continue
                if _importing_torch():
                    self._deadline_s += _WATCH_S
                elif time.monotonic() > self._deadline_s:
                    os._exit(OVERRUN_EXIT)


def _importing_torch() -> bool:
    """Whether the import of torch is under way, which takes seconds and is not the reference's doing."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def await_answer(connection: socket.socket, pid: int, limit_s: float, word: str, notice: Notice | None) -> None:
    """Wait until a judge that runs the user's code has something to say.

    Args:
        connection: to the judge.
        pid: the judge's process.
        limit_s: of the wait.
        word: for the notice.
        notice: told the word after ``NOTICE_S``, once.

    Raises:
        TimeoutError: the limit is over.
        MemorySpentError: its process has taken nearly all memory that was left.
    """
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    start_s = time.monotonic()
    start_bytes = _resident_bytes(pid)
    reserve_bytes = max(_LEAST_RESERVE_BYTES, (available_memory_bytes() or 0) // 20)
    told = notice is None
    while not poll.poll(_POLL_MS):
        waited_s = time.monotonic() - start_s
        if waited_s > limit_s:
            raise TimeoutError
        if not told and notice is not None and waited_s > NOTICE_S:
            notice(word)
            told = True
        grown_bytes = _resident_bytes(pid) - start_bytes
        if grown_bytes < _LEAST_GROWTH_BYTES:
            continue
        left_bytes = available_memory_bytes()
        if left_bytes is not None and left_bytes < reserve_bytes:
            raise MemorySpentError(grown_bytes)


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):  # it has ended: the connection says so
        return 0
