"""A PyTorch submission in a process of its own: made once from its text, then called like any candidate.

The process has torch imported before it gets the text. It is handed how the reference is made and called, and makes
the model from a seed that everyone may know; inputs, and the weights of the cases, come afterwards. Once the model is
made, the process is locked: what a submission compiles, it compiles before.

A call's answer stays in the process until ``settle`` has it checked and copied to where the judge reads it. Timed calls
are settled after the clock, and after the inputs have been put back (``Judge.withdraw``).
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from kernelworks.data import Frozen
from kernelworks.errors import EnvironmentLackError, EvaluationError
from kernelworks.evaluate import child
from kernelworks.evaluate.buffers import SharedBuffer
from kernelworks.evaluate.heap import heap_environment
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.process import (
    Arg,
    BufferArg,
    CallResult,
    Candidate,
    CandidateError,
    CandidatePool,
    FloatMode,
    TimedCalls,
)
from kernelworks.evaluate.program import Program
from kernelworks.evaluate.records import Heap, ReferenceCalling
from kernelworks.evaluate.sandbox import Sandbox
from kernelworks.evaluate.settings import Settings
from kernelworks.evaluate.supervision import Limits
from kernelworks.kernel.verdict import Status

SEED = 20_250
"""From which every model is made, the reference's and the submission's, so that equal parameters tell their names."""
LIMITS = Limits(start_s=120.0, file_bytes=256 << 20, folder_bytes=1 << 30)
"""Time to import torch from a cold disk, and room for what a compiler writes."""
SETTLE_S = 60.0
PREPARE, SETTLE = "#prepare", "#settle"
"""Errands of a key that are rung for like calls."""
ERRAND_NS, TENSOR_NS, BYTE_NS = 500_000, 10_000, 1.0
"""Processor time that an errand takes at most: Python around it, for each tensor of the key, and for each byte of an
answer that is copied, once to make it dense included ..."""
ERRAND_SLACK = 2.0
"""... and so many times as much where caches are cold and memory is shared. What goes beyond is hidden work."""
_STATUSES = {
    "missing": Status.INVALID,
    "signature": Status.INVALID,
    "build": Status.BUILD_ERROR,
    "raised": Status.CRASHED,
    "output": Status.WRONG,
    "thread": Status.DISHONEST,
}
_WORDS = {"thread": "leftover_thread"}


class SubmissionError(CandidateError):
    """What a submission did wrong, as its process tells it; carries status and kind of the finding."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = _STATUSES[kind]
        self.kind = _WORDS.get(kind, kind)


class _Problem(Frozen):
    kind: str = Field(pattern="^(missing|signature|build|raised|output|thread)$")
    message: str


class _Loaded(Frozen):
    ftz: bool
    daz: bool
    problem: _Problem | None
    setup_ms: float


class _Matched(Frozen):
    unmatched: tuple[str, ...]
    strange: tuple[str, ...]


class _Told(Frozen):
    problem: _Problem | None


_Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class Work(Frozen):
    """Whose time one call was (``module_work``)."""

    total_ns: _Count
    torch_ns: _Count
    own_ns: _Count
    own_calls: _Count
    plain_calls: _Count
    """Of these, those that called no operator of torch."""
    operators: tuple[tuple[str, _Count, _Count], ...]
    """Name, calls and nanoseconds; those that took longest first."""
    operator_calls: _Count
    dispatched: _Count
    """Operators that were looked at, views and allocations too."""


class _Profiled(Frozen):
    problem: _Problem | None
    work: Work


class _Company(Frozen):
    python_threads: _Count


@dataclass(frozen=True)
class Weights:
    """How the parameters of a submission's model go with those of the reference."""

    unmatched: tuple[str, ...] = ()
    """Of the reference, and nowhere in the submission."""
    strange: tuple[str, ...] = ()
    """Of the submission, and nowhere in the reference."""


