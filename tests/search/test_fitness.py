from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelworks.kernel.verdict import Comparison, Decision, Finding, Policy, Status, Verdict
from kernelworks.search.fitness import FITNESS_CEILING, FITNESS_FLOOR, UNTIMED, challenge_against, fitness_of


def correct(low: float, comparisons: tuple[Comparison, ...] = ()) -> Verdict:
    return Verdict(
        kernel="k",
        status=Status.CORRECT,
        decision=Decision.UNDECIDED,
        speedup=low,
        speedup_low=low,
        speedup_high=low,
        time_ms=1.0,
        comparisons=comparisons,
    )


def failed(status: Status) -> Verdict:
    return Verdict(kernel="k", status=status, findings=(Finding(kind="x", message="x"),))


def duel(
    decision: Decision, low: float, high: float, *, opponent: str = "rival", policy: Policy = "kernel", ms: float = 1.0
) -> Comparison:
    return Comparison(
        opponent=opponent,
        policy=policy,
        case="c",
        time_ms=1.0,
        opponent_time_ms=ms,
        ratio=math.sqrt(low * high),
        ratio_low=low,
        ratio_high=high,
        decision=decision,
        blocks=12,
        cache="cold",
    )


def test_the_ladder_is_the_documented_table() -> None:
    figures = {status: fitness_of(failed(status)) for status in Status if status is not Status.CORRECT}
    assert figures == {
        Status.UNSUPPORTED: -900,
        Status.SETUP_ERROR: -800,
        Status.DOES_NOT_FIT: -700,
        Status.INVALID: -600,
        Status.BUILD_ERROR: -500,
        Status.CRASHED: -400,
        Status.TIMED_OUT: -300,
        Status.DISHONEST: -200,
        Status.WRONG: -100,
    }
    assert max(figures.values()) < fitness_of(Verdict(kernel="k", status=Status.CORRECT)) == UNTIMED < FITNESS_FLOOR


@given(st.floats(min_value=5e-324, exclude_min=False, allow_nan=False))
def test_a_timed_kernel_has_a_finite_fitness_within_its_range(low: float) -> None:
    fitness = fitness_of(correct(low))
    assert FITNESS_FLOOR <= fitness <= FITNESS_CEILING
    if 1e-4 < low < 1e4:
        assert fitness == math.log(low)


def test_fitness_is_zero_at_the_anchors_own_time() -> None:
    assert fitness_of(correct(1.0)) == 0.0


def test_only_timings_against_the_opponent_itself_count() -> None:
    verdict = correct(
        2.0,
        (
            duel(Decision.FASTER, 2.0, 2.1, opponent="eager"),
            duel(Decision.SLOWER, 0.5, 0.6, policy="as_called"),
            duel(Decision.FASTER, 1.02, 1.1),
        ),
    )
    assert challenge_against(verdict, "rival") is Decision.FASTER
    assert challenge_against(verdict, "other") is None


@pytest.mark.parametrize("decision", list(Decision))
def test_one_case_gives_its_own_decision(decision: Decision) -> None:
    assert challenge_against(correct(1.0, (duel(decision, 0.9, 1.2),)), "rival") is decision


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        (((1.2, 1.3), (0.9, 0.95)), Decision.FASTER),
        (((0.8, 0.85), (1.05, 1.1)), Decision.SLOWER),
        (((1.0, 1.1), (1.0, 1.1)), Decision.UNDECIDED),
        (((0.0, math.inf), (1.2, 1.3)), Decision.UNDECIDED),
    ],
)
def test_bounds_of_several_cases_are_combined(bounds: tuple[tuple[float, float], ...], expected: Decision) -> None:
    duels = tuple(duel(Decision.UNDECIDED, low, high) for low, high in bounds)
    assert challenge_against(correct(1.0, duels), "rival") is expected


def test_the_ratio_of_totals_weighs_cases_by_their_time() -> None:
    duels = (
        duel(Decision.FASTER, 2.0, 2.1, ms=1.0),
        duel(Decision.SLOWER, 0.8, 0.85, ms=100.0),
    )
    verdict = correct(1.0, duels)
    assert challenge_against(verdict, "rival", "geomean") is Decision.FASTER
    assert challenge_against(verdict, "rival", "total") is Decision.SLOWER
