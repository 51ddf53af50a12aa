"""One ATen call during recognition: typed access to its arguments, and arithmetic on values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelworks.propose.experts.axes import ShapeError
from kernelworks.propose.experts.builder import Builder, Number, Tensor, promote
from kernelworks.task.graph import Value
from kernelworks.task.model import DType

Result = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class Call:
    """Arguments with tensors in place of references; ``values`` are the shapes and dtypes of the results."""

    op: str
    builder: Builder
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    values: Sequence[Value]

    @property
    def dtype(self) -> DType:
        """Type of the (first) result."""
        return self.values[0].dtype

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or keyword; ``default`` where it is left out."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)

    def tensor(self, position: int, name: str = "") -> Tensor:
        """A tensor, or a number as a tensor.

        Raises:
            ShapeError: the argument is neither.
        """
        found = self.maybe(position, name)
        if found is None:
            raise ShapeError(f"argument {position} of {self.op}")
        return found

    def maybe(self, position: int, name: str = "") -> Tensor | None:
        """A tensor, or None where the argument is left out."""
        found = self.get(position, name)
        if isinstance(found, Tensor):
            return found
        number = _as_number(found)
        return None if number is None else self.builder.const(number)

    def number(self, position: int, name: str, default: Number) -> Number:
        """A Python number.

        Raises:
            ShapeError: the argument is a tensor or something else.
        """
        found = _as_number(self.get(position, name, default))
        if found is None:
            raise ShapeError(f"argument {name} of {self.op}, which is not a number")
        return found

    def axes(self, value: Tensor, found: Any) -> tuple[int, ...]:
        """Positions from a ``dim`` argument: None or [] means all."""
        rank = len(value.shape)
        listed = [found] if isinstance(found, int) else list(found or range(rank))
        return tuple(sorted({int(axis) % rank if rank else 0 for axis in listed})) if rank else ()

    # Arithmetic in the type ``dtype`` of the result or of the operands.
    def math(self, op: str, *values: Tensor | Number, dtype: DType | None = None) -> Tensor:
        """A pointwise operation whose operands are cast to its type first."""
        operands = [v if isinstance(v, Tensor) else self.builder.const(v) for v in values]
        kind = dtype or promote(operands)
        return self.builder.apply(op, *(self.builder.cast(v, kind) for v in operands), dtype=kind)

    def compare(self, op: str, left: Tensor | Number, right: Tensor | Number) -> Tensor:
        """A comparison in the operands' common type."""
        operands = [v if isinstance(v, Tensor) else self.builder.const(v) for v in (left, right)]
        kind = promote(operands)
        return self.builder.apply(op, *(self.builder.cast(v, kind) for v in operands), dtype=DType.BOOL)

    def where(self, mask: Tensor, left: Tensor | Number, right: Tensor | Number, dtype: DType | None = None) -> Tensor:
        """A choice by element."""
        operands = [v if isinstance(v, Tensor) else self.builder.const(v) for v in (left, right)]
        kind = dtype or promote(operands)
        mask = self.builder.cast(mask, DType.BOOL)
        return self.builder.apply("where", mask, *(self.builder.cast(v, kind) for v in operands), dtype=kind)

    def cast(self, value: Tensor, dtype: DType) -> Tensor:
        """The value in another type."""
        return self.builder.cast(value, dtype)

    def reduce(self, kind: str, value: Tensor, axes: Sequence[int], *, keepdim: bool = True) -> Tensor:
        """A reduction."""
        return self.builder.reduce(kind, value, axes, keepdim=keepdim)

    def mean(self, value: Tensor, axes: Sequence[int], *, keepdim: bool = True) -> Tensor:
        """The mean over these positions."""
        total = self.reduce("sum", value, axes, keepdim=keepdim)
        return self.math("div", total, self.builder.count(value, axes, value.dtype))

    def exact_mean(self, value: Tensor, axes: Sequence[int]) -> Tensor:
        """The mean, correctly rounded but for rare ties: summed up in float64 where values are narrower.

        Deviations from it are then exactly zero where all values are equal, as they are in torch.
        """
        total = self.builder.reduce("sum", value, axes, keepdim=True, dtype=DType.FLOAT64)
        mean = self.math("div", total, self.builder.count(value, axes, DType.FLOAT64))
        return self.cast(mean, value.dtype)


Operator = Callable[[Call], Result]


def _as_number(found: Any) -> Number | None:
    # A trace is JSON: numbers that are not finite are words there.
    if isinstance(found, str) and found in ("inf", "-inf", "nan"):
        return float(found)
    return found if isinstance(found, bool | int | float) else None
