"""Runs a traced reference in double precision block by block (``blocks``), where that gives what a whole run gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kernelworks.evaluate.blocks import Blocks, find_blocks
from kernelworks.evaluate.bound import results
from kernelworks.evaluate.frames import Frame
from kernelworks.evaluate.interpret import tensors_of
from kernelworks.evaluate.numbers import Raw
from kernelworks.task.graph import Graph
from kernelworks.task.lazytorch import to_double
from kernelworks.task.model import Case, CaseRole, Task, TensorArgument, element_count

_TRIAL_ELEMENTS = 1 << 22
"""Up to this size of all tensors a case is small enough to be run both ways."""
_AGREEMENT = 1e-10
"""Largest difference of the two ways, over the largest value of the result."""

Graphs = Callable[[Case], Graph | None]
Double = Callable[[Sequence[Any], Case], list[Raw]]
Draw = Callable[[Case], list[Any]]


class RowRuns:
    """Of one task.

    A trace is an account of the reference by someone else (``torch.export``), so it is held against the reference
    itself first: on a small case of the same operators both must give the same.

    Args:
        task: whose results.
        frame: of its framework.
        graphs: the trace for a case's sizes, or None.
        natives: the framework's arrays on raw ones.
    """

    def __init__(self, task: Task, frame: Frame, graphs: Graphs, natives: Callable[[Sequence[Any]], list[Any]]) -> None:
        self._task = task
        self._frame = frame
        self._graphs = graphs
        self._natives = natives
        self._found: dict[str, Blocks | None] = {}
        self._agreed: dict[tuple[str, ...], bool] = {}

    def blocks(self, case: Case, draw: Draw, double: Double) -> Blocks | None:
        """How to run a case by blocks; None where it must run whole, or is small.

        Args:
            case: of the task.
            draw: inputs of a case.
            double: a whole run.
        """
        if case.name not in self._found:
            self._found[case.name] = self._find(case, draw, double)
        return self._found[case.name]

    def run(self, blocks: Blocks, drawn: Sequence[Any]) -> list[Raw]:
        """Results in double precision, flat, as the frame gives golden ones.

        Raises:
            RuntimeError: the graph does not run.
        """
        arguments = self._arguments(drawn)
        whole = {name: value if name in blocks.sliced else to_double(value) for name, value in arguments.items()}
        made: list[Raw] = []
        graph, resized = blocks.of(blocks.rows), blocks.rows
        for start in range(0, blocks.total, blocks.rows):
            rows = min(blocks.rows, blocks.total - start)
            if rows != resized:
                graph, resized = blocks.of(rows), rows
            cut = {n: v[start : start + rows] if n in blocks.sliced else v for n, v in whole.items()}
            parts = [self._frame.golden(part) for part in tensors_of(graph, graph.outputs, cut, double=True)]
            if not made:
                made = [np.empty((blocks.total, *part.shape[1:]), part.dtype) for part in parts]
            for result, part in zip(made, parts, strict=True):
                result[start : start + rows] = part
        return made

    def _find(self, case: Case, draw: Draw, double: Double) -> Blocks | None:
        graph = None if self._task.mutates or self._task.framework != "torch" else self._graphs(case)
        if graph is None or len(graph.outputs) != len(results(self._task)):
            return None
        blocks = find_blocks(graph, self._candidates(case))
        return blocks if blocks is not None and self._agrees(graph, draw, double) else None

    def _candidates(self, case: Case) -> list[frozenset[str]]:
        """Arguments with the rows' dim as first axis; then all inputs with as many entries there."""
        first = self._task.outputs[0].shape[:1]
        tensors = [a for a in (*self._task.inputs, *self._task.weights) if isinstance(a, TensorArgument) and a.shape]
        total = _size(first[0], case) if first else 0
        named = frozenset(a.name for a in tensors if a.shape[0] == first[0]) if first else frozenset[str]()
        sized = frozenset(a.name for a in tensors if a.role == "input" and _size(a.shape[0], case) == total)
        return [named, sized]

    def _agrees(self, graph: Graph, draw: Draw, double: Double) -> bool:
        operators = _operators(graph)
        if operators not in self._agreed:
            self._agreed[operators] = any(self._same(small, draw, double) for small in self._small_cases(operators)[:1])
        return self._agreed[operators]

    def _small_cases(self, operators: tuple[str, ...]) -> list[Case]:
        """Cases of the same operators that are cheap to run twice, the largest first."""

        def elements(case: Case) -> int:
            return sum(element_count(tensor, case) for tensor in self._task.tensors)

        cases = [case for case in self._task.cases if case.role is not CaseRole.LARGE]
        cheap = sorted((c for c in cases if 0 < elements(c) <= _TRIAL_ELEMENTS), key=elements, reverse=True)
        graphs = ((case, self._graphs(case)) for case in cheap)
        return [case for case, graph in graphs if graph is not None and _operators(graph) == operators]

    def _same(self, case: Case, draw: Draw, double: Double) -> bool:
        graph = self._graphs(case)
        assert graph is not None
        drawn = draw(case)
        right = double(drawn, case)
        found = tensors_of(graph, graph.outputs, self._arguments(drawn), double=True)
        for mine, other in zip(map(self._frame.golden, found), right, strict=True):
            flat = mine.reshape(-1).view(other.dtype)
            if flat.shape != other.shape or not _close(flat, other):
                return False
        return True

    def _arguments(self, drawn: Sequence[Any]) -> Mapping[str, Any]:
        names = [argument.name for argument in (*self._task.inputs, *self._task.weights)]
        return dict(zip(names, self._natives(drawn), strict=True))


def _close(left: Raw, right: Raw) -> bool:
    if right.dtype.kind != "f":
        return np.array_equal(left, right)
    if not np.array_equal(np.isfinite(left), finite := np.isfinite(right)):
        return False
    largest = float(np.abs(right[finite]).max(initial=0.0))
    return float(np.abs(left[finite] - right[finite]).max(initial=0.0)) <= _AGREEMENT * largest


def _operators(graph: Graph) -> tuple[str, ...]:
    return tuple(node.op for node in graph.nodes if node.kind == "call")


def _size(axis: str | int, case: Case) -> int:
    return case.sizes[axis] if isinstance(axis, str) else axis
