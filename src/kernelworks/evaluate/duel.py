"""A candidate on the clock against one opponent after the other, and what the ratios say together."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.checks import candidate_faults
from kernelworks.evaluate.opponent import Opponent
from kernelworks.evaluate.process import Candidate, CandidateError
from kernelworks.evaluate.remarks import clock_finding, memory_finding, recall_finding, remarks, void_finding
from kernelworks.evaluate.sides import BoundCase, CallError, CandidateSide, Ledger
from kernelworks.evaluate.timing import MARGIN, Call, Interval, Outcome, Side, compare_sides, warm_up
from kernelworks.kernel.verdict import Baseline, Comparison, Decision, Finding

Aggregate = Literal["geomean", "total"]
SHORT = 20.0
"""Calls that take less than so many times the overhead of a ring share one ring with calls of the case's twins."""
Opposing = Callable[[tuple[BoundCase, ...]], Side]
"""Makes the other side for the cases that are called behind one ring."""


class RivalFailedError(Exception):
    """An incumbent crashed, hung or did not build: nothing that the candidate did."""


@contextmanager
def rival_faults() -> Generator[None]:
    """Tell what an incumbent does wrong from what the candidate does."""
    try:
        yield
    except (CandidateError, CallError) as error:
        raise RivalFailedError(str(error)) from error


@dataclass(frozen=True)
class _RivalSide:
    """An incumbent on the clock: it was checked before, and is only timed."""

    side: CandidateSide

    def time(self, lane: int) -> Call:
        with rival_faults():
            return self.side.time(lane)


class Duel:
    """Timings of one candidate, bound for every timed case, under the bench's allocation policy.

    Args:
        bench: with the timed cases.
        candidate: running.
        recall: hold a winner's times on inputs that are new throughout against others, once a case.
    """

    def __init__(self, bench: Bench, candidate: Candidate, *, recall: bool = True) -> None:
        self._recall = recall
        self._recalled: set[str] = set()
        self._bench = bench
        self._candidate = candidate
        self._rng = random.Random(bench.rng.getrandbits(64))
        self.doubts: list[Finding] = []
        """Contradictions between times and processor time, comparison by comparison."""
        self.notes: list[Finding] = []
        """What limits the figures."""
        self.voids: list[Finding] = []
        """Comparisons on which no figure may rest."""
        self.host_ms = 0.0
        """Of a call of the last comparison, outside the kernel."""
        self._bound: set[str] = set()
        self._warmed: set[str] = set()
        with candidate_faults(""):
            self._bind(candidate)

    def against_kernel(self, name: str, rival: Candidate) -> list[Comparison]:
        """Against an incumbent in its own process, case by case.

        Raises:
            EndedEvaluation: the candidate failed.
            RivalFailedError: the rival did.
        """
        with rival_faults():
            self._bind(rival)

        def opposing(cases: tuple[BoundCase, ...]) -> Side:
            with rival_faults():
                for twin in cases[1:]:
                    twin.bind(rival)
            return _RivalSide(self._side(rival, cases, spot_checks=False))

        return [self._compare(name, case, opposing) for case in self._bench.timed]

    def against_baseline(self, name: str) -> list[Comparison]:
        """Against a trusted baseline in the judge's process, case by case."""
        return [
            self._compare(name, case, lambda cases: self._bench.baseline_side(name, cases))
            for case in self._bench.timed
        ]

    def _bind(self, candidate: Candidate) -> None:
        for case in self._bench.timed:
            case.bind(candidate)

    def _side(self, candidate: Candidate, cases: tuple[BoundCase, ...], *, spot_checks: bool) -> CandidateSide:
        bench = self._bench
        return CandidateSide(
            candidate=candidate,
            cases=cases,
            judge=bench.judge,
            rng=self._rng,
            sweep=bench.sweep(cases[0]),
            overhead=bench.overhead(cases[0], len(cases)),
            allocate=bench.policy == "as_called",
            timeout_s=bench.settings.call_timeout_s,
            spot_checks=spot_checks,
        )

    def _compare(self, name: str, case: BoundCase, opposing: Opposing) -> Comparison:
        with candidate_faults(case.label):
            candidate, opponent = self._side(self._candidate, (case,), spot_checks=True), opposing((case,))
            warm_up(opponent, warmed=(name, case.key) in self._bench.warmed)
            if name in self._bench.baselines.names:  # an incumbent has a new process each time
                self._bench.warmed.add((name, case.key))
            is_short = warm_up(candidate, warmed=case.key in self._warmed) < SHORT * candidate.overhead.host_ms
            self._warmed.add(case.key)
            if is_short and len(twins := self._bench.twins(case)) > 1:
                self._bind_twins(twins)
                candidate, opponent = self._side(self._candidate, twins, spot_checks=True), opposing(twins)
                for side in (candidate, opponent):
                    warm_up(side)
            candidate.ledger = Ledger()
            outcome = compare_sides(candidate, opponent, self._rng)
        comparison = _comparison(name, case, outcome, candidate, self._bench)
        self.host_ms = candidate.overhead.host_ms
        self.notes.extend(remarks(comparison, candidate.overhead))
        void = void_finding(comparison, candidate.overhead)
        if void is not None:
            self.voids.append(void)
        doubt = clock_finding(candidate.ledger, candidate.overhead, self._bench.settings.threads, case.label)
        memory = memory_finding(candidate.ledger, candidate.overhead, case.label)
        self.doubts.extend(found for found in (doubt, memory) if found is not None)
        # Who loses gains nothing by what it keeps.
        if comparison.decision is Decision.FASTER and self._recall and case.key not in self._recalled:
            self._recalled.add(case.key)
            with candidate_faults(case.label):
                recalled = candidate.recall()
            recall = recall_finding(recalled, candidate.overhead, case.label)
            self.doubts.extend(found for found in (recall,) if found is not None)
        return comparison

    def _bind_twins(self, twins: tuple[BoundCase, ...]) -> None:
        for twin in twins[1:]:
            if twin.key not in self._bound:
                twin.bind(self._candidate)
                self._bound.add(twin.key)


