from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ribs.archives import GridArchive

from kernelworks.kernel.descriptor import LEVELS, Cell
from kernelworks.kernel.verdict import Decision
from kernelworks.search.archive import CELLS, AddStatus, Archive

levels = st.integers(0, LEVELS - 1)
cells = st.tuples(levels, levels, levels)
fitnesses = st.floats(-10, 10, allow_nan=False) | st.sampled_from([-1.0, 0.0, 0.5])
offers = st.lists(st.tuples(cells, fitnesses), max_size=60)


@given(offers)
def test_same_offers_give_the_elites_statuses_and_statistics_of_pyribs(offers: list[tuple[Cell, float]]) -> None:
    oracle = GridArchive(
        solution_dim=1, dims=[LEVELS] * 3, ranges=[(-0.5, LEVELS - 0.5)] * 3, qd_score_offset=-10.0, dtype=np.float64
    )
    archive = Archive(qd_score_offset=-10.0)
    for number, (cell, fitness) in enumerate(offers):
        status = archive.add(str(number), cell, fitness)
        expected = oracle.add_single([float(number)], fitness, [float(level) for level in cell])
        assert status == int(expected["status"])

    data = oracle.data()
    theirs = {
        tuple(round(m) for m in measures): (str(int(solution[0])), float(objective))
        for measures, solution, objective in zip(data["measures"], data["solution"], data["objective"], strict=True)
    }
    assert {e.cell: (e.kernel_id, e.fitness) for e in archive} == theirs
    stats = archive.stats
    assert stats.num_elites == len(archive) == oracle.stats.num_elites
    assert stats.coverage == pytest.approx(oracle.stats.coverage)
    assert stats.qd_score == pytest.approx(float(oracle.stats.qd_score), abs=1e-9)
    if offers:
        assert stats.obj_max == oracle.stats.obj_max
        assert oracle.stats.obj_mean is not None
        assert stats.obj_mean == pytest.approx(float(oracle.stats.obj_mean), abs=1e-9)
    else:
        assert (stats.obj_max, stats.obj_mean) == (None, None)


@given(st.lists(st.tuples(cells, fitnesses, st.none() | st.sampled_from(Decision)), max_size=60))
def test_best_never_decreases_and_a_filled_cell_never_empties(
    offers: list[tuple[Cell, float, Decision | None]],
) -> None:
    archive = Archive()
    for number, (cell, fitness, challenge) in enumerate(offers):
        before, filled = archive.best_elite, {e.cell for e in archive}
        archive.add(str(number), cell, fitness, challenge=challenge)
        assert archive.best_elite is not None
        assert before is None or archive.best_elite.fitness >= before.fitness
        assert filled <= {e.cell for e in archive}


@pytest.mark.parametrize(
    ("fitness", "challenge", "status"),
    [
        (2.0, None, AddStatus.IMPROVED),
        (1.0, None, AddStatus.NOT_ADDED),
        (0.5, Decision.FASTER, AddStatus.IMPROVED),
        (2.0, Decision.SLOWER, AddStatus.NOT_ADDED),
        (2.0, Decision.UNDECIDED, AddStatus.NOT_ADDED),
    ],
)
def test_a_challenge_overrules_fitness(fitness: float, challenge: Decision | None, status: AddStatus) -> None:
    archive = Archive()
    assert archive.add("old", (1, 2, 3), 1.0, challenge=Decision.SLOWER) is AddStatus.NEW
    assert archive.add("new", (1, 2, 3), fitness, challenge=challenge) is status
    elite = archive.retrieve((1, 2, 3))
    assert elite is not None
    assert elite.kernel_id == ("new" if status else "old")


def test_the_best_ever_outlives_its_cell() -> None:
    archive = Archive()
    archive.add("old", (0, 0, 0), 1.0)
    archive.add("new", (0, 0, 0), 0.5, challenge=Decision.FASTER)
    assert archive.best_elite is not None
    assert archive.best_elite.kernel_id == "old"
    assert archive.stats.obj_max == 1.0
    assert archive.stats.obj_mean == 0.5


@pytest.mark.parametrize("fitness", [math.nan, math.inf, -math.inf])
def test_a_fitness_that_is_not_finite_is_refused_and_counted(fitness: float) -> None:
    archive = Archive()
    with pytest.raises(ValueError, match=r"fitness: expected a finite number, found (nan|-?inf)"):
        archive.add("k", (0, 0, 0), fitness)
    assert (archive.rejected, len(archive), archive.best_elite) == (1, 0, None)


@pytest.mark.parametrize("cell", [(4, 0, 0), (0, -1, 0), (0, 0), (0, 0, 0, 0), (0.0, 0, 0), (True, 0, 0)])
def test_a_cell_outside_the_grid_is_refused_and_counted(cell: Cell) -> None:
    archive = Archive()
    with pytest.raises(ValueError, match=r"cell: expected 3 whole levels .* from 0 to 3, found \("):
        archive.add("k", cell, 0.0)
    assert (archive.rejected, len(archive)) == (1, 0)


def test_status_is_ordered_and_true_when_added() -> None:
    assert AddStatus.NOT_ADDED < AddStatus.IMPROVED < AddStatus.NEW
    assert [bool(status) for status in AddStatus] == [False, True, True]


def test_a_full_grid_has_coverage_one() -> None:
    archive = Archive()
    for index in range(CELLS):
        archive.add(str(index), (index // 16, index // 4 % 4, index % 4), 0.0)
    assert archive.stats.coverage == 1.0
