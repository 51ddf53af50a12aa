"""The behaviour descriptor: three axes with four levels, read from what was compiled (docs/descriptors.md)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kernelworks.data import Frozen

AXES = ("memory", "compute", "parallelism")
LEVELS = 4

Level = Annotated[int, Field(ge=0, lt=LEVELS)]
Cell = tuple[int, int, int]


class Evidence(Frozen):
    """Why an axis has its level: where in the code, and the instruction."""

    axis: str
    address: str
    instruction: str
    reason: str


class NarrowArithmetic(Frozen):
    """An instruction that rounds to a narrow type."""

    type: str
    """``bfloat16``, ``float16`` or ``float32``."""
    address: int
    instruction: str


class Descriptor(Frozen):
    """Coordinates of a kernel in the archive."""

    memory: Level
    compute: Level
    parallelism: Level
    basis: str = "x86"
    """What it was read from: ``x86`` machine code, or ``source`` where no disassembler fits (and said)."""
    evidence: tuple[Evidence, ...] = ()
    narrow: tuple[NarrowArithmetic, ...] = ()
    """Of each narrow type the first instruction that rounds to it, in machine code; of no influence on the cell."""

    @property
    def cell(self) -> Cell:
        """The archive's cell."""
        return (self.memory, self.compute, self.parallelism)
