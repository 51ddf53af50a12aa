from __future__ import annotations

import json
import math
import signal

import pytest

from kernelworks.evaluate.endings import above_peak, ending_of, last_deeds, left_behind, loudness, problem_finding
from kernelworks.evaluate.faults import Fault
from kernelworks.evaluate.process import CandidateEndedError, CandidateLoadError, CandidateRefusedError
from kernelworks.evaluate.records import CaseProblem
from kernelworks.evaluate.sides import FailedCallError, StaleAnswerError
from kernelworks.evaluate.supervision import Cause, Exit, Output
from kernelworks.kernel.roofline import CaseBound
from kernelworks.kernel.verdict import Comparison, Decision, Status


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


def test_a_forbidden_call_is_dishonest() -> None:
    found = ended(Exit(Cause.SIGNALLED, signal=signal.SIGSYS, call="socket"))
    assert found[:2] == (Status.DISHONEST, ["forbidden_call"])
    assert found[2].startswith("tried the system call socket, which a kernel has no use for (case")
    nameless = ended(Exit(Cause.SIGNALLED, signal=signal.SIGSYS, call=""))
    assert nameless[2].startswith("tried a system call that a kernel has no use for (case")


def test_last_deeds_are_dishonest_though_every_answer_came() -> None:
    assert last_deeds(Exit(Cause.FINISHED)) == ()
    assert [f.kind for f in last_deeds(Exit(Cause.FORGED, file_count=1))] == ["forged", "files"]
    assert [f.kind for f in last_deeds(Exit(Cause.SIGNALLED, signal=signal.SIGSYS, call="fork"))] == ["forbidden_call"]


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


def test_findings_hold_no_number_that_json_lacks() -> None:
    evidence = {"worst": math.nan, "limits": (1.0, math.inf), "where": {"from": -math.inf, "dim": "n"}}
    problem = CaseProblem(kind="values", tensor="y", message="y", evidence=evidence)
    found = problem_finding(problem, "main")
    assert json.loads(json.dumps(found.model_dump(mode="json"), allow_nan=False))["evidence"] == {
        "tensor": "y",
        "case": "main",
        "worst": "nan",
        "limits": [1.0, "inf"],
        "where": {"from": "-inf", "dim": "n"},
    }


def test_a_library_that_does_not_load_and_a_process_that_refuses() -> None:
    load = ending_of(CandidateLoadError("undefined symbol: f"), "")
    refused = ending_of(CandidateRefusedError("map: cannot map 4096 bytes"), "main")
    assert [(e.status, e.findings[0].kind) for e in (load, refused)] == [
        (Status.CRASHED, "load"),
        (Status.CRASHED, "refused"),
    ]
    assert load.findings[0].message == "undefined symbol: f"


def test_a_kernel_above_the_peak_is_told_and_not_accused() -> None:
    bound = CaseBound(
        case="main",
        binds="arithmetic",
        bound_ms=4.0,
        memory_ms=1.0,
        arithmetic_ms=4.0,
        floor_ms=1.0,
        bytes_moved=1,
        bytes_shown=1,
        level="memory",
        bandwidth_gbs=1.0,
        operations=12345,
    )
    comparison = Comparison(
        opponent="eager",
        policy="kernel",
        case="main",
        time_ms=3.0,
        opponent_time_ms=9.0,
        ratio=3.0,
        ratio_low=2.9,
        ratio_high=3.1,
        decision=Decision.FASTER,
        blocks=12,
        cache="cold",
    )
    (finding,) = above_peak([bound], [comparison])
    assert finding.kind == "above_peak"
    assert "at least 4 ms" in finding.message
    assert finding.evidence == {"time_ms": 3.0, "arithmetic_ms": 4.0, "operations": 12345}
    assert above_peak([bound], [comparison.model_copy(update={"time_ms": 4.1})]) == ()
