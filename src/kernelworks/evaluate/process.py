"""A candidate's shared library in a process of its own, under a supervisor; used once.

Three processes: the harness (this one), ``supervisor.py`` and ``child.py`` below it, which loads the library. Commands
and answers travel on a socket that the candidate can write to as well, so an answer is parsed strictly, must carry the
command's random id and proves nothing beyond what the harness measures itself. How the candidate ended, what it left
running and what it printed come from the supervisor on another socket.

Whatever a candidate does wrong is an exception of this module, never an ``EvaluationError``::

    CandidateError
    ├── CandidateLoadError      the library cannot be loaded, or has no ``launch``
    ├── CandidateRefusedError   its process could not carry out a command (no memory left to map)
    └── CandidateEndedError     it died, hung or broke the rules; carries an ``Exit``
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import select
import signal
import socket
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, ValidationError

from kernelworks.data import Frozen
from kernelworks.errors import EvaluationError
from kernelworks.evaluate import child
from kernelworks.evaluate.buffers import SharedBuffer
from kernelworks.evaluate.doorbell import Doorbell, doorbell_shim, processor_clock
from kernelworks.evaluate.faults import Access, Fault, FaultPage, Region, fault_shim, locate
from kernelworks.evaluate.lockdown import Filter, boxed, call_name, locked
from kernelworks.evaluate.program import LIBRARY_PROGRAM, Program
from kernelworks.evaluate.records import BufferSlot
from kernelworks.evaluate.sandbox import Sandbox, find_sandbox
from kernelworks.evaluate.supervision import Cause, Exit, Limits, State, Supervision, SupervisorLostError

MAX_ERROR_CHARACTERS = 2000
"""Kept of an error that the candidate's process answers."""

_INT64 = 1 << 63
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class CandidateError(Exception):
    """The candidate's doing, not the harness's."""


class CandidateLoadError(CandidateError):
    """``dlopen`` or the look-up of ``launch`` failed; the text is the loader's."""


class CandidateRefusedError(CandidateError):
    """The candidate's process answered that it could not carry out a command."""


class CandidateEndedError(CandidateError):
    """The candidate ended, or was ended, during a command."""

    def __init__(self, during: str, ending: Exit) -> None:
        super().__init__(f"{ending} (during {during})")
        self.during = during
        """The command: ``load``, ``map``, ``bind``, ``call``, ``time``, ``float`` or ``inspect``."""
        self.exit = ending


@dataclass(frozen=True)
class BufferArg:
    """A tensor. ``output``: allocated inside the clock under the policy ``as_called``."""

    buffer: SharedBuffer
    output: bool = False
    slot: BufferSlot | None = None
    """What it is in a prepared case."""


@dataclass(frozen=True)
class WorkspaceArg:
    """Scratch memory of the candidate's own process, between guard pages, filled with 0xFF before each ``call``."""

    name: str
    size_bytes: int


Arg = BufferArg | WorkspaceArg | bool | int | float
"""One argument of ``launch``: pointers, ``uint8_t``, ``int64_t``, ``double``."""


@dataclass(frozen=True)
class FloatMode:
    """Floating-point mode of the calling thread."""

    flushes_results: bool
    """Subnormal results become zero (FTZ)."""
    flushes_operands: bool
    """Subnormal operands count as zero (DAZ)."""


@dataclass(frozen=True)
class CallResult:
    """One call: what ``launch`` returned, and the time by the harness's clock, messages included."""

    returned: int
    elapsed_ms: float


@dataclass(frozen=True)
class TimedCalls:
    """Calls behind one ring, all by the harness's clocks."""

    returned: int
    """0, or what its process says that the first failing call returned; no call was made after it."""
    elapsed_ns: int
    """Of the calls, the round trip between the processes included."""
    cpu_ns: int
    """Processor time of the candidate's process meanwhile, all threads."""
    idle_cpu_ns: int
    """Processor time that it used since its last answer, when nobody had asked for anything; 0 for a first ring."""
    page_faults: int
    """Minor faults of the process since the last ring (since it was made ready, for a first one)."""


