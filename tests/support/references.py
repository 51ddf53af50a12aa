"""Small tasks with a NumPy function behind them, for tests of what the judge does with a loaded task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kernelworks.errors import TaskError
from kernelworks.evaluate.bound import reduction_lengths, results
from kernelworks.evaluate.casestate import CaseState
from kernelworks.evaluate.frames import NumpyFrame
from kernelworks.evaluate.numbers import storage
from kernelworks.evaluate.prepare import prepare_case
from kernelworks.evaluate.reference import Reference
from kernelworks.task.graph import Graph
from kernelworks.task.model import Case, CaseRole, DType, Task, TensorArgument, Tolerance, concrete_shape
from kernelworks.task.source import Arrays, Calling

Function = Callable[[Any], Any] | Callable[[Any, Any], Any]
"""Of one or two arrays; a tuple, one result, or None where it changes an input."""
Array = NDArray[Any]


def tensor(name: str, *shape: str | int, dtype: DType = DType.FLOAT32) -> TensorArgument:
    """An argument; outputs are made of it by ``numpy_task``."""
    return TensorArgument(name=name, dtype=dtype, shape=shape, role="input")


@dataclass(frozen=True)
class NumpyTask:
    """A loaded task whose reference is a NumPy function of its inputs."""

    task: Task
    function: Function
    low: int = -8
    high: int = 8
    """Integers are drawn from [low, high)."""
    fixed: dict[str, Array] = field(default_factory=dict[str, Array])
    """Inputs that are not drawn."""

    def make_inputs(self, case: Case, seed: int) -> list[Any]:
        """Standard normal floats, uniform integers, even bools."""
        rng = np.random.default_rng(seed)
        found: list[Any] = []
        for argument in self.task.inputs:
            assert isinstance(argument, TensorArgument)
            shape = concrete_shape(argument, case)
            if argument.name in self.fixed:
                found.append(self.fixed[argument.name])
            elif argument.dtype is DType.COMPLEX64:
                found.append((rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64))
            elif argument.dtype.is_floating:
                found.append(rng.standard_normal(shape).astype(storage(argument.dtype)))
            elif argument.dtype is DType.BOOL:
                found.append(rng.random(shape) < 0.5)
            else:
                found.append(rng.integers(self.low, self.high, shape).astype(storage(argument.dtype)))
        return found

    def run(self, arrays: Arrays, *, double: bool = False) -> list[Any]:
        """The function on the arrays, or on wider copies; then what it changed in place."""
        wide = {"f": np.float64, "c": np.complex128}
        values: list[Any] = [a.astype(wide.get(a.dtype.kind, a.dtype)) if double else a for a in arrays]
        names = [a.name for a in self.task.inputs]
        changed = [names.index(name) for name in self.task.mutates]
        for index in changed:
            values[index] = values[index].copy()
        found: Any = self.program(values)[0](*values)
        outputs: list[Any] = (
            list(cast("tuple[Any, ...]", found)) if isinstance(found, tuple) else [] if found is None else [found]
        )
        return [np.asarray(o) for o in outputs] + [values[index] for index in changed]

    def program(self, arrays: Arrays) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The function and its arguments."""
        function: Callable[..., Any] = self.function
        return function, tuple(arrays)

    def trace(self, case: Case) -> Graph:
        """NumPy is not traced."""
        raise TaskError(f"{self.task.name}: no trace of a NumPy reference for case {case.name}")

    def calling(self) -> Calling:
        """As the function is called."""
        slots = tuple({"slot": k} for k in range(len(self.task.inputs)))
        return Calling(init_signature="none", forward=slots, forward_signature=self.task.name)


def numpy_task(
    function: Function,
    inputs: Sequence[TensorArgument],
    outputs: Sequence[TensorArgument],
    sizes: dict[str, int],
    **options: Any,
) -> NumpyTask:
    """A task with one timed case of these sizes. Options: ``tolerance``, ``mutates``, and those of ``NumpyTask``."""
    task = Task(
        name=getattr(function, "__name__", "task"),
        source="python",
        digest="0" * 64,
        framework="numpy",
        inputs=tuple(inputs),
        outputs=tuple(o.model_copy(update={"role": "output"}) for o in outputs),
        dims=tuple(sizes),
        cases=(Case(name="main", role=CaseRole.TIMED, sizes=sizes),),
        tolerance=Tolerance(relative_rms=options.pop("tolerance", None)),
        mutates=options.pop("mutates", ()),
    )
    return NumpyTask(task, function, **options)


def reference_of(loaded: NumpyTask) -> Reference:
    """As the judge holds it."""
    return Reference(loaded, NumpyFrame())


def prepared(loaded: NumpyTask, family: str = "normal", seed: int = 1) -> CaseState:
    """Its only case, prepared."""
    case = loaded.task.cases[0]
    lengths = reduction_lengths(loaded.task, case, None)
    pools: list[list[Any]] = [[] for _ in results(loaded.task)]
    return prepare_case(reference_of(loaded), case, seed, family, lengths, pools)
