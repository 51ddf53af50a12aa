from __future__ import annotations

import signal

import pytest

from kernelworks.evaluate.endings import ending_of, left_behind, load_findings, loudness
from kernelworks.evaluate.faults import Fault
from kernelworks.evaluate.load import Load
from kernelworks.evaluate.process import CandidateEndedError, CandidateLoadError, CandidateRefusedError
from kernelworks.evaluate.records import CaseProblem
from kernelworks.evaluate.sides import ClockError, FailedCallError, StaleAnswerError
from kernelworks.evaluate.supervision import Cause, Exit, Output
from kernelworks.kernel.verdict import Status


def ended(ending: Exit, case: str = "odd, wide inputs") -> tuple[Status, list[str], str]:
    found = ending_of(CandidateEndedError("call", ending), case)
    return found.status, [f.kind for f in found.findings], found.findings[0].message


@pytest.mark.parametrize(
    ("cause", "status", "kind"),
    [
        (Cause.TIMED_OUT, Status.TIMED_OUT, "timed_out"),
        (Cause.EXITED, Status.CRASHED, "exited"),
        (Cause.MEMORY, Status.CRASHED, "memory"),
        (Cause.FORGED, Status.DISHONEST, "forged"),
        (Cause.CHANNEL_CLOSED, Status.DISHONEST, "channel_closed"),
        (Cause.SUPERVISOR_LOST, Status.DISHONEST, "supervisor_lost"),
    ],
)
def test_the_cause_decides(cause: Cause, status: Status, kind: str) -> None:
    found = ended(Exit(cause, code=0 if cause is Cause.EXITED else None))
    assert found[:2] == (status, [kind])
    assert found[2].endswith("(case odd, wide inputs, during call)")


def test_a_signal_on_a_guard_page_is_a_wrong_answer() -> None:
    assert ended(Exit(Cause.SIGNALLED, signal=signal.SIGSEGV))[:2] == (Status.CRASHED, ["signalled"])
    fault = Fault(address=0x1000, access="write", buffer="y", side="after", distance_bytes=64)
    status, kinds, message = ended(Exit(Cause.SIGNALLED, signal=signal.SIGSEGV, fault=fault))
    assert (status, kinds) == (Status.WRONG, ["out_of_bounds"])
    assert message.startswith("out of bounds: ") and "y" in message


def test_outside_a_case_none_is_named() -> None:
    assert ended(Exit(Cause.TIMED_OUT), "")[2] == "still running at its time limit (during call)"


def test_what_is_left_is_listed() -> None:
    ending = Exit(
        Cause.FINISHED, leftovers=("a", "b"), leftover_count=40, files=("f.txt",), file_count=2, unkilled=True
    )
    assert [(f.kind, f.message) for f in left_behind(ending)] == [
        ("leftover_process", "processes outlived the call and were ended: a, b (40 in all)"),
        ("files", "files were written: f.txt (2 in all)"),
        ("leftover_process", "processes kept appearing faster than they could be ended"),
    ]
    assert left_behind(Exit(Cause.FINISHED)) == ()
    assert ended(Exit(Cause.TIMED_OUT, leftovers=("a",), leftover_count=1))[1] == ["timed_out", "leftover_process"]


def test_the_last_words_are_evidence() -> None:
    error = CandidateEndedError("call", Exit(Cause.EXITED, code=1, stderr=Output(head=b"x" * 600 + b"no memory")))
    evidence = ending_of(error, "main").findings[0].evidence
    assert evidence["stderr"].endswith("no memory") and len(evidence["stderr"]) == 500
    assert "stdout" not in evidence


def test_output_is_a_finding_from_a_mebibyte_on() -> None:
    small, large = Output(head=b"s" * 9), Output(head=b"h" * 16384, tail=b"t" * 16384, dropped_bytes=1 << 20)
    assert loudness(Exit(Cause.FINISHED, stdout=small, stderr=small)) == ()
    for ending in (Exit(Cause.FINISHED, stdout=large, stderr=small), Exit(Cause.FINISHED, stderr=large)):
        (finding,) = loudness(ending)
        assert finding.message == "printed 1.1 MB; kept are the first and last 16 KiB of a stream"
        assert finding.evidence["bytes"] >= 1 << 20


def test_calls_that_went_wrong() -> None:
    problem = CaseProblem(kind="stale", tensor="y", message="y: old", evidence={"wrong": 3})
    stale = ending_of(StaleAnswerError(problem), "main")
    assert (stale.status, stale.findings[0].message) == (Status.DISHONEST, "y: old (case main)")
    assert stale.findings[0].evidence == {"tensor": "y", "case": "main", "wrong": 3}
    failed = ending_of(FailedCallError(-1), "main")
    assert (failed.status, failed.findings[0].message) == (
        Status.CRASHED,
        "launch returned -1, expected 0 (case main)",
    )
    clock = ending_of(ClockError(8, 0.25, 12.5), "main")
    assert (clock.status, clock.findings[0].kind) == (Status.DISHONEST, "clock")
    assert clock.findings[0].message == "calls: 8, which took 12.5 ms; its process says 0.25 ms (case main)"


def test_a_library_that_does_not_load_and_a_process_that_refuses() -> None:
    load = ending_of(CandidateLoadError("undefined symbol: f"), "")
    refused = ending_of(CandidateRefusedError("map: cannot map 4096 bytes"), "main")
    assert [(e.status, e.findings[0].kind) for e in (load, refused)] == [
        (Status.CRASHED, "load"),
        (Status.CRASHED, "refused"),
    ]
    assert load.findings[0].message == "undefined symbol: f"


def test_other_work_is_told_from_a_fifth_of_a_core_on() -> None:
    assert load_findings(Load(foreign_cores=0.2, steal_cores=0.0)) == ()
    busy, taken = load_findings(Load(foreign_cores=0.63, steal_cores=0.25))
    assert (busy.kind, taken.kind) == ("foreign_load", "steal")
    assert "0.63 cores" in busy.message and busy.evidence == {"cores": 0.63}
    assert "0.25 cores" in taken.message
