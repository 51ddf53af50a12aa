"""In which way an answer is wrong: a factor, a shift, a term left out, a neighbour's value, too few bits.

Every hypothesis predicts the values that were found from what the judge knows (right values, inputs, other results).
It is believed where it explains nearly all wrong elements and leaves almost nothing of their errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelworks.evaluate.numbers import Doubles, Raw, decode, plane
from kernelworks.task.model import DType, TensorArgument

Indices = NDArray[np.int64]

SAMPLE = 8192
"""Wrong elements by which hypotheses are tried."""
_EXPLAINED = 0.97
_LEFT = 0.05
"""A hypothesis leaves at most this share of the median error."""
_FEWEST = 4
"""Wrong elements from which on it is no accident that they stand elsewhere as right ones."""
_ROWS = 12
_ROW_ELEMENTS = 2048
_PERMUTED_COLUMNS = 12
_PERMUTED_ROWS = 4096
_FACTORS = {
    "log2(e): base 2 where base e is meant": math.log2(math.e),
    "ln(2): base e where base 2 is meant": math.log(2),
    "pi": math.pi,
    "1/pi": 1 / math.pi,
    "the square root of 2": math.sqrt(2),
    "1/sqrt(2)": math.sqrt(0.5),
}


@dataclass(frozen=True)
class Manner:
    """How found values follow from right ones."""

    pattern: str
    text: str
    """A clause, such as "found is 2 x expected"."""
    evidence: dict[str, Any] = field(default_factory=dict[str, Any])

    def record(self) -> dict[str, Any]:
        """JSON-able."""
        return {"pattern": self.pattern, **self.evidence}


@dataclass(frozen=True)
class Known:
    """What the judge knows beside the right answer."""

    inputs: Mapping[str, tuple[TensorArgument, Raw]] = field(default_factory=dict[str, tuple[TensorArgument, Raw]])
    """Tensors among inputs and weights, raw arrays of their shapes."""
    others: Mapping[str, Raw] = field(default_factory=dict[str, Raw])
    """Right values (planes) of the other results."""
    earlier: Mapping[str, Raw] = field(default_factory=dict[str, Raw])
    """Right values (planes) of this result for other inputs, by what they are called."""


@dataclass(frozen=True)
class Wrong:
    """Wrong elements of one result, at most ``SAMPLE``, finite ones of a floating result."""

    dtype: DType
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    """Of the plane: a complex result has a last axis of 2."""
    found: Raw
    """The whole plane."""
    golden: Raw
    at: Indices
    """Flat positions, ascending."""
    floor: float
    relative: float
    beside: TensorArgument | None = None
    """An input that is subtracted from found and right values, to look beneath it ..."""
    term: Raw | None = None
    """... and its raw array."""

    def have(self, at: Indices) -> Raw:
        """Values found at flat positions: float64, or integers."""
        return self._beneath(_wide(decode(self.found[at], self.dtype)), at)

    def want(self, at: Indices) -> Raw:
        """Right values at flat positions."""
        return self._beneath(_wide(self.golden[at]), at)

    def _beneath(self, values: Raw, at: Indices) -> Raw:
        if self.beside is None or self.term is None:
            return values
        there = along(self, self.beside, self.term, at)
        return values if there is None else values - there

    def explained(self, predicted: Raw, at: Indices, have: Raw | None = None) -> bool:
        """Whether these values are what was found, nearly everywhere."""
        if at.size == 0:
            return False
        have = self.have(at) if have is None else have
        want = self.want(at)
        with np.errstate(all="ignore"):
            left, error = np.abs(have - predicted), np.abs(have - want)
            limits = np.maximum(np.abs(predicted) * self.relative, self.floor)
            close = left <= np.maximum(2 * limits, 1e-3 * error)
            if np.count_nonzero(close) < _EXPLAINED * at.size:
                return False
            return float(np.median(left)) <= _LEFT * float(np.median(error))


def _wide(values: Raw) -> Raw:
    return values if values.dtype.kind == "f" else values.astype(np.float64)


def manner_of(wrong: Wrong, known: Known) -> Manner | None:
    """The first hypothesis that holds, from the plainest to the most general; None if none does."""
    if wrong.at.size == 0:
        return None
    plain = (
        _constants,
        _elsewhere,
        _scaled,
        _moved,
        _terms,
        _by_row,
        _permuted,
        _integers,
        _beneath_a_term,
        _precision,
    )
    for hypotheses in plain:
        for manner in hypotheses(wrong, known):
            return manner
    return None


def _beneath_a_term(wrong: Wrong, known: Known) -> Iterator[Manner]:
    """A factor that is wrong in a sum: found and expected without one of the inputs, such as a bias."""
    if not wrong.dtype.is_floating or wrong.at.size < _FEWEST:
        return
    for name, (argument, raw) in known.inputs.items():
        if along(wrong, argument, raw, wrong.at) is None:
            continue
        inner = replace(wrong, beside=argument, term=raw)
        others = replace(known, inputs={n: pair for n, pair in known.inputs.items() if n != name})
        for hypotheses in (_scaled, _factors, _by_row):
            for manner in hypotheses(inner, others):
                text = f"once {name} is subtracted from both, {manner.text}"
                yield Manner(manner.pattern, text, {**manner.evidence, "without": name})


def _constants(wrong: Wrong, known: Known) -> Iterator[Manner]:
    have = wrong.have(wrong.at)
    value = float(have[0])
    if np.count_nonzero(have == value) < 0.99 * have.size or (have.size < 2 and value != 0):
        return
    want = wrong.want(wrong.at)
    if bool((want == want[0]).all()) and value != 0:
        return  # a factor says more
    if value == 0:
        yield Manner("zeros", "found is 0 there")
    else:
        yield Manner("constant", f"found is {value:.9g} throughout", {"value": value})


def _elsewhere(wrong: Wrong, known: Known) -> Iterator[Manner]:
    """Values that belong elsewhere: to another result, to other inputs, or to an input itself."""
    have = wrong.have(wrong.at)
    if have.size < _FEWEST:
        return
    for name, other in known.others.items():
        if other.size == wrong.golden.size and _same(wrong, have, other):
            yield Manner("swapped", f"found is the right answer for {name}: outputs are swapped", {"with": name})
    for name, other in known.earlier.items():
        if other.size == wrong.golden.size and _same(wrong, have, other):
            text = f"found is the right answer for {name}: an answer that was kept"
            yield Manner("stale", text, {"of": name})
    for name, (argument, raw) in known.inputs.items():
        flat = plane(raw, argument.dtype)
        if flat.size == wrong.golden.size and argument.dtype.is_floating == wrong.dtype.is_floating:
            values = _wide(decode(flat[wrong.at], argument.dtype))
            if wrong.explained(values, wrong.at, have):
                yield Manner("copy", f"found is the input {name} as it is", {"input": name})


def _same(wrong: Wrong, have: Raw, other: Raw) -> bool:
    return wrong.explained(_wide(other[wrong.at]), wrong.at, have)


def _scaled(wrong: Wrong, known: Known) -> Iterator[Manner]:
    have, want = wrong.have(wrong.at), wrong.want(wrong.at)
    usable = want != 0
    if np.count_nonzero(usable) >= max(1, 0.5 * want.size):
        factor = float(np.median(have[usable] / want[usable]))
        if math.isfinite(factor) and factor != 0 and wrong.explained(want * factor, wrong.at, have) and have.size > 1:
            yield _factor(factor, dict(zip(wrong.axes, wrong.shape, strict=True)), known)
    offset = float(np.median(have - want))
    if have.size > 2 and wrong.explained(want + offset, wrong.at, have):
        yield Manner("offset", f"found is expected {_signed(offset)}", {"offset": offset})


def _factor(factor: float, dims: Mapping[str, int], known: Known) -> Manner:
    evidence: dict[str, Any] = {"factor": factor}
    if _near(factor, -1):
        return Manner("sign", "the sign is flipped", evidence)
    if _near(factor, 2):
        return Manner("doubled", "found is 2 x expected: something is accumulated twice", evidence)
    for argument, raw in known.inputs.values():
        dims = {**{a: n for a, n in zip(argument.shape, raw.shape, strict=True) if isinstance(a, str)}, **dims}
    said = next((f" ({name})" for name, value in _FACTORS.items() if _near(factor, value)), "")
    for dim, size in dims.items():
        if said or size < 3:
            continue
        for value, name in ((size, dim), (1 / size, f"1/{dim}"), (math.sqrt(size), f"sqrt({dim})")):
            if _near(factor, value):
                said = f" ({name})"
        if _near(factor, 1 / math.sqrt(size)):
            said = f" (1/sqrt({dim}))"
    return Manner("factor", f"found is {factor:.7g} x expected{said}", evidence)


def _near(value: float, target: float) -> bool:
    return math.isclose(value, target, rel_tol=1e-4)


def _signed(offset: float) -> str:
    return f"{'-' if offset < 0 else '+'} {abs(offset):.7g}"


def _moved(wrong: Wrong, known: Known) -> Iterator[Manner]:
    """Right values of other positions."""
    have, shape = wrong.have(wrong.at), wrong.shape
    index = np.unravel_index(wrong.at, shape)
    for axis, name in enumerate(wrong.axes):
        stride, size = math.prod(shape[axis + 1 :]), shape[axis]
        if size < 3:
            continue
        for step in (1, -1, 2, -2):
            there = (index[axis] + step >= 0) & (index[axis] + step < size)
            if np.count_nonzero(there) < max(3, 0.5 * there.size):
                continue
            at = wrong.at[there]
            if wrong.explained(wrong.want(at + step * stride), at, have[there]):
                text = f"found at {name} i is expected at {name} i {_signed(step)}: shifted along {name}"
                yield Manner("shifted", text, {"dim": name, "by": step})
        mirrored = wrong.at + (size - 1 - 2 * index[axis]) * stride
        if wrong.at.size >= 3 and wrong.explained(wrong.want(mirrored), wrong.at, have):
            yield Manner("reversed", f"the order along {name} is reversed", {"dim": name})
    if len(shape) < 2 or min(shape[-2:]) < 2:
        return
    rows, columns = shape[-2:]
    within = wrong.at % (rows * columns)
    column, row = np.divmod(within, rows)  # the plane read as columns x rows
    if wrong.at.size >= 3 and wrong.explained(wrong.want(wrong.at - within + row * columns + column), wrong.at, have):
        pair = f"{wrong.axes[-2]} and {wrong.axes[-1]}"
        yield Manner("transposed", f"{pair} are transposed", {"dims": list(wrong.axes[-2:])})


def _terms(wrong: Wrong, known: Known) -> Iterator[Manner]:
    """An input that enters as a term or a factor is left out, or used twice."""
    have, want = wrong.have(wrong.at), wrong.want(wrong.at)
    for name, values in _aligned(wrong, known):
        for predicted, text in (
            (want - values, f"as if {name} were not added"),
            (want + values, f"as if {name} were not subtracted, or were added twice"),
        ):
            if wrong.explained(predicted, wrong.at, have):
                yield Manner("missing_term", text, {"input": name})
        scale = float(np.dot(have - want, values) / np.dot(values, values))
        if wrong.explained(want + scale * values, wrong.at, have):
            text = f"found - expected is {scale:.4g} x {name}"
            yield Manner("missing_term", text, {"input": name, "scale": scale})
    yield from _factors(wrong, known)


def _factors(wrong: Wrong, known: Known) -> Iterator[Manner]:
    """An input by which nothing was multiplied, or twice."""
    have, want = wrong.have(wrong.at), wrong.want(wrong.at)
    for name, values in _aligned(wrong, known):
        inverse = 1 / np.where(values == 0, np.nan, values)
        for predicted, pattern, text in (
            (want * values, "extra_factor", f"as if multiplied by {name} once too often"),
            (want * inverse, "missing_factor", f"as if not multiplied by {name}"),
        ):
            if wrong.explained(predicted, wrong.at, have):
                yield Manner(pattern, text, {"input": name})


def _aligned(wrong: Wrong, known: Known) -> Iterator[tuple[str, Doubles]]:
    """Floating inputs that broadcast to the result and are not the same everywhere, at the wrong positions."""
    if wrong.at.size < 3 or not wrong.dtype.is_floating:
        return
    for name, (argument, raw) in known.inputs.items():
        values = along(wrong, argument, raw, wrong.at)
        if values is not None and np.isfinite(values).all() and float(np.ptp(values)) > 0:
            yield name, values


def along(wrong: Wrong, argument: TensorArgument, raw: Raw, at: Indices) -> Doubles | None:
    """Values of an input at flat positions of the result; None where it does not broadcast to it."""
    if not argument.dtype.is_floating or argument.dtype is DType.COMPLEX64 or raw.ndim > len(wrong.shape):
        return None
    where = _axes_of(argument, raw.shape, wrong)
    if where is None or not raw.size:
        return None
    index = np.unravel_index(at, wrong.shape)
    first = np.zeros_like(at)
    there = tuple(index[a] if n > 1 else first for a, n in zip(where, raw.shape, strict=True))
    return decode(raw[there], argument.dtype)


def _axes_of(argument: TensorArgument, shape: tuple[int, ...], wrong: Wrong) -> list[int] | None:
    """Which axis of the result each axis of an input goes along: by name, else from the last one on."""
    named = [wrong.axes.index(axis) if axis in wrong.axes else -1 for axis in argument.shape]
    if all(a >= 0 for a in named) and len(set(named)) == len(named):
        return named
    trailing = list(range(len(wrong.shape) - len(shape), len(wrong.shape)))
    fits = all(n in (1, wrong.shape[a]) for a, n in zip(trailing, shape, strict=True))
    return trailing if fits else None


def _rows(wrong: Wrong) -> tuple[Indices, Indices]:
    """Rows (all axes but the last) with wrong elements, a few; and flat positions of their columns, (rows, columns)."""
    width = wrong.shape[-1]
    rows = np.unique(wrong.at // width)
    rows = rows[np.linspace(0, rows.size - 1, min(_ROWS, rows.size)).astype(np.int64)]
    columns = np.unique(np.linspace(0, width - 1, min(width, _ROW_ELEMENTS)).astype(np.int64))
    return rows, rows[:, None] * width + columns


def _by_row(wrong: Wrong, known: Known) -> Iterator[Manner]:
    """Every row is off by a factor or a term of its own: what is wrong is a statistic of the row."""
    if len(wrong.shape) < 2 or wrong.shape[-1] < 3 or not wrong.dtype.is_floating:
        return
    rows, at = _rows(wrong)
    have, want = wrong.have(at), wrong.want(at)
    if rows.size < 2 or not (np.isfinite(have).all() and np.isfinite(want).all()):
        return
    with np.errstate(all="ignore"):
        ratios = np.where(want != 0, have / want, np.nan)
        usable = np.count_nonzero(np.isfinite(ratios), axis=1).min() >= 2
        factors = np.nanmedian(ratios, axis=1) if usable else np.full(rows.size, np.nan)
        offsets = np.median(have - want, axis=1)
    name, said = wrong.axes[-1], "the same all along"
    if usable and wrong.explained((want * factors[:, None]).ravel(), at.ravel(), have.ravel()):
        low, high = float(factors.min()), float(factors.max())
        text = f"found / expected is {said} {name}, but differs from row to row ({low:.4g} to {high:.4g})"
        yield Manner("row_factor", text + ": a statistic of the row is wrong", {"dim": name, "from": low, "to": high})
    elif wrong.explained((want + offsets[:, None]).ravel(), at.ravel(), have.ravel()):
        low, high = float(offsets.min()), float(offsets.max())
        text = f"found - expected is {said} {name}, but differs from row to row ({low:.4g} to {high:.4g})"
        yield Manner("row_offset", text + ": a statistic of the row is wrong", {"dim": name, "from": low, "to": high})


def _permuted(wrong: Wrong, known: Known) -> Iterator[Manner]:
    """Whole rows stand in each other's place."""
    if len(wrong.shape) < 2 or wrong.shape[-1] < 2:
        return
    width = wrong.shape[-1]
    count = math.prod(wrong.shape[:-1])
    if not 3 <= count <= _PERMUTED_ROWS:
        return
    rows, _ = _rows(wrong)
    columns = np.unique(np.linspace(0, width - 1, min(width, _PERMUTED_COLUMNS)).astype(np.int64))
    table = wrong.want(np.arange(count, dtype=np.int64)[:, None] * width + columns)
    sources: list[int] = []
    for row in rows.tolist():
        have = wrong.have(row * width + columns)
        with np.errstate(all="ignore"):
            distance = np.abs(table - have).max(axis=1)
        source = int(np.argmin(distance))
        limit = 2 * max(wrong.floor, wrong.relative * float(np.abs(have).max()))
        if not distance[source] <= limit or source == row:
            return
        sources.append(source)
    if len(sources) < 2 or len(set(sources)) < 2:
        return
    text = f"rows are permuted: row {int(rows[0])} holds what belongs in row {sources[0]}"
    yield Manner("permuted", text, {"found": rows[:4].tolist(), "expected": sources[:4]})


