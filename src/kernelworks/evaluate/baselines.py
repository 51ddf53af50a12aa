"""The trusted opponents: the reference as its framework runs it, and what the framework's compiler makes of it.

They run in the judge's process on the very buffers that candidates get. The heap policy is that of the process.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from kernelworks.errors import EvaluationError, TaskError
from kernelworks.evaluate.casestate import CaseState, view
from kernelworks.evaluate.doorbell import Sweep
from kernelworks.evaluate.numbers import Raw
from kernelworks.evaluate.records import BaselineCalls, BaselineNames
from kernelworks.evaluate.reference import Reference
from kernelworks.home import home
from kernelworks.task.lazytorch import torch_module
from kernelworks.task.model import TensorArgument, concrete_shape

COMPILE_LIMIT_S = 120.0
"""Time that torch.compile may take for one case."""
_WARM_RUNS = 6
_WARM_S = 1.0


@dataclass
class _Program:
    """A callable bound to the arrays of one case."""

    run: Callable[..., Any]
    arguments: tuple[Any, ...]
    mutable: list[tuple[Raw, Raw]]
    """Arrays that it changes in place, with their pristine values."""

    def warm(self) -> None:
        """Run until the heap has found its shape: at least twice, then up to 6 times or one second."""
        start = time.monotonic()
        for run in range(_WARM_RUNS):
            if run >= 2 and time.monotonic() - start > _WARM_S:
                break
            self.restore()
            self.run(*self.arguments)

    def restore(self) -> None:
        """Undo changes in place."""
        for own, pristine in self.mutable:
            own[...] = pristine


class Baselines:
    """Eager (or the NumPy reference) and, where it works, torch.compile."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._anchor = "eager" if reference.task.framework == "torch" else "reference"
        self._programs: dict[tuple[str, str], _Program] = {}
        self._missing: dict[str, str] = {}
        self._sweep: Sweep | None = None

    def names(self) -> BaselineNames:
        """What can be timed; ``missing`` says why torch.compile cannot, once that is known."""
        found = [self._anchor]
        if self._anchor == "eager" and "compile" not in self._missing:
            found.append("compile")
        return BaselineNames(names=tuple(found), missing=self._missing)

    def warm(self, name: str, state: CaseState) -> BaselineNames:
        """Run a baseline on a case until it is ready for the clock (torch.compile compiles here, for these shapes).

        A compiler that fails is not an error: the baseline moves to ``missing``.

        Raises:
            EvaluationError: there is no such baseline.
        """
        self._refuse_unknown(name)
        program = self._program(state)
        if name == "compile":
            try:
                with _time_limit(COMPILE_LIMIT_S):
                    program = replace(program, run=_compiled(program.run))
                    program.warm()
            except Exception as error:  # noqa: BLE001  torch.compile fails in every way there is; the reason is kept
                first = (str(error).strip() or "no message").splitlines()[0][:300]
                self._missing[name] = f"torch.compile failed: {type(error).__name__}: {first}"
                return self.names()
        else:
            program.warm()
        self._programs[name, state.key] = program
        return self.names()

    def time(self, name: str, states: Sequence[CaseState], flush_bytes: int) -> BaselineCalls:
        """Time one call of a warm baseline for each case, in turn, on what stands in the shared inputs.

        The clock covers the calls alone: eviction of the caches (once, before the first), restoring of inputs changed
        in place, and the release of results lie outside.

        Raises:
            EvaluationError: there is no such baseline, or it is not warm.
        """
        self._refuse_unknown(name)
        programs = [self._warmed(name, state) for state in states]
        usage, who, clock = resource.getrusage, resource.RUSAGE_SELF, time.perf_counter_ns
        elapsed: list[int] = []
        faults: list[int] = []
        for program in programs:
            program.restore()
        if flush_bytes:
            self._flush(flush_bytes)
        for program in programs:
            run, arguments = program.run, program.arguments
            before = usage(who).ru_minflt
            start = clock()
            result = run(*arguments)
            end = clock()
            faults.append(usage(who).ru_minflt - before)
            elapsed.append(end - start)
            del result
        return BaselineCalls(elapsed_ns=tuple(elapsed), page_faults=tuple(faults))

    def _warmed(self, name: str, state: CaseState) -> _Program:
        if (name, state.key) not in self._programs:
            raise EvaluationError(f"baseline {name}: expected it warm on case {state.key}, found it was not")
        return self._programs[name, state.key]

    @property
    def any_warm(self) -> bool:
        """Whether some baseline is ready for the clock."""
        return bool(self._programs)

    def forget(self, key: str) -> None:
        """Drop the programs of a case that is released."""
        for entry in [entry for entry in self._programs if entry[1] == key]:
            del self._programs[entry]

    def _refuse_unknown(self, name: str) -> None:
        known = self.names().names
        if name not in known:
            raise EvaluationError(
                f"baseline: expected one of {', '.join(known)}, found {name!r} {self._missing.get(name, '')}".rstrip()
            )

    def _program(self, state: CaseState) -> _Program:
        """The reference on the shared inputs; on arrays of its own where it changes them in place."""
        arrays: list[Any] = []
        mutable: list[tuple[Raw, Raw]] = []
        for argument, value in zip((*state.task.inputs, *state.task.weights), state.drawn, strict=True):
            if not isinstance(argument, TensorArgument):
                arrays.append(value)
            elif argument.name in state.shared:
                shape = concrete_shape(argument, state.case)
                arrays.append(view(state.shared[argument.name], argument.dtype).reshape(shape))
            else:
                arrays.append(value.copy())
                mutable.append((arrays[-1], value))
        run, arguments = self._reference.program(arrays)
        return _Program(run, arguments, mutable)

    def _flush(self, size_bytes: int) -> None:
        """Evict the caches by reading memory of our own, as the harness does before a candidate's calls."""
        if self._sweep is None or self._sweep.size_bytes != size_bytes:
            self._sweep = Sweep(size_bytes)
        self._sweep()


def _compiled(run: Callable[..., Any]) -> Callable[..., Any]:
    torch = torch_module()
    torch._dynamo.config.recompile_limit = 64  # every case has its own shapes
    return torch.compile(run, dynamic=False)


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
