"""Does a PyTorch submission compute its answer itself, and is the answer its own?

*Own work* is native code that came with the submission: libraries opened by ``ctypes``, extensions of ``load_inline``,
Triton kernels. In its process the time of a call is taken apart (``module_work``); then torch's operators are made to
fail, then its own code, and what is left of the answer is compared by the judge.

=====================================================================  ==========================================
no code of its own ran; or the answer stands without that code, but    dishonest, ``fallback``
for ``LEAST_PART``; or all that the code does is to call torch
the answer is gone without torch                                       correct, finding ``library_work``
the answer stands without torch                                        correct, ``own_share`` says the rest
=====================================================================  ==========================================

A composition of torch's operators is no kernel, however it was rewritten, nor is a call of one from C++.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.checks import candidate_faults
from kernelworks.evaluate.endings import EndedEvaluation
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.module_process import ModuleCandidate, SubmissionError, Work
from kernelworks.evaluate.process import CandidateEndedError
from kernelworks.evaluate.sides import BoundCase, StaleAnswerError
from kernelworks.kernel.verdict import Finding, Status

LEAST_SHARE = 0.002
"""Share of the time below which own code that calls torch's operators does nothing else."""
LEAST_PART = 0.02
"""Part of an output's elements that must go wrong without own code: less is a decoy."""
PROFILES = 5
"""Calls whose time is taken; the shortest counts, which was least disturbed."""
GLUE_NS = 300_000
"""Python around a kernel that is not held against it, for each call ..."""
GLUE_OPERATOR_NS = 30_000
"""... and for each operator or function: the accountant's own time is in it."""
FASTER = 1.5
"""A timed call that is so many times faster than its own code alone was, when that was watched, is not that code ..."""
WATCHED_NS, WATCHED_OPERATOR_NS = 100_000, 60_000
"""... once the watching is taken off: of a call, and of each operator, views and allocations too."""
_LISTED = 6


@dataclass(frozen=True)
class Shares:
    """Whose time some calls were."""

    own_ns: int
    torch_ns: int
    other_ns: int
    """Neither of its own nor of torch: Python and other libraries, beyond what glue takes."""
    own_calls: int
    plain_calls: int
    operators: tuple[tuple[str, int, int], ...]

    @property
    def own(self) -> float:
        """Share of own code, 0 to 1."""
        total_ns = self.own_ns + self.torch_ns + self.other_ns
        return self.own_ns / total_ns if total_ns else float(self.own_calls > 0)

    @property
    def torch(self) -> float:
        """Share of torch's operators."""
        total_ns = self.own_ns + self.torch_ns + self.other_ns
        return self.torch_ns / total_ns if total_ns else 0.0


def shares_of(works: Sequence[Work]) -> Shares:
    """Of the shortest of some calls."""
    work = min(works, key=lambda work: work.total_ns)
    glue_ns = GLUE_NS + GLUE_OPERATOR_NS * (work.operator_calls + work.own_calls)
    return Shares(
        own_ns=work.own_ns,
        torch_ns=work.torch_ns,
        other_ns=max(0, work.total_ns - work.torch_ns - work.own_ns - glue_ns),
        own_calls=work.own_calls,
        plain_calls=work.plain_calls,
        operators=work.operators,
    )


def prove_own_work(
    candidate: ModuleCandidate, case: BoundCase, unseen: BoundCase, judge: Judge, timeout_s: float
) -> tuple[float, tuple[Finding, ...]]:
    """Take the time of a case's calls apart, then make torch and own code fail.

    The process may be of no use afterwards.

    Args:
        candidate: running, bound to the case, right on it.
        case: a timed one.
        unseen: other inputs of it. The process never computed their answer, so that no memory of its own holds it.
        judge: of the cases.
        timeout_s: limit of a call.

    Returns:
        Share of the time in code of its own, and a finding where torch does a part of the work.

    Raises:
        EndedEvaluation: dishonest, if the work is not its own.
    """
    with candidate_faults(case.label):
        works: list[Work] = []
        for _ in range(PROFILES):
            judge.poison(case.key, 0)
            works.append(candidate.profile(case.lane_key(0), timeout_s))
        unseen.bind(candidate)
    shares = shares_of(works)
    own_part = _part_gone(candidate, unseen, judge, timeout_s, "own") if shares.own_calls else 0.0
    decoy = own_part < LEAST_PART
    needs_torch = bool(shares.operators) and _part_gone(candidate, unseen, judge, timeout_s, "torch") > 0
    wraps = shares.plain_calls == 0 and shares.own < LEAST_SHARE and needs_torch
    evidence = {
        "own_share": shares.own,
        "torch_share": shares.torch,
        "own_calls": shares.own_calls,
        "without_own_code": "stands" if own_part == 0 else "gone",
        "own_part": own_part,
        "without_torch": "gone" if needs_torch else "stands",
        "operators": [
            {"name": name, "calls": calls, "ms": spent_ns / 1e6} for name, calls, spent_ns in shares.operators
        ],
        "case": case.label,
    }
    if decoy or wraps:
        message = f"{_who_did_it(shares, decoy=decoy)} (case {case.label})"
        raise EndedEvaluation(Status.DISHONEST, Finding(kind="fallback", message=message, evidence=evidence))
    if not needs_torch:
        return shares.own, ()
    message = (
        f"torch does {shares.torch:.0%} of the work, in time, and without it the answer is gone: {_listed(shares)};"
        f" code of its own takes {shares.own:.1%} (case {case.label})"
    )
    return shares.own, (Finding(kind="library_work", message=message, evidence=evidence),)


