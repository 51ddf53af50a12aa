"""Input families: what else an operation is fed with, beside the values that the task itself draws.

``normal`` is the task's own draw. These replace every floating tensor:

- ``wide``: half uniform in [-100, 100] (16-bit types: [-16, 16]), half with exponents uniform over 18 (10) binades and
  full mantissas. Shows overflow without a maximum subtracted, approximations that are good in a narrow range alone,
  fewer mantissa bits.
- ``sparse``: nineteen in twenty values zero. Shows divisions by a sum that happens to be zero, and skipped work.
- ``heavy``: Student's t with two degrees of freedom, full mantissas. A few values rule every sum, which shows partial
  sums that are dropped, and bounds that hold on average alone.
- ``integers``: sparse integers, up to 4,097 in one tensor and up to 8 in the others, few enough that sums stay below
  2^24 (scaled for other types: ``integer_levels``). Sums and products of them are exact in every order, so here an
  answer must be exact. 4,097 needs 13 bits: tf32 and float16 have 11, bfloat16 8. Only one tensor is wide, so that
  accurate schemes that split numbers and leave out the product of the two low parts are exact too.
- ``constant``: one value per tensor, of 0.5 to 1.5 in magnitude. Shows sums whose errors all point the same way, zero
  variances.

These replace inputs and leave weights as drawn:

- ``shifted``: 10,240 plus a standard normal value (float16: 256, bfloat16: 32). Shows the mean of squares minus the
  square of the mean, which cancels.
- ``denormal``: the largest input subnormal or close to it. Shows kernels that flush such values to zero.
- ``specials``: the task's draw with infinities and NaN in some rows of the largest input. Shows maxima that ignore NaN,
  differences of infinities that the reference does not form, and code compiled as if none of them existed.

Values of both signs are tried first, since a task that draws from [0, 1) cannot tell a ReLU from a copy. Where the
reference then raises or is not finite throughout, the sign of the draw is respected: what was never negative stays so
(a variance, a probability). Tensors whose draw is *structural* stay as drawn: integers and bools, anything non-finite,
and a few distinct values many times (masks). A tensor with one single value, such as the fresh weight of a norm, does
change. Zeros that a draw places on purpose (a triangular matrix) and symmetry are kept: a kernel may rely on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernelworks.evaluate.numbers import Doubles, Raw, decode, encode, plane
from kernelworks.task.model import DType, Task, TensorArgument

FAMILIES: tuple[str, ...] = (
    "normal",
    "wide",
    "shifted",
    "sparse",
    "heavy",
    "integers",
    "constant",
    "denormal",
    "specials",
)
AS_DRAWN = frozenset({"shifted", "specials"})
"""Families that keep the signs of the draw, or have but one: they are made once."""
INPUTS_ALONE = frozenset({"shifted", "denormal", "specials"})
"""Families that leave weights as they were drawn."""
ONE_INPUT = frozenset({"denormal", "specials"})
"""Families that change one of the largest inputs alone: with two, their product would be zero (NaN) throughout."""
_CHUNK = 1 << 18
_SAMPLE = 1 << 16
_FEW = 16
_MANY_ZEROS = 0.01
_SPARSE_SHARE = 0.05
_NEARLY_ZERO = 2.0**-10
"""In place of zero, where a draw has none."""
_SPECIAL_ROWS = 64
"""At most so many rows, and at most a quarter of them, hold something special."""
_SHIFTS = {DType.FLOAT16: 256.0, DType.BFLOAT16: 32.0}
_SHIFT = 10_240.0
"""Five times 2^11, and the others powers of two, so that long sums round them without a bias: 1e4 is no multiple of 32,
and a sequential sum of a million such values is wrong by a tenth for no fault of its own."""
_HEAVY_LIMITS = {DType.FLOAT16: 1e3, DType.BFLOAT16: 1e4}
_HEAVY_LIMIT = 1e6
_DENORMAL_EXPONENTS = {
    DType.FLOAT16: (-24.0, -12.0),
    DType.BFLOAT16: (-133.0, -122.0),
    DType.FLOAT64: (-1074.0, -1010.0),
}
_FLOAT32_DENORMALS = (-149.0, -122.0)
SIGNIFICANT_BITS = {
    DType.FLOAT32: 24,
    DType.COMPLEX64: 24,
    DType.FLOAT64: 53,
    DType.FLOAT16: 11,
    DType.BFLOAT16: 8,
}
"""Below two to this power all integers are numbers of the type."""


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


@dataclass(frozen=True)
class IntegerLevel:
    """How large and how many the integers of the bit-exact family are."""

    wide: int
    """Largest magnitude in one tensor ..."""
    density: float
    """... of which this share is not zero."""
    narrow: int
    """Largest magnitude in the others, of which half are not zero."""


def integer_levels(task: Task, length: int) -> tuple[IntegerLevel, ...]:
    """Levels for sums of ``length`` terms, the most telling first; the next where sums are not exact on one.

    Magnitudes are log-uniform. The density lets the sum of the magnitudes of all products stay at an eighth of the
    first integer that the task's narrowest type lacks.
    """
    bits = min((SIGNIFICANT_BITS[t.dtype] for t in task.tensors if t.dtype.is_floating), default=24)
    sizes = {53: ((1 << 26) + 1, 4097, 8), 24: (4097, 255, 8), 11: (65, 17, 3), 8: (17, 5, 2)}[bits]
    narrow = {53: 8, 24: 8, 11: 2, 8: 1}[bits]
    budget = 2.0 ** (bits - 3)
    found: list[IntegerLevel] = []
    for wide in sizes:
        terms = budget / (_mean_magnitude(wide) * _mean_magnitude(narrow) * 0.5)
        found.append(IntegerLevel(wide, min(0.5, terms / max(1, length)), narrow))
    return tuple(found)


def _mean_magnitude(largest: int) -> float:
    """Of integers whose logarithm is uniform."""
    return 1.0 if largest <= 1 else (largest - 1) / math.log(largest)


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


def apply_family(
    family: str, task: Task, drawn: Sequence[Any], seed: int, *, signed: bool, level: IntegerLevel | None = None
) -> list[Any]:
    """The arguments of a family: raw arrays (new ones where a tensor changes) and scalars, in prototype order.

    Args:
        family: one of ``FAMILIES``.
        task: gives dtypes and roles.
        drawn: raw arrays and scalars as the task drew them.
        seed: of this family's own values.
        signed: values of both signs, whatever was drawn.
        level: of the integers; needed by ``integers`` alone.
    """
    if family == "normal":
        return list(drawn)
    arguments = (*task.inputs, *task.weights)
    profiles = [
        profile(value, argument.dtype) if isinstance(argument, TensorArgument) else None
        for argument, value in zip(arguments, drawn, strict=True)
    ]
    chosen = [i for i, values in enumerate(profiles) if values is not None and not values.structural]
    if family in INPUTS_ALONE:
        chosen = [i for i in chosen if i < len(task.inputs)]
    main = _main(chosen, drawn, seed)
    found = list(drawn)
    for index in chosen if family not in ONE_INPUT else [i for i in chosen if i == main]:
        values, rng = profiles[index], np.random.default_rng([seed, index, FAMILIES.index(family)])
        assert values is not None
        values = values.signed if signed else values
        found[index] = draw(family, drawn[index], values, rng, level=level, main=index == main)
    return found


def _main(chosen: Sequence[int], drawn: Sequence[Any], seed: int) -> int:
    """One of the largest tensors; -1 where there is none."""
    largest = max((drawn[i].size for i in chosen), default=0)
    candidates = [i for i in chosen if drawn[i].size == largest]
    return int(np.random.default_rng([seed, 0x3A17]).choice(candidates)) if candidates else -1


def draw(
    family: str,
    raw: Raw,
    values: Profile,
    rng: np.random.Generator,
    *,
    level: IntegerLevel | None = None,
    main: bool = True,
) -> Raw:
    """One tensor of a family, of the shape of ``raw``; ``raw`` itself if its draw is structural.

    Args:
        family: one of ``FAMILIES`` but ``normal``.
        raw: as drawn.
        values: its profile.
        rng: where the values come from.
        level: of the integers.
        main: whether this is the tensor that holds the wide ones of them.
    """
    if values.structural:
        return raw
    if family == "specials":
        return _with_specials(raw, values, rng)
    made = np.empty(raw.shape, raw.dtype)
    flat = plane(made, values.dtype)
    make = _maker(family, values, rng, level, main)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        part[...] = encode(make(part.size), values.dtype)
    if values.sparse:
        made[raw == 0] = 0
    if values.symmetric:
        made = np.triu(made) + np.swapaxes(np.triu(made, 1), -1, -2)
    return made


Maker = Callable[[int], Doubles]


def _maker(family: str, values: Profile, rng: np.random.Generator, level: IntegerLevel | None, main: bool) -> Maker:
    if family == "integers":
        assert level is not None, "integers need their level"
        largest, density = (level.wide, level.density) if main else (level.narrow, 0.5)
        return lambda count: _integers(count, values, rng, largest, density)
    constant = rng.uniform(0.5, 1.5) * (-1 if values.negative and rng.random() < 0.5 else 1)
    makers: dict[str, Maker] = {
        "wide": lambda count: _wide(count, values, rng),
        "shifted": lambda count: _SHIFTS.get(values.dtype, _SHIFT) + rng.standard_normal(count),
        "sparse": lambda count: _sparse(count, values, rng),
        "heavy": lambda count: _heavy(count, values, rng),
        "denormal": lambda count: _denormal(count, values, rng),
        "constant": lambda count: np.full(count, constant),
    }
    return makers[family]


def _signs(count: int, values: Profile, rng: np.random.Generator) -> Doubles:
    return rng.choice([-1.0, 1.0], count) if values.negative else np.ones(count)


def _wide(count: int, values: Profile, rng: np.random.Generator) -> Doubles:
    narrow = values.dtype.itemsize_bytes == 2
    limit, lowest_exponent = (16.0, -6.0) if narrow else (100.0, -12.0)
    uniform = rng.uniform(-limit, limit, count)
    binades = np.exp2(rng.uniform(lowest_exponent, np.log2(limit), count)) * rng.choice([-1.0, 1.0], count)
    mixed = np.where(rng.random(count) < 0.5, uniform, binades)
    return mixed if values.negative else np.abs(mixed)


def _sparse(count: int, values: Profile, rng: np.random.Generator) -> Doubles:
    normal = rng.standard_normal(count)
    normal = normal if values.negative else np.abs(normal)
    rest = 0.0 if values.zero else _NEARLY_ZERO
    return np.where(rng.random(count) < _SPARSE_SHARE, normal, rest)


def _heavy(count: int, values: Profile, rng: np.random.Generator) -> Doubles:
    limit = _HEAVY_LIMITS.get(values.dtype, _HEAVY_LIMIT)
    tailed = np.clip(rng.standard_t(2, count), -limit, limit)
    return tailed if values.negative else np.abs(tailed)


def _denormal(count: int, values: Profile, rng: np.random.Generator) -> Doubles:
    lowest, highest = _DENORMAL_EXPONENTS.get(values.dtype, _FLOAT32_DENORMALS)
    return np.exp2(rng.uniform(lowest, highest, count)) * _signs(count, values, rng)


def _integers(count: int, values: Profile, rng: np.random.Generator, largest: int, density: float) -> Doubles:
    magnitudes = np.floor(np.exp2(rng.uniform(0.0, np.log2(largest + 0.999), count)))
    magnitudes = np.minimum(magnitudes, largest) * _signs(count, values, rng)
    return np.where(rng.random(count) < density, magnitudes, 0.0 if values.zero else 1.0)


def _with_specials(raw: Raw, values: Profile, rng: np.random.Generator) -> Raw:
    """The draw with one infinity or NaN in each of some rows, a row being what shares all indices but the last."""
    made = raw.copy()
    flat = plane(made, values.dtype)
    if flat.size == 0:
        return made
    width = flat.size // math.prod(raw.shape[:-1]) if raw.ndim > 1 else min(flat.size, _FEW)
    rows = flat.size // width
    kinds = [np.inf, np.nan, -np.inf] if values.negative else [np.inf, np.nan]
    count = min(rows, _SPECIAL_ROWS, max(1, rows // 4))
    chosen = rng.choice(rows, count, replace=False) * width + rng.integers(0, width, count)
    first = int(rng.integers(len(kinds)))
    special = np.array([kinds[(first + k) % len(kinds)] for k in range(count)])
    flat[chosen] = encode(special, values.dtype)
    return made
