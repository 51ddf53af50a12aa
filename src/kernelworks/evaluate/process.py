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

import json
import secrets
import select
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, ValidationError

from kernelworks.data import Frozen
from kernelworks.errors import EvaluationError
from kernelworks.evaluate import child
from kernelworks.evaluate.buffers import SharedBuffer
from kernelworks.evaluate.faults import FaultPage, Region, fault_shim
from kernelworks.evaluate.supervision import Cause, Exit, Limits, State, Supervision, SupervisorLostError

MAX_CALLS = 2000
"""Timed calls in one command: the answer must fit into one packet."""

MAX_ERROR_CHARACTERS = 2000
"""Kept of an error that the candidate's process answers."""

_INT64 = 1 << 63


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
    """Timed calls, as the candidate's process reports them, beside the harness's own clock."""

    returned: int
    """0, or what the first failing call returned; no call was made after it."""
    inner_ns: tuple[int, ...]
    outer_ns: int
    """Around the whole command: calls, cache flushes and messages."""
    page_faults: tuple[int, ...]
    """Minor faults of each call, all threads."""


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
_Count = Annotated[int, Field(ge=0, lt=_INT64)]
_Code = Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]


class _Mapped(Frozen):
    bases: tuple[_Address, ...]


class _BoundTo(Frozen):
    workspaces: tuple[_Address, ...]


class _Called(Frozen):
    returned: _Code


class _Timed(Frozen):
    returned: _Code
    inner_ns: tuple[_Count, ...]
    page_faults: tuple[_Count, ...]


_Value = TypeVar("_Value", bound=Frozen)


