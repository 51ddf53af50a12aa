"""The statistics of the clock, against exact binomials and simulated noise."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelworks.evaluate.timing import (
    LIMIT_S,
    LOOKS,
    WARM_LIMIT_S,
    Call,
    Interval,
    compare_sides,
    look,
    median_interval,
    order_statistic_rank,
    warm_up,
)
from kernelworks.kernel.verdict import Decision


class SimulatedSide:
    """A side whose calls take a base time with multiplicative, skewed noise."""

    def __init__(self, base_ms: float, noise: float, rng: random.Random) -> None:
        self.base_ms, self.noise, self.rng = base_ms, noise, rng
        self.lanes: list[int] = []

    def time(self, lane: int) -> Call:
        self.lanes.append(lane)
        return Call(self.base_ms * math.exp(abs(self.rng.gauss(0, self.noise))), 0)


@pytest.mark.parametrize(("count", "alpha"), LOOKS)
def test_rank_is_the_largest_with_the_promised_coverage(count: int, alpha: float) -> None:
    rank = order_statistic_rank(count, alpha)

    def missed(k: int) -> float:
        return 2 * sum(math.comb(count, i) for i in range(k)) / 2.0**count

    assert rank >= 1
    assert missed(rank) <= alpha < missed(rank + 1)


def test_too_few_values_give_an_unbounded_interval() -> None:
    assert median_interval([1.0, 2.0, 3.0], 0.004) == Interval(2.0, 0.0, math.inf)


@given(st.lists(st.floats(0.1, 10), min_size=12, max_size=96))
def test_interval_contains_the_sample_median_and_ignores_order(values: list[float]) -> None:
    interval = median_interval(values, 0.004)
    assert interval.low <= interval.value <= interval.high
    assert median_interval(list(reversed(values)), 0.004) == interval


def test_a_look_is_refused_between_the_planned_counts() -> None:
    with pytest.raises(ValueError, match="expected one of"):
        look([1.0] * 13)


@pytest.mark.parametrize(
    ("ratio", "decision"),
    [(1.2, Decision.FASTER), (0.8, Decision.SLOWER), (1.0, Decision.UNDECIDED), (1.0101, Decision.FASTER)],
)
def test_constant_ratios_are_decided_at_the_first_look(ratio: float, decision: Decision) -> None:
    assert look([ratio] * LOOKS[0][0]) == (Interval(ratio, ratio, ratio), decision)


def test_an_interval_across_the_margin_waits_and_ends_undecided() -> None:
    mixed = [0.9, 1.1] * 6
    assert look(mixed)[1] is None
    assert look(mixed * 8)[1] is Decision.UNDECIDED


def test_equal_sides_are_rarely_decided_and_a_slower_one_is_found() -> None:
    rng = random.Random(5)
    decided = found = 0
    for _ in range(200):
        equal = compare_sides(SimulatedSide(3.0, 0.02, rng), SimulatedSide(3.0, 0.02, rng), rng)
        decided += equal.decision is not Decision.UNDECIDED
        slower = compare_sides(SimulatedSide(3.09, 0.02, rng), SimulatedSide(3.0, 0.02, rng), rng)
        found += slower.decision is Decision.SLOWER
    assert decided <= 8
    assert found >= 160


def test_blocks_alternate_order_and_lanes_and_both_sides_run_twice_a_block() -> None:
    rng = random.Random(1)
    a, b = SimulatedSide(1.0, 0.2, rng), SimulatedSide(1.0, 0.2, rng)
    outcome = compare_sides(a, b, rng)
    assert len(a.lanes) == len(b.lanes) == 2 * len(outcome.blocks)
    assert all(x != y for x, y in zip(a.lanes, b.lanes, strict=True))
    assert {block.candidate_first for block in outcome.blocks} == {True, False}
    assert set(a.lanes) == {0, 1}
    assert outcome.time_ms() >= 1.0 and outcome.opponent_time_ms() >= 1.0


def test_a_slow_comparison_ends_undecided_at_the_look_after_which_it_would_take_too_long() -> None:
    rng = random.Random(3)
    passed = 0.0

    def clock() -> float:
        nonlocal passed
        passed += LIMIT_S / 3
        return passed

    wide = SimulatedSide(1.0, 0.5, rng), SimulatedSide(1.0, 0.5, rng)
    outcome = compare_sides(*wide, rng, clock)
    assert outcome.decision is Decision.UNDECIDED
    assert len(outcome.blocks) == LOOKS[1][0]
    passed = 0.0
    clear = compare_sides(SimulatedSide(2.0, 0.01, rng), SimulatedSide(1.0, 0.01, rng), rng, clock)
    assert clear.decision is Decision.SLOWER


class SettlingSide:
    """A side whose calls become faster with each, down to a least time."""

    def __init__(self, least_ms: float, steps: int) -> None:
        self.least_ms, self.left, self.made = least_ms, steps, 0

    def time(self, lane: int) -> Call:
        self.made += 1
        self.left = max(0, self.left - 1)
        return Call(self.least_ms * 1.2**self.left, 0)


@pytest.mark.parametrize("steps", [0, 3, 20])
def test_warming_up_goes_on_until_times_settle(steps: int) -> None:
    side = SettlingSide(2.0, steps)
    assert warm_up(side) == 2.0
    assert steps <= side.made <= steps + 5


def test_warming_up_ends() -> None:
    passed = 0.0

    def clock() -> float:
        nonlocal passed
        passed += WARM_LIMIT_S / 4
        return passed

    side = SettlingSide(1e-9, 100)
    warm_up(side, clock)
    assert side.made <= 10
