"""Comparison of an answer with the golden one, in chunks, so that temporaries stay small whatever the tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelworks.evaluate.bound import Bound, Moved, ReferenceError
from kernelworks.evaluate.numbers import Doubles, Raw, decode, words_of
from kernelworks.task.model import DType

CHUNK_ELEMENTS = 1 << 16
"""Half a mebibyte of doubles: the chunk's temporaries stay in a core's second-level cache."""


@dataclass
class Figures:
    """What a comparison found for one result. Positions are flat, in the plane; -1 where there is none."""

    rms_error: float = 0.0
    max_error: float = 0.0
    worst_share: float = 0.0
    """Largest error over its element's limit; above 1 an element is out of bounds. Integers: 1 for any mismatch."""
    worst: int = -1
    worst_limit: float = 0.0
    mask_mismatches: int = 0
    """Elements that are NaN or infinite where golden is not (or otherwise), unwritten ones not counted."""
    first_mask_mismatch: int = -1
    unwritten: int = 0
    """Elements that still hold the poison."""
    first_unwritten: int = -1
    mismatches: int = 0
    """Elements beyond their limit; for integers, unequal ones."""
    finite: int = 0
    """Elements that are finite in both."""
    let_be: int = 0
    """NaN in place of a finite number, where it may stand; no mismatch."""
    first_let_be: int = -1


