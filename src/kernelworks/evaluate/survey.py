"""After the first wrong answer: which other cases fail too, which pass, and what separates them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelworks.evaluate.endings import EndedEvaluation, problem_finding
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.process import Candidate, CandidateError
from kernelworks.evaluate.records import CaseProblem, DimSlot
from kernelworks.evaluate.sides import BoundCase
from kernelworks.kernel.verdict import Finding, Status

MOST_CASES = 8
"""Further cases that are run after the first wrong answer ..."""
BUDGET_S = 0.5
"""... within this time ..."""
LARGEST_BYTES = 32 << 20
"""... of at most this working set."""
CALL_LIMIT_S = 2.0
_MOST_DIMS = 3
_WIDTHS = (8, 16, 4, 32, 64, 2, 128, 256, 512, 1024)
"""Divisors that are tried, likely widths of vectors and tiles first."""


@dataclass(frozen=True)
class Label:
    """A case as conditions see it."""

    case: str
    family: str
    sizes: tuple[tuple[str, int], ...]

    @property
    def words(self) -> str:
        """For people; the task's own draw goes without saying."""
        return self.case if self.family == "normal" else f"{self.case} ({self.family})"


def label_of(case: BoundCase) -> Label:
    """The label of a prepared case."""
    prepared = case.prepared
    sizes = tuple((s.name, s.value) for s in prepared.lanes[0] if isinstance(s, DimSlot)) if prepared.lanes else ()
    return Label(prepared.case, prepared.family, sizes)


def wrong_answer(
    candidate: Candidate,
    problems: Sequence[CaseProblem],
    more: Sequence[Finding],
    failed: BoundCase,
    passed: Sequence[BoundCase],
    rest: Sequence[BoundCase],
    judge: Judge,
) -> EndedEvaluation:
    """The end of an evaluation by a wrong answer, with the cases that fail and pass.

    Args:
        candidate: running; a further case may end it.
        problems: of the first case that failed.
        more: findings that go with them.
        failed: that case.
        passed: cases before it.
        rest: cases after it, of which some are run.
        judge: of the cases.
    """
    failing, passing = [label_of(failed)], [label_of(case) for case in passed]
    for case, right in _further(candidate, failed, rest, judge):
        (passing if right else failing).append(label_of(case))
    findings = [problem_finding(problem, failed.label) for problem in problems]
    said = _said(failing, passing, _first_of_tail(problems))
    if said.message:
        message = f"{findings[0].message}; {said.message}"
        first = findings[0].model_copy(
            update={"message": message, "evidence": {**findings[0].evidence, **said.evidence}}
        )
        findings[0] = first
    causes = [finding for finding in more if finding.kind == "out_of_bounds_read"]
    others = [finding for finding in more if finding.kind != "out_of_bounds_read"]
    return EndedEvaluation(Status.WRONG, *causes, *findings, *others)


def _further(
    candidate: Candidate, failed: BoundCase, rest: Sequence[BoundCase], judge: Judge
) -> Iterator[tuple[BoundCase, bool]]:
    """Further cases, the same sizes in other families and other sizes in turn, and whether they are right."""
    cheap = [case for case in rest if case.working_set_bytes <= LARGEST_BYTES]
    same = [case for case in cheap if case.prepared.case == failed.prepared.case]
    other = [case for case in cheap if case.prepared.case != failed.prepared.case]
    other.sort(key=lambda case: case.prepared.family != failed.prepared.family)
    mixed = [case for pair in zip(other, same, strict=False) for case in pair]
    shorter = min(len(other), len(same))
    end_s = time.monotonic() + BUDGET_S
    for case in (mixed + other[shorter:] + same[shorter:])[:MOST_CASES]:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            return
        try:
            case.bind(candidate)
            judge.poison(case.key, 0)
            returned = candidate.call(case.lane_key(0), CALL_LIMIT_S).returned
        except CandidateError:
            return  # the first wrong answer has decided already
        if returned != 0:
            return
        yield case, not judge.compare(case.key, 0, explain=False).problems


