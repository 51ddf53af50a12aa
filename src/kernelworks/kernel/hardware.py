"""The hardware record: what a device is and what was measured on it. Plain data; ``targets`` fills it."""

from __future__ import annotations

from kernelworks.data import Frozen


class Bandwidth(Frozen):
    """Best measured rates at one level of the memory hierarchy, GB/s (1e9 bytes)."""

    level: str
    """``memory``, ``l3``, ``l2``."""
    working_set_bytes: int
    read_gbs: float
    copy_gbs: float
    """Non-temporal or plain copy, whichever is faster; bytes read plus bytes written."""
    triad_gbs: float

    @property
    def best_gbs(self) -> float:
        """The best of all probes: what a floor is computed from."""
        return max(self.read_gbs, self.copy_gbs, self.triad_gbs)


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
    memory_bytes: int = 0
    bandwidths: tuple[Bandwidth, ...] = ()