class _Answer(Frozen):
    id: str
    value: dict[str, Any] | None = None
    error: str | None = None


class _Empty(Frozen):
    pass


class _Mode(Frozen):
    ftz: bool
    daz: bool


_Address = Annotated[int, Field(ge=0, lt=1 << 64)]
_Code = Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]


class _Mapped(Frozen):
    bases: tuple[_Address, ...]


class _BoundTo(Frozen):
    workspaces: tuple[_Address, ...]


class _Called(Frozen):
    returned: _Code


_Value = TypeVar("_Value", bound=Frozen)


class Candidate:
    """One candidate's process. Use as a context manager, from one thread at a time.

    Every method but ``end`` raises ``CandidateEndedError`` once the candidate has ended.
    """

    def __init__(
        self,
        *,
        threads: int,
        limits: Limits,
        program: Program = LIBRARY_PROGRAM,
        sandbox: Sandbox | None = None,
        stop_fd: int | None = None,
    ) -> None:
        """Start the processes, without waiting for them; ``load`` makes it a candidate.

        Args:
            threads: of OpenMP.
            limits: what it may use.
            program: what runs in its process.
            sandbox: what confines it; by default the best that works here.
            stop_fd: when this becomes readable, the candidate is ended, whoever waits for it.
        """
        self._limits = limits
        self._program_run = program
        self._sandbox = sandbox if sandbox is not None else find_sandbox()
        self._own_libraries: frozenset[str] = frozenset()
        self._is_ready = False
        self._stop_fd = os.dup(stop_fd) if stop_fd is not None else -1
        self._regions: dict[str, list[Region]] = {}
        self._bell = Doorbell()
        self._programs: dict[tuple[tuple[str, ...], bool], int] = {}
        self._armed = 0
        """Programs that its process has ready; it listens to the doorbell alone while there are any."""
        self._cpu_clock = 0
        self._cpu_ns: int | None = None
        self._stat_fd = -1
        self._faults = 0
        self._exit: Exit | None = None
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            for end in (self._channel, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * child.MESSAGE_BYTES)
            try:
                self._supervision = Supervision(
                    theirs,
                    threads=threads,
                    limits=limits,
                    program=program,
                    sandbox=self._sandbox,
                )
            except EvaluationError:
                self._channel.close()
                self._bell.close()
                self._close_stop()
                raise
        self._page = FaultPage()
        self._poll = select.poll()
        self._poll.register(self._channel, select.POLLIN)
        self._poll.register(self._supervision, select.POLLIN)
        if self._stop_fd >= 0:
            self._poll.register(self._stop_fd, select.POLLIN)

    @classmethod
    def start(cls, library: Path | None, *, threads: int, limits: Limits, sandbox: Sandbox | None = None) -> Self:
        """Start the processes and load the library.

        Raises:
            CandidateLoadError: it cannot be loaded or has no ``launch``.
            CandidateEndedError: its constructors crashed, hung or left.
            EvaluationError: the processes do not start.
        """
        return cls(threads=threads, limits=limits, sandbox=sandbox).loaded(library)

    def loaded(self, library: Path | None) -> Self:
        """Itself after ``load``; ended if that raises."""
        try:
            self.load(library)
        except BaseException:
            self.end()
            raise
        return self

    @property
    def mark(self) -> str:
        """``NAME=value`` in the environment of every process of this candidate (``marked_processes`` finds them)."""
        return self._supervision.mark

    def load(self, library: Path | None) -> FloatMode:
        """Load the library; call it once, before anything else. The mode tells of a link with fast-math flags.

        ``None`` stands for a ``launch`` that does nothing.
        """
        self.get_ready()
        self._own_libraries = frozenset(self._inspect().libraries or ())
        try:
            with ExitStack() as stack:
                fds = (stack.enter_context(_copied(library)),) if library is not None else ()
                path = str(library.absolute()) if library is not None else None
                mode = self._ask(_Mode, "load", self._limits.start_s, fds, path=path)
        except CandidateRefusedError as error:
            raise CandidateLoadError(str(error)) from error
        return FloatMode(mode.ftz, mode.daz)

    def get_ready(self) -> None:
        """Have faults watched, system calls filtered and the doorbell heard; ``load`` does so by itself. Idempotent.

        Raises:
            EvaluationError: its process did not start.
        """
        if self._is_ready:
            return
        try:
            with suppress(CandidateRefusedError):  # a shim that cannot be loaded costs detail only
                self._hand_in("watch", self._page.fd, fault_shim())
            self._hand_in("listen", self._bell.fd, doorbell_shim())
            if self._program_run.setup:
                self._filter(boxed())
            else:
                self._filter(locked())
        except CandidateRefusedError as error:
            raise EvaluationError(f"the candidate's process cannot do without: {error}") from error
        except CandidateEndedError as error:  # no code of the candidate has run yet
            said = error.exit.stderr.text.strip()[-MAX_ERROR_CHARACTERS:]
            more = f"; it said: {said}" if said else ""
            raise EvaluationError(f"the candidate's process did not start: {error}{more}") from error
        self._is_ready = True

    def lock(self) -> None:
        """End a program's set-up phase: no process, no file, no other forbidden call from now on (``lockdown.locked``).

        What lies in the private folder now was allowed. Where the kernel takes no filters this changes nothing else.
        """
        self._filter(locked())
        try:
            self._supervision.settle(self._limits.start_s)
        except SupervisorLostError:
            raise self._ended("lock", Cause.CHANNEL_CLOSED) from None

    def _filter(self, program: Filter | None) -> None:
        if self._sandbox.filters and program is not None:
            self._ask(_Empty, "lock", self._limits.start_s, **program.wire())

    def bind(self, key: str, arguments: Sequence[Arg], timeout_s: float = 60.0) -> None:
        """Fix arguments, in the prototype's order, under a new key.

        Each key maps its tensors anew, so that several keys give the same tensors at different addresses.
        """
        workspaces = [a for a in arguments if isinstance(a, WorkspaceArg)]
        self._allow(sum(w.size_bytes for w in workspaces))
        self._map(key, [a.buffer for a in arguments if isinstance(a, BufferArg)], timeout_s)
        found = self._ask(_BoundTo, "bind", timeout_s, key=key, arguments=_wire(arguments)).workspaces
        self._check(len(found) == len(workspaces), "bind")
        for address, workspace in zip(found, workspaces, strict=True):
            self._regions[key].append(_region(workspace.name, address, workspace.size_bytes, workspace.size_bytes))

    def _map(self, key: str, buffers: Sequence[SharedBuffer], timeout_s: float) -> None:
        """Map tensors into its process, in this order, under a key."""
        self._allow(sum(b.layout.file_bytes for b in buffers))
        regions = self._regions.setdefault(key, [])
        for first in range(0, len(buffers), child.DESCRIPTORS):
            batch = buffers[first : first + child.DESCRIPTORS]
            layouts = [asdict(b.layout) for b in batch]
            fds = tuple(b.fd for b in batch)
            bases = self._ask(_Mapped, "map", timeout_s, fds, key=key, tensors=layouts).bases
            self._check(len(bases) == len(batch), "map")
            for base, buffer in zip(bases, batch, strict=True):
                layout = buffer.layout
                regions.append(_region(layout.name, base + layout.data_offset, layout.size_bytes, layout.file_bytes))

    def call(self, key: str, timeout_s: float) -> CallResult:
        """Call ``launch`` once, workspaces poisoned."""
        start = time.perf_counter()
        returned = self._ask(_Called, "call", timeout_s, key=key).returned
        return CallResult(returned, (time.perf_counter() - start) * 1e3)

    def prepare(self, keys: Sequence[str], timeout_s: float) -> None:
        """Have a timed call of these keys made ready, before its inputs stand; a library has nothing to make ready."""
        del keys, timeout_s

    def time(self, keys: Sequence[str], allocate: bool, timeout_s: float) -> TimedCalls:
        """Call once for each key, in turn, and take the time here.

        Args:
            keys: bound keys.
            allocate: outputs and workspaces are allocated and freed inside the clock (policy ``as_called``).
            timeout_s: for all calls together.
        """
        program = self._program(tuple(keys), allocate)
        if self._exit is not None:
            raise CandidateEndedError("time", self._exit)
        if self._ready(0.0):  # nobody was asked
            raise self._ended("time", Cause.FORGED if self._receive() else Cause.CHANNEL_CLOSED)
        deadline = time.monotonic() + timeout_s
        rung = self._bell.ring(program, self._cpu_clock)
        while rung is None:
            if ready := self._ready(0.0):
                forged = self._supervision.fileno() not in ready and self._receive()
                raise self._ended("time", Cause.FORGED if forged else Cause.CHANNEL_CLOSED)
            if time.monotonic() > deadline:
                raise self._ended("time", Cause.TIMED_OUT)
            rung = self._bell.wait(self._cpu_clock)
        if rung.cpu_after_ns < rung.cpu_before_ns or rung.cpu_before_ns < 0:  # it ended meanwhile
            raise self._ended("time", Cause.CHANNEL_CLOSED)
        before_ns, self._cpu_ns = self._cpu_ns, rung.cpu_after_ns
        faults, self._faults = self._faults, self._page_faults()
        return TimedCalls(
            returned=self._bell.returned,
            elapsed_ns=rung.elapsed_ns,
            cpu_ns=rung.cpu_after_ns - rung.cpu_before_ns,
            idle_cpu_ns=0 if before_ns is None else rung.cpu_before_ns - before_ns,
            page_faults=self._faults - faults,
        )

    def settle(self, key: str) -> None:
        """Have the answer of the last call of a key where the judge looks for it; a library wrote it there itself."""
        del key

    def float_mode(self) -> FloatMode:
        """The mode of the thread that calls ``launch``, now."""
        mode = self._ask(_Mode, "float", self._limits.start_s)
        return FloatMode(mode.ftz, mode.daz)

    def thread_count(self) -> int:
        """Threads of the candidate's process, as the kernel counts them."""
        return self._inspect().threads

    def strange_threads(self) -> int:
        """Threads that no thread pool accounts for, as far as its process tells: a library's process tells nothing."""
        return 0

    def descendants(self) -> tuple[str, ...]:
        """Command names of the processes, besides the candidate's, that it has started and that still run."""
        return self._inspect().processes

    def added_libraries(self) -> tuple[str, ...]:
        """File names of code that is mapped now and was not before ``load``: what the library needs, and what it opened
        by itself; () where the system does not tell."""
        return tuple(name for name in self._inspect().libraries or () if name not in self._own_libraries)

    def locate(self, address: int, access: Access | None) -> Fault:
        """Which tensor or workspace an address in the candidate's process belongs to, or missed."""
        return locate(address, access, [region for regions in self._regions.values() for region in regions])

    def end(self) -> Exit:
        """End the candidate and everything that it started; idempotent.

        A message that nobody asked for makes the end a forgery.
        """
        if self._exit is not None:
            return self._exit
        return self._finish(Cause.FORGED if self._receive() else Cause.FINISHED)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _inspect(self) -> State:
        if self._exit is not None:
            raise CandidateEndedError("inspect", self._exit)
        try:
            return self._supervision.inspect(self._limits.start_s)
        except SupervisorLostError:
            raise self._ended("inspect", Cause.CHANNEL_CLOSED) from None

    def _hand_in(self, do: str, page_fd: int, shim: Path | None) -> None:
        """Have the process map a page and load a shim for it, if there is one."""
        with ExitStack() as stack:
            fds = (page_fd,) if shim is None else (page_fd, stack.enter_context(_copied(shim)))
            self._ask(_Empty, do, self._limits.start_s, fds, shim=shim is not None)

    def _program(self, keys: tuple[str, ...], allocate: bool) -> int:
        """Have these calls ready behind the doorbell; under which number."""
        known = self._programs.setdefault((keys, allocate), len(self._programs))
        if self._armed <= known:
            self._disarm()
            programs = [{"keys": keys, "allocate": allocate} for keys, allocate in self._programs]
            self._ask(_Empty, "arm", self._limits.start_s, programs=programs, last=self._bell.number)
            self._armed = len(programs)
            self._cpu_ns = None
            self._faults = self._page_faults()
        return known

    def _disarm(self) -> None:
        if self._armed:
            self._bell.dismiss()
            self._armed = 0

    def _page_faults(self) -> int:
        """Minor faults of the candidate's process so far, by the kernel's count."""
        try:
            if self._stat_fd < 0:
                pid = self._inspect().pid
                clock = processor_clock(pid)
                if clock is None:
                    raise ProcessLookupError
                self._cpu_clock = clock
                self._stat_fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._stat_fd, 1024, 0).rpartition(b")")[2].split()[7])
        except (ProcessLookupError, FileNotFoundError):
            raise self._ended("time", Cause.CHANNEL_CLOSED) from None

    def _allow(self, size_bytes: int) -> None:
        if self._exit is None:
            self._supervision.allow(size_bytes)

    def _ask(self, kind: type[_Value], do: str, timeout_s: float, fds: tuple[int, ...] = (), **fields: Any) -> _Value:
        """Send one command and parse its answer; whatever else arrives ends the candidate."""
        if self._exit is not None:
            raise CandidateEndedError(do, self._exit)
        self._disarm()
        identity = secrets.token_hex(8)
        packet = json.dumps({"id": identity, "do": do, **fields}).encode()
        if len(packet) > child.MESSAGE_BYTES:
            raise EvaluationError(f"command {do}: expected at most {child.MESSAGE_BYTES} bytes, found {len(packet)}")
        received = self._exchange(do, packet, fds, timeout_s)
        try:
            answer = _Answer.model_validate_json(received, strict=True)
            if answer.id != identity or (answer.value is None) == (answer.error is None):
                raise self._ended(do, Cause.FORGED)
            if answer.error is not None:
                raise CandidateRefusedError(f"{do}: {answer.error[:MAX_ERROR_CHARACTERS]}")
            return kind.model_validate_json(json.dumps(answer.value), strict=True)
        except ValidationError:
            raise self._ended(do, Cause.FORGED) from None

    def _exchange(self, do: str, packet: bytes, fds: tuple[int, ...], timeout_s: float) -> bytes:
        """Send one packet; the next that arrives. Raises ``CandidateEndedError`` when there is none."""
        deadline = time.monotonic() + timeout_s
        if self._ready(0.0):  # nobody was asked
            raise self._ended(do, Cause.FORGED if self._receive() else Cause.CHANNEL_CLOSED)
        self._channel.settimeout(timeout_s)
        try:
            socket.send_fds(self._channel, [packet], fds)
        except TimeoutError:
            raise self._ended(do, Cause.TIMED_OUT) from None
        except OSError:
            raise self._ended(do, Cause.CHANNEL_CLOSED) from None
        ready = self._ready(deadline - time.monotonic())
        if not ready:
            raise self._ended(do, Cause.TIMED_OUT)
        received = b"" if self._supervision.fileno() in ready else self._receive()
        if not received:
            raise self._ended(do, Cause.CHANNEL_CLOSED)
        return received

    def _ready(self, timeout_s: float) -> set[int]:
        found = {fd for fd, _ in self._poll.poll(max(0.0, timeout_s) * 1e3)}
        if self._stop_fd in found:
            self._finish(Cause.FINISHED)
            raise EvaluationError("a candidate was ended because the session was closed")
        return found

    def _receive(self) -> bytes:
        """The next packet; empty when there is none or the channel is closed. Descriptors sent along are dropped."""
        self._channel.setblocking(False)
        try:
            return self._channel.recv(child.MESSAGE_BYTES)
        except OSError:
            return b""

    def _close_stop(self) -> None:
        if self._stop_fd >= 0:
            os.close(self._stop_fd)
            self._stop_fd = -1

    def _check(self, honest: bool, do: str) -> None:
        if not honest:
            raise self._ended(do, Cause.FORGED)

    def _ended(self, during: str, cause: Cause) -> CandidateEndedError:
        return CandidateEndedError(during, self._finish(cause))

    def _finish(self, cause: Cause) -> Exit:
        ending = self._supervision.finish(cause)
        self._channel.close()
        if ending.signal == signal.SIGSYS and ending.cause is Cause.SIGNALLED:
            number = self._page.read_call()
            ending = replace(ending, call=call_name(number) if number is not None else "")
        elif ending.signal is not None and ending.cause is Cause.SIGNALLED:
            regions = [region for regions in self._regions.values() for region in regions]
            ending = replace(ending, fault=self._page.read(ending.signal, regions))
        self._close_stop()
        self._page.close()
        self._bell.close()
        if self._stat_fd >= 0:
            os.close(self._stat_fd)
            self._stat_fd = -1
        self._exit = ending
        return ending