class ModuleCandidate(Candidate):
    """One submission's process.

    Args:
        threads: of torch's pool, and again of an OpenMP pool of its own.
        limits: of the process.
        heap: ``warm`` keeps its pages, as the judge's does.
        reference: how the reference is made and called.
        setup_s: for importing the text and making the model, compilers included.
        sandbox: what confines it.
        stop_fd: when this becomes readable, it is ended.
    """

    def __init__(
        self,
        *,
        threads: int,
        limits: Limits,
        heap: Heap,
        reference: ReferenceCalling,
        setup_s: float,
        sandbox: Sandbox | None = None,
        stop_fd: int | None = None,
    ) -> None:
        super().__init__(threads=threads, limits=limits, program=module_program(heap), sandbox=sandbox, stop_fd=stop_fd)
        self._reference = reference
        self._setup_s = setup_s
        self._pool_threads = 0
        self._hidden_cpu_ns = 0
        """Of errands since the last timed call: between them and the last answer, and beyond what they may take."""
        self._sizes: dict[str, tuple[int, int]] = {}
        """By key: tensors that are given to the submission, and bytes of its answer."""
        self.setup_ms = 0.0
        """What importing the text and making the model took."""
        self.weights = Weights()

    def load(self, library: Path | None) -> FloatMode:
        """Execute the text in this file, make the model, find whose weights are whose, and lock the process.

        Raises:
            SubmissionError: there is no ``ModelNew``, it has another signature, or it raised.
            CandidateEndedError: it crashed, hung or left.
        """
        assert library is not None, "a submission is a text"
        self.get_ready()
        self._pool_threads = super().thread_count() - 1
        calling = self._reference.calling
        interface = {**calling.model_dump(mode="json"), "seed": self._reference.seed}
        with library.open("rb") as text:
            loaded = self._ask(_Loaded, "load", self._setup_s, (text.fileno(),), interface=interface)
        self.setup_ms = loaded.setup_ms
        if loaded.problem is not None:
            raise SubmissionError(loaded.problem.kind, loaded.problem.message)
        self._match(calling.weights)
        self.lock()
        return FloatMode(loaded.ftz, loaded.daz)

    def bind(self, key: str, arguments: Sequence[Arg], timeout_s: float = SETTLE_S) -> None:
        """Fix arguments, in the prototype's order, under a new key; dims and strides are left out."""
        tensors = [a for a in arguments if isinstance(a, BufferArg)]
        outputs = [a for a in tensors if a.output]
        answer_bytes = sum(a.buffer.layout.size_bytes for a in outputs)
        self._sizes[key] = (len(tensors) - len(outputs), answer_bytes)
        self._map(key, [a.buffer for a in tensors], timeout_s)
        with _text(_wire(arguments)) as fd:
            self._ask(_Bound, "bind", timeout_s, (fd,), key=key)

    def call(self, key: str, timeout_s: float) -> CallResult:
        """Call ``forward`` once, the heap poisoned, and settle.

        Raises:
            SubmissionError: it raised, or its answer is not what the reference returns.
        """
        start = time.perf_counter()
        super().call(key, timeout_s)
        elapsed_ms = (time.perf_counter() - start) * 1e3
        self._explain(key)
        return CallResult(0, elapsed_ms)

    def prepare(self, keys: Sequence[str], timeout_s: float) -> None:
        """Have the last answers forgotten and fresh tensors made, before the inputs of the next timed call stand."""
        allowed_ns = sum(ERRAND_NS + TENSOR_NS * self._sizes[key][0] for key in keys)
        self._errand([key + PREPARE for key in keys], allowed_ns, timeout_s)

    def time(self, keys: Sequence[str], allocate: bool, timeout_s: float) -> TimedCalls:
        """As for any candidate, after ``prepare``.

        Processor time that the process used since its last timed answer counts as idle time of these calls, but for
        what honest errands take.
        """
        timed = super().time(keys, allocate, timeout_s)
        if timed.returned != 0:
            for key in keys:
                self._explain(key)
        hidden_ns, self._hidden_cpu_ns = self._hidden_cpu_ns, 0
        return replace(timed, idle_cpu_ns=timed.idle_cpu_ns + hidden_ns)

    def settle(self, key: str) -> None:
        """Have the last answer of a key checked and copied to the judge's buffer.

        Raises:
            SubmissionError: it is not what the reference returns.
        """
        tensors, answer_bytes = self._sizes[key]
        allowed_ns = ERRAND_NS + TENSOR_NS * tensors + BYTE_NS * answer_bytes
        if self._errand([key + SETTLE], allowed_ns, SETTLE_S) != 0:
            self._explain(key)

    def _errand(self, keys: list[str], allowed_ns: float, timeout_s: float) -> int:
        """Ring for an errand; what it returned. Its processor time counts where it is more than the work takes."""
        rung = super().time(keys, False, timeout_s)
        self._hidden_cpu_ns += rung.idle_cpu_ns + max(0, rung.cpu_ns - int(ERRAND_SLACK * allowed_ns))
        return rung.returned

    def profile(self, key: str, timeout_s: float, without: Literal["", "torch", "own"] = "") -> Work:
        """One call with everybody's time taken, not settled; torch's operators or its own code can be made to fail.

        Raises:
            SubmissionError: it raised.
        """
        found = self._ask(_Profiled, "profile", timeout_s, key=key, without=without)
        if found.problem is not None:
            raise SubmissionError(found.problem.kind, found.problem.message)
        return found.work

    def thread_count(self) -> int:
        """Threads of the process besides those of torch's pool."""
        return super().thread_count() - self._pool_threads

    def strange_threads(self) -> int:
        """Threads that run Python beside the one that is called, as the process tells it."""
        return self._ask(_Company, "company", self._limits.start_s).python_threads - 1

    def _explain(self, key: str) -> None:
        told = self._ask(_Told, "settle", SETTLE_S, key=key)
        if told.problem is not None:
            raise SubmissionError(told.problem.kind, told.problem.message)

    def _match(self, names: Sequence[str]) -> None:
        slots = self._reference.weights
        buffers = [SharedBuffer.attach(slot.layout, os.dup(slot.fd)) for slot in slots]
        try:
            self._map("", buffers, SETTLE_S)
            weights = [
                {"name": name, "argument": slot.name, "dtype": slot.dtype.value, "shape": slot.shape}
                for name, slot in zip(names, slots, strict=True)
            ]
            with _text(weights) as fd:
                matched = self._ask(_Matched, "match", self._limits.start_s, (fd,), key="")
        finally:
            for buffer in buffers:
                buffer.close()
        self.weights = Weights(matched.unmatched, matched.strange)