def _integers(wrong: Wrong, known: Known) -> Iterator[Manner]:
    if wrong.dtype.is_floating:
        return
    have, want = wrong.have(wrong.at), wrong.want(wrong.at)
    if wrong.dtype is DType.BOOL:
        yield Manner("inverted", "found is the opposite of expected")
        return
    for bits in (8, 16, 32):
        low = np.mod(want, 2.0**bits)
        signed = np.where(low >= 2.0 ** (bits - 1), low - 2.0**bits, low)
        for values, sort in ((signed, "signed"), (low, "unsigned")):
            if bits < 8 * wrong.dtype.itemsize_bytes and bool((have == values).all()):
                yield Manner("overflow", f"found is expected cut to {bits} bits ({sort})", {"bits": bits})
    if bool((np.abs(have - want) <= 1).all()):
        yield Manner("rounding", "found is off by one: another rounding", {})


def _precision(wrong: Wrong, known: Known) -> Iterator[Manner]:
    """Errors like those of a type with fewer bits."""
    if not wrong.dtype.is_floating or wrong.at.size < 8:
        return
    have, want = wrong.have(wrong.at), wrong.want(wrong.at)
    if wrong.dtype in (DType.FLOAT32, DType.COMPLEX64):
        words = wrong.found[wrong.at].view(np.uint32)
        for kept, name in ((16, "bfloat16"), (13, "float16 or tf32")):
            if np.count_nonzero(words & np.uint32((1 << kept) - 1)) < 0.01 * words.size:
                bits = {"class": name, "rounded": True}
                yield Manner("precision", f"every value found is a number of {name}: rounded to it", bits)
                return
    error, size = have - want, math.sqrt(float(np.mean(want * want)))
    rms = math.sqrt(float(np.mean(error * error)))
    if size == 0 or rms == 0 or float(np.abs(error).max()) > 40 * rms or abs(float(error.mean())) > 0.7 * rms:
        return
    if _follows_rows(wrong):
        return
    exponent = math.log2(rms / size)
    name = next((n for low, high, n in _CLASSES if low <= exponent < high), None)
    if name is not None:
        text = f"errors are noise of 2^{exponent:.1f} of the values' size, {name}"
        yield Manner("precision", text, {"class": name, "relative_error": rms / size})


