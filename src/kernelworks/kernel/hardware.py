"""The hardware record: what a device is and what was measured on it. Plain data; ``targets`` fills it."""

from __future__ import annotations

from typing import Literal

from kernelworks.data import Frozen


class Bandwidth(Frozen):
    """Best measured rates at one level of the memory hierarchy, GB/s (1e9 bytes)."""

    level: str
    """``memory``, ``l3``, ``l2``, ``l1``."""
    working_set_bytes: int
    read_gbs: float
    copy_gbs: float
    """Non-temporal or plain copy, whichever is faster; bytes read plus bytes written."""
    triad_gbs: float
    fill_gbs: float = 0.0
    """Bytes written alone."""

    @property
    def best_gbs(self) -> float:
        """The best of all probes: what a floor is computed from."""
        return max(self.read_gbs, self.copy_gbs, self.triad_gbs, self.fill_gbs)

    def best_of(self, other: Bandwidth) -> Bandwidth:
        """The higher of two measurements, rate by rate: noise only lowers them."""
        return Bandwidth(
            level=self.level,
            working_set_bytes=self.working_set_bytes,
            read_gbs=max(self.read_gbs, other.read_gbs),
            copy_gbs=max(self.copy_gbs, other.copy_gbs),
            triad_gbs=max(self.triad_gbs, other.triad_gbs),
            fill_gbs=max(self.fill_gbs, other.fill_gbs),
        )


class Peak(Frozen):
    """Best measured rates of arithmetic of one kind, all cores, 1e9 operations a second."""

    kind: Literal["float32", "float64", "half", "integer"]
    """``half``: bfloat16 and float16; ``integer``: products of 8 bits."""
    fused_gops: float
    """Chains of fused multiply-adds (dot products, where the processor has such instructions), each product and each
    sum counted."""
    mixed_gops: float
    """The best of any mixture of multiplications and additions, fused ones included: some processors add beside."""

    def best_of(self, other: Peak) -> Peak:
        """The higher of two measurements, rate by rate."""
        return Peak(
            kind=self.kind,
            fused_gops=max(self.fused_gops, other.fused_gops),
            mixed_gops=max(self.mixed_gops, other.mixed_gops),
        )


class Hardware(Frozen):
    """One device."""

    name: str
    kind: str
    """``cpu`` or ``gpu``."""
    cores: int
    simd_bits: int
    features: tuple[str, ...] = ()
    l1_bytes: int = 0
    l2_bytes: int = 0
    l3_bytes: int = 0
    l3_count: int = 1
    """Distinct caches that ``l3_bytes`` is made of: a core fills one of them."""
    memory_bytes: int = 0
    bandwidths: tuple[Bandwidth, ...] = ()
    """From memory down to the smallest cache."""
    peaks: tuple[Peak, ...] = ()
    """Of the kinds that were measured here; of others no bound is known."""

    def capacity_bytes(self, level: str) -> int:
        """What a level and those above it can hold together, all cores; 0 for the memory."""
        private_bytes = {"l1": self.l1_bytes, "l2": self.l1_bytes + self.l2_bytes}
        if level == "l3":
            return (self.l1_bytes + self.l2_bytes) * self.cores + self.l3_bytes
        return private_bytes.get(level, 0) * self.cores

    def bandwidth_for(self, working_set_bytes: int) -> Bandwidth:
        """Of the slowest level in which a working set can lie whole: what is larger than every cache is in memory.

        A level that was not measured is answered for by the next faster one, so that no floor is too high.
        """
        order = ("memory", "l3", "l2", "l1")
        measured = {b.level: b for b in self.bandwidths}
        fits = [n for n in order[1:] if 0 < working_set_bytes <= self.capacity_bytes(n)]
        at = order.index(fits[-1]) if fits else 0
        return next((measured[n] for n in order[at:] if n in measured), self.bandwidths[-1])

    def peak(self, kind: str) -> Peak | None:
        """Of one kind of arithmetic; None where it was not measured."""
        return next((p for p in self.peaks if p.kind == kind), None)
