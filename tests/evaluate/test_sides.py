from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.evaluations import MIXED_RIGHT, RIGHT, SETTINGS, kernel, mixed_kernel

from kernelworks.evaluate.bench import TWINS, Bench
from kernelworks.evaluate.process import BufferArg, Candidate, TimedCalls
from kernelworks.evaluate.sides import (
    RECALLS,
    BoundCase,
    CandidateSide,
    FailedCallError,
    Ledger,
    Overhead,
    StaleAnswerError,
)
from kernelworks.targets.base import Artefact

Library = Callable[[str], Path]


@pytest.fixture
def library(horner_bench: Bench) -> Library:
    def build(body: str) -> Path:
        built = horner_bench.target.build(horner_bench.task, kernel(body))
        assert isinstance(built, Artefact), built
        return built.path

    return build


NO_OVERHEAD = Overhead(calls=1, round_trip_ns=0, step_ns=0, idle_cpu_ns=3000)


def side(
    bench: Bench,
    candidate: Candidate,
    *,
    cases: tuple[BoundCase, ...] = (),
    overhead: Overhead = NO_OVERHEAD,
    allocate: bool = False,
    spot_checks: bool = True,
    seed: int = 1,
) -> CandidateSide:
    return CandidateSide(
        candidate=candidate,
        cases=cases or (bench.timed[0],),
        judge=bench.judge,
        rng=random.Random(seed),
        sweep=bench.sweep(bench.timed[0]),
        overhead=overhead,
        allocate=allocate,
        timeout_s=SETTINGS.call_timeout_s,
        spot_checks=spot_checks,
    )


