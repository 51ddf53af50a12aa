"""Index outputs: which of a task's outputs are indices, of what, and whether an index selects the right value.

``argmax`` over equal values may give any of them, and over values that differ by a rounding error too: an index is
right if it selects what golden's index selects. Where the values are an input, they must be equal; where they are
computed on the way, their float64 values may differ by what two honest roundings of them may.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kernelworks.evaluate.compare import CHUNK_ELEMENTS, Figures
from kernelworks.evaluate.numbers import Raw, decode, words_of
from kernelworks.task.graph import Graph, Node, Ref
from kernelworks.task.model import DType

Positions = NDArray[np.int64]

_ALONG_AXIS = {
    "argmax": 0,
    "argmin": 0,
    "argsort": 0,
    "max": 1,
    "min": 1,
    "sort": 1,
    "topk": 1,
    "kthvalue": 1,
    "median": 1,
    "nanmedian": 1,
    "mode": 1,
    "cummax": 1,
    "cummin": 1,
    "_cummax_helper": 1,
}
"""Operators that return indices along an axis, and which of their results they are."""
_AXIS_AT = {"topk": 2, "kthvalue": 2}
"""Position of the axis among the arguments, where it is not 1."""
_DEFAULT_LAST = frozenset({"argsort", "sort", "topk", "kthvalue", "median", "nanmedian", "mode"})
"""Operators whose axis is the last unless they are told another."""
_POOLS = {
    "max_pool1d_with_indices": 1,
    "max_pool2d_with_indices": 2,
    "max_pool3d_with_indices": 3,
    "adaptive_max_pool1d": 1,
    "adaptive_max_pool2d": 2,
    "adaptive_max_pool3d": 3,
    "fractional_max_pool2d": 2,
    "fractional_max_pool3d": 3,
}
"""Operators that return indices into the flattened plane of their window's axes, and how many these are."""
_DISTINCT = frozenset({"argsort", "sort", "topk"})
_PASSED = frozenset({"aten.view.default", "aten.to.dtype", "aten.select.int"})
"""What an index may go through on its way out and still be that index at that place, if as many come out as go in."""


@dataclass(frozen=True)
class Origin:
    """Where an index output comes from."""

    operand: Ref
    """What it points into."""
    lines: int
    """Elements of the operand along the axis."""
    picks: int
    """Indices per line."""
    inner: int
    """Elements of the operand from one element of a line to the next."""
    distinct: bool
    """No index twice in a line."""


def origin_of(graph: Graph, output: Ref) -> Origin | None:
    """The origin of an output; None if it is no index, or one that must be equal (a stable sort)."""
    nodes = {node.name: node for node in graph.nodes}
    node = nodes[output.ref]
    while node.op in _PASSED and not node.values[0].dtype.is_floating:
        output = Ref.model_validate(node.args[0])
        if math.prod(nodes[output.ref].values[output.index].shape) != math.prod(node.values[0].shape):
            return None
        node = nodes[output.ref]
    if node.kind != "call" or not node.op.startswith("aten.") or not node.args:
        return None
    _, name, overload = node.op.split(".")
    if not isinstance(node.args[0], dict):
        return None
    operand = Ref.model_validate(node.args[0])
    shape = nodes[operand.ref].values[operand.index].shape
    if name in _POOLS:
        plane = math.prod(shape[-_POOLS[name] :])
        made = math.prod(node.values[1].shape[-_POOLS[name] :])
        return Origin(operand, plane, made, 1, distinct=False) if output.index == 1 and shape else None
    if name not in _ALONG_AXIS or output.index != _ALONG_AXIS[name] or not _gives_indices(name, overload):
        return None
    if (stable := _stable(node, name, overload)) is None or stable:
        return None
    axis = _axis(node, name, overload)
    if axis is None or not shape:
        return Origin(operand, math.prod(shape), 1, 1, distinct=False)
    axis %= len(shape)
    made = node.values[output.index].shape
    picks = made[axis] if len(made) == len(shape) else 1
    return Origin(operand, shape[axis], picks, math.prod(shape[axis + 1 :]), name in _DISTINCT)


def _gives_indices(name: str, overload: str) -> bool:
    """``max`` and its like return indices only along a dim."""
    return overload in ("dim", "names_dim") if name in ("max", "min", "median", "nanmedian") else True


def _stable(node: Node, name: str, overload: str) -> bool | None:
    if overload != "stable" or name not in ("sort", "argsort"):
        return False
    flags = [value for value in (*node.args[1:], *node.kwargs.values()) if isinstance(value, bool)]
    return bool(node.kwargs["stable"]) if isinstance(node.kwargs.get("stable"), bool) else bool(flags and flags[0])


