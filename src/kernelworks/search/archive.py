"""The MAP-Elites archive: one elite a cell of the grid (memory, compute, parallelism) with four levels each.

Mouret and Clune 2015, "Illuminating search spaces by mapping elites" (arXiv 1504.04909), figure 2. Words and rules
are those of pyribs' ``GridArchive``, which the tests use as the oracle. Two things differ. A coordinate outside the
grid is refused, where pyribs clips it into an edge cell. And a challenge, a timing of the newcomer against the elite
itself, overrules the comparison of fitness: two figures that were measured at different moments are a worse judge
than one interleaved comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import IntEnum

from kernelworks.data import Frozen
from kernelworks.kernel.descriptor import AXES, LEVELS, Cell
from kernelworks.kernel.verdict import Decision

CELLS = LEVELS ** len(AXES)
"""Cells of the grid."""


class AddStatus(IntEnum):
    """What became of a kernel that was offered. Ordered; true if it was added."""

    NOT_ADDED = 0
    IMPROVED = 1
    """It replaced the elite of its cell."""
    NEW = 2
    """It is the first of its cell."""


class Elite(Frozen):
    """The holder of a cell."""

    kernel_id: str
    cell: Cell
    fitness: float


class ArchiveStats(Frozen):
    """Figures of an archive; ``obj_*`` are None while it is empty."""

    num_elites: int
    coverage: float
    """Share of cells that hold an elite, 0 to 1."""
    qd_score: float
    """Sum over elites of fitness minus the archive's ``qd_score_offset``."""
    obj_max: float | None
    """Fitness of the best-ever elite."""
    obj_mean: float | None


class Archive:
    """One elite a cell; the best-ever elite is kept apart and its fitness never decreases.

    Args:
        qd_score_offset: subtracted from each fitness in the QD score. With the lowest possible fitness here, the
            score cannot fall when a cell is filled.
    """

    def __init__(self, *, qd_score_offset: float = 0.0) -> None:
        self._elites: dict[Cell, Elite] = {}
        self._best: Elite | None = None
        self._offset = qd_score_offset
        self.rejected = 0
        """Offers refused at the door: a fitness that is not finite, a cell outside the grid."""

    def add(self, kernel_id: str, cell: Cell, fitness: float, *, challenge: Decision | None = None) -> AddStatus:
        """Offer a kernel.

        An empty cell takes it. An occupied one takes it if its fitness is strictly higher than the elite's; where
        ``challenge`` gives the outcome of a timing against that very elite, only if this is ``faster``, whatever the
        fitnesses say (undecided keeps the elite). The best-ever elite changes when an added kernel's fitness is
        strictly higher than its own.

        Raises:
            ValueError: fitness not finite, or cell outside the grid; the offer is counted in ``rejected``.
        """
        problem = _problem(cell, fitness)
        if problem:
            self.rejected += 1
            raise ValueError(problem)
        current = self._elites.get(cell)
        if current is not None:
            won = fitness > current.fitness if challenge is None else challenge is Decision.FASTER
            if not won:
                return AddStatus.NOT_ADDED
        elite = Elite(kernel_id=kernel_id, cell=cell, fitness=fitness)
        self._elites[cell] = elite
        if self._best is None or fitness > self._best.fitness:
            self._best = elite
        return AddStatus.NEW if current is None else AddStatus.IMPROVED

    def retrieve(self, cell: Cell) -> Elite | None:
        """The elite of a cell."""
        return self._elites.get(cell)

    @property
    def best_elite(self) -> Elite | None:
        """The best-ever elite; it may have lost its cell to a challenger since."""
        return self._best

    @property
    def stats(self) -> ArchiveStats:
        """Figures of the moment."""
        count = len(self._elites)
        total = math.fsum(e.fitness for e in self._elites.values())
        return ArchiveStats(
            num_elites=count,
            coverage=count / CELLS,
            qd_score=total - count * self._offset,
            obj_max=None if self._best is None else self._best.fitness,
            obj_mean=total / count if count else None,
        )

    def __len__(self) -> int:
        return len(self._elites)

    def __iter__(self) -> Iterator[Elite]:
        """Elites in the order of their cells."""
        return iter([self._elites[cell] for cell in sorted(self._elites)])


def _problem(cell: tuple[object, ...], fitness: float) -> str:
    if not math.isfinite(fitness):
        return f"fitness: expected a finite number, found {fitness}"
    inside = all(type(level) is int and 0 <= level < LEVELS for level in cell)
    if len(cell) != len(AXES) or not inside:
        return f"cell: expected {len(AXES)} whole levels ({', '.join(AXES)}) from 0 to {LEVELS - 1}, found {cell!r}"
    return ""
