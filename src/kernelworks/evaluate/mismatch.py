"""What a wrong answer teaches: where it is wrong and in which way, in one clause that a person can act on.

Only wrong answers are analysed. Large results are looked at through a mesh of half a million elements (``places``) and
8,192 wrong ones among them (``manners``), so that an analysis takes tens of milliseconds whatever the size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelworks.evaluate.manners import SAMPLE, Known, Manner, Wrong, manner_of, names_of, specials_of
from kernelworks.evaluate.numbers import Raw, decode, words_of
from kernelworks.evaluate.places import Indices, Mask, Mesh, Place, mesh_of, place_of
from kernelworks.task.model import DType, TensorArgument


@dataclass(frozen=True)
class Answer:
    """One result that is wrong."""

    argument: TensorArgument
    shape: tuple[int, ...]
    found: Raw
    """Plane."""
    golden: Raw
    """Plane of right values: float64, or integers and bools as stored."""
    poison: int
    """Word that unwritten elements hold; -1 where there is none."""
    worst: int
    """Flat position in the plane; negative where there is none."""
    floor: float = 0.0
    """Largest error allowed of an element ..."""
    relative: float = 0.0
    """... or this times its right value, whichever is larger."""
    rms_limit: float = 0.0
    nan_allowed: NDArray[np.uint8] | None = None
    """Bits, one an element: where NaN is let be."""


@dataclass(frozen=True)
class Explanation:
    """Clauses to follow "elements are wrong", and the same as data."""

    text: str = ""
    """Begins with a comma; empty where nothing is known."""
    evidence: dict[str, Any] = field(default_factory=dict[str, Any])


class Mismatch:
    """The analysis of one wrong result; each question is answered when it is asked."""

    def __init__(self, answer: Answer, known: Known) -> None:
        self._answer = answer
        self._known = known
        self._dtype = answer.argument.dtype
        extra = (2,) if self._dtype is DType.COMPLEX64 else ()
        self._shape = (*(answer.shape or (1,)), *extra)
        self._axes = names_of(answer.argument.shape, self._dtype)

    def unwritten(self) -> Explanation:
        """Where elements were not written."""
        return self._explanation(self._unwritten, None)

    def specials(self) -> Explanation:
        """Where and how NaN and infinity differ."""
        mask = self._differs & ~self._finite & ~self._unwritten
        if self._answer.nan_allowed is not None:
            allowed = np.unpackbits(self._answer.nan_allowed, count=self._answer.golden.size).astype(np.bool_)
            mask &= ~(self._picked(allowed) & np.isnan(self._have))
        if not mask.any():
            return Explanation()
        special = ~np.isfinite(self._want)
        rows = special.any(axis=-1, keepdims=True) if special.ndim > 1 else np.full(special.shape, special.any())
        share = float(np.mean(np.broadcast_to(rows, mask.shape)[mask]))
        return self._explanation(mask, specials_of(self._have[mask], self._want[mask], share))

    def values(self) -> Explanation:
        """Where and how values differ."""
        mask = self._differs & self._finite & ~self._unwritten
        if not mask.any() and self._dtype.is_floating:  # no element is beyond its limit, all together are
            mask = (self._error > self._answer.rms_limit) & self._finite
        if not mask.any():
            return Explanation()
        at = np.sort(self._flat[mask])
        at = at[np.unique(np.linspace(0, at.size - 1, min(SAMPLE, at.size)).astype(np.int64))]
        answer = self._answer
        wrong = Wrong(
            dtype=self._dtype,
            axes=self._axes,
            shape=self._shape,
            found=answer.found,
            golden=answer.golden,
            at=at,
            floor=answer.floor,
            relative=answer.relative,
        )
        return self._explanation(mask, manner_of(wrong, self._known))

    @cached_property
    def _mesh(self) -> Mesh:
        return mesh_of(self._shape, self._answer.worst)

    @cached_property
    def _flat(self) -> Indices:
        return self._mesh.flat()

    def _picked(self, plane: Raw) -> Raw:
        return plane.reshape(self._shape) if self._mesh.whole else plane[self._flat]

    @cached_property
    def _have(self) -> Raw:
        raw = self._picked(self._answer.found)
        return decode(raw, self._dtype)

    @cached_property
    def _want(self) -> Raw:
        return self._picked(self._answer.golden)

    @cached_property
    def _unwritten(self) -> Mask:
        raw = np.ascontiguousarray(self._picked(self._answer.found))
        held = words_of(raw, self._dtype) == self._answer.poison
        return held if self._dtype.is_floating else held & self._differs

    @cached_property
    def _finite(self) -> Mask:
        if not self._dtype.is_floating:
            return np.ones(self._have.shape, np.bool_)
        return np.isfinite(self._have) & np.isfinite(self._want)

    @cached_property
    def _error(self) -> Raw:
        with np.errstate(all="ignore"):
            return np.abs(self._have - self._want)

    @cached_property
    def _differs(self) -> Mask:
        if not self._dtype.is_floating:
            return np.asarray(self._have != self._want)
        with np.errstate(all="ignore"):
            limits = np.maximum(np.abs(self._want) * self._answer.relative, self._answer.floor)
            within = self._error <= limits
        both_nan = np.isnan(self._have) & np.isnan(self._want)
        return ~(within | both_nan | (self._have == self._want))

    def _explanation(self, mask: Mask, manner: Manner | None) -> Explanation:
        if not mask.any():
            return Explanation()
        golden = self._want if self._dtype.is_floating else None
        place = place_of(mask, self._mesh, self._axes, golden)
        text = f", {place.text}"
        if manner is not None:
            text += f"; {manner.text}"
        evidence: dict[str, Any] = {"where": place.record(), "pattern": _headline(place, manner)}
        if manner is not None:
            evidence["how"] = manner.record()
        return Explanation(text, evidence)


def _headline(place: Place, manner: Manner | None) -> str:
    """One word for the whole: the manner where it is known and the answer is wrong everywhere, else the place."""
    if manner is not None and place.pattern in ("everywhere", "scattered", "few", "one"):
        return manner.pattern
    return place.pattern
