"""Which cases fail, which pass, and the condition between them."""

from __future__ import annotations

import pytest
from support.evaluations import RIGHT, kernel

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.evaluation import Evaluation
from kernelworks.evaluate.survey import Label, condition_of
from kernelworks.kernel.verdict import Finding, Status


def labels(*cases: tuple[str, str, int]) -> list[Label]:
    return [Label(case, family, (("rows", 8), ("cols", cols))) for case, family, cols in cases]


def normal(*sizes: int) -> list[Label]:
    return labels(*((f"c{n}", "normal", n) for n in sizes))


@pytest.mark.parametrize(
    ("failing", "passing", "tails", "condition"),
    [
        (normal(1003, 7), normal(1024, 64), [], "only where cols % 8 != 0"),
        (normal(1003, 7), normal(1024, 64), [("cols", 992)], "only where cols % 32 != 0"),
        (normal(1003), normal(1004, 64), [("cols", 1000)], "only where cols % 4 != 0"),
        (normal(1024, 64), normal(1003, 7), [], "only where cols % 8 == 0"),
        (normal(1), normal(2, 3), [], "only where cols is 1"),
        (normal(7, 6), normal(32, 33), [], "only where cols is small (up to 7; right from 32 on)"),
        (normal(4096, 4097), normal(32, 33), [], "only where cols is large (from 4096 on; right up to 33)"),
        (
            labels(("a", "wide", 72)),
            labels(("a", "normal", 72), ("b", "wide", 8)),
            [],
            "only for inputs of family wide, where cols is large (from 72 on; right up to 8)",
        ),
        (labels(("a", "wide", 7), ("b", "wide", 8)), normal(7, 8), [], "only for inputs of family wide"),
        (normal(7, 32), normal(8, 31), [], ""),
        (normal(7), [], [], ""),
        (labels(("a", "wide", 7), ("b", "normal", 7)), labels(("a", "constant", 7)), [], ""),
    ],
)
def test_the_condition(
    failing: list[Label], passing: list[Label], tails: list[tuple[str, int]], condition: str
) -> None:
    found = condition_of(failing, passing, tails)
    assert found.startswith(condition) if condition else not found


def first_finding(bench: Bench, body: str, front: str = "") -> Finding:
    verdict = Evaluation(bench, kernel(body, front=front)).run(None)
    assert verdict.status is Status.WRONG, verdict.findings
    return verdict.findings[0]


def test_a_tail_that_is_left_out(horner_bench: Bench) -> None:
    finding = first_finding(horner_bench, RIGHT + "for (int64_t i = n / 8 * 8; i < n; i++) y[i] = 1e30f;")
    assert "y: 3 of 1003 elements are wrong, only in the last 3 of n (1000..1002 of 1003)" in finding.message
    assert "throughout" in finding.message
    assert "passes in" in finding.message and finding.message.endswith("only where n % 8 != 0")
    assert finding.evidence["condition"] == "only where n % 8 != 0"
    assert {"odd", "seven"} <= set(finding.evidence["failing"])
    assert {"main", "eight"} <= set(finding.evidence["passing"])
    assert finding.evidence["where"]["pattern"] == "tail"


def test_one_family(horner_bench: Bench) -> None:
    same = "if (x[0] == x[1] && x[0] == x[2] && x[0] != 0 && n > 100) y[n - 1] *= 2;"
    finding = first_finding(horner_bench, RIGHT + same)
    assert "only for inputs of family constant" in finding.message
    assert "(case odd, constant inputs)" in finding.message


def test_a_crash_in_a_further_case_changes_nothing(horner_bench: Bench) -> None:
    finding = first_finding(horner_bench, RIGHT + "if (n == 7) abort(); y[0] += 1e6f;")
    assert finding.kind == "values"
    assert "at one element, (0,)" in finding.message


def test_a_hang_in_a_further_case_ends_the_survey(horner_bench: Bench) -> None:
    body = RIGHT + "if (n == 7) for (volatile int i = 0;; i = i) {}\n y[0] += 1e6f;"
    assert first_finding(horner_bench, body).kind == "values"
