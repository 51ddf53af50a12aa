"""Answers of a task with outputs of several types, scalars and an input that is changed in place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.evaluations import MIXED_RIGHT, RIGHT, SETTINGS, kernel, mixed_kernel

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.checks import (
    candidate_faults,
    check_answers,
    check_company,
    check_float_mode,
)
from kernelworks.evaluate.endings import EndedEvaluation
from kernelworks.evaluate.process import Candidate
from kernelworks.evaluate.sides import FailedCallError
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
    assert "small" in {c.prepared.case for c in mixed_bench.checks}
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


@pytest.fixture
def right(horner_bench: Bench) -> Iterator[Candidate]:
    with horner_bench.pool.start(library(horner_bench, kernel(RIGHT))) as candidate:
        for case in horner_bench.timed:
            case.bind(candidate)
        yield candidate


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


def test_only_what_candidates_do_ends_an_evaluation() -> None:
    with pytest.raises(EndedEvaluation) as caught, candidate_faults("main"):
        raise FailedCallError(3)
    assert caught.value.status is Status.CRASHED
    assert caught.value.findings[0].message.endswith("(case main)")
    with pytest.raises(ZeroDivisionError), candidate_faults("main"):
        _ = 1 / 0
