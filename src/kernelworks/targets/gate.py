"""The gate between builds and timings on one CPU: a timing pauses every compiler of this process.

One busy core cuts the power of a timing to see a 3% difference from 89% to 10%, so compilers stop (``SIGSTOP`` to
their process groups) while a timing runs and go on afterwards. ``BuildGate.clock_s`` stands still meanwhile: a pause
never counts against a build's time limit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

BYTES_PER_COMPILER = 1 << 30
"""Free memory that justifies one more compiler at the same time."""


class BuildGate:
    """Admits compilers and pauses them during timings. All methods are safe to call from several threads."""

    def __init__(self, slots: int | None = None) -> None:
        """``slots``: compilers that may run at once; by default as many as cores and free memory allow."""
        self._slots = slots if slots is not None else _default_slots()
        self._changed = threading.Condition()
        self._running: set[int] = set()
        self._ended: set[int] = set()
        self._someone_alone = False
        self._waiting_alone = 0
        self._timings = 0
        self._working = 0
        self._paused_s = 0.0
        self._paused_since_s = 0.0

    @contextmanager
    def timing(self) -> Generator[None]:
        """Hold while a timing runs: compilers are stopped, new ones wait. Timings may overlap or nest.

        Waits for the short sections under ``working``, which cannot be stopped. Not to be entered inside one.
        """
        with self._changed:
            self._timings += 1
            if self._timings == 1:
                self._paused_since_s = time.monotonic()
                self._signal_all(signal.SIGSTOP)
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._working == 0)
            yield
        finally:
            with self._changed:
                self._timings -= 1
                if self._timings == 0:
                    self._signal_all(signal.SIGCONT)
                    self._paused_s += time.monotonic() - self._paused_since_s
                    self._changed.notify_all()

    @contextmanager
    def working(self) -> Generator[None]:
        """Hold for a short section of a build inside this process (disassembly, parsing): never during a timing."""
        with self._changed:
            self._changed.wait_for(lambda: self._timings == 0)
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    @contextmanager
    def process(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], alone: bool = False
    ) -> Generator[subprocess.Popen[bytes]]:
        """Run a compiler in a process group of its own, output and errors in one pipe.

        ``alone``: start when no other compiler runs, and admit none meanwhile. On exit the whole group is killed and
        the compiler reaped, so its number cannot be reused while a timing may still signal it: never call ``wait`` or
        ``poll`` on it inside (use ``os.waitid`` with ``WNOWAIT``). Should this process die while the group is stopped,
        the kernel hangs it up, because the group is then orphaned; a session of its own would stay stopped for ever.
        """
        child = self._start(argv, cwd, env, alone)
        try:
            yield child
        finally:
            with self._changed:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                self._running.discard(child.pid)
                self._ended.discard(child.pid)
                if alone:
                    self._someone_alone = False
                self._changed.notify_all()
            assert child.stdout is not None
            child.stdout.close()

    def clock_s(self) -> float:
        """Monotonic seconds without the time spent in timings."""
        with self._changed:
            now = self._paused_since_s if self._timings else time.monotonic()
            return now - self._paused_s

    def kill_running(self) -> None:
        """End every compiler that runs now; their builds report that they were stopped."""
        with self._changed:
            self._ended |= self._running
            self._signal_all(signal.SIGKILL)

    def was_ended(self, pid: int) -> bool:
        """Whether ``kill_running`` ended this compiler, to be asked while it is not yet reaped."""
        with self._changed:
            return pid in self._ended

    def _start(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], alone: bool) -> subprocess.Popen[bytes]:
        with self._changed:
            self._waiting_alone += alone
            try:
                self._changed.wait_for(lambda: self._admits(alone))
                # Started under the lock: no timing can begin between the start and the registration.
                child = subprocess.Popen(
                    argv,
                    cwd=cwd,
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                )
                self._running.add(child.pid)
                self._someone_alone = alone
            finally:
                self._waiting_alone -= alone
                self._changed.notify_all()
        return child

    def _admits(self, alone: bool) -> bool:
        if self._timings or self._someone_alone:
            return False
        if alone:
            return not self._running
        return not self._waiting_alone and len(self._running) < self._slots

    def _signal_all(self, number: signal.Signals) -> None:
        for group in self._running:
            # The leader is reaped under the lock only, so the group's number is still ours.
            with suppress(ProcessLookupError):
                os.killpg(group, number)


@lru_cache(maxsize=1)
def process_gate() -> BuildGate:
    """The gate that all builds and timings of this process share."""
    return BuildGate()


def _default_slots() -> int:
    meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
    available_kib = next(int(line.split()[1]) for line in meminfo.splitlines() if line.startswith("MemAvailable"))
    return max(1, min(len(os.sched_getaffinity(0)), available_kib * 1024 // BYTES_PER_COMPILER))
