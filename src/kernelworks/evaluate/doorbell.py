"""The clock of record: the harness rings, a candidate's process calls and answers, and the harness takes the time.

Both sides map one sealed page and sleep on words of it (futex(2)), so a ring costs some microseconds and no core spins.
No number of the candidate's process is a time: it can only answer, and answering before the work is done shows in its
processor time, which the kernel counts and this side reads before and after every ring.

Where no shim can be built, the same page is served from Python: slower by some microseconds, which calibration sees.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import secrets
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernelworks.errors import EvaluationError
from kernelworks.evaluate import child
from kernelworks.evaluate.shims import build_shim

SLICE_NS = 20_000_000
"""After so long without an answer the harness looks whether the candidate still lives."""


class Record(ctypes.Structure):
    """``struct Record`` of doorbell.cpp: one ring by the harness's clocks."""

    _fields_ = (
        ("begun_ns", ctypes.c_int64),
        ("elapsed_ns", ctypes.c_int64),
        ("cpu_before_ns", ctypes.c_int64),
        ("cpu_after_ns", ctypes.c_int64),
    )


@dataclass(frozen=True)
class Ring:
    """One ring that was answered."""

    elapsed_ns: int
    """By the harness's clock, the round trip included."""
    cpu_before_ns: int
    """Processor time of the candidate's process, all threads, when the harness rang ..."""
    cpu_after_ns: int
    """... and when it had seen the answer."""


@cache
def doorbell_shim() -> Path | None:
    """The compiled shim, built once per text and compiler; ``None`` where it cannot be built.

    The build waits for timings to end: have it done before the first of them.
    """
    return build_shim("doorbell")


def processor_clock(pid: int) -> int | None:
    """Identity of the clock of a process's processor time, all threads, ended ones too; ``None`` once it is gone."""
    found = ctypes.c_int()
    failed = ctypes.CDLL(None).clock_getcpuclockid(ctypes.c_int(pid), ctypes.byref(found))
    return None if failed else found.value