def _comparison(name: str, case: BoundCase, outcome: Outcome, side: CandidateSide, bench: Bench) -> Comparison:
    mine = [c for b in outcome.blocks for c in b.candidate]
    theirs = [c for b in outcome.blocks for c in b.opponent]
    return Comparison(
        opponent=name,
        policy=bench.policy,
        case=case.prepared.case,
        time_ms=outcome.time_ms(),
        opponent_time_ms=outcome.opponent_time_ms(),
        ratio=outcome.interval.value,
        ratio_low=outcome.interval.low,
        ratio_high=outcome.interval.high,
        decision=outcome.decision,
        blocks=len(outcome.blocks),
        cache=bench.cache_state(case),
        calls=side.overhead.calls,
        page_faults=sum(c.page_faults for c in mine) / len(mine),
        opponent_page_faults=sum(c.page_faults for c in theirs) / len(theirs),
        samples_ms=tuple(
            (a.elapsed_ms, b.elapsed_ms, c.elapsed_ms, d.elapsed_ms)
            for a, b, c, d in ((*block.candidate, *block.opponent) for block in outcome.blocks)
        ),
        orders="".join("a" if b.candidate_first else "b" for b in outcome.blocks),
    )


@dataclass(frozen=True)
class Combined:
    """Comparisons with one opponent over all timed cases."""

    interval: Interval
    decision: Decision
    time_ms: float
    opponent_time_ms: float


def combine(comparisons: Sequence[Comparison], aggregate: Aggregate) -> Combined:
    """One ratio over the timed cases: the geometric mean, or that of the total times.

    The bounds are combined as if they held jointly, which is conservative.
    """
    weights = [c.opponent_time_ms for c in comparisons]

    def over_cases(ratios: list[float]) -> float:
        if aggregate == "total":
            return sum(weights) / sum(w / r for w, r in zip(weights, ratios, strict=True))
        return math.exp(sum(map(math.log, ratios)) / len(ratios))

    low, high = over_cases([c.ratio_low for c in comparisons]), over_cases([c.ratio_high for c in comparisons])
    return Combined(
        Interval(over_cases([c.ratio for c in comparisons]), low, high),
        decide(low, high),
        total_ms([c.time_ms for c in comparisons], aggregate),
        total_ms([c.opponent_time_ms for c in comparisons], aggregate),
    )


def total_ms(times_ms: Sequence[float], aggregate: Aggregate) -> float:
    """The times of the timed cases as one figure."""
    return sum(times_ms) if aggregate == "total" else math.exp(sum(map(math.log, times_ms)) / len(times_ms))


def decide(low: float, high: float) -> Decision:
    """The decision that an interval of a ratio allows."""
    if low > 1 + MARGIN:
        return Decision.FASTER
    return Decision.SLOWER if high < 1 - MARGIN else Decision.UNDECIDED


@dataclass(frozen=True)
class Tied:
    """What the timings say about a candidate against the anchor."""

    comparisons: tuple[Comparison, ...]
    speedup: Interval
    decision: Decision
    time_ms: float
    baselines: tuple[Baseline, ...]
    roofline: float

    @classmethod
    def directly(cls, comparisons: Sequence[Comparison], bench: Bench) -> Tied:
        """Timed against every baseline; the first is the anchor."""
        combined = {
            name: combine([c for c in comparisons if c.opponent == name], bench.task.aggregate)
            for name in bench.baselines.names
        }
        anchor = combined[bench.anchor]
        baselines = tuple(
            Baseline(
                name=name,
                time_ms=c.opponent_time_ms,
                speedup=c.interval.value,
                speedup_low=c.interval.low,
                speedup_high=c.interval.high,
                policy=bench.policy,
            )
            for name, c in combined.items()
        )
        share = roofline(anchor.time_ms, bench)
        return cls(tuple(comparisons), anchor.interval, anchor.decision, anchor.time_ms, baselines, share)

    @classmethod
    def through(cls, opponent: Opponent, comparisons: Sequence[Comparison], bench: Bench) -> Tied:
        """Timed against an incumbent only: its own speed-up times the ratio, bounds times bounds."""
        duel = combine(comparisons, bench.task.aggregate)
        speedup = Interval(
            opponent.speedup * duel.interval.value,
            opponent.speedup_low * duel.interval.low,
            opponent.speedup_high * duel.interval.high,
        )
        decision = decide(speedup.low, speedup.high)
        return cls(tuple(comparisons), speedup, decision, duel.time_ms, (), roofline(duel.time_ms, bench))

    def fields(self) -> dict[str, Any]:
        """As the verdict has them."""
        return {
            "comparisons": self.comparisons,
            "speedup": self.speedup.value,
            "speedup_low": self.speedup.low,
            "speedup_high": self.speedup.high,
            "decision": self.decision,
            "time_ms": self.time_ms,
            "baselines": self.baselines,
            "roofline": self.roofline,
            "cache": self.comparisons[0].cache,
        }


def roofline(time_ms: float, bench: Bench) -> float:
    """Share of the bound that a time reaches; 1.0 is the bound."""
    bound_ms = total_ms([bench.bound_ms(case) for case in bench.timed], bench.task.aggregate)
    return bound_ms / time_ms
