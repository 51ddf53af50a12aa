"""The experts' own representation of a reference: a loop nest, values on it, and reductions over its axes.

A ``Program`` is what recognition finds and generation needs; nothing of ATen or torch is left in it. Nodes stand in
topological order and refer to each other by position. Every node has a *scope*, the innermost loop that it lives in:
``global`` (once), ``row`` (once for each kept index) or ``element`` (inside a sweep over the swept axes).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from kernelworks.task.model import DType


class Scope(IntEnum):
    """Where a value is computed."""

    GLOBAL = 0
    ROW = 1
    ELEMENT = 2


class Layout(IntEnum):
    """How the swept axes lie in memory."""

    FLAT = 0
    """No reduction gives a value to each row: the innermost axis is swept in blocks."""
    ROWS = 1
    """The innermost axis is reduced: a vector holds neighbours of one row."""
    COLUMNS = 2
    """The innermost axis is kept: a vector holds neighbouring results."""


@dataclass(frozen=True)
class Axis:
    """One loop of the nest, outermost first."""

    size: str
    """C expression over the dims of the prototype."""
    swept: bool


@dataclass(frozen=True)
class Node:
    """One value.

    A ``reduce`` whose type is wider than its argument's gathers in the wider type.

    ``op`` is ``load`` (a tensor argument), ``scalar`` (a scalar argument), ``const``, ``count`` (number of elements
    over ``axes_of_count``), ``index`` (position on an axis), ``reduce``, ``reduce_rows`` (over everything that is
    left of a row value) or the name of a pointwise operation in ``emit.POINTWISE``.
    """

    op: str
    args: tuple[int, ...]
    dtype: DType
    axes: frozenset[int]
    scope: Scope
    name: str = ""
    """Argument of a load or scalar; kind of a reduction: ``sum``, ``max``, ``min``, ``prod``."""
    constant: float | int | bool = 0
    count: str = ""
    """C expression of a ``count``."""


@dataclass(frozen=True)
class Output:
    """A node stored into an output argument."""

    argument: str
    node: int
    dtype: DType


@dataclass(frozen=True)
class Program:
    """A loop nest: a whole reference, or those of its outputs that have nothing to do with the others."""

    axes: tuple[Axis, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    layout: Layout
    guards: tuple[str, ...]
    """Conditions on dims under which the nest is right: the kernel's ``covers``."""
    strides: dict[str, dict[int, str]]
    """For each tensor argument: axis -> stride in elements as a C expression; axes that it lacks are absent."""

    @property
    def reductions(self) -> tuple[int, ...]:
        """Positions of the reductions within rows."""
        return tuple(i for i, node in enumerate(self.nodes) if node.op == "reduce")

    @property
    def global_reductions(self) -> tuple[int, ...]:
        """Positions of the reductions over rows."""
        return tuple(i for i, node in enumerate(self.nodes) if node.op == "reduce_rows")

    @property
    def floating(self) -> DType | None:
        """The one floating type in which everything by element is computed; None if there are several or none."""
        found = {compute_dtype(n.dtype) for n in self.nodes if n.dtype.is_floating and n.scope is Scope.ELEMENT}
        return next(iter(found)) if len(found) == 1 else None


def compute_dtype(dtype: DType) -> DType:
    """The type in which a value of this type is computed: 16-bit floats are computed in float32."""
    return DType.FLOAT32 if dtype in (DType.FLOAT16, DType.BFLOAT16) else dtype
