"""Answers of a task with outputs of several types, scalars and an input that is changed in place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.evaluations import MIXED_RIGHT, RIGHT, SETTINGS, kernel, mixed_kernel

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.checks import (
    IN_PLACE_CALLS,
    MOST_CALLS,
    Batch,
    candidate_faults,
    check_answers,
    check_clock,
    check_company,
    check_float_mode,
    doubt_claim,
)
from kernelworks.evaluate.endings import EndedEvaluation
from kernelworks.evaluate.process import Candidate
from kernelworks.evaluate.sides import ClockError, FailedCallError
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Finding, Status
from kernelworks.targets.base import Artefact

LONG_S = SETTINGS.call_timeout_s


def library(bench: Bench, candidate: Kernel) -> Path:
    built = bench.target.build(bench.task, candidate)
    assert isinstance(built, Artefact), built
    return built.path


def ending(bench: Bench, body: str) -> EndedEvaluation:
    with bench.pool.start(library(bench, mixed_kernel(body))) as candidate, pytest.raises(EndedEvaluation) as caught:
        check_answers(candidate, [*bench.checks, *bench.timed], bench.judge, LONG_S)
    return caught.value


def test_a_right_kernel_passes_every_case(mixed_bench: Bench) -> None:
    assert {c.prepared.case for c in mixed_bench.checks} == {"small"}
    assert all(c.prepared.two_fills for c in (*mixed_bench.checks, *mixed_bench.timed))
    with mixed_bench.pool.start(library(mixed_bench, mixed_kernel(MIXED_RIGHT))) as candidate:
        check_answers(candidate, [*mixed_bench.checks, *mixed_bench.timed], mixed_bench.judge, LONG_S)


@pytest.mark.parametrize(
    ("deed", "kind", "tensor"),
    [
        ("count[rows - 1] += 1;", "values", "count"),
        ("y[0] += 100;", "values", "y"),
        ("state[0] += 100;", "values", "state"),
        ("for (int64_t i = 0; i < rows; i++) state[i] -= x[i * cols];", "values", "state"),
        ("((int32_t*)k)[0] ^= 1;", "input_changed", "k"),
        ("big[rows] = 1;", "out_of_bounds", "big"),
    ],
    ids=["integers", "floats", "in place", "in place not done", "integer input", "bool past the end"],
)
def test_each_tensor_is_looked_at(mixed_bench: Bench, deed: str, kind: str, tensor: str) -> None:
    ended = ending(mixed_bench, MIXED_RIGHT + deed)
    assert ended.status is Status.WRONG
    assert [(f.kind, f.evidence["tensor"]) for f in ended.findings] == [(kind, tensor)]
    assert f"(case {ended.findings[0].evidence['case']})" in ended.findings[0].message


@pytest.mark.parametrize("written", ["if (k[i] > 0) big[i] = 1;", "if (k[i] <= 0) big[i] = 0;"])
def test_what_happens_to_stand_in_an_output_is_no_answer(mixed_bench: Bench, written: str) -> None:
    ended = ending(mixed_bench, MIXED_RIGHT.replace("big[i] = k[i] > 0;", written))
    assert ended.status is Status.WRONG
    assert {f.evidence["tensor"] for f in ended.findings} == {"big"}


def test_several_problems_of_a_case_are_told_together(mixed_bench: Bench) -> None:
    ended = ending(mixed_bench, MIXED_RIGHT + "y[0] += 100; count[0] += 1;")
    assert [f.evidence["tensor"] for f in ended.findings] == ["y", "count"]


SPIN = """
auto spin = [](double seconds) {
  timespec begun, now;
  clock_gettime(CLOCK_MONOTONIC, &begun);
  do clock_gettime(CLOCK_MONOTONIC, &now);
  while (now.tv_sec - begun.tv_sec + 1e-9 * (now.tv_nsec - begun.tv_nsec) < seconds);
};
"""


@pytest.fixture
def right(horner_bench: Bench) -> Iterator[Candidate]:
    with horner_bench.pool.start(library(horner_bench, kernel(RIGHT))) as candidate:
        for case in horner_bench.timed:
            case.bind(candidate)
        yield candidate


def test_an_honest_clock_is_believed(horner_bench: Bench, right: Candidate) -> None:
    case, judge = horner_bench.timed[0], horner_bench.judge
    host_ms = check_clock(right, case, judge, LONG_S)
    assert host_ms > 0
    assert doubt_claim(right, case, judge, 1000.0, 1, LONG_S) is None


def test_slow_calls_make_short_batches_within_their_own_limit(horner_bench: Bench) -> None:
    slow = f"{SPIN} spin(0.12);" + RIGHT
    with horner_bench.pool.start(library(horner_bench, kernel(slow, head="#include <time.h>"))) as candidate:
        horner_bench.timed[0].bind(candidate)
        check_clock(candidate, horner_bench.timed[0], horner_bench.judge, 0.2)
        found = doubt_claim(candidate, horner_bench.timed[0], horner_bench.judge, 1.0, 2, 0.2)
    assert found is not None
    assert found.evidence["calls"] == 2
    assert found.evidence["measured_ms"] > 240
    assert found.message.endswith("its process says 2 ms (case main, normal inputs)")


def test_a_batch_that_waited_for_its_turn_accuses_nobody(horner_bench: Bench) -> None:
    """Sleeping stands for a busy machine: wall time passes, no work is done."""
    with horner_bench.pool.start(library(horner_bench, kernel("usleep(60000);" + RIGHT))) as candidate:
        horner_bench.timed[0].bind(candidate)
        assert doubt_claim(candidate, horner_bench.timed[0], horner_bench.judge, 1.0, 1, LONG_S) is None


def test_a_call_that_fails_in_a_batch_ends_the_evaluation(horner_bench: Bench) -> None:
    text = "static int calls; if (++calls > 5) return 6;" + RIGHT
    with horner_bench.pool.start(library(horner_bench, kernel(text))) as candidate:
        horner_bench.timed[0].bind(candidate)
        with pytest.raises(EndedEvaluation) as caught:
            check_clock(candidate, horner_bench.timed[0], horner_bench.judge, LONG_S)
    assert caught.value.status is Status.CRASHED
    assert caught.value.findings[0].evidence == {"returned": 6, "case": "main, normal inputs"}


def test_batches_that_change_their_inputs_are_short(mixed_bench: Bench) -> None:
    body = f"static int calls; if (++calls > {1 + 5 * IN_PLACE_CALLS}) return 1;" + MIXED_RIGHT
    assert IN_PLACE_CALLS < MOST_CALLS
    with mixed_bench.pool.start(library(mixed_bench, mixed_kernel(body))) as candidate:
        mixed_bench.timed[0].bind(candidate)
        check_clock(candidate, mixed_bench.timed[0], mixed_bench.judge, LONG_S)


def test_batches_have_slack_for_the_calls_themselves() -> None:
    assert Batch(calls=100, said_ms=10.0, measured_ms=13.4, cpu_ms=0).agrees(10.0, 0.05)
    assert not Batch(calls=100, said_ms=10.0, measured_ms=13.6, cpu_ms=0).agrees(10.0, 0.05)
    assert Batch(calls=100, said_ms=10.0, measured_ms=99.0, cpu_ms=50).worked(10.0, 2, 0.5)
    assert not Batch(calls=100, said_ms=10.0, measured_ms=99.0, cpu_ms=60).worked(10.0, 2, 0.5)
    assert not Batch(calls=100, said_ms=10.0, measured_ms=99.0, cpu_ms=40).worked(10.0, 1, 0.5)


def test_company_and_mode_of_a_quiet_candidate(right: Candidate) -> None:
    check_company(right, 1, "before any call")
    check_float_mode(right)


def test_an_openmp_pool_is_allowed_and_nothing_beyond(horner_bench: Bench) -> None:
    team = "#pragma omp parallel num_threads(3)\n { volatile int idle = 0; (void)idle; }"
    with horner_bench.pool.start(library(horner_bench, kernel(RIGHT + team))) as candidate:
        case = horner_bench.timed[0]
        case.bind(candidate)
        assert candidate.call(case.lane_key(0), LONG_S).returned == 0
        check_company(candidate, 2, "after the calls")  # the third thread was never made: a kernel has what it is given
        with pytest.raises(EndedEvaluation) as caught:
            check_company(candidate, 1, "after the calls")
    assert caught.value.status is Status.DISHONEST
    message = "2 threads after the calls, expected at most 1 (the OpenMP pool)"
    assert caught.value.findings == (Finding(kind="leftover_thread", message=message),)


@pytest.mark.parametrize(
    ("error", "status"), [(FailedCallError(3), Status.CRASHED), (ClockError(1, 0.0, 2.0), Status.DISHONEST)]
)
def test_only_what_candidates_do_ends_an_evaluation(error: Exception, status: Status) -> None:
    with pytest.raises(EndedEvaluation) as caught, candidate_faults("main"):
        raise error
    assert caught.value.status is status
    assert caught.value.findings[0].message.endswith("(case main)")
    with pytest.raises(ZeroDivisionError), candidate_faults("main"):
        _ = 1 / 0
