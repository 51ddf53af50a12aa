"""Float64 runs by blocks of rows, so that their temporaries stay small whatever the tensors.

A run in double precision takes every intermediate tensor at twice its size, at once. Where the traced graph shows that
each row of the results hangs on the same row of some inputs alone (and on all of the others), the graph is run block by
block instead. Nothing is assumed of the operation: the axis of the rows is followed through every operator by a rule
that holds for that operator whatever the values, and an operator without a rule, or one that mixes rows, means that the
reference runs whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from kernelworks.kernel.operations import POINTWISE, TRANSCENDENTAL, operator_name, references
from kernelworks.task.graph import Graph, Node, Value

BLOCK_BYTES = 32 << 20
"""All tensors of a block together, in double precision."""
_DOUBLE_BYTES = 8


@dataclass(frozen=True)
class Blocks:
    """A graph whose results can be computed by blocks of rows."""

    graph: Graph
    axes: Mapping[str, tuple[int | None, ...]]
    """By node: the axis of the rows in each of its results; None where a result does not hang on rows."""
    sliced: frozenset[str]
    """Arguments that are cut along their first axis."""
    total: int
    """Rows in all."""
    rows: int
    """Of a block."""

    def of(self, rows: int) -> Graph:
        """The graph for a block of so many rows."""
        nodes = tuple(self._resized(node, rows) for node in self.graph.nodes)
        return self.graph.model_copy(update={"nodes": nodes})

    def _resized(self, node: Node, rows: int) -> Node:
        axes = self.axes[node.name]
        if all(axis is None for axis in axes):
            return node
        values = tuple(
            value if axis is None else value.model_copy(update={"shape": _with(value.shape, axis, rows)})
            for value, axis in zip(node.values, axes, strict=True)
        )
        args = node.args
        if operator_name(node) in ("view", "expand") and axes[0] is not None:
            args = (args[0], list(_with(args[1], axes[0], rows)), *args[2:])
        return node.model_copy(update={"values": values, "args": args})


def find_blocks(graph: Graph, candidates: Sequence[frozenset[str]]) -> Blocks | None:
    """How to run a graph by blocks of rows; None where it must run whole, or is small.

    Args:
        graph: of the case's sizes.
        candidates: sets of arguments that might be cut along their first axis; the first that can is taken.
    """
    nodes = {node.name: node for node in graph.nodes}
    shapes = [nodes[ref.ref].values[ref.index].shape for ref in graph.outputs]
    if not shapes or any(not shape or shape[0] != shapes[0][0] for shape in shapes):
        return None
    total = shapes[0][0]
    for sliced in candidates:
        axes = _follow(graph, sliced, total) if total > 1 and sliced else None
        if axes is None or any(axes[ref.ref][ref.index] != 0 for ref in graph.outputs):
            continue
        by_rows, whole = 0, 0
        for node in graph.nodes:
            for value, axis in zip(node.values, axes[node.name], strict=True):
                if axis is not None:
                    by_rows += math.prod(value.shape) * _DOUBLE_BYTES
                elif node.kind == "call":
                    whole += math.prod(value.shape) * _DOUBLE_BYTES
        if by_rows <= 2 * BLOCK_BYTES or whole > BLOCK_BYTES:  # not worth it; or too much done again for each block
            return None
        return Blocks(graph, axes, sliced, total, max(1, BLOCK_BYTES * total // by_rows))
    return None


def _follow(graph: Graph, sliced: frozenset[str], total: int) -> dict[str, tuple[int | None, ...]] | None:
    """The axis of the rows in every tensor; None where an operator mixes rows or is not known."""
    axes: dict[str, tuple[int | None, ...]] = {}
    nodes = {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        if node.kind != "call":
            cut = node.kind == "placeholder" and node.argument in sliced
            if cut and (not node.values[0].shape or node.values[0].shape[0] != total):
                return None
            axes[node.name] = (0 if cut else None,)
            continue
        used = list(references(node.args, node.kwargs))
        operands = [_Operand(nodes[name].values[index], axes[name][index]) for name, index in used]
        if all(operand.axis is None for operand in operands):
            axes[node.name] = (None,) * len(node.values)
            continue
        rule = _RULES.get(operator_name(node))
        axis = None if rule is None else rule(node, operands)
        if axis is None or any(not _holds(value, axis, total) for value in node.values):
            return None
        axes[node.name] = (axis,) * len(node.values)
    return axes


@dataclass(frozen=True)
class _Operand:
    """A tensor that a node uses."""

    value: Value
    axis: int | None

    @property
    def rank(self) -> int:
        return len(self.value.shape)

    @property
    def place(self) -> int:
        """Of the rows, counted from the last axis, which is 1; 0 where there are none."""
        return 0 if self.axis is None else self.rank - self.axis


Rule = Callable[[Node, Sequence[_Operand]], int | None]
"""The axis of the rows in the results, or None where rows are mixed. At least one operand has rows."""


def _holds(value: Value, axis: int, total: int) -> bool:
    return axis < len(value.shape) and value.shape[axis] == total


def _elementwise(node: Node, operands: Sequence[_Operand]) -> int | None:
    """Broadcasting aligns axes from the last; an operand without rows must not have an axis of rows of its own."""
    places = {operand.place for operand in operands if operand.axis is not None}
    if len(places) > 1:
        return None
    (place,) = places
    if any(o.axis is None and o.rank >= place and o.value.shape[o.rank - place] != 1 for o in operands):
        return None
    return len(node.values[0].shape) - place


def _view(node: Node, operands: Sequence[_Operand]) -> int | None:
    """Row-major order: what keeps the first axis keeps the rows."""
    shape = node.values[0].shape
    whole = node.op == "aten.view.default" and operands[0].axis == 0  # another overload reinterprets bits
    return 0 if whole and shape and shape[0] == operands[0].value.shape[0] else None


def _permute(node: Node, operands: Sequence[_Operand]) -> int | None:
    return list(node.args[1]).index(operands[0].axis)


def _along(position: int) -> Rule:
    """Reduces, sorts or scans along the axes that this argument names; all of them where it names none."""

    def rule(node: Node, operands: Sequence[_Operand]) -> int | None:
        first, axis = operands[0], operands[0].axis
        named = node.args[position] if len(node.args) > position else None
        if axis is None or named is None or len(operands) > 1:
            return None
        dims = {dim % first.rank for dim in _listed(named)}
        if axis in dims or not dims:
            return None
        kept = len(node.values[0].shape) == first.rank
        return axis if kept else axis - sum(dim < axis for dim in dims)

    return rule


def _trailing(node: Node, operands: Sequence[_Operand]) -> int | None:
    """Normalises over the last axes; weights have these axes alone."""
    first = operands[0]
    if first.axis is None or any(operand.axis is not None for operand in operands[1:]):
        return None
    return first.axis if first.axis < first.rank - len(_listed(node.args[1])) else None


def _first_axis(rank: int) -> Rule:
    """Works on each entry of the first axis by itself, where the operand has so many axes (0: at least two)."""

    def rule(_node: Node, operands: Sequence[_Operand]) -> int | None:
        first = operands[0]
        if any(operand.axis is not None for operand in operands[1:]) or first.axis != 0:
            return None
        return 0 if first.rank == rank or (rank == 0 and first.rank > 1) else None

    return rule


def _linear(_node: Node, operands: Sequence[_Operand]) -> int | None:
    first = operands[0]
    if first.axis is None or first.place == 1 or any(operand.axis is not None for operand in operands[1:]):
        return None
    return first.axis


def _matmul(node: Node, operands: Sequence[_Operand]) -> int | None:
    left, right = operands
    if left.axis is not None and right.axis is None and right.rank <= 2 and left.place > 1:
        return left.axis
    if left.place == right.place and left.place > 2:
        return len(node.values[0].shape) - left.place
    return None


def _addmm(_node: Node, operands: Sequence[_Operand]) -> int | None:
    added, left, right = operands
    plain = added.axis is None and (added.rank < 2 or added.value.shape[0] == 1)
    return 0 if plain and left.axis == 0 and right.axis is None else None


def _attention(node: Node, operands: Sequence[_Operand]) -> int | None:
    masks = operands[3:]
    open_masks = all(m.axis is None and (m.rank < operands[0].rank or m.value.shape[0] == 1) for m in masks)
    return 0 if open_masks and all(o.axis == 0 and o.rank > 2 for o in operands[:3]) else None


def _beside(position: int) -> Rule:
    """Cuts along the axis that this argument names."""

    def rule(node: Node, operands: Sequence[_Operand]) -> int | None:
        first, axis = operands[0], operands[0].axis
        if axis is None or len(operands) > 1:
            return None
        dim = int(node.args[position]) % first.rank
        if dim == axis:
            return None
        return axis - (len(node.values[0].shape) < first.rank and dim < axis)

    return rule


def _cat(node: Node, operands: Sequence[_Operand]) -> int | None:
    axes = {operand.axis for operand in operands}
    axis = operands[0].axis
    return axis if len(axes) == 1 and int(node.args[1]) % operands[0].rank != axis else None


def _embedding(_node: Node, operands: Sequence[_Operand]) -> int | None:
    table, where = operands
    return where.axis if table.axis is None else None


def _triangle(_node: Node, operands: Sequence[_Operand]) -> int | None:
    return operands[0].axis if operands[0].place > 2 else None


_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (*POINTWISE, *TRANSCENDENTAL, "to", "where", "masked_fill", "full_like", "zeros_like"), _elementwise
    ),
    **dict.fromkeys(("ones_like", "dropout", "pow"), _elementwise),
    **dict.fromkeys("sum mean amax amin argmax argmin prod any all logsumexp var std".split(), _along(1)),
    **dict.fromkeys("softmax _softmax log_softmax _log_softmax cumsum cumprod logcumsumexp".split(), _along(1)),
    **dict.fromkeys("linalg_vector_norm norm".split(), _along(2)),
    **dict.fromkeys("layer_norm rms_norm".split(), _trailing),
    **{f"{kind}_pool{rank}d": _first_axis(rank + 2) for kind in ("avg", "max") for rank in (1, 2, 3)},
    **{f"conv{rank}d": _first_axis(rank + 2) for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d": _first_axis(rank + 2) for rank in (1, 2, 3)},
    "group_norm": _first_axis(0),
    "view": _view,
    "permute": _permute,
    "expand": _elementwise,
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "addmm": _addmm,
    "scaled_dot_product_attention": _attention,
    "slice": _beside(1),
    "select": _beside(1),
    "split": _beside(2),
    "cat": _cat,
    "embedding": _embedding,
    "tril": _triangle,
    "triu": _triangle,
}
for _name in ("prelu", "outer"):  # align a weight with the second axis; make rows of an operand's elements
    del _RULES[_name]
for _name in ("max", "min"):  # of two tensors element by element, or along an axis

    def _either(node: Node, operands: Sequence[_Operand]) -> int | None:
        return _elementwise(node, operands) if len(operands) > 1 else _along(1)(node, operands)

    _RULES[_name] = _either


def _with(shape: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _listed(value: Any) -> list[int]:
    return list(cast("list[int]", value)) if isinstance(value, list | tuple) else [int(value)]