def _axis(node: Node, name: str, overload: str) -> int | None:
    at = _AXIS_AT.get(name, 1)
    if overload == "stable" and name == "sort":
        at = 2
    value: Any = node.args[at] if len(node.args) > at else node.kwargs.get("dim")
    if isinstance(value, bool) or not isinstance(value, int):
        return -1 if name in _DEFAULT_LAST else None
    return value


@dataclass(frozen=True)
class Selection:
    """The values that an index output points into."""

    origin: Origin
    values: Raw
    """The operand, flat, as stored in ``dtype``."""
    dtype: DType
    floor: float = 0.0
    """Values may differ by this much ..."""
    relative: float = 0.0
    """... or by this times the right one, whichever is larger."""

    def at(self, where: Positions, index: Raw) -> tuple[Raw, NDArray[np.bool_]]:
        """The values that these indices at these places of the output select, and which indices are in range."""
        o = self.origin
        valid = (index >= 0) & (index < o.lines)
        outer, inner = where // (o.picks * o.inner), where % o.inner
        flat = (outer * o.lines + np.where(valid, index, 0).astype(np.int64)) * o.inner + inner
        return decode(self.values[flat], self.dtype), valid

    def admits(self, where: Positions, found: Raw, golden: Raw) -> NDArray[np.bool_]:
        """Whether the found indices select what golden ones do."""
        have, valid = self.at(where, found)
        want, _ = self.at(where, golden)
        return valid & self._close(have, want)

    def determined(self, where: Positions, golden: Raw) -> NDArray[np.bool_]:
        """Places of the output where no other index selects the same."""
        o = self.origin
        want, _ = self.at(where, golden)
        single = np.empty(where.size, np.bool_)
        for k, (place, value) in enumerate(zip(where, want, strict=True)):
            outer, inner = int(place) // (o.picks * o.inner), int(place) % o.inner
            start = outer * o.lines * o.inner + inner
            line = decode(self.values[start : start + o.lines * o.inner : o.inner], self.dtype)
            single[k] = int(np.count_nonzero(self._close(line, np.full(line.shape, value, line.dtype)))) == 1
        return single

    def _close(self, have: Raw, want: Raw) -> NDArray[np.bool_]:
        same = have == want
        if not self.dtype.is_floating:
            return cast("NDArray[np.bool_]", same)
        with np.errstate(invalid="ignore"):
            near = np.abs(have - want) <= np.maximum(self.floor, self.relative * np.abs(want))
        both_nan = np.isnan(have) & np.isnan(want)
        return same | (near & np.isfinite(want)) | both_nan


def compare_selected(found: Raw, golden: Raw, dtype: DType, poison: int, selection: Selection) -> Figures:
    """Indices: every one selects what golden's selects, and none stands twice in a line of a sort."""
    figures = Figures(finite=found.size)
    words, wanted = words_of(found, dtype), words_of(golden, dtype)
    for start in range(0, found.size, CHUNK_ELEMENTS):
        part = slice(start, start + CHUNK_ELEMENTS)
        other = np.flatnonzero(words[part] != wanted[part]).astype(np.int64) + start
        if other.size == 0:
            continue
        right = selection.admits(other, found[other], golden[other])
        if selection.origin.distinct and right.any():
            right &= ~_repeated(found, other, selection.origin)
        _count(figures, found, golden, words, other[~right], poison)
    return figures


def _repeated(found: Raw, where: Positions, origin: Origin) -> NDArray[np.bool_]:
    """Whether the index at each of these places stands in its line once more."""
    span = origin.picks * origin.inner
    outer, inner = where // span, where % origin.inner
    lines, first = np.unique(outer * origin.inner + inner, return_index=True)
    repeated = np.zeros(where.size, np.bool_)
    for line, at in zip(lines, first, strict=True):
        start = int(outer[at]) * span + int(inner[at])
        indices = found[start : start + span : origin.inner]
        values, counts = np.unique(indices, return_counts=True)
        if values.size < indices.size:
            here = outer * origin.inner + inner == line
            repeated |= here & np.isin(found[where], values[counts > 1])
    return repeated


def _count(figures: Figures, found: Raw, golden: Raw, words: Raw, wrong: Positions, poison: int) -> None:
    if wrong.size == 0:
        return
    filled = wrong[words[wrong] == poison]
    if figures.mismatches == 0:
        figures.worst, figures.worst_share = int(wrong[0]), math.inf
        figures.max_error = abs(float(found[wrong[0]]) - float(golden[wrong[0]]))
    if figures.unwritten == 0 and filled.size:
        figures.first_unwritten = int(filled[0])
    figures.mismatches += wrong.size
    figures.unwritten += filled.size
