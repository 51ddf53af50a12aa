"""Which arithmetic the errors of an answer look like: a hint, never a reason to refuse.

Accurate schemes that split numbers use narrow types and show no such errors; narrow arithmetic shows them wherever it
hides, in memory, in registers or in a library.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelworks.evaluate.bound import ReferenceError, growth
from kernelworks.task.model import DType

_CLASSES: tuple[tuple[str, float], ...] = (
    ("bfloat16", 2.0**-8),
    ("float16 or tf32", 2.0**-11),
    ("float32", 2.0**-24),
)
"""Narrow types with their unit roundoff, the widest steps first."""
_TYPICAL = 0.4
"""RMS of a rounding in unit roundoffs."""
_LOWEST, _HIGHEST = 2.0**-1.5, 2.0**3
"""Around the typical error of a class; bfloat16 and tf32 lie three binades apart."""
_ABOVE = 8.0
"""Times the error of the reference, and of honest arithmetic in the output's own type."""
_EVEN = 24.0
"""Largest error over RMS error where all elements are rounded alike."""


@dataclass(frozen=True)
class PrecisionClass:
    """What an error looks like."""

    name: str
    relative_error: float
    """RMS error over RMS of the golden output."""


def precision_class(
    rms_error: float, max_error: float, own: ReferenceError, dtype: DType, reduction_length: int
) -> PrecisionClass | None:
    """The narrow type whose roundings explain these errors; None where the output's own type does, or nothing does.

    Args:
        rms_error: of the answer.
        max_error: of the answer.
        own: errors of the reference, and the size of the golden output.
        dtype: of the output.
        reduction_length: L of the bound.
    """
    if own.golden_rms <= 0 or rms_error <= 0 or max_error > _EVEN * rms_error:
        return None
    relative = rms_error / own.golden_rms
    honest = max(own.rms / own.golden_rms, dtype.unit_roundoff * growth(reduction_length, "normal") / 4)
    if relative < _ABOVE * honest:
        return None
    for name, roundoff in _CLASSES:
        typical = _TYPICAL * roundoff
        if roundoff > dtype.unit_roundoff and _LOWEST * typical <= relative < _HIGHEST * typical:
            return PrecisionClass(name, relative)
    return None
