"""Levels and their evidence: every rule that fires is entered here, the highest level that stands wins."""

from __future__ import annotations

from kernelworks.kernel.descriptor import AXES, Descriptor, Evidence
from kernelworks.kernel.x86_isa import Instruction

MAX_EVIDENCE = 4
"""Pieces of evidence kept for each axis, highest level first."""


class Rules:
    """Collects (axis, level, instruction, reason); an entry with ``needs`` stands only if that level was entered."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[tuple[int, str], tuple[Instruction, int]]] = {axis: {} for axis in AXES}

    def add(self, axis: str, level: int, instruction: Instruction, reason: str, *, needs: int = 0) -> None:
        """Enter one fact; the first instruction for each reason is kept."""
        self._entries[axis].setdefault((level, reason), (instruction, needs))

    def describe(self) -> Descriptor:
        """The descriptor: the highest standing level of each axis, with evidence."""
        levels: dict[str, int] = {}
        evidence: list[Evidence] = []
        for axis, entries in self._entries.items():
            entered = {level for level, _ in entries}
            standing = sorted(
                (-level, instruction.address, instruction.text, reason)
                for (level, reason), (instruction, needs) in entries.items()
                if needs == 0 or needs in entered
            )
            levels[axis] = -standing[0][0] if standing else 0
            evidence.extend(
                Evidence(axis=axis, address=f"{address:#x}", instruction=text, reason=f"level {-negative}: {reason}")
                for negative, address, text, reason in standing[:MAX_EVIDENCE]
            )
        return Descriptor(
            memory=levels["memory"],
            compute=levels["compute"],
            parallelism=levels["parallelism"],
            basis="x86",
            evidence=tuple(evidence),
        )