class CandidatePool:
    """Keeps one spare candidate started, which hides the start of its processes. Threads may share it."""

    def __init__(
        self,
        *,
        threads: int,
        limits: Limits,
        program: Program = LIBRARY_PROGRAM,
        sandbox: Sandbox | None = None,
    ) -> None:
        self._threads = threads
        self._limits = limits
        self._program = program
        self.sandbox = sandbox if sandbox is not None else find_sandbox()
        """What confines the candidates."""
        self._lock = threading.Lock()
        self._spare: Candidate | None = None
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def take(self) -> Candidate:
        """A candidate that has loaded nothing; the next spare is started meanwhile.

        Raises:
            EvaluationError: the processes do not start, or the pool is closed.
        """
        candidate = self._swap(self._fresh())
        return candidate if candidate is not None else self._fresh()

    def start(self, library: Path | None) -> Candidate:
        """As ``Candidate.start``; the next spare is started meanwhile."""
        return self.take().loaded(library)

    def close(self) -> None:
        """End the spare, and every candidate that is in use: whoever waits for one gets an ``EvaluationError``."""
        with self._lock:
            stop_fd, self._stop_fd = self._stop_fd, -1
        if stop_fd >= 0:
            os.eventfd_write(stop_fd, 1)
            os.close(stop_fd)  # each candidate has a copy
        spare = self._swap(None)
        if spare is not None:
            spare.end()

    def _fresh(self) -> Candidate:
        with self._lock:
            if self._stop_fd < 0:
                raise EvaluationError("expected an open pool of candidates, found it closed")
            return self._made(self._stop_fd)

    def _made(self, stop_fd: int) -> Candidate:
        return Candidate(
            threads=self._threads,
            limits=self._limits,
            program=self._program,
            sandbox=self.sandbox,
            stop_fd=stop_fd,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _swap(self, spare: Candidate | None) -> Candidate | None:
        with self._lock:
            found, self._spare = self._spare, spare
            late, is_closed = spare, self._stop_fd < 0
        if is_closed and late is not None:  # closed meanwhile: nobody would end it
            self._swap(None)
            late.end()
        return found


@contextmanager
def _copied(library: Path) -> Generator[int]:
    """A descriptor of a sealed copy in memory: the file itself is out of a sandbox's sight, or not for everybody."""
    fd = os.memfd_create(library.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(library.read_bytes())
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        yield fd
    finally:
        os.close(fd)


def _region(name: str, start: int, size_bytes: int, mapped_bytes: int) -> Region:
    return Region(name, start, size_bytes, max(mapped_bytes, child.LEAST_GUARD_BYTES))


def _wire(arguments: Sequence[Arg]) -> list[dict[str, Any]]:
    """Arguments as the child reads them.

    Raises:
        EvaluationError: an integer that is no ``int64_t``.
    """
    found: list[dict[str, Any]] = []
    tensors = 0
    for argument in arguments:
        if isinstance(argument, BufferArg):
            found.append({"tensor": tensors, "output": argument.output})
            tensors += 1
        elif isinstance(argument, WorkspaceArg):
            found.append({"workspace": argument.size_bytes})
        elif isinstance(argument, bool):
            found.append({"bool": argument})
        elif isinstance(argument, int):
            if not -_INT64 <= argument < _INT64:
                raise EvaluationError(f"expected an integer of 64 bits, found {argument}")
            found.append({"int": argument})
        else:
            found.append({"float": argument})
    return found