def compare_floats(
    found: Raw,
    golden: Doubles,
    dtype: DType,
    bound: Bound,
    poison: int,
    *,
    nan_for_infinity: bool = False,
    nan_allowed: NDArray[np.uint8] | None = None,
) -> Figures:
    """Errors of a raw plane against golden values of the same size.

    Args:
        found: raw plane.
        golden: float64 plane.
        dtype: dtype of ``found``, floating.
        bound: limits; ``worst*`` and ``mismatches`` refer to them.
        poison: word that unwritten elements hold.
        nan_for_infinity: accept NaN in place of an infinity: compensated sums and schemes that split numbers form the
            difference of two.
        nan_allowed: bits (``np.packbits``), one an element: where NaN may stand for a finite number.
    """
    figures = Figures()
    total = 0.0
    floor = max(bound.max_floor, np.finfo(np.float64).tiny)
    scale = scale_for(golden, dtype)
    error_space, square_space = np.empty(CHUNK_ELEMENTS), np.empty(CHUNK_ELEMENTS)
    for start in range(0, found.size, CHUNK_ELEMENTS):
        raw = found[start : start + CHUNK_ELEMENTS]
        want = golden[start : start + CHUNK_ELEMENTS]
        error, square = error_space[: raw.size], square_space[: raw.size]
        have = decode(raw, dtype) if dtype is DType.BFLOAT16 else raw
        with np.errstate(invalid="ignore", over="ignore"):
            np.subtract(have, want, out=error)
            part = _sum_of_squares(error, square, scale)
        if math.isfinite(part):
            figures.finite += raw.size
        else:
            allowed = nan_allowed[start // 8 : (start + raw.size + 7) // 8] if nan_allowed is not None else None
            want = _set_non_finite_aside(figures, start, raw, want, error, dtype, poison, nan_for_infinity, allowed)
            with np.errstate(over="ignore"):
                part = _sum_of_squares(error, square, scale)
        total += part
        _take_worst(figures, start, np.abs(error, out=error), want, floor, bound.max_relative)
    figures.rms_error = math.sqrt(total / max(1, figures.finite)) / scale
    return figures


def scale_for(values: Doubles, dtype: DType) -> float:
    """A power of two with which squares of the values do not underflow: 1 unless they are float64 and tiny."""
    if dtype is not DType.FLOAT64:
        return 1.0
    for start in range(0, values.size, CHUNK_ELEMENTS):
        part = np.abs(values[start : start + CHUNK_ELEMENTS])
        if not (part < _TINY).all():
            return 1.0
    return _SCALE


_TINY, _SCALE = 2.0**-400, 2.0**600


def _sum_of_squares(values: Doubles, space: Doubles, scale: float) -> float:
    """Of values times ``scale``; no ``np.dot``: its BLAS threads spin."""
    if scale == 1.0:
        return float(np.multiply(values, values, out=space).sum())
    np.multiply(values, scale, out=space)
    return float(np.multiply(space, space, out=space).sum())


def _set_non_finite_aside(
    figures: Figures,
    start: int,
    raw: Raw,
    want: Doubles,
    error: Doubles,
    dtype: DType,
    poison: int,
    nan_for_infinity: bool,
    nan_allowed: NDArray[np.uint8] | None,
) -> Doubles:
    """Count what is not finite and set its error to zero; golden of the chunk with zeros there."""
    have = decode(raw, dtype)
    finite = np.isfinite(have) & np.isfinite(want)
    unwritten = words_of(raw, dtype) == poison
    same = (np.isnan(have) & np.isnan(want)) | (have == want)
    if nan_for_infinity:
        same |= np.isnan(have) & np.isinf(want)
    if nan_allowed is not None:
        allowed = np.unpackbits(nan_allowed, count=raw.size).astype(np.bool_)
        let_be = allowed & np.isnan(have) & np.isfinite(want) & ~unwritten
        same |= let_be
        if let_be.any():
            if figures.let_be == 0:
                figures.first_let_be = start + int(np.argmax(let_be))
            figures.let_be += int(np.count_nonzero(let_be))
    disagree = ~(finite | same | unwritten)
    figures.finite += int(np.count_nonzero(finite))
    if unwritten.any():
        if figures.unwritten == 0:
            figures.first_unwritten = start + int(np.argmax(unwritten))
        figures.unwritten += int(np.count_nonzero(unwritten))
    if disagree.any():
        if figures.mask_mismatches == 0:
            figures.first_mask_mismatch = start + int(np.argmax(disagree))
        figures.mask_mismatches += int(np.count_nonzero(disagree))
    error[~finite] = 0.0
    return np.where(finite, want, 0.0)


def _take_worst(figures: Figures, start: int, error: Doubles, golden: Doubles, floor: float, relative: float) -> None:
    """Update the worst element and count those beyond their limit; exact limits only where they can matter."""
    largest = float(error.max(initial=0.0))
    figures.max_error = max(figures.max_error, largest)
    if largest <= floor and largest / floor <= figures.worst_share:
        return
    limits = np.maximum(np.abs(golden) * relative, floor)
    shares = error / limits
    at = int(np.argmax(shares))
    figures.mismatches += int(np.count_nonzero(shares > 1))
    if shares[at] > figures.worst_share:
        figures.worst_share = float(shares[at])
        figures.worst = start + at
        figures.worst_limit = float(limits[at])


def compare_exact(found: Raw, golden: Raw, dtype: DType, poison: int) -> Figures:
    """Integers and bools: every element equal, bit for bit. ``unwritten`` counts wrong elements that hold the fill."""
    figures = Figures(finite=found.size)
    words, wanted = words_of(found, dtype), words_of(golden, dtype)
    for start in range(0, found.size, CHUNK_ELEMENTS):
        unequal = words[start : start + CHUNK_ELEMENTS] != wanted[start : start + CHUNK_ELEMENTS]
        if not unequal.any():
            continue
        filled = unequal & (words[start : start + CHUNK_ELEMENTS] == poison)
        at = start + int(np.argmax(unequal))
        if figures.mismatches == 0:
            figures.worst, figures.worst_share = at, math.inf
            figures.max_error = abs(float(found[at]) - float(golden[at]))
        if figures.unwritten == 0 and filled.any():
            figures.first_unwritten = start + int(np.argmax(filled))
        figures.mismatches += int(np.count_nonzero(unequal))
        figures.unwritten += int(np.count_nonzero(filled))
    return figures


def reference_error(found: Raw, golden: Doubles, dtype: DType) -> tuple[ReferenceError, Figures]:
    """Errors of the native reference against golden; the figures tell where the two disagree about what is finite."""
    figures = compare_floats(found, golden, dtype, Bound(math.inf, math.inf, 0.0), poison=-1)
    return ReferenceError(figures.rms_error, figures.max_error, _finite_rms(golden, scale_for(golden, dtype))), figures


def movement(golden: Doubles, answers: Sequence[Doubles], dtype: DType, amount: float) -> tuple[Moved, int]:
    """How far answers to moved inputs lie from golden, and how many elements are finite in one alone."""
    scale = scale_for(golden, dtype)
    total, count, largest, mask_mismatches = 0.0, 0, 0.0, 0
    for answer in answers:
        for start in range(0, golden.size, CHUNK_ELEMENTS):
            a, b = golden[start : start + CHUNK_ELEMENTS], answer[start : start + CHUNK_ELEMENTS]
            finite = np.isfinite(a) & np.isfinite(b)
            mask_mismatches += int(np.count_nonzero(np.isfinite(a) != np.isfinite(b)))
            part = (a[finite] - b[finite]) * scale
            count += part.size
            largest = max(largest, float(np.abs(part).max(initial=0.0)))
            with np.errstate(over="ignore"):
                total += float(np.square(part).sum())
    return Moved(math.sqrt(total / max(1, count)) / scale, largest / scale, amount), mask_mismatches


def _finite_rms(values: Doubles, scale: float) -> float:
    """Root mean square of the finite values."""
    total, count = 0.0, 0
    for start in range(0, values.size, CHUNK_ELEMENTS):
        part = values[start : start + CHUNK_ELEMENTS]
        part = part[np.isfinite(part)]
        count += part.size
        with np.errstate(over="ignore"):
            total += float(np.square(part * scale if scale != 1.0 else part).sum())
    return math.sqrt(total / max(1, count)) / scale


def first_difference(left: memoryview | Raw, right: memoryview | Raw) -> int:
    """Index of the first byte that differs between two equally long buffers; -1 if none does."""
    a, b = np.frombuffer(left, np.uint8), np.frombuffer(right, np.uint8)
    step = 8 * CHUNK_ELEMENTS
    for start in range(0, a.size, step):
        x, y = a[start : start + step], b[start : start + step]
        if not np.array_equal(_words(x), _words(y)):
            return start + int(np.argmax(x != y))
    return -1


def _words(chunk: NDArray[np.uint8]) -> NDArray[np.uint8] | NDArray[np.uint64]:
    return chunk.view(np.uint64) if chunk.size % 8 == 0 else chunk
