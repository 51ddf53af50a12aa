"""The task's reference as the judge runs it: raw arrays in, planes of results out, user's errors as ``TaskError``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import numpy as np

from kernelworks.errors import KernelworksError, TaskError
from kernelworks.evaluate.bound import results
from kernelworks.evaluate.frames import Frame
from kernelworks.evaluate.interpret import tensors_of
from kernelworks.evaluate.numbers import Raw, plane, storage
from kernelworks.evaluate.patience import RunLimit
from kernelworks.evaluate.rowruns import RowRuns
from kernelworks.task.graph import Graph, Ref
from kernelworks.task.model import Case, DType, Task, TensorArgument, concrete_shape
from kernelworks.task.source import LoadedTask

T = TypeVar("T")


class Reference:
    """A loaded task whose arrays are raw ones."""

    def __init__(self, loaded: LoadedTask, frame: Frame, limit: RunLimit | None = None) -> None:
        self.loaded = loaded
        self._limit = limit
        self.frame = frame
        self.task: Task = loaded.task
        self._graphs: dict[str, tuple[Graph | None, str]] = {}
        self._rows = RowRuns(self.task, frame, lambda case: self.graph(case)[0], self.natives)
        self.runs: Counter[str] = Counter()
        """How often the reference was run, ``native`` and ``double``, and ``blocks`` for double runs by blocks."""

    def draw(self, case: Case, seed: int) -> list[Any]:
        """Inputs and weights as the task draws them: raw arrays and scalars.

        Raises:
            TaskError: drawing fails, or what is drawn does not fit the prototype.
        """
        drawn = self._guarded("make_inputs", lambda: self.loaded.make_inputs(case, seed))
        arguments = (*self.task.inputs, *self.task.weights)
        if len(drawn) != len(arguments):
            raise TaskError(f"task {self.task.name}: expected {len(arguments)} inputs and weights, found {len(drawn)}")
        for index, (argument, value) in enumerate(zip(arguments, drawn, strict=True)):
            if isinstance(argument, TensorArgument):
                drawn[index] = self._raw("input", argument, value, case)
        return drawn

    def natives(self, drawn: Sequence[Any]) -> list[Any]:
        """The framework's arrays on the memory of raw ones; scalars as they are."""
        arguments = (*self.task.inputs, *self.task.weights)
        return [
            self.frame.native(value, argument.dtype) if isinstance(argument, TensorArgument) else value
            for argument, value in zip(arguments, drawn, strict=True)
        ]

    def native(self, drawn: Sequence[Any], case: Case) -> list[Raw]:
        """Results in native precision, as planes; inputs stay as they are.

        Raises:
            TaskError: the reference raises, or its results do not fit the prototype.
        """
        found = self._run(self.natives(drawn), double=False)
        pairs = zip(results(self.task), found, strict=True)
        return [plane(self._raw("output", argument, value, case), argument.dtype) for argument, value in pairs]

    def double(self, drawn: Sequence[Any], case: Case) -> list[Raw]:
        """Results computed in float64, as planes of float64 (integers and bools as stored).

        By blocks of rows where that is known to give the same and whole tensors would be large.

        Raises:
            TaskError: the reference raises, or its results do not fit the prototype.
        """
        blocks = self._rows.blocks(case, lambda small: self.draw(small, small.seed), self._whole)
        if blocks is None:
            return self._whole(drawn, case)
        self.runs["blocks"] += 1
        return self._planes(self._guarded("the traced reference", lambda: self._rows.run(blocks, drawn)), case)

    def blockwise(self, case: Case) -> bool:
        """Whether double precision goes by blocks of rows in a case."""
        return self._rows.blocks(case, lambda small: self.draw(small, small.seed), self._whole) is not None

    def _whole(self, drawn: Sequence[Any], case: Case) -> list[Raw]:
        found = self._run(self.natives(drawn), double=True)
        return self._planes([self.frame.golden(value) for value in found], case)

    def _planes(self, found: Sequence[Raw], case: Case) -> list[Raw]:
        planes: list[Raw] = []
        for argument, golden in zip(results(self.task), found, strict=True):
            shape, kinds = concrete_shape(argument, case), _golden_kinds(argument)
            if golden.shape != shape or golden.dtype.kind not in kinds:
                raise TaskError(
                    f"output {argument.name} computed in float64: expected {argument.dtype}{list(shape)} in double"
                    f" precision, found {golden.dtype}{list(golden.shape)}"
                )
            flat = golden.reshape(-1)
            if argument.dtype is DType.COMPLEX64:
                flat = flat.astype(np.complex128, copy=False).view(np.float64)
            wanted = np.dtype(np.float64) if argument.dtype.is_floating else storage(argument.dtype)
            planes.append(flat.astype(wanted, copy=False))
        return planes

    def graph(self, case: Case) -> tuple[Graph | None, str]:
        """The traced reference for the sizes of a case, or None and the reason why there is none."""
        if case.name not in self._graphs:
            try:
                self._graphs[case.name] = (self.loaded.trace(case), "")
            except TaskError as error:
                self._graphs[case.name] = (None, error.message)
        return self._graphs[case.name]

    def tensors(self, drawn: Sequence[Any], case: Case, wanted: Sequence[Ref], *, double: bool) -> list[Raw]:
        """Tensors of the traced reference as flat arrays: float64 in double precision, as stored otherwise.

        Raises:
            TaskError: there is no trace, or it does not run.
        """
        graph, reason = self.graph(case)
        if graph is None:
            raise TaskError(reason)
        names = [argument.name for argument in (*self.task.inputs, *self.task.weights)]
        arguments = dict(zip(names, self.natives(drawn), strict=True))
        found = self._guarded("the traced reference", lambda: tensors_of(graph, wanted, arguments, double=double))
        flat: list[Raw] = []
        for ref, value in zip(wanted, found, strict=True):
            dtype = graph.node(ref.ref).values[ref.index].dtype
            flat.append(self.frame.golden(value).reshape(-1) if double else plane(self.frame.raw(value, dtype), dtype))
        return flat

    def program(self, drawn: Sequence[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The reference for the clock, on the memory of raw arrays: a callable and its positional arguments.

        Raises:
            TaskError: it cannot be made.
        """
        function, arguments = self._guarded("the reference", lambda: self.loaded.program(self.natives(drawn)))
        return function, arguments

    def _run(self, arrays: list[Any], *, double: bool) -> list[Any]:
        self.runs["double" if double else "native"] += 1
        found = self._guarded("the reference", lambda: self.loaded.run(arrays, double=double))
        if len(found) != len(results(self.task)):
            raise TaskError(f"the reference: expected {len(results(self.task))} results, found {len(found)}")
        return found

    def _raw(self, what: str, argument: TensorArgument, value: Any, case: Case) -> Raw:
        try:
            raw = self.frame.raw(value, argument.dtype)
        except TaskError as error:
            raise TaskError(f"{what} {argument.name}: {error.message}") from error
        shape = concrete_shape(argument, case)
        if raw.shape != shape:
            raise TaskError(f"{what} {argument.name}: expected shape {list(shape)}, found {list(raw.shape)}")
        return raw

    def _guarded(self, what: str, work: Callable[[], T]) -> T:
        try:
            with nullcontext() if self._limit is None else self._limit.running():
                return work()
        except KernelworksError:
            raise
        except Exception as error:  # the user's code: whatever it raises is the task's fault
            raise TaskError(f"{what} of task {self.task.name} raised {type(error).__name__}: {error}") from error


def _golden_kinds(argument: TensorArgument) -> str:
    """Kinds of NumPy dtypes that a result of double precision may have."""
    if argument.dtype is DType.COMPLEX64:
        return "c"
    return "f" if argument.dtype.is_floating else storage(argument.dtype).kind