def _follows_rows(wrong: Wrong) -> bool:
    """Whether errors are in proportion to the values of a row, as no rounding is."""
    if len(wrong.shape) < 2 or wrong.shape[-1] < 8:
        return False
    _, at = _rows(wrong)
    want = wrong.want(at)
    error = wrong.have(at) - want
    with np.errstate(all="ignore"):
        norms = np.sqrt((error * error).sum(axis=1) * (want * want).sum(axis=1))
        along_rows = np.abs((error * want).sum(axis=1)) / norms
    return bool(np.nanmedian(along_rows) > 0.5)


_CLASSES = (
    (-11.0, -6.5, "as of arithmetic in bfloat16"),
    (-14.5, -11.0, "as of arithmetic in float16 or tf32"),
    (-25.0, -14.5, "as of float32 arithmetic with too many roundings, or of an approximation"),
)


def specials_of(found: Raw, golden: Raw, rows_hold_special: float) -> Manner:
    """How NaN and infinity differ.

    Args:
        found: values found where they differ.
        golden: right ones there.
        rows_hold_special: share of these elements in whose row (last axis) some right value is not finite.
    """
    nan, infinite = int(np.count_nonzero(np.isnan(found))), int(np.count_nonzero(np.isinf(found)))
    finite = found.size - nan - infinite
    evidence: dict[str, Any] = {"nan": nan, "infinite": infinite, "finite": finite}
    if finite == found.size:
        text = "finite values stand where NaN or infinity belongs (flags that assume finite numbers do that)"
        return Manner("special_lost", text, evidence)
    if rows_hold_special > 0.99:
        return Manner("special_spread", "a NaN or an infinity spreads over its whole row", evidence)
    most = float(np.max(np.abs(golden), where=np.isfinite(golden), initial=0.0))
    if infinite > nan:
        more = ", beyond the range of float16" if most > 65504 else ""
        text = f"infinity where expected values reach {most:.4g}{more}: an overflow"
        return Manner("overflow", text, {**evidence, "expected_up_to": most})
    return Manner("nan", "NaN where numbers belong", evidence)


def names_of(axes: Sequence[str | int], dtype: DType) -> tuple[str, ...]:
    """A name for every axis of a plane."""
    found = tuple(axis if isinstance(axis, str) else f"axis {k}" for k, axis in enumerate(axes)) or ("the scalar",)
    return (*found, "real/imaginary") if dtype is DType.COMPLEX64 else found
