from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.evaluations import RIGHT, SETTINGS, kernel

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.process import BufferArg, Candidate
from kernelworks.evaluate.sides import BoundCase, CandidateSide, FailedCallError, StaleAnswerError
from kernelworks.targets.base import Artefact

Library = Callable[[str], Path]


@pytest.fixture
def library(horner_bench: Bench) -> Library:
    def build(body: str) -> Path:
        built = horner_bench.target.build(horner_bench.task, kernel(body))
        assert isinstance(built, Artefact), built
        return built.path

    return build


def side(
    bench: Bench, candidate: Candidate, *, allocate: bool = False, spot_checks: bool = True, seed: int = 1
) -> CandidateSide:
    return CandidateSide(
        candidate=candidate,
        case=bench.timed[0],
        judge=bench.judge,
        rng=random.Random(seed),
        flush_bytes=1 << 16,
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
    timed = horner_bench.baseline_side(horner_bench.anchor, horner_bench.timed[0])
    calls = [timed.time(lane) for lane in (0, 1)]
    assert all(call.elapsed_ms > 0 and call.page_faults >= 0 for call in calls)
