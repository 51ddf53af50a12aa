from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.candidates import LIMITS
from support.evaluations import HORNER, RIGHT, SETTINGS, kernel, write_task

from kernelworks.evaluate import session as session_module
from kernelworks.evaluate.health import TRIES, DeviceHealth, check_by_call
from kernelworks.evaluate.process import CandidatePool
from kernelworks.evaluate.session import Session
from kernelworks.kernel.verdict import Finding, Status, Verdict


def answering(*problems: str) -> tuple[DeviceHealth, Callable[[], int]]:
    """A device that answers so, one look after the other, and how often it was looked at."""
    left = list(problems)
    health = DeviceHealth("device 7", lambda: left.pop(0), pause_s=0.0)
    return health, lambda: len(problems) - len(left)


def verdict(status: Status, kind: str = "any") -> Verdict:
    findings = () if status is Status.CORRECT else (Finding(kind=kind, message="m"),)
    return Verdict(kernel="k", status=status, findings=findings)


def test_a_device_that_answers_is_no_matter() -> None:
    health, looks = answering("", "")
    health.look()
    assert (looks(), health.finding()) == (1, None)


def test_a_device_may_need_a_moment() -> None:
    health, looks = answering("busy", "busy", "")
    health.look()
    assert (looks(), health.finding()) == (3, None)


def test_a_device_that_does_not_come_back_is_left_alone() -> None:
    health, looks = answering(*["no answer"] * TRIES)
    health.look()
    finding = health.finding()
    assert finding is not None
    assert looks() == TRIES
    assert finding.kind == "quarantine"
    assert finding.message == "device 7 does not answer any more and is left alone: no answer"


@pytest.mark.parametrize(
    ("found", "looks"),
    [
        (verdict(Status.CRASHED), 1),
        (verdict(Status.TIMED_OUT), 1),
        (verdict(Status.DISHONEST), 1),
        (verdict(Status.WRONG, "out_of_bounds"), 1),
        (verdict(Status.WRONG, "values"), 0),
        (verdict(Status.CORRECT), 0),
        (verdict(Status.BUILD_ERROR), 0),
    ],
)
def test_it_is_looked_at_after_what_may_have_harmed_it(found: Verdict, looks: int) -> None:
    health, seen = answering("")
    health.after(found)
    assert seen() == looks


def test_a_call_that_does_nothing_shows_that_the_processor_answers() -> None:
    with CandidatePool(threads=1, limits=LIMITS) as pool:
        assert check_by_call(pool) == ""
    assert "closed" in check_by_call(pool)


def test_after_a_quarantine_every_verdict_names_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [""]

    def look(pool: CandidatePool) -> str:
        return answers.pop() if answers else check_by_call(pool) or "no answer"

    monkeypatch.setattr(session_module, "check_by_call", look)
    with Session.open(write_task(tmp_path, HORNER), "cpp", SETTINGS) as session:
        assert session.evaluate(kernel("abort();"), None).status is Status.CRASHED
        assert session.evaluate(kernel(RIGHT), None).status is Status.CORRECT
        assert session.evaluate(kernel("abort();"), None).status is Status.CRASHED
        refused = session.evaluate(kernel(RIGHT), None)
    assert refused.status is Status.SETUP_ERROR
    assert refused.findings[0].message == "target cpp does not answer any more and is left alone: no answer"
