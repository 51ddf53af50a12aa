"""Whom a candidate is timed against, when it is not the anchor."""

from __future__ import annotations

from kernelworks.data import Frozen
from kernelworks.kernel.model import Kernel


class Opponent(Frozen):
    """An incumbent and its own measured speed-up over the anchor, by which ratios are chained."""

    kernel: Kernel
    speedup: float
    speedup_low: float
    speedup_high: float