class Candidate:
    """One candidate's process. Use as a context manager, from one thread at a time.

    Every method but ``end`` raises ``CandidateEndedError`` once the candidate has ended.
    """

    def __init__(self, *, threads: int, limits: Limits) -> None:
        """Start the processes, without waiting for them; ``load`` makes it a candidate."""
        self._limits = limits
        self._regions: dict[str, list[Region]] = {}
        self._flush_bytes = 0
        self._exit: Exit | None = None
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            for end in (self._channel, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * child.MESSAGE_BYTES)
            try:
                self._supervision = Supervision(theirs, threads=threads, limits=limits)
            except EvaluationError:
                self._channel.close()
                raise
        self._page = FaultPage()
        self._poll = select.poll()
        self._poll.register(self._channel, select.POLLIN)
        self._poll.register(self._supervision, select.POLLIN)

    @classmethod
    def start(cls, library: Path, *, threads: int, limits: Limits) -> Self:
        """Start the processes and load the library.

        Raises:
            CandidateLoadError: it cannot be loaded or has no ``launch``.
            CandidateEndedError: its constructors crashed, hung or left.
            EvaluationError: the processes do not start.
        """
        return cls(threads=threads, limits=limits).loaded(library)

    def loaded(self, library: Path) -> Self:
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

    def load(self, library: Path) -> FloatMode:
        """Load the library; call it once, before anything else. The mode tells of a link with fast-math flags."""
        shim = fault_shim()
        try:
            with suppress(CandidateRefusedError):  # a shim that cannot be loaded costs detail only
                path = str(shim) if shim is not None else None
                self._ask(_Empty, "watch", self._limits.start_s, (self._page.fd,), shim=path)
        except CandidateEndedError as error:  # no code of the candidate has run yet
            raise EvaluationError(f"the candidate's process did not start: {error}") from error
        try:
            mode = self._ask(_Mode, "load", self._limits.start_s, path=str(library.absolute()))
        except CandidateRefusedError as error:
            raise CandidateLoadError(str(error)) from error
        return FloatMode(mode.ftz, mode.daz)

    def bind(self, key: str, arguments: Sequence[Arg], timeout_s: float = 60.0) -> None:
        """Fix arguments, in the prototype's order, under a new key.

        Each key maps its tensors anew, so that several keys give the same tensors at different addresses.
        """
        buffers = [a.buffer for a in arguments if isinstance(a, BufferArg)]
        workspaces = [a for a in arguments if isinstance(a, WorkspaceArg)]
        self._allow(sum(b.layout.file_bytes for b in buffers) + sum(w.size_bytes for w in workspaces))
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
        found = self._ask(_BoundTo, "bind", timeout_s, key=key, arguments=_wire(arguments)).workspaces
        self._check(len(found) == len(workspaces), "bind")
        for address, workspace in zip(found, workspaces, strict=True):
            regions.append(_region(workspace.name, address, workspace.size_bytes, workspace.size_bytes))

    def call(self, key: str, timeout_s: float) -> CallResult:
        """Call ``launch`` once, workspaces poisoned."""
        start = time.perf_counter()
        returned = self._ask(_Called, "call", timeout_s, key=key).returned
        return CallResult(returned, (time.perf_counter() - start) * 1e3)

    def time(self, keys: Sequence[str], calls: int, flush_bytes: int, allocate: bool, timeout_s: float) -> TimedCalls:
        """Timed calls, keys in turn.

        Args:
            keys: bound keys.
            calls: 1 to ``MAX_CALLS``.
            flush_bytes: read this much other memory before each call, outside the clock; 0 leaves caches warm.
            allocate: outputs and workspaces are allocated and freed inside the clock (policy ``as_called``).
            timeout_s: for the whole command.
        """
        if not 1 <= calls <= MAX_CALLS:
            raise EvaluationError(f"expected 1 to {MAX_CALLS} timed calls, found {calls}")
        if flush_bytes > self._flush_bytes:
            self._allow(flush_bytes)
            self._flush_bytes = flush_bytes
        start = time.perf_counter_ns()
        timed = self._ask(
            _Timed, "time", timeout_s, keys=list(keys), calls=calls, flush_bytes=flush_bytes, allocate=allocate
        )
        outer_ns = time.perf_counter_ns() - start
        made = len(timed.inner_ns)
        self._check(made == len(timed.page_faults), "time")
        self._check(made == calls if timed.returned == 0 else 1 <= made <= calls, "time")
        self._check(sum(timed.inner_ns) <= outer_ns, "time")
        return TimedCalls(timed.returned, timed.inner_ns, outer_ns, timed.page_faults)

    def float_mode(self) -> FloatMode:
        """The mode of the thread that calls ``launch``, now."""
        mode = self._ask(_Mode, "float", self._limits.start_s)
        return FloatMode(mode.ftz, mode.daz)

    def thread_count(self) -> int:
        """Threads of the candidate's process, as the kernel counts them."""
        return self._inspect().threads

    def cpu_ms(self) -> int:
        """CPU time that all threads of the candidate's process used so far, as the kernel counts it, in ticks of 10."""
        return self._inspect().cpu_ms

    def descendants(self) -> tuple[str, ...]:
        """Command names of the processes, besides the candidate's, that it has started and that still run."""
        return self._inspect().processes

    def end(self) -> Exit:
        """End the candidate and everything that it started; idempotent."""
        return self._exit or self._finish(Cause.FINISHED)

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

    def _allow(self, size_bytes: int) -> None:
        if self._exit is None:
            self._supervision.allow(size_bytes)

    def _ask(self, kind: type[_Value], do: str, timeout_s: float, fds: tuple[int, ...] = (), **fields: Any) -> _Value:
        """Send one command and parse its answer; whatever else arrives ends the candidate."""
        if self._exit is not None:
            raise CandidateEndedError(do, self._exit)
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
        return {fd for fd, _ in self._poll.poll(max(0.0, timeout_s) * 1e3)}

    def _receive(self) -> bytes:
        """The next packet; empty when there is none or the channel is closed. Descriptors sent along are dropped."""
        self._channel.setblocking(False)
        try:
            return self._channel.recv(child.MESSAGE_BYTES)
        except OSError:
            return b""

    def _check(self, honest: bool, do: str) -> None:
        if not honest:
            raise self._ended(do, Cause.FORGED)

    def _ended(self, during: str, cause: Cause) -> CandidateEndedError:
        return CandidateEndedError(during, self._finish(cause))

    def _finish(self, cause: Cause) -> Exit:
        ending = self._supervision.finish(cause)
        self._channel.close()
        if ending.signal is not None and cause is not Cause.FINISHED:
            regions = [region for regions in self._regions.values() for region in regions]
            ending = replace(ending, fault=self._page.read(ending.signal, regions))
        self._page.close()
        self._exit = ending
        return ending


class CandidatePool:
    """Keeps one spare pair of processes started, which hides about 40 ms. Threads may share it."""

    def __init__(self, *, threads: int, limits: Limits) -> None:
        self._threads = threads
        self._limits = limits
        self._lock = threading.Lock()
        self._spare: Candidate | None = None

    def start(self, library: Path) -> Candidate:
        """As ``Candidate.start``; the next spare is started meanwhile."""
        candidate = self._swap(Candidate(threads=self._threads, limits=self._limits))
        if candidate is None:
            return Candidate.start(library, threads=self._threads, limits=self._limits)
        return candidate.loaded(library)

    def close(self) -> None:
        """End the spare."""
        spare = self._swap(None)
        if spare is not None:
            spare.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _swap(self, spare: Candidate | None) -> Candidate | None:
        with self._lock:
            found, self._spare = self._spare, spare
        return found


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
