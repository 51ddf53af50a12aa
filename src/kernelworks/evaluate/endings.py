"""From how a candidate ended to a status and findings that a person can act on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from kernelworks.errors import DoesNotFitError
from kernelworks.evaluate.module_process import SubmissionError
from kernelworks.evaluate.process import CandidateEndedError, CandidateError, CandidateLoadError
from kernelworks.evaluate.records import CaseProblem, CaseReport
from kernelworks.evaluate.sides import CallError, FailedCallError, StaleAnswerError
from kernelworks.evaluate.supervision import Cause, Exit
from kernelworks.kernel.descriptor import Descriptor
from kernelworks.kernel.model import Contract
from kernelworks.kernel.roofline import CaseBound
from kernelworks.kernel.verdict import Comparison, Finding, Status, Verdict
from kernelworks.task.model import DType, Task

TAIL_CHARACTERS = 500
"""Kept of what a candidate printed last."""
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
        status = Status.WRONG if error.problem.kind == "input_changed" else Status.DISHONEST
        return EndedEvaluation(status, problem_finding(error.problem, case))
    if isinstance(error, FailedCallError):
        evidence = {"returned": error.returned, "case": case}
        finding = Finding(kind="returned", message=f"{error} (case {case})", evidence=evidence)
        return EndedEvaluation(Status.CRASHED, finding)
    if isinstance(error, CandidateEndedError):
        return _ended(error.during, error.exit, case)
    if isinstance(error, SubmissionError):
        where = f" (case {case})" if case else ""
        return EndedEvaluation(
            error.status, Finding(kind=error.kind, message=f"{error}{where}", evidence={"case": case})
        )
    kind = "load" if isinstance(error, CandidateLoadError) else "refused"
    return EndedEvaluation(Status.CRASHED, Finding(kind=kind, message=str(error)))


def _ended(during: str, ending: Exit, case: str) -> EndedEvaluation:
    where = f"case {case}, during {during}" if case else f"during {during}"
    evidence = {"case": case, "during": during, **_struck(ending), **_printed(ending)}
    message = f"{ending} ({where})"
    match ending.cause:
        case Cause.TIMED_OUT:
            status, kind = Status.TIMED_OUT, "timed_out"
        case Cause.SIGNALLED if ending.call is not None:
            status, kind = Status.DISHONEST, "forbidden_call"
            evidence["call"] = ending.call
        case Cause.SIGNALLED if ending.fault is not None and ending.fault.buffer is not None:
            status, kind, message = Status.WRONG, "out_of_bounds", f"out of bounds: {ending.fault} ({where})"
        case Cause.FORGED | Cause.CHANNEL_CLOSED | Cause.SUPERVISOR_LOST:
            status, kind = Status.DISHONEST, ending.cause.value
        case _:
            status, kind = Status.CRASHED, ending.cause.value
    return EndedEvaluation(status, Finding(kind=kind, message=message, evidence=evidence), *left_behind(ending))


def _struck(ending: Exit) -> dict[str, object]:
    """Where a signal struck, if a tensor or workspace is near."""
    fault = ending.fault
    if fault is None or fault.buffer is None:
        return {}
    place = {"tensor": fault.buffer, "side": fault.side, "distance_bytes": fault.distance_bytes}
    return {**place, "access": fault.access}


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


def last_deeds(ending: Exit) -> tuple[Finding, ...]:
    """What makes a candidate dishonest that answered everything and was ended then."""
    found = list(left_behind(ending))
    if ending.cause is Cause.FORGED:
        found.insert(0, Finding(kind="forged", message=str(ending)))
    elif ending.call is not None:
        evidence = {"call": ending.call}
        found.insert(0, Finding(kind="forbidden_call", message=str(ending), evidence=evidence))
    return tuple(found)


def loudness(ending: Exit) -> tuple[Finding, ...]:
    """A finding where a candidate printed a great deal."""
    size = ending.stdout.size_bytes + ending.stderr.size_bytes
    if size < LOUD_BYTES:
        return ()
    kept = max(len(ending.stdout.head), len(ending.stderr.head))
    message = f"printed {size / 1e6:.1f} MB; kept are the first and last {kept >> 10} KiB of a stream"
    return (Finding(kind="output", message=message, evidence={"bytes": size, **_printed(ending)}),)


def unfit_verdict(error: DoesNotFitError, kernel: str, path: str, contract: Contract | None = None) -> Verdict:
    """The verdict on a kernel of a task for which the memory is too small."""
    finding = Finding(kind=error.kind, message=str(error), evidence=dict(error.figures))
    return Verdict(kernel=kernel, path=path, status=Status.DOES_NOT_FIT, contract=contract, findings=(finding,))


def above_peak(bounds: Sequence[CaseBound], comparisons: Sequence[Comparison]) -> tuple[Finding, ...]:
    """A finding where a kernel was faster than the operations of the reference allow: never a fault by itself."""
    found: list[Finding] = []
    for bound in bounds:
        time_ms = min(c.time_ms for c in comparisons if c.case == bound.case)
        if time_ms < bound.arithmetic_ms:
            message = (
                f"{time_ms:.4g} ms in case {bound.case}: at the measured peak the operations of the reference take at"
                f" least {bound.arithmetic_ms:.4g} ms, so its algorithm needs fewer or it computes less precisely"
            )
            evidence = {"time_ms": time_ms, "arithmetic_ms": bound.arithmetic_ms, "operations": bound.operations}
            found.append(Finding(kind="above_peak", message=message, evidence=evidence))
    return tuple(found)


def precision_findings(report: CaseReport) -> tuple[Finding, ...]:
    """A finding for each result whose errors look like those of a narrower type."""
    found: list[Finding] = []
    for output in report.outputs:
        if output.precision is None:
            continue
        name, relative = output.precision.name, output.precision.relative_error
        message = (
            f"{output.name}: errors of {relative:.2g} of its size, spread evenly over it: those of arithmetic in {name}"
        )
        evidence = {"tensor": output.name, "class": name, "relative_error": relative, "key": report.key}
        found.append(Finding(kind="precision_class", message=message, evidence=evidence))
    return tuple(found)


def narrow_findings(descriptor: Descriptor | None, task: Task) -> tuple[Finding, ...]:
    """A finding for each type narrower than any floating tensor of the task in which machine code computes.

    A hint: what a narrow instruction does to the answer is seen in its errors.
    """
    floating = [t.dtype for t in task.tensors if t.dtype.is_floating]
    if descriptor is None or not floating:
        return ()
    least = max(dtype.unit_roundoff for dtype in floating)
    found: list[Finding] = []
    for narrow in descriptor.narrow:
        if DType(narrow.type).unit_roundoff <= least:
            continue
        message = f"computes in {narrow.type}, narrower than every tensor of the task: {narrow.instruction}"
        evidence = {"type": narrow.type, "address": f"{narrow.address:#x}", "instruction": narrow.instruction}
        found.append(Finding(kind="narrow_arithmetic", message=message, evidence=evidence))
    return tuple(found)


def problem_finding(problem: CaseProblem, case: str) -> Finding:
    """A problem of the judge as a finding."""
    evidence = finite({"tensor": problem.tensor, "case": case, **problem.evidence})
    return Finding(kind=problem.kind, message=f"{problem.message} (case {case})", evidence=evidence)


def finite(value: Any) -> Any:
    """Plain data in which NaN and infinity are words: JSON has no numbers for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in cast("list[Any]", value)]
    return value


def _printed(ending: Exit) -> dict[str, str]:
    tails = {"stdout": ending.stdout.text[-TAIL_CHARACTERS:], "stderr": ending.stderr.text[-TAIL_CHARACTERS:]}
    return {name: text for name, text in tails.items() if text}
