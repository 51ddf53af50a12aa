"""Values of a trace on symbolic axes: the small algebra in which ATen operators are written down.

``Builder`` records nodes once each (equal nodes are shared), so that operators may be expanded freely.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kernelworks.propose.experts.axes import Axes, Dims, ShapeError
from kernelworks.task.model import DType, TensorArgument

Number = float | int | bool

_ORDER = (
    DType.BOOL,
    DType.UINT8,
    DType.INT8,
    DType.INT16,
    DType.INT32,
    DType.INT64,
    DType.FLOAT16,
    DType.BFLOAT16,
    DType.FLOAT32,
    DType.FLOAT64,
)


@dataclass(frozen=True)
class Tensor:
    """A value of the trace: its node, and which atoms each of its dimensions is."""

    node: int
    dims: Dims
    shape: tuple[int, ...]
    dtype: DType
    weak: bool = False
    """A Python number: does not take part in type promotion within its category."""


@dataclass(frozen=True)
class RawNode:
    """A node before axes are merged; fields as in ``ir.Node``, axes still atoms."""

    op: str
    args: tuple[int, ...]
    dtype: DType
    atoms: tuple[int, ...]
    name: str = ""
    constant: Number = 0
    of: tuple[int, ...] = ()
    """Reduced, counted or indexed atoms."""


@dataclass
class Builder:
    """Nodes in topological order, with the axes that they vary on."""

    axes: Axes = field(default_factory=Axes)
    nodes: list[RawNode] = field(default_factory=list[RawNode])
    orders: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    """Sequences of atoms, outermost first, that every loop nest must respect."""
    _known: dict[tuple[object, ...], int] = field(default_factory=dict[tuple[object, ...], int])

    def load(self, argument: TensorArgument, shape: tuple[int, ...]) -> Tensor:
        """A tensor argument; its axes become atoms, except those of fixed size 1."""
        dims: Dims = tuple(
            () if axis == 1 else (self.axes.new(size, str(axis)),)
            for axis, size in zip(argument.shape, shape, strict=True)
        )
        node = self._add("load", (), argument.dtype, _flat(dims), name=argument.name)
        return Tensor(node, dims, shape, argument.dtype)

    def scalar(self, name: str, dtype: DType) -> Tensor:
        """A scalar argument of the prototype."""
        return Tensor(self._add("scalar", (), dtype, (), name=name), (), (), dtype, weak=True)

    def const(self, value: Number, dtype: DType | None = None, shape: tuple[int, ...] = ()) -> Tensor:
        """A constant, as large as wanted; without a dtype it is a Python number."""
        kind = dtype or (
            DType.BOOL if isinstance(value, bool) else DType.INT64 if isinstance(value, int) else DType.FLOAT32
        )
        node = self._add("const", (), kind, (), constant=_typed(value, kind))
        return Tensor(node, tuple(() for _ in shape), shape, kind, weak=dtype is None)

    def apply(self, op: str, *values: Tensor, dtype: DType) -> Tensor:
        """A pointwise operation with broadcasting.

        Raises:
            ShapeError: shapes that do not broadcast.
        """
        rank = max(len(v.dims) for v in values)
        dims: list[tuple[int, ...]] = [()] * rank
        shape = [1] * rank
        for value in values:
            offset = rank - len(value.dims)
            for i, dim in enumerate(value.dims):
                dims[offset + i] = self.axes.unify(dims[offset + i], dim)
                shape[offset + i] = max(shape[offset + i], value.shape[i])
        node = self._add(op, tuple(v.node for v in values), dtype, _flat(dims))
        if any(dims):
            self.orders.append(_flat(dims))
        return Tensor(node, tuple(dims), tuple(shape), dtype)

    def cast(self, value: Tensor, dtype: DType) -> Tensor:
        """The value in another type."""
        if value.dtype == dtype and not value.weak:
            return value
        raw = self.nodes[value.node]
        if raw.op == "const":
            made = self.const(raw.constant, dtype)
            return Tensor(made.node, value.dims, value.shape, dtype)
        if value.dtype == dtype:
            return Tensor(value.node, value.dims, value.shape, dtype)
        return self.apply("cast", value, dtype=dtype)

    def reduce(
        self, kind: str, value: Tensor, axes: Sequence[int], *, keepdim: bool, dtype: DType | None = None
    ) -> Tensor:
        """``sum``, ``max``, ``min`` or ``prod`` over these positions, gathered in a wider type if one is given.

        Raises:
            ShapeError: an expanded axis is reduced.
        """
        for axis in axes:
            if not self.axes.resolve(value.dims[axis]) and value.shape[axis] != 1:
                raise ShapeError("a reduction over an expanded axis")
        of = _flat(value.dims[axis] for axis in axes)
        dims = [() if i in axes else dim for i, dim in enumerate(value.dims)]
        shape = [1 if i in axes else size for i, size in enumerate(value.shape)]
        node = value.node
        if of:
            node = self._add("reduce", (node,), dtype or value.dtype, _flat(dims), name=kind, of=of)
        elif dtype is not None:
            node = self.cast(value, dtype).node
        if not keepdim:
            dims = [dim for i, dim in enumerate(dims) if i not in axes]
            shape = [size for i, size in enumerate(shape) if i not in axes]
        return Tensor(node, tuple(dims), tuple(shape), dtype or value.dtype)

    def count(self, value: Tensor, axes: Sequence[int], dtype: DType) -> Tensor:
        """How many elements lie along these positions, as a number."""
        of = _flat(value.dims[axis] for axis in axes)
        return Tensor(self._add("count", (), dtype, (), of=of), (), (), dtype)

    def count_of_reduced(self, value: Tensor, size: int, dtype: DType) -> Tensor | None:
        """The count behind a sum if it is ``size`` in the trace: of all that was summed up, or of its first axis."""
        node = self.nodes[value.node]
        if node.op != "reduce" or node.name != "sum":
            return None
        of = self.axes.resolve(node.of)
        for counted in (of, of[:1]):
            product = 1
            for atom in counted:
                product *= self.axes.size(atom)
            if product == size:
                return Tensor(self._add("count", (), dtype, (), of=counted), (), (), dtype)
        return None

    def index(self, value: Tensor, axis: int) -> Tensor:
        """The position along one axis, int64, broadcast to the value's rank."""
        atoms = value.dims[axis]
        dims: Dims = tuple(dim if i == axis else () for i, dim in enumerate(value.dims))
        shape = tuple(size if i == axis else 1 for i, size in enumerate(value.shape))
        node = self._add("index", (), DType.INT64, atoms, of=atoms)
        return Tensor(node, dims, shape, DType.INT64)

    def reshape(self, value: Tensor, shape: Sequence[int]) -> Tensor:
        """A view of other sizes; no data moves.

        Raises:
            ShapeError: the view cannot be expressed on these axes.
        """
        target = _infer(value.shape, shape)
        dims = self.axes.regroup(value.dims, value.shape, target)
        return Tensor(value.node, dims, target, value.dtype)

    def expand(self, value: Tensor, shape: Sequence[int]) -> Tensor:
        """Size-1 axes and new leading ones made larger, without data."""
        rank = len(shape)
        offset = rank - len(value.shape)
        dims = ((),) * offset + value.dims
        old = (1,) * offset + value.shape
        target = tuple(old[i] if size == -1 else size for i, size in enumerate(shape))
        for dim, before, after in zip(dims, old, target, strict=True):
            if before != after:
                self.axes.collapse(dim)
        return Tensor(value.node, dims, target, value.dtype, value.weak)

    def _add(
        self,
        op: str,
        args: tuple[int, ...],
        dtype: DType,
        atoms: tuple[int, ...],
        *,
        name: str = "",
        constant: Number = 0,
        of: tuple[int, ...] = (),
    ) -> int:
        # repr tells 0.0 from -0.0 and True from 1.
        key = (op, args, dtype, name, repr(constant), of)
        if op != "load" and key in self._known:
            return self._known[key]
        self.nodes.append(RawNode(op, args, dtype, atoms, name, constant, of))
        self._known[key] = len(self.nodes) - 1
        return len(self.nodes) - 1


def promote(values: Sequence[Tensor]) -> DType:
    """The type in which values are compared or combined: torch's promotion by category, then by width."""

    def category(value: Tensor) -> int:
        return 2 if value.dtype.is_floating else 0 if value.dtype is DType.BOOL else 1

    def strength(value: Tensor) -> int:
        return 0 if value.weak else 1 if not value.shape else 2

    top = max(category(v) for v in values)
    # A weaker operand counts only where it brings a higher category.
    strongest = max(strength(v) for v in values if category(v) == top)
    among = {v.dtype for v in values if category(v) == top and strength(v) == strongest}
    if among == {DType.FLOAT16, DType.BFLOAT16}:
        return DType.FLOAT32
    return max(among, key=_ORDER.index)


def _flat(dims: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(atom for dim in dims for atom in dim)


def _typed(value: Number, dtype: DType) -> Number:
    if dtype is DType.BOOL:
        return bool(value)
    return float(value) if dtype.is_floating else int(value)


def _infer(shape: tuple[int, ...], wanted: Sequence[int]) -> tuple[int, ...]:
    total = 1
    for size in shape:
        total *= size
    known = 1
    for size in wanted:
        known *= size if size != -1 else 1
    return tuple(total // known if size == -1 else size for size in wanted)