def _part_gone(
    candidate: ModuleCandidate, case: BoundCase, judge: Judge, timeout_s: float, without: Literal["torch", "own"]
) -> float:
    """Part of an output's elements that are not right without the one or the other, of the output that loses most."""
    judge.poison(case.key, 0)
    try:
        candidate.profile(case.lane_key(0), timeout_s, without)
        candidate.settle(case.lane_key(0))
    except (SubmissionError, CandidateEndedError):  # code may crash on what it is given now
        return 1.0
    problems = judge.compare(case.key, 0, explain=False).problems
    return max((float(problem.evidence.get("share", 1.0)) for problem in problems), default=0.0)


def _who_did_it(shares: Shares, *, decoy: bool) -> str:
    rule = "a composition of torch's operators, rewritten or not, is no kernel"
    if shares.own_calls == 0 and not shares.operators:
        return (
            "neither code of its own (a library opened by ctypes, an extension, a Triton kernel) nor an operator of"
            " torch was seen at work: Python or another library computes the answer"
        )
    if shares.own_calls == 0:
        return f"no code of its own ran; torch computes the answer: {_listed(shares)}; {rule}"
    if decoy:
        who = f"torch computes it: {_listed(shares)}; {rule}" if shares.operators else "another library computes it"
        return (
            f"code of its own ran ({shares.own:.2%} of the time), and nearly all of the answer stands without it; {who}"
        )
    return (
        f"code of its own calls torch's operators, which take {shares.torch:.1%} of the time, and does nothing else"
        f" that takes time: {_listed(shares)}; {rule}"
    )


def _listed(shares: Shares) -> str:
    total_ns = max(1, shares.own_ns + shares.torch_ns + shares.other_ns)
    shown = [f"{name} ({spent_ns / total_ns:.0%})" for name, _, spent_ns in shares.operators[:_LISTED]]
    more = [f"{len(shares.operators) - _LISTED} more"] if len(shares.operators) > _LISTED else []
    return ", ".join(shown + more)


def check_kept_answer(candidate: ModuleCandidate, case: BoundCase, judge: Judge, timeout_s: float) -> None:
    """Other inputs at the same addresses have another answer, and the answer that was returned stays what it is.

    Raises:
        EndedEvaluation: dishonest, if one of the two does not hold.
    """
    first, second = (case.lane_key(lane) for lane in (0, 1))
    with candidate_faults(case.label):
        judge.poison(case.key, 0)
        candidate.call(first, timeout_s)
        before = judge.fingerprint(case.key, 0)
        candidate.call(second, timeout_s)
        judge.ready([case.key], 1, [0])
        candidate.call(second, timeout_s)
        stale = judge.spot_check(case.key, 1)
        if stale is not None:
            raise StaleAnswerError(stale)
        judge.poison(case.key, 0)
        candidate.settle(first)
        after = judge.fingerprint(case.key, 0)
    if before != after:
        message = (
            "a tensor that forward returned changed when other inputs were computed: it is memory of the module's own,"
            f" which a caller would lose (case {case.label})"
        )
        raise EndedEvaluation(Status.DISHONEST, Finding(kind="recycled_output", message=message))


def prove_submission(candidate: ModuleCandidate, bench: Bench) -> tuple[float, tuple[Finding, ...]]:
    """Everything of this module for one submission that is right: its share of own work, and findings beside it."""
    timeout_s = bench.settings.call_timeout_s
    case = max(bench.timed, key=lambda case: case.working_set_bytes)
    check_kept_answer(candidate, case, bench.judge, timeout_s)
    with bench.unseen(case) as unseen:
        return prove_own_work(candidate, case, unseen, bench.judge, timeout_s)


def timed_fallback(candidate: ModuleCandidate, case: BoundCase, time_ms: float, timeout_s: float) -> Finding | None:
    """A finding where timed calls are faster than the submission's own code is, in the same process, when watched.

    The proof of own work is another call than the timed one, and a submission could tell them apart.

    Args:
        candidate: after its timings, bound to the case.
        case: a timed one.
        time_ms: of a timed call.
        timeout_s: limit of a call.

    Raises:
        EndedEvaluation: it failed.
    """
    with candidate_faults(case.label):
        works = [candidate.profile(case.lane_key(0), timeout_s) for _ in range(PROFILES)]
    own_ms = min(work.own_ns - WATCHED_NS - WATCHED_OPERATOR_NS * work.dispatched for work in works) / 1e6
    if own_ms <= FASTER * time_ms:
        return None
    message = (
        f"timed calls take {time_ms:.4g} ms, and code of its own alone takes at least {own_ms:.4g} ms of a call that is"
        f" watched, in the same process: something else computes the answer when it is timed (case {case.label})"
    )
    evidence = {"time_ms": time_ms, "own_ms": own_ms, "case": case.label}
    return Finding(kind="fallback", message=message, evidence=evidence)


def weight_findings(candidate: ModuleCandidate) -> tuple[Finding, ...]:
    """A finding where parameters of submission and reference do not go together."""
    weights = candidate.weights
    if not weights.unmatched and not weights.strange:
        return ()
    parts: list[str] = []
    if weights.unmatched:
        parts.append(f"nothing in ModelNew holds {', '.join(weights.unmatched[:_LISTED])} of the reference")
    if weights.strange:
        parts.append(f"{', '.join(weights.strange[:_LISTED])} of ModelNew keep their own values")
    message = (
        f"parameters: {'; '.join(parts)}. They are matched by name and shape, else by equal values of two models that"
        " are made from the same seed"
    )
    evidence = {"unmatched": list(weights.unmatched), "strange": list(weights.strange)}
    return (Finding(kind="parameters", message=message, evidence=evidence),)