class _Bound(Frozen):
    workspaces: tuple[int, ...]


@contextmanager
def _text(value: Any) -> Generator[int]:
    """JSON in a memory file: a model of hundreds of tensors does not fit into one packet."""
    fd = os.memfd_create("kernelworks-arguments", os.MFD_CLOEXEC)
    try:
        os.pwrite(fd, json.dumps(value).encode(), 0)
        yield fd
    finally:
        os.close(fd)


def _wire(arguments: Sequence[Arg]) -> list[dict[str, Any]]:
    """Tensors and Python scalars as the process reads them."""
    found: list[dict[str, Any]] = []
    tensors = 0
    for argument in arguments:
        if isinstance(argument, BufferArg):
            slot = argument.slot
            assert slot is not None, "a submission's arguments are those of a prepared case"
            about = {"name": slot.name, "role": slot.role, "dtype": slot.dtype.value}
            found.append({"tensor": tensors, **about, "shape": slot.shape, "strides": slot.strides})
            tensors += 1
        elif isinstance(argument, bool):
            found.append({"bool": argument})
        elif isinstance(argument, int):
            found.append({"int": argument})
        elif isinstance(argument, float):
            found.append({"float": argument})
        else:
            raise EvaluationError(f"a submission has no place for {type(argument).__name__}")
    return found


class ModulePool(CandidatePool):
    """Keeps one spare process with torch imported, which hides more than a second.

    Args:
        judge: asked for the reference's calling when the first submission comes; nothing is started before.
        settings: threads of torch's pool; the time to build a kernel is that to import a text and make its model.
        heap: of the policy.
        sandbox: what confines the processes.
    """

    def __init__(self, judge: Judge, settings: Settings, heap: Heap, sandbox: Sandbox | None = None) -> None:
        super().__init__(threads=settings.threads, limits=LIMITS, sandbox=sandbox)
        self._judge = judge
        self._heap: Heap = heap
        self._setup_s = settings.build_timeout_s
        self._reference: ReferenceCalling | None = None

    def _made(self, stop_fd: int) -> Candidate:
        if self._reference is None:
            self._reference = self._judge.calling(SEED)
        return ModuleCandidate(
            threads=self._threads,
            limits=self._limits,
            heap=self._heap,
            reference=self._reference,
            setup_s=self._setup_s,
            sandbox=self.sandbox,
            stop_fd=stop_fd,
        )


@cache
def module_program(heap: Heap) -> Program:
    """The process of submissions.

    Raises:
        EnvironmentLackError: torch is not installed.
    """
    ours = Path(child.__file__)
    folders = _package_folders()
    readable = [Path(folder) for folder in folders]
    path = ["/usr/bin", "/bin"]
    ninja = shutil.which("ninja", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if ninja is not None and not ninja.startswith("/usr/"):
        path.insert(0, str(Path(ninja).parent))
        readable.append(Path(ninja))
    return Program(
        ours.with_name("module_child.py"),
        arguments=folders,
        beside=(ours, ours.with_name("module_model.py"), ours.with_name("module_work.py")),
        readable=tuple(readable),
        environment={
            **heap_environment(heap),
            "PATH": os.pathsep.join(path),
            "OPENBLAS_NUM_THREADS": "1",  # NumPy's pool would start with its import; its work is nobody's kernel
            "MAX_JOBS": "2",  # of a build with ninja
        },
        setup=True,
    )


def _package_folders() -> tuple[str, ...]:
    """Folders in which torch and NumPy are installed."""
    found: list[str] = []
    for name in ("torch", "numpy"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            folder = str(Path(spec.origin).parent.parent)
            if folder not in found:
                found.append(folder)
        elif name == "torch":
            raise EnvironmentLackError("torch is not installed", mend="pip install 'kernelworks[torch]'")
    return tuple(found)
