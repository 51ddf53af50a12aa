"""The trusted opponents: the reference as its framework runs it, and what the framework's compiler makes of it.

They run in the judge's process on the very buffers that candidates get. The heap policy is that of the process.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from kernelworks.errors import EvaluationError, TaskError
from kernelworks.evaluate.casestate import CaseState, view
from kernelworks.evaluate.records import BaselineNames, TimedCalls
from kernelworks.evaluate.reference import Reference
from kernelworks.home import home
from kernelworks.task.model import TensorArgument, concrete_shape

COMPILE_LIMIT_S = 120.0
"""Time that torch.compile may take for one case."""

Run = Callable[..., Any]


class Baselines:
    """Eager (or the NumPy reference) and, where it works, torch.compile."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._anchor = "eager" if reference.task.framework == "torch" else "reference"
        self._runs: dict[str, Run] = {self._anchor: reference.as_called()}
        self._missing: dict[str, str] = {}
        self._sweep: mmap.mmap | None = None

    def names(self) -> BaselineNames:
        """What can be timed; ``missing`` says why torch.compile cannot, once that is known."""
        found = [self._anchor]
        if self._anchor == "eager" and "compile" not in self._missing:
            found.append("compile")
        return BaselineNames(names=tuple(found), missing=self._missing)

    def warm(self, name: str, state: CaseState) -> BaselineNames:
        """Run a baseline on a case until it is ready for the clock (torch.compile compiles here, for these shapes).

        A compiler that fails is not an error: the baseline moves to ``missing``.
        """
        if name != "compile":
            self._run(name)(*self._arrays(state))
            return self.names()
        try:
            with _time_limit(COMPILE_LIMIT_S):
                self._runs.setdefault(name, self._compile())
                for _ in range(2):
                    self._runs[name](*self._arrays(state))
        except Exception as error:  # noqa: BLE001  torch.compile fails in every way there is; the reason is kept
            first = (str(error).strip() or "no message").splitlines()[0][:300]
            self._missing[name] = f"torch.compile failed: {type(error).__name__}: {first}"
        return self.names()

    def time(self, name: str, state: CaseState, calls: int, flush_bytes: int) -> TimedCalls:
        """Time calls of a warm baseline on what stands in the shared inputs.

        The clock covers the call alone: eviction of the caches, restoring of inputs changed in place, and the release
        of the last result lie outside.

        Raises:
            EvaluationError: there is no such baseline, or it was not warmed.
        """
        run = self._run(name)
        usage, who, clock = resource.getrusage, resource.RUSAGE_SELF, time.perf_counter_ns
        elapsed: list[int] = []
        faults: list[int] = []
        for _ in range(calls):
            arrays = self._arrays(state)
            if flush_bytes:
                self._flush(flush_bytes)
            before = usage(who).ru_minflt
            start = clock()
            result = run(*arrays)
            end = clock()
            faults.append(usage(who).ru_minflt - before)
            elapsed.append(end - start)
            del result
        return TimedCalls(elapsed_ns=tuple(elapsed), page_faults=tuple(faults))

    def _run(self, name: str) -> Run:
        if name not in self._runs or name in self._missing:
            known = ", ".join(self._runs)
            raise EvaluationError(f"baseline: expected one of {known}, found {name!r} {self._missing.get(name, '')}")
        return self._runs[name]

    def _arrays(self, state: CaseState) -> list[Any]:
        """Native arrays on the shared inputs; fresh copies of those that the reference changes in place."""
        frame = self._reference.frame
        arrays: list[Any] = []
        for argument, value in zip((*state.task.inputs, *state.task.weights), state.drawn, strict=True):
            if not isinstance(argument, TensorArgument):
                arrays.append(value)
            elif argument.name in state.shared:
                raw = view(state.shared[argument.name], argument.dtype).reshape(concrete_shape(argument, state.case))
                arrays.append(frame.native(raw, argument.dtype))
            else:
                arrays.append(frame.copy(frame.native(value, argument.dtype)))
        return arrays

    def _compile(self) -> Run:
        import torch
        import torch._dynamo.config as dynamo

        dynamo.recompile_limit = 64  # every case has its own shapes
        return torch.compile(self._reference.as_called(), dynamic=False)  # pyright: ignore

    def _flush(self, size_bytes: int) -> None:
        """Evict the caches by reading memory of our own, as the candidate's process does."""
        if self._sweep is None or len(self._sweep) < size_bytes:
            self._sweep = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._sweep.write(bytes(size_bytes))
        self._sweep.find(b"\x01")


def compiler_environment() -> dict[str, str]:
    """Environment with which torch.compile keeps its files in our home and starts no pool of processes."""
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(home() / "inductor"))
    return {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}


@contextmanager
def _time_limit(limit_s: float) -> Generator[None]:
    """Raise TaskError in the main thread when the time is over (Python code and waits for children alone)."""

    def over(_number: int, _frame: FrameType | None) -> None:
        raise TaskError(f"not ready after {limit_s:g} s")

    previous = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