def _said(failing: Sequence[Label], passing: Sequence[Label], tails: Sequence[tuple[str, int]]) -> Finding:
    """Cases and condition, as a message and as evidence."""
    evidence: dict[str, Any] = {
        "failing": [label.words for label in failing],
        "passing": [label.words for label in passing],
    }
    if not passing and len(failing) == 1:
        return Finding(kind="cases", message="", evidence=evidence)
    text = f"fails in {_listed(failing)}"
    text += f", passes in {_listed(passing)}" if passing else ", passes in none of those tried"
    condition = condition_of(failing, passing, tails)
    if condition:
        evidence["condition"] = condition
        text += f": {condition}"
    return Finding(kind="cases", message=text, evidence=evidence)


def _listed(labels: Sequence[Label], most: int = 6) -> str:
    shown = ", ".join(label.words for label in labels[:most])
    return f"{shown} and {len(labels) - most} more" if len(labels) > most else shown


def _first_of_tail(problems: Sequence[CaseProblem]) -> list[tuple[str, int]]:
    """(dim, first wrong index) of tails that the analysis found."""
    found: list[tuple[str, int]] = []
    for problem in problems:
        where = problem.evidence.get("where", {})
        if where.get("pattern") == "tail" and where.get("dim"):
            found.append((where["dim"], where["first"]))
    return found


def condition_of(failing: Sequence[Label], passing: Sequence[Label], tails: Sequence[tuple[str, int]] = ()) -> str:
    """A condition that all failing cases meet and no passing one does, in words; empty where none is plain.

    Where the cases cannot tell between dims, each has its own, joined by "or".

    Args:
        failing: at least one.
        passing: cases that are right; without any nothing can be told apart.
        tails: dims whose tail is wrong, with the first wrong index: its factors tell the width that was assumed.
    """
    families = _families(failing, passing)
    if families:
        others = [label for label in passing if label.family in families]
    else:
        failed = {label.case for label in failing}
        others = [label for label in passing if label.case not in failed]  # right in some families alone
    sizes = _sizes(failing, others, dict(tails)) if others else ""
    if families:
        return f"only for inputs of family {' and '.join(sorted(families))}{f', where {sizes}' if sizes else ''}"
    return f"only where {sizes}" if sizes else ""


def _families(failing: Sequence[Label], passing: Sequence[Label]) -> set[str]:
    """Families that fail, if the same sizes are right in others; empty where the family does not decide.

    What fails on the task's own draw fails for a reason of its own: others may pass because their bound is wide.
    """
    families = {label.family for label in failing}
    if "normal" in families:
        return set()
    cases = {label.case for label in failing}
    same = [label for label in passing if label.case in cases]
    decides = same and families.isdisjoint(label.family for label in same)
    return families if decides or (passing and families.isdisjoint(label.family for label in passing)) else set()


def _sizes(failing: Sequence[Label], passing: Sequence[Label], starts: Mapping[str, int]) -> str:
    bads, goods = [dict(label.sizes) for label in failing], [dict(label.sizes) for label in passing]
    found: list[str] = []
    for dim in (*starts, *(d for d in bads[0] if d not in starts)):
        bad, good = [s[dim] for s in bads if dim in s], [s[dim] for s in goods if dim in s]
        if len(bad) != len(failing) or len(good) != len(passing) or set(bad) & set(good):
            continue
        condition = _by_size(dim, bad, good, starts.get(dim))
        if condition and dim in starts:
            return condition
        found += [condition] if condition else []
    return " or ".join(found[:_MOST_DIMS])


def _by_size(dim: str, bad: Sequence[int], good: Sequence[int], tail: int | None) -> str:
    widths = [w for w in _WIDTHS if all(n % w for n in bad) and not any(n % w for n in good)]
    if tail is not None and tail > 0:
        widths = [w for w in sorted(widths, reverse=True) if tail % w == 0]
    if widths:
        return f"{dim} % {widths[0]} != 0"
    whole = [w for w in _WIDTHS if not any(n % w for n in bad) and all(n % w for n in good)]
    if whole and len(bad) > 1:
        return f"{dim} % {whole[0]} == 0"
    if set(bad) == {1}:
        return f"{dim} is 1"
    if max(bad) < min(good):
        return f"{dim} is small (up to {max(bad)}; right from {min(good)} on)"
    if min(bad) > max(good):
        return f"{dim} is large (from {min(bad)} on; right up to {max(good)})"
    return ""
