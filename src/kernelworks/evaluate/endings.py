"""From how a candidate ended to a status and findings that a person can act on."""

from __future__ import annotations

from kernelworks.evaluate.load import Load
from kernelworks.evaluate.process import CandidateEndedError, CandidateError, CandidateLoadError
from kernelworks.evaluate.records import CaseProblem
from kernelworks.evaluate.sides import CallError, ClockError, FailedCallError, StaleAnswerError
from kernelworks.evaluate.supervision import Cause, Exit
from kernelworks.kernel.verdict import Finding, Status

TAIL_CHARACTERS = 500
"""Kept of what a candidate printed last."""
LOAD_LIMIT_CORES = 0.2
"""Above this, other work is a finding."""
LOUD_BYTES = 1 << 20
"""From here on, output is a finding."""


class EndedEvaluation(Exception):  # noqa: N818  it ends an evaluation; it is no error of the harness
    """An evaluation is over: with which status, and why."""

    def __init__(self, status: Status, *findings: Finding) -> None:
        super().__init__(status.value)
        self.status = status
        self.findings = findings


def ending_of(error: CandidateError | CallError, case: str) -> EndedEvaluation:
    """The end of an evaluation.

    Args:
        error: what the candidate did.
        case: where, in words; empty outside any case.
    """
    if isinstance(error, StaleAnswerError):
        return EndedEvaluation(Status.DISHONEST, problem_finding(error.problem, case))
    if isinstance(error, FailedCallError):
        evidence = {"returned": error.returned, "case": case}
        finding = Finding(kind="returned", message=f"{error} (case {case})", evidence=evidence)
        return EndedEvaluation(Status.CRASHED, finding)
    if isinstance(error, ClockError):
        return EndedEvaluation(Status.DISHONEST, clock_finding(error, case))
    if isinstance(error, CandidateEndedError):
        return _ended(error.during, error.exit, case)
    kind = "load" if isinstance(error, CandidateLoadError) else "refused"
    return EndedEvaluation(Status.CRASHED, Finding(kind=kind, message=str(error)))


def _ended(during: str, ending: Exit, case: str) -> EndedEvaluation:
    where = f"case {case}, during {during}" if case else f"during {during}"
    evidence = {"case": case, "during": during, **_printed(ending)}
    message = f"{ending} ({where})"
    match ending.cause:
        case Cause.TIMED_OUT:
            status, kind = Status.TIMED_OUT, "timed_out"
        case Cause.SIGNALLED if ending.fault is not None and ending.fault.buffer is not None:
            status, kind, message = Status.WRONG, "out_of_bounds", f"out of bounds: {ending.fault} ({where})"
        case Cause.FORGED | Cause.CHANNEL_CLOSED | Cause.SUPERVISOR_LOST:
            status, kind = Status.DISHONEST, ending.cause.value
        case _:
            status, kind = Status.CRASHED, ending.cause.value
    return EndedEvaluation(status, Finding(kind=kind, message=message, evidence=evidence), *left_behind(ending))


def left_behind(ending: Exit) -> tuple[Finding, ...]:
    """Processes and files that a candidate left: each makes one that did not end otherwise dishonest."""
    found: list[Finding] = []
    if ending.leftover_count:
        names = ", ".join(ending.leftovers)
        message = f"processes outlived the call and were ended: {names} ({ending.leftover_count} in all)"
        found.append(Finding(kind="leftover_process", message=message, evidence={"count": ending.leftover_count}))
    if ending.file_count:
        message = f"files were written: {', '.join(ending.files)} ({ending.file_count} in all)"
        found.append(Finding(kind="files", message=message, evidence={"count": ending.file_count}))
    if ending.unkilled:
        found.append(
            Finding(kind="leftover_process", message="processes kept appearing faster than they could be ended")
        )
    return tuple(found)


def loudness(ending: Exit) -> tuple[Finding, ...]:
    """A finding where a candidate printed a great deal."""
    size = ending.stdout.size_bytes + ending.stderr.size_bytes
    if size < LOUD_BYTES:
        return ()
    kept = max(len(ending.stdout.head), len(ending.stderr.head))
    message = f"printed {size / 1e6:.1f} MB; kept are the first and last {kept >> 10} KiB of a stream"
    return (Finding(kind="output", message=message, evidence={"bytes": size, **_printed(ending)}),)


def clock_finding(error: ClockError, case: str) -> Finding:
    """A clock that cannot be right as a finding."""
    evidence = {"calls": error.calls, "said_ms": error.said_ms, "measured_ms": error.measured_ms, "case": case}
    return Finding(kind="clock", message=f"{error} (case {case})", evidence=evidence)


def load_findings(load: Load) -> tuple[Finding, ...]:
    """A finding where other work disturbed the timings."""
    found: list[Finding] = []
    for kind, cores, who in (
        ("foreign_load", load.foreign_cores, "other programs used"),
        ("steal", load.steal_cores, "the host of this virtual machine took"),
    ):
        if cores > LOAD_LIMIT_CORES:
            message = f"{who} {cores:.2f} cores during the timings, which widens their intervals"
            found.append(Finding(kind=kind, message=message, evidence={"cores": cores}))
    return tuple(found)


def problem_finding(problem: CaseProblem, case: str) -> Finding:
    """A problem of the judge as a finding."""
    evidence = {"tensor": problem.tensor, "case": case, **problem.evidence}
    return Finding(kind=problem.kind, message=f"{problem.message} (case {case})", evidence=evidence)


def _printed(ending: Exit) -> dict[str, str]:
    tails = {"stdout": ending.stdout.text[-TAIL_CHARACTERS:], "stderr": ending.stderr.text[-TAIL_CHARACTERS:]}
    return {name: text for name, text in tails.items() if text}
