"""Bits that vary: between calls, between processes, and with the bytes beside a tensor."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from support.candidates import LONG_S
from support.evaluations import RIGHT, kernel

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.checks import check_answers
from kernelworks.evaluate.determinism import REPEATS, check_process, check_repeats
from kernelworks.evaluate.endings import EndedEvaluation
from kernelworks.evaluate.evaluation import Evaluation
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.process import Candidate
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Finding, Status
from kernelworks.targets.base import Artefact

NUDGE = "static int calls; if (n == 65536 && calls++ % 2) y[7] = y[7] * (1 + 1.2e-7f);"
"""Another last bit in every other call."""
READS = "unsigned char beside = ((const unsigned char*)PLACE)[0]; y[3] = y[3] * (1 + beside * 2e-7f);"


@contextmanager
def checked(bench: Bench, candidate: Kernel) -> Generator[Candidate]:
    """Running, with the right answer of the timed case in lane 0."""
    built = bench.target.build(bench.task, candidate)
    assert isinstance(built, Artefact), built
    with bench.pool.start(built.path) as found:
        check_answers(found, bench.timed, bench.judge, LONG_S)
        yield found


def repeats(bench: Bench, body: str) -> Finding | None:
    with checked(bench, kernel(RIGHT + body)) as candidate:
        return check_repeats(candidate, bench.timed[0], bench.judge, LONG_S)


def ended(bench: Bench, body: str) -> EndedEvaluation:
    with pytest.raises(EndedEvaluation) as caught:
        repeats(bench, body)
    return caught.value


def test_the_same_bits_every_time_are_no_finding(horner_bench: Bench) -> None:
    assert repeats(horner_bench, "") is None


def test_bits_that_vary_within_the_bound_are_a_finding(horner_bench: Bench) -> None:
    finding = repeats(horner_bench, NUDGE)
    assert finding is not None
    assert finding.kind == "nondeterministic"
    assert f"in 2 of {REPEATS} repeats: 1 elements of y" in finding.message
    assert finding.evidence == {"elements": {"y": 1}, "case": "main, normal inputs"}


def test_a_task_may_forbid_them(horner_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = horner_bench.task.model_copy(update={"deterministic": True})
    monkeypatch.setattr(Judge, "task", asking)
    found = ended(horner_bench, NUDGE)
    assert found.status is Status.WRONG
    assert found.findings[0].message.endswith("the task forbids it")


def test_a_repeat_that_is_wrong_is_a_race(horner_bench: Bench) -> None:
    found = ended(horner_bench, "static int calls; if (n == 65536 && calls++ == 2) y[7] = 1e30f;")
    assert found.status is Status.WRONG
    assert found.findings[0].kind == "values"
    assert "at one element, (7,)" in found.findings[0].message
    assert "right before, so a race" in found.findings[0].message
    assert found.findings[0].evidence["race"] is True


@pytest.mark.parametrize(
    ("place", "tensor", "side"),
    [("(x + n)", "x", "after"), ("(x - 1)", "x", "before"), ("(y + n)", "y", "after"), ("(y - 4)", "y", "before")],
)
def test_an_answer_that_follows_the_bytes_beside_a_tensor_is_wrong(
    horner_bench: Bench, place: str, tensor: str, side: str
) -> None:
    # 65,536 floats end with a page: what stands past their end is a guard page, so a smaller case is asked.
    case = next(c for c in horner_bench.checks if c.prepared.case == "odd" and c.prepared.family == "normal")
    small = replace(horner_bench, timed=[case], checks=[])
    found = ended(small, READS.replace("PLACE", place))
    assert found.status is Status.WRONG
    (finding,) = found.findings
    assert finding.kind == "out_of_bounds_read"
    where = "past its end" if side == "after" else "before its start"
    assert finding.message.startswith(f"{tensor}: a read out of bounds, {where}, changes the answer")
    assert finding.evidence == {"tensor": tensor, "side": side, "access": "read", "case": case.label}


def test_a_read_beside_a_tensor_that_changes_nothing_is_let_be(horner_bench: Bench) -> None:
    assert repeats(horner_bench, "volatile float seen = x[-1]; (void)seen;") is None


def test_reading_past_the_end_of_an_odd_size_is_caught_in_an_evaluation(horner_bench: Bench) -> None:
    verdict = Evaluation(horner_bench, kernel(RIGHT + f"if (n == 1003) {{ {READS.replace('PLACE', '(x + n)')} }}")).run(
        None
    )
    assert verdict.status is Status.WRONG
    assert verdict.findings[0].kind == "out_of_bounds_read"


def test_another_process_with_other_bits(horner_bench: Bench) -> None:
    bench, case = horner_bench, horner_bench.timed[0]
    body = kernel(RIGHT + 'if (n == 65536 && getenv("KERNELWORKS_EVALUATION")[0] % 2) y[7] = y[7] * (1 + 1.2e-7f);')
    seen: set[str] = set()
    varied = 0
    for _ in range(12):  # the first letter of a random tag: odd or even
        with checked(bench, body) as candidate:
            fingerprint = bench.judge.fingerprint(case.key, 0)
            for other in seen - {fingerprint}:
                finding = check_process(candidate, case, bench.judge, other, LONG_S)
                assert finding is not None and finding.kind == "nondeterministic"
                assert "between two processes" in finding.message
                varied += 1
            assert check_process(candidate, case, bench.judge, fingerprint, LONG_S) is None
            seen.add(fingerprint)
        if varied:
            return
    pytest.fail("never another answer")


def test_the_finding_stands_beside_a_correct_verdict(horner_bench: Bench) -> None:
    verdict = Evaluation(horner_bench, kernel(RIGHT + NUDGE)).run(None)
    assert verdict.status is Status.CORRECT
    assert [f.kind for f in verdict.findings if f.kind == "nondeterministic"] == ["nondeterministic"]


def test_a_wrong_answer_that_varies_says_so(horner_bench: Bench) -> None:
    body = "static int calls; y[5] = 100.0f + calls++;"
    verdict = Evaluation(horner_bench, kernel(RIGHT + body)).run(None)
    assert verdict.status is Status.WRONG
    assert [f.kind for f in verdict.findings][:2] == ["values", "nondeterministic"]
    assert "a race between threads, or memory that was never written" in verdict.findings[1].message
