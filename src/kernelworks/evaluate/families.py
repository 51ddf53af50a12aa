"""Input families: what else an operation is fed with, beside the values that the task itself draws.

``normal`` is the task's own draw. The others replace every floating tensor:

- ``wide``: half uniform in [-100, 100] (16-bit types: [-16, 16]), half with exponents uniform over 18 (10) binades and
  full mantissas. Shows overflow without a maximum subtracted, approximations that are good in a narrow range alone,
  fewer mantissa bits.
- ``integers``: integers from -4 to 4. Shows shortcuts that rely on distinct or small values, and ties.
- ``constant``: one value per tensor, of 0.5 to 1.5 in magnitude. Shows sums whose errors all point the same way, zero
  variances.

Values of both signs are tried first, since a task that draws from [0, 1) cannot tell a ReLU from a copy. Where the
reference then raises or is not finite throughout, the sign of the draw is respected: what was never negative stays so
(a variance, a probability). Tensors whose draw is *structural* stay as drawn: integers and bools, anything non-finite,
and a few distinct values many times (masks). A tensor with one single value, such as the fresh weight of a norm, does
change. Zeros that a draw places on purpose (a triangular matrix) and symmetry are kept: a kernel may rely on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernelworks.evaluate.numbers import Doubles, Raw, decode, encode, plane
from kernelworks.task.model import DType, Task, TensorArgument

FAMILIES: tuple[str, ...] = ("normal", "wide", "integers", "constant")
TIED_FAMILIES = frozenset({"integers", "constant"})
"""Families full of equal values: an index output (of an argmax, say) is not determined there."""
_CHUNK = 1 << 18
_SAMPLE = 1 << 16
_FEW = 16
_MANY_ZEROS = 0.01


@dataclass(frozen=True)
class Profile:
    """What a drawn tensor says about the values that it may hold."""

    dtype: DType
    negative: bool
    """Some were drawn, or it is zero throughout (a fresh bias)."""
    zero: bool
    """Not all are positive."""
    structural: bool
    sparse: bool = False
    """It holds zeros on purpose: more than one in a hundred values is exactly zero."""
    symmetric: bool = False
    """Its last two axes can be exchanged."""

    @property
    def signed(self) -> Profile:
        """The same with values of both signs."""
        return replace(self, negative=True, zero=True)


def profile(raw: Raw, dtype: DType) -> Profile:
    """Look at the values that the task drew (a sample of 65,536 where there are more)."""
    flat = plane(raw, dtype)
    stride = max(1, flat.size // _SAMPLE)
    values = decode(np.ascontiguousarray(flat[::stride]), dtype)
    if not dtype.is_floating or values.size == 0 or not np.isfinite(values).all():
        return Profile(dtype, negative=False, zero=False, structural=True)
    distinct, lowest = np.unique(values).size, float(values.min())
    few = 1 < distinct <= _FEW and distinct * 4 < values.size
    sparse = distinct > 1 and int(np.count_nonzero(values)) < (1 - _MANY_ZEROS) * values.size
    negative = lowest < 0 or (distinct == 1 and lowest == 0)
    return Profile(dtype, negative, lowest <= 0, few, sparse, _symmetric(raw))


def _symmetric(raw: Raw) -> bool:
    if raw.ndim < 2 or raw.shape[-1] != raw.shape[-2] or raw.shape[-1] < 2:
        return False
    first_row_and_column = np.array_equal(raw[..., 0, :], raw[..., :, 0])
    return first_row_and_column and np.array_equal(raw, np.swapaxes(raw, -1, -2))


def apply_family(family: str, task: Task, drawn: Sequence[Any], seed: int, *, signed: bool) -> list[Any]:
    """The arguments of a family: raw arrays (new ones where a tensor changes) and scalars, in prototype order.

    Args:
        family: one of ``FAMILIES``.
        task: gives dtypes.
        drawn: raw arrays and scalars as the task drew them.
        seed: of this family's own values.
        signed: values of both signs, whatever was drawn.
    """
    if family == "normal":
        return list(drawn)
    found: list[Any] = []
    for index, (argument, value) in enumerate(zip((*task.inputs, *task.weights), drawn, strict=True)):
        if isinstance(argument, TensorArgument):
            rng = np.random.default_rng([seed, index, FAMILIES.index(family)])
            values = profile(value, argument.dtype)
            found.append(draw(family, value, values.signed if signed else values, rng))
        else:
            found.append(value)
    return found


def draw(family: str, raw: Raw, values: Profile, rng: np.random.Generator) -> Raw:
    """One tensor of a family, of the shape of ``raw``; ``raw`` itself if its draw is structural."""
    if values.structural:
        return raw
    made = np.empty(raw.shape, raw.dtype)
    flat = plane(made, values.dtype)
    make = _makers(values, rng)[family]
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        part[...] = encode(make(part.size), values.dtype)
    if values.sparse:
        made[raw == 0] = 0
    if values.symmetric:
        made = np.triu(made) + np.swapaxes(np.triu(made, 1), -1, -2)
    return made


def _makers(values: Profile, rng: np.random.Generator) -> dict[str, Callable[[int], Doubles]]:
    narrow = values.dtype.itemsize_bytes == 2
    limit, lowest_exponent = (16.0, -6.0) if narrow else (100.0, -12.0)
    constant = rng.uniform(0.5, 1.5) * (-1 if values.negative and rng.random() < 0.5 else 1)

    def wide(count: int) -> Doubles:
        uniform = rng.uniform(-limit, limit, count)
        binades = np.exp2(rng.uniform(lowest_exponent, np.log2(limit), count)) * rng.choice([-1.0, 1.0], count)
        mixed = np.where(rng.random(count) < 0.5, uniform, binades)
        return mixed if values.negative else np.abs(mixed)

    def integers(count: int) -> Doubles:
        low = -4 if values.negative else 0 if values.zero else 1
        return rng.integers(low, 5, count).astype(np.float64)

    return {"wide": wide, "integers": integers, "constant": lambda count: np.full(count, constant)}
