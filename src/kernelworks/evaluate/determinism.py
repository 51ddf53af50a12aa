"""Do the same inputs give the same bits, in one process and in another, whatever stands beside the tensors?

A repeat runs in the other lane: outputs at other addresses, new poison, new bytes in all canaries. Where its bits
differ, the surroundings are changed and kept in turn: if the answer follows them, the kernel reads out of bounds, and
the bytes are renewed tensor by tensor until the one is found. Otherwise it is a race, a sum in an order that varies, or
memory that was never written.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from kernelworks.evaluate.buffers import SIDES
from kernelworks.evaluate.endings import EndedEvaluation, problem_finding
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.process import Candidate, CandidateError
from kernelworks.evaluate.records import BufferSlot, CaseProblem
from kernelworks.evaluate.sides import BoundCase, FailedCallError
from kernelworks.kernel.verdict import Finding, Status

MOST_SMALL = 4
"""Check and edge cases that are repeated too, of at most this size."""
SMALL_BYTES = 4 << 20
REPEATS = 3
"""Of a case with a working set up to ``SMALL_BYTES``; a larger one is repeated once."""
STEPS = 40
"""At each a coin decides whether the surroundings are renewed ..."""
LEAST_SHARE = 0.6
"""... and of the renewals so many must change the answer, of the other steps none. Answers that vary by themselves,
with whatever frequency, look like that in less than 1 of 10,000 cases (binomial, 12 of 20 and 0 of 20)."""
BUDGET_S = 10.0
_TRIES = 6
_LANE = 1


def check_repeats(candidate: Candidate, case: BoundCase, judge: Judge, timeout_s: float) -> Finding | None:
    """Repeat a case whose right answer stands in lane 0.

    Args:
        candidate: running, bound to the case.
        case: just checked.
        judge: of the case.
        timeout_s: limit of a call.

    Returns:
        A finding where bits vary within the bound; None where they do not.

    Raises:
        EndedEvaluation: wrong, if a repeat is, or if bits follow what stands out of bounds.
        CandidateError: the candidate ended.
    """
    repeats = _repeats(case)
    varied, counts = 0, dict[str, int]()
    for _ in range(repeats):
        _run(candidate, case, judge, timeout_s, _last_fill(case))
        differing = judge.differing(case.key)
        if differing:
            varied += 1
            counts = {name: max(counts.get(name, 0), count) for name, count in differing.items()}
            _refuse_wrong(case, judge, f"in a repeat with the same inputs ({varied} of {repeats} repeats differ)")
    if not varied:
        return None
    reads = reading_out_of_bounds(candidate, case, judge, timeout_s, _last_fill(case))
    if reads is not None:
        raise EndedEvaluation(Status.WRONG, reads)
    return _varies(case, judge, f"between calls with the same inputs, in {varied} of {repeats} repeats", counts)


def repeatable(cases: Sequence[BoundCase]) -> Sequence[BoundCase]:
    """Small cases on the task's own draw: odd sizes are where kernels read a little too far."""
    plain = [case for case in cases if case.prepared.family == "normal" and case.working_set_bytes <= SMALL_BYTES]
    return plain[:MOST_SMALL]


def check_process(
    candidate: Candidate, case: BoundCase, judge: Judge, fingerprint: str, timeout_s: float
) -> Finding | None:
    """One call in another process than the one whose answer has this fingerprint; as ``check_repeats``."""
    judge.poison(case.key, 0, _last_fill(case))
    _call(candidate, case, 0, timeout_s)
    if judge.fingerprint(case.key, 0) == fingerprint:
        return None
    _refuse_wrong(case, judge, "in another process with the same inputs", lane=0)
    return _varies(case, judge, "between two processes with the same inputs", {})