class Doorbell:
    """The harness's side of one page."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("kernelworks-doorbell", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, mmap.PAGESIZE)
        # Neither side can cut the page away under the other.
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._map = mmap.mmap(self.fd, mmap.PAGESIZE)
        self._words = (ctypes.c_uint32 * (mmap.PAGESIZE // 4)).from_buffer(self._map)
        self._address = ctypes.addressof(self._words)
        self._record = Record()
        self._shim = _loaded()
        self.number = 0
        """Of the last ring. Drawn at random, so that nobody can answer the next one beforehand."""

    def ring(self, program: int, cpu: int) -> Ring | None:
        """Ring for a program and wait for a slice of time.

        Args:
            program: what the other side shall call.
            cpu: the processor clock of its process.

        Returns:
            ``None`` where there is no answer yet: look after the candidate, then ``wait``.
        """
        self.number = (self.number + 1 + secrets.randbelow((1 << 32) - 2)) % (1 << 32)
        if self._shim is not None:
            self._shim.kernelworks_ring(self._address, self.number, program, SLICE_NS, cpu, ctypes.byref(self._record))
        else:
            self._ring_slowly(program, cpu)
        return self._answer()

    def wait(self, cpu: int) -> Ring | None:
        """Wait for one more slice of time."""
        if self._shim is not None:
            self._shim.kernelworks_await(self._address, self.number, SLICE_NS, cpu, ctypes.byref(self._record))
        else:
            self._await_slowly(cpu)
        return self._answer()

    @property
    def returned(self) -> int:
        """What the other side says that its calls returned."""
        return ctypes.c_int32(self._words[child.DONE_WORD + 1]).value

    def dismiss(self) -> None:
        """Ring the other side out of its wait, for no program; it does not answer."""
        self.number = (self.number + 1) % (1 << 32)
        self._words[child.GO_WORD + 1] = child.NO_PROGRAM
        self._words[child.GO_WORD] = self.number
        child.futex(self._address + 4 * child.GO_WORD, child.FUTEX_WAKE, 1, None)

    def close(self) -> None:
        """Give the page back; idempotent."""
        if self.fd >= 0:
            del self._words
            self._map.close()
            os.close(self.fd)
            self.fd = -1

    def _answer(self) -> Ring | None:
        found = self._record
        if found.elapsed_ns == 0:
            return None
        return Ring(found.elapsed_ns, found.cpu_before_ns, found.cpu_after_ns)

    def _ring_slowly(self, program: int, cpu: int) -> None:
        record, words = self._record, self._words
        record.elapsed_ns = 0
        words[child.GO_WORD + 1] = program
        record.cpu_before_ns = _clock_ns(cpu)
        record.begun_ns = time.monotonic_ns()
        words[child.GO_WORD] = self.number
        child.futex(self._address + 4 * child.GO_WORD, child.FUTEX_WAKE, 1, None)
        self._await_slowly(cpu)

    def _await_slowly(self, cpu: int) -> None:
        record, until_ns = self._record, time.monotonic_ns() + SLICE_NS
        while True:
            found = self._words[child.DONE_WORD]
            now_ns = time.monotonic_ns()
            if found == self.number:
                record.elapsed_ns = now_ns - record.begun_ns
                record.cpu_after_ns = _clock_ns(cpu)
                return
            if now_ns >= until_ns:
                return
            child.futex(self._address + 4 * child.DONE_WORD, child.FUTEX_WAIT, found, until_ns - now_ns)


class Sweep:
    """Evicts the caches by reading memory of our own on every core at once.

    Reading, since written lines would be written back during the timed call. Each core reads its share of
    ``size_bytes`` for each last-level cache that it has a part in, and so evicts its private caches too.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._processors = sorted(os.sched_getaffinity(0))
        sharers = min(len(_sharers(n) & set(self._processors)) for n in self._processors)
        self._part_bytes = -(-size_bytes // sharers // mmap.PAGESIZE) * mmap.PAGESIZE
        self._shim = _loaded()
        total_bytes = self._part_bytes * (len(self._processors) if self._shim is not None else sharers)
        self._memory = mmap.mmap(-1, max(mmap.PAGESIZE, total_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._view = (ctypes.c_char * len(self._memory)).from_buffer(self._memory)
        ctypes.memset(self._view, 0, len(self._memory))  # pages of its own; untouched ones would all be the zero page
        self._list = (ctypes.c_int32 * len(self._processors))(*self._processors)

    def __call__(self) -> None:
        """Evict.

        Raises:
            EvaluationError: no thread could be started.
        """
        if self._shim is None:
            self._memory.find(b"\x01")
            return
        failed = self._shim.kernelworks_sweep(self._view, self._part_bytes, self._list, len(self._processors))
        if failed:
            raise EvaluationError(f"eviction of the caches: no thread could be started: {os.strerror(failed)}")

    def close(self) -> None:
        """Give the memory back; idempotent."""
        if not self._memory.closed:
            del self._view
            self._memory.close()


def _sharers(processor: int) -> set[int]:
    """Processors that share the last-level cache of one; all of them where Linux does not say."""
    folder = Path(f"/sys/devices/system/cpu/cpu{processor}/cache")
    try:
        last = max(folder.glob("index*"), key=lambda path: int((path / "level").read_text()))
        words = (last / "shared_cpu_list").read_text().strip().split(",")
    except (OSError, ValueError):
        return set(os.sched_getaffinity(0))
    found: set[int] = set()
    for word in words:
        first, _, end = word.partition("-")
        found |= set(range(int(first), int(end or first) + 1))
    return found


def _clock_ns(clock: int) -> int:
    try:
        return time.clock_gettime_ns(clock)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return -1  # the process is gone


def _loaded() -> ctypes.CDLL | None:
    path = doorbell_shim()
    return None if path is None else _library(path)


@cache
def _library(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    pointer, number, many = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int64
    library.kernelworks_ring.argtypes = [pointer, number, number, many, ctypes.c_int32, pointer]
    library.kernelworks_ring.restype = None
    library.kernelworks_await.argtypes = [pointer, number, many, ctypes.c_int32, pointer]
    library.kernelworks_await.restype = None
    library.kernelworks_sweep.argtypes = [pointer, ctypes.c_size_t, pointer, ctypes.c_int32]
    library.kernelworks_sweep.restype = ctypes.c_int
    return library