def output(case: BoundCase, lane: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    (found,) = [a.buffer for a in case.lanes[lane] if isinstance(a, BufferArg) and a.output]
    return np.frombuffer(bytes(found.data), np.float32)


def test_lanes_share_inputs_and_have_their_own_outputs(horner_bench: Bench) -> None:
    case = horner_bench.timed[0]
    first, second = case.lanes
    assert [type(a) for a in first] == [BufferArg, BufferArg, int]
    (x, y, n), (x2, y2, n2) = first, second
    assert isinstance(x, BufferArg) and isinstance(x2, BufferArg) and x.buffer is x2.buffer
    assert isinstance(y, BufferArg) and isinstance(y2, BufferArg) and y.buffer is not y2.buffer
    assert (x.output, y.output, n, n2) == (False, True, 65536, 65536)
    assert case.lane_key(0) != case.lane_key(1)


def test_a_timed_call_writes_its_lane(horner_bench: Bench, library: Library) -> None:
    case = horner_bench.timed[0]
    with horner_bench.pool.start(library(RIGHT)) as candidate:
        case.bind(candidate)
        for lane in (0, 1):
            horner_bench.judge.poison(case.key, lane)
            call = side(horner_bench, candidate, spot_checks=False).time(lane)
            assert call.elapsed_ms > 0 and call.page_faults >= 0
            assert np.isfinite(output(case, lane)).all()
            assert horner_bench.judge.compare(case.key, lane).problems == ()


def test_calls_that_allocate_leave_the_lane_alone(horner_bench: Bench, library: Library) -> None:
    case = horner_bench.timed[0]
    with horner_bench.pool.start(library(RIGHT)) as candidate:
        case.bind(candidate)
        horner_bench.judge.poison(case.key, 0)
        for _ in range(4):
            assert side(horner_bench, candidate, allocate=True).time(0).elapsed_ms > 0
        assert np.isnan(output(case, 0)).all()


def test_no_call_of_a_kernel_that_skips_some_goes_unnoticed_for_long(horner_bench: Bench, library: Library) -> None:
    with horner_bench.pool.start(library("static int calls; if (++calls > 2) return 0;" + RIGHT)) as candidate:
        horner_bench.timed[0].bind(candidate)
        timed = side(horner_bench, candidate)
        with pytest.raises(StaleAnswerError, match="rewritten between timed calls") as caught:
            for _ in range(64):
                timed.time(0)
        assert caught.value.problem.tensor == "y"
        unchecked = side(horner_bench, candidate, spot_checks=False)
        assert all(unchecked.time(0).elapsed_ms > 0 for _ in range(8))
    horner_bench.judge.apply(horner_bench.timed[0].key, None)


def test_a_call_that_fails_is_told(horner_bench: Bench, library: Library) -> None:
    with horner_bench.pool.start(library("return 5;")) as candidate:
        horner_bench.timed[0].bind(candidate)
        with pytest.raises(FailedCallError, match="launch returned 5, expected 0") as caught:
            side(horner_bench, candidate).time(1)
    assert caught.value.returned == 5


def test_a_baseline_takes_its_time_in_the_judge(horner_bench: Bench) -> None:
    timed = horner_bench.baseline_side(horner_bench.anchor, (horner_bench.timed[0],))
    calls = [timed.time(lane) for lane in (0, 1)]
    assert all(call.elapsed_ms > 0 and call.page_faults >= 0 for call in calls)


def test_twins_share_a_ring_and_each_has_to_be_computed(horner_bench: Bench, library: Library) -> None:
    case = horner_bench.timed[0]
    twins = horner_bench.twins(case)
    assert len(twins) == TWINS and twins[0] is case
    assert len({twin.prepared.seed for twin in twins}) == TWINS
    with horner_bench.pool.start(library(RIGHT)) as candidate:
        for twin in twins:
            twin.bind(candidate)
            horner_bench.judge.poison(twin.key, 1)
        timed = side(horner_bench, candidate, cases=twins)
        assert timed.time(1).elapsed_ms > 0
        assert timed.ledger.calls == TWINS * timed.ledger.rings == TWINS
        for twin in twins:
            assert np.isfinite(output(twin, 1)).all()
    skips = "static int calls; if (++calls % 8 != 1) return 0;" + RIGHT
    with horner_bench.pool.start(library(skips)) as candidate:
        for twin in twins:
            twin.bind(candidate)
        timed = side(horner_bench, candidate, cases=twins)
        with pytest.raises(StaleAnswerError):
            for _ in range(64):
                timed.time(0)


def test_a_time_is_never_below_the_step_of_the_clock(horner_bench: Bench, library: Library) -> None:
    coarse = Overhead(calls=1, round_trip_ns=1e12, step_ns=250_000, idle_cpu_ns=0)
    with horner_bench.pool.start(library(RIGHT)) as candidate:
        horner_bench.timed[0].bind(candidate)
        assert side(horner_bench, candidate, overhead=coarse).time(0).elapsed_ms == 0.25


def test_inputs_changed_in_place_are_restored_before_every_call(mixed_bench: Bench) -> None:
    case = mixed_bench.timed[0]
    built = mixed_bench.target.build(mixed_bench.task, mixed_kernel(MIXED_RIGHT))
    assert isinstance(built, Artefact)
    with mixed_bench.pool.start(built.path) as candidate:
        case.bind(candidate)
        for allocate in (False, True):
            timed = side(mixed_bench, candidate, cases=(case,), allocate=allocate, spot_checks=False)
            mixed_bench.judge.poison(case.key, 0)
            for _ in range(3):
                timed.time(0)
            problems = mixed_bench.judge.compare(case.key, 0).problems
            assert all(problem.tensor != "state" for problem in problems)
            assert allocate == bool(problems)  # its outputs were its own


def test_a_baseline_takes_the_mean_over_twins(horner_bench: Bench) -> None:
    twins = horner_bench.twins(horner_bench.timed[0])
    assert horner_bench.baseline_side(horner_bench.anchor, twins).time(0).elapsed_ms > 0


def calls(elapsed_ms: float, cpu_ms: float, idle_ms: float) -> TimedCalls:
    return TimedCalls(0, round(elapsed_ms * 1e6), round(cpu_ms * 1e6), round(idle_ms * 1e6), 0)


@pytest.mark.parametrize(
    ("cpu_ms", "idle_ms", "hidden_ms"),
    [(4.0, 0.01, 0.0), (4.05, 0.0, 0.0), (9.0, 0.0, 49.81), (4.0, 0.055, 0.0), (4.0, 0.5, 4.81), (1.0, 0.5, 4.81)],
    ids=["honest", "a little", "more threads", "within a share", "on after the answer", "the same, idle within"],
)
def test_processor_time_that_does_not_fit_is_hidden(cpu_ms: float, idle_ms: float, hidden_ms: float) -> None:
    ledger = Ledger()
    for _ in range(10):
        ledger.add(calls(2.0, cpu_ms, idle_ms), 1)
    found = ledger.hidden_ms(NO_OVERHEAD, 2)
    assert found == pytest.approx(hidden_ms)
    assert (found > 0) == (hidden_ms > 0)


@pytest.mark.parametrize("allocate", [False, True])
def test_inputs_are_new_in_every_other_ring_of_a_recall_and_right_after_it(
    horner_bench: Bench, library: Library, allocate: bool
) -> None:
    case = horner_bench.timed[0]
    differs = """
  static float* kept;
  if (n != 65536) return 0;
  if (kept == 0) { kept = (float*)malloc(n * 4); for (int64_t i = 0; i < n; i++) kept[i] = x[i]; }
  int64_t others = 0;
  for (int64_t i = 0; i < n; i++) others += x[i] != kept[i];
  if (others > n / 2) usleep(3000);
"""
    with horner_bench.pool.start(library(differs)) as candidate:
        case.bind(candidate)
        horner_bench.judge.poison(case.key, 0)
        timed = side(horner_bench, candidate, allocate=allocate, spot_checks=False)
        timed.time(0)
        found = timed.recall()
        assert len(found.new_ns) == len(found.seen_ns) == RECALLS
        assert min(found.new_ns) > 3e6 > min(found.seen_ns)
    assert horner_bench.judge.repair() == []


def test_an_input_that_a_timed_call_leaves_changed_is_told(horner_bench: Bench, library: Library) -> None:
    body = RIGHT + "if (n == 65536) for (int64_t i = 0; i < n; i += 8) ((float*)x)[i] = 1e-40f;"
    with horner_bench.pool.start(library(body)) as candidate:
        horner_bench.timed[0].bind(candidate)
        timed = side(horner_bench, candidate)
        with pytest.raises(StaleAnswerError, match="an input was changed in a timed call") as caught:
            for _ in range(64):
                timed.time(0)
    assert caught.value.problem.kind == "input_changed"
    assert [problem.kind for _, problem in horner_bench.judge.repair()] == ["input_changed"]
