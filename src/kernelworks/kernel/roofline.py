"""How fast an operation can be on a device at best, and which resource says so. Plain data and arithmetic on it.

The roofline model (Williams, Waterman and Patterson 2009, Communications of the ACM 52(4)) in time: a call takes at
least as long as moving its bytes, and at least as long as doing its operations. Both are lower bounds only as far as
the counts are: bytes are those of the fused ideal, each input read once and each output written once; operations are
those of the reference, so an algorithm that needs fewer (Winograd, Strassen, skipped zeros) can be faster.
"""

from __future__ import annotations

from typing import Literal

from kernelworks.data import Frozen
from kernelworks.kernel.hardware import Hardware

Arithmetic = Literal["float32", "float64", "half", "integer"]
"""What is done on: ``half`` stands for float16 and bfloat16, ``integer`` for whole numbers and bools."""


class Work(Frozen):
    """What the reference does for one case, counted from its graph (``kernel.operations``)."""

    read_bytes: int
    written_bytes: int
    products: dict[Arithmetic, int] = {}
    """Operations of matrix products, convolutions and attention: pairs of a product and a sum, each counted."""
    others: dict[Arithmetic, int] = {}
    """All other operations."""
    uncounted: tuple[str, ...] = ()
    """Operators that are not known and count nothing: the bound is then lower than it might be."""

    @property
    def operations(self) -> int:
        """All of them together."""
        return sum(self.products.values()) + sum(self.others.values())


class CaseBound(Frozen):
    """The least time of one case on one device, with both sides of the roofline."""

    case: str
    binds: Literal["memory", "arithmetic"]
    bound_ms: float
    """The larger of the two below."""
    memory_ms: float
    """``bytes_moved`` at the best measured rate."""
    arithmetic_ms: float
    """The operations at the measured peak; 0 where they or it are not known."""
    floor_ms: float
    """``bytes_shown`` at the best rate of the level in which the tensors lie: what no kernel can be faster than."""
    bytes_moved: int
    """The lesser of the fused ideal and what perturbation shows to be necessary."""
    bytes_shown: int
    """Shown necessary by perturbation."""
    level: str
    """Where the tensors lie: ``memory``, ``l3``, ``l2`` or ``l1``."""
    bandwidth_gbs: float
    """Best measured rate of that level."""
    operations: int | None = None
    """Of the reference; None where it has no graph."""
    peak_gops: float | None = None
    """Operations over ``arithmetic_ms``: the rate that was granted; None without them."""
    uncounted: tuple[str, ...] = ()
    """Operators that count nothing."""
    untraced: str = ""
    """Why there is no graph."""


def arithmetic_ms(work: Work, hardware: Hardware, *, narrow: bool = False) -> float:
    """The least time for the operations, all cores; 0 where nothing is known.

    Products can only be done by fused instructions; other operations also beside them, where the processor can. So two
    lower bounds hold: the products alone at the fused rate, and everything at the best mixed rate. Integers have units
    of their own on some processors and are therefore not added to the rest.

    Args:
        work: of the reference.
        hardware: with measured peaks.
        narrow: float32 may be computed in 16 bits (``precision: relaxed``).
    """
    floats, integers = 0.0, 0.0
    floats_mixed = 0.0
    for kind in ("float32", "float64", "half", "integer"):
        peak = hardware.peak(kind)
        wide = hardware.peak("half") if kind == "float32" and narrow else peak
        if peak is None or wide is None:
            continue
        products, others = work.products.get(kind, 0), work.others.get(kind, 0)
        fused_gops = max(peak.fused_gops, wide.fused_gops)
        mixed_gops = max(peak.mixed_gops, wide.mixed_gops)
        if kind == "integer":
            integers += (products + others) / (mixed_gops * 1e6)
        else:
            floats += products / (fused_gops * 1e6)
            floats_mixed += (products + others) / (mixed_gops * 1e6)
    return max(floats, floats_mixed, integers)


def case_bound(
    case: str,
    hardware: Hardware,
    work: Work | None,
    *,
    bytes_shown: int,
    working_set_bytes: int,
    cold_bytes: int = 0,
    narrow: bool = False,
    untraced: str = "",
) -> CaseBound:
    """The bound of one case.

    The level is the one in which the working set can lie whole (``Hardware.bandwidth_for``). Where the caches are swept
    before each call, inputs come from memory all the same, save what the cores' own caches (and last-level caches
    beside the sweeping core's) can have kept: that raises the bound, never the floor.

    Args:
        case: its name.
        hardware: with measured rates.
        work: of the reference; None where it has no graph.
        bytes_shown: necessary by perturbation, outputs included.
        working_set_bytes: all tensors.
        cold_bytes: of the inputs that are shown necessary, where calls start cold; 0 where they start warm.
        narrow: as for ``arithmetic_ms``.
        untraced: why there is no graph.
    """
    level = hardware.bandwidth_for(working_set_bytes)
    ideal = bytes_shown if work is None else work.read_bytes + work.written_bytes
    moved = min(ideal, bytes_shown)
    kept_bytes = hardware.capacity_bytes("l2") + hardware.l3_bytes * (hardware.l3_count - 1) // hardware.l3_count
    fetched = max(0, min(cold_bytes, moved) - kept_bytes)
    memory = hardware.bandwidth_for(1 << 62)
    memory_ms = max(_ms(moved, level.best_gbs), _ms(fetched, memory.best_gbs))
    ops_ms = 0.0 if work is None else arithmetic_ms(work, hardware, narrow=narrow)
    return CaseBound(
        case=case,
        binds="arithmetic" if ops_ms > memory_ms else "memory",
        bound_ms=max(memory_ms, ops_ms),
        memory_ms=memory_ms,
        arithmetic_ms=ops_ms,
        floor_ms=_ms(bytes_shown, level.best_gbs),
        bytes_moved=moved,
        bytes_shown=bytes_shown,
        level=level.level,
        bandwidth_gbs=level.best_gbs,
        operations=None if work is None else work.operations,
        peak_gops=None if work is None or not ops_ms else work.operations / (ops_ms * 1e6),
        uncounted=() if work is None else work.uncounted,
        untraced=untraced,
    )


def _ms(size_bytes: int, rate_gbs: float) -> float:
    return size_bytes / (rate_gbs * 1e6)