def vary(
    candidate: Candidate,
    case: BoundCase,
    judge: Judge,
    timeout_s: float,
    problems: Sequence[CaseProblem],
    fill: int,
) -> tuple[Finding, ...]:
    """Why a wrong answer, which stands in lane 0, differs on a repeat; nothing where it does not.

    Never raises for what the candidate does: the wrong answer has decided already. Where inputs were changed or memory
    was overwritten, the next call starts from another place, and nothing is asked.

    Args:
        candidate: running.
        case: whose answer is wrong.
        judge: of the case.
        timeout_s: limit of a call.
        problems: of that answer.
        fill: that it was given.
    """
    if any(problem.kind not in ("values", "nan_mask") for problem in problems):
        return ()
    try:
        counts = dict[str, int]()
        for _ in range(_repeats(case)):  # new bytes beside a tensor may happen to make no difference
            _run(candidate, case, judge, timeout_s, fill)
            counts = counts or judge.differing(case.key)
        if not counts:
            return ()
        reads = reading_out_of_bounds(candidate, case, judge, timeout_s, fill)
    except (CandidateError, FailedCallError):
        return ()
    if reads is not None:
        return (reads,)
    where = ", ".join(f"{count} elements of {name}" for name, count in counts.items())
    message = (
        f"the wrong answer differs on a repeat with the same inputs ({where}): a race between threads, or memory that"
        f" was never written (case {case.label})"
    )
    return (Finding(kind="nondeterministic", message=message, evidence={"elements": counts, "case": case.label}),)


def reading_out_of_bounds(
    candidate: Candidate, case: BoundCase, judge: Judge, timeout_s: float, fill: int
) -> Finding | None:
    """A finding that names the tensor whose surroundings the answer depends on; None if it depends on none.

    Raises:
        CandidateError: the candidate ended.
    """
    every = [f"{s.name}/{side}" for s in case.prepared.lanes[_LANE] if isinstance(s, BufferSlot) for side in SIDES]

    def answer(renew: Sequence[str]) -> str:
        judge.poison(case.key, _LANE, fill, renew)
        _call(candidate, case, _LANE, timeout_s)
        return judge.fingerprint(case.key, _LANE)

    last, renewals, changes = answer(()), 0, 0
    end_s = time.monotonic() + BUDGET_S
    for _ in range(STEPS):
        renew = random.random() < 0.5
        found = answer(every if renew else ())
        if (found != last and not renew) or time.monotonic() > end_s:
            return None
        renewals += renew
        changes += found != last
        last = found
    if changes < LEAST_SHARE * max(1, renewals):
        return None
    for place in every:
        for _ in range(_TRIES):
            if answer([place]) != last:
                return _out_of_bounds(place, case)
    return None


def _out_of_bounds(place: str, case: BoundCase) -> Finding:
    name, _, side = place.rpartition("/")
    where = "past its end" if side == "after" else "before its start"
    message = (
        f"{name}: a read out of bounds, {where}, changes the answer: other bytes there give other bits"
        f" (case {case.label})"
    )
    evidence: dict[str, Any] = {"tensor": name, "side": side, "access": "read", "case": case.label}
    return Finding(kind="out_of_bounds_read", message=message, evidence=evidence)


def _varies(case: BoundCase, judge: Judge, when: str, counts: dict[str, int]) -> Finding:
    what = ", ".join(f"{count} elements of {name}" for name, count in counts.items()) or "the answer"
    message = f"the bits vary within the bound {when}: {what} (case {case.label})"
    finding = Finding(kind="nondeterministic", message=message, evidence={"elements": counts, "case": case.label})
    if judge.task.deterministic:
        raise EndedEvaluation(Status.WRONG, finding.model_copy(update={"message": f"{message}; the task forbids it"}))
    return finding


def _refuse_wrong(case: BoundCase, judge: Judge, when: str, lane: int = _LANE) -> None:
    problems = judge.compare(case.key, lane).problems
    if not problems:
        return
    findings = [problem_finding(problem, f"{case.label}, {when}") for problem in problems]
    raced = findings[0].evidence | {"race": True}
    first = findings[0].model_copy(
        update={"message": f"{findings[0].message}: right before, so a race or memory never written", "evidence": raced}
    )
    raise EndedEvaluation(Status.WRONG, first, *findings[1:])


def _run(candidate: Candidate, case: BoundCase, judge: Judge, timeout_s: float, fill: int) -> None:
    judge.poison(case.key, _LANE, fill)
    _call(candidate, case, _LANE, timeout_s)


def _repeats(case: BoundCase) -> int:
    return REPEATS if case.working_set_bytes <= SMALL_BYTES else 1


def _last_fill(case: BoundCase) -> int:
    """That of the last checked run."""
    return 1 if case.prepared.two_fills else 0


def _call(candidate: Candidate, case: BoundCase, lane: int, timeout_s: float) -> None:
    returned = candidate.call(case.lane_key(lane), timeout_s).returned
    if returned != 0:
        raise FailedCallError(returned)
