"""The search loop: asks become kernels, kernels builds, builds evaluations, verdicts what the search is told.

Nothing waits for the slowest: builds run ahead while one kernel is evaluated. Every step is logged before anything
depends on it, so that a killed run loses at most what was in flight.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelworks.app.events import BuildDone, Evaluated, Listener, Told, Trying
from kernelworks.engine.base import Built, Engine, Job, JobReport
from kernelworks.errors import EvaluationError
from kernelworks.evaluate.opponent import Opponent
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.outcome import Outcome
from kernelworks.kernel.verdict import Verdict
from kernelworks.propose.base import ProposalContext, Proposer, Request
from kernelworks.search.archive import AddStatus
from kernelworks.search.core import Ask, Search
from kernelworks.search.stopping import StopReason, StopRules
from kernelworks.store.replay import Pending
from kernelworks.store.run import RunStore

COLLECT_S = 0.25
"""How long the loop sleeps at most when nothing happens: also how late it sees that its minutes are over."""
ATTEMPTS = 8
"""Proposals for one ask before it is given up as a duplicate."""
TOLD_AS = {AddStatus.NEW: "new", AddStatus.IMPROVED: "improved", AddStatus.NOT_ADDED: "rejected"}
"""What a listener is told of a verdict."""


@dataclass
class Clock:
    """Seconds of search, those of earlier sessions included."""

    before_s: float = 0.0
    _began_s: float = field(default_factory=time.monotonic)

    def elapsed_s(self) -> float:
        """So far."""
        return self.before_s + time.monotonic() - self._began_s


class SearchLoop:
    """One session of search on one run.

    Args:
        store: opened for writing; the run's ``started`` or ``resumed`` event is logged.
        search: fresh, or restored from the store.
        seeds: the first kernels, by the index of the search's seed asks.
        verdicts: of the kernels evaluated so far, by id (empty for a new run).
        depth: kernels that may be built or ready ahead of the one that is evaluated.
    """

    def __init__(
        self,
        *,
        store: RunStore,
        search: Search,
        engine: Engine,
        proposer: Proposer,
        context: ProposalContext,
        seeds: Sequence[Kernel],
        rules: StopRules,
        clock: Clock,
        listener: Listener,
        kernels: dict[str, Kernel],
        verdicts: dict[str, Verdict],
        depth: int,
    ) -> None:
        self._store = store
        self._search = search
        self._engine = engine
        self._proposer = proposer
        self._context = context
        self._seeds = seeds
        self._rules = rules
        self._clock = clock
        self._listener = listener
        self._kernels = kernels
        self._verdicts = verdicts
        self._depth = depth
        self._requeue: deque[Pending] = deque()
        self._building: dict[int, Kernel] = {}
        self._ready: deque[tuple[int, Kernel, Built]] = deque()
        self._evaluating: tuple[int, Kernel] | None = None

    def run(self, requeue: Sequence[Pending] = ()) -> StopReason:
        """Search until a rule stops it; what an earlier session left in flight goes first."""
        self._requeue.extend(requeue)
        for pending in requeue:
            if pending.kernel is not None:
                self._search.seen.claim(pending.kernel.id)
        while True:
            none_left = self._fill()
            self._evaluate_next()
            # What is in flight may still be evaluated and become a parent: until then nothing is exhausted.
            idle = not self._search.in_flight
            reason = self._rules.reason(
                evaluations=self._search.evaluations,
                elapsed_s=self._clock.elapsed_s(),
                barren=self._search.barren if idle else 0,
                none_left=none_left and idle,
            )
            if reason is not None:
                return reason
            for report in self._engine.collect(COLLECT_S):
                self._receive(report)

    def _fill(self) -> bool:
        """Begin as much as may be ahead; True if the search has nothing left to ask."""
        while len(self._building) + len(self._ready) < self._depth:
            active = len(self._search.in_flight) - len(self._requeue)
            if not self._rules.may_begin(evaluations=self._search.evaluations, in_flight=active):
                return False
            if self._requeue:
                self._take_up(self._requeue.popleft())
                continue
            if self._search.barren >= self._rules.patience:
                return False
            ask = self._search.ask()
            if ask is None:
                return True
            with self._store.step() as step:
                step.asked(ask)
            self._propose(ask)
        return False

    def _take_up(self, pending: Pending) -> None:
        if pending.kernel is None:
            self._propose(self._search.in_flight[pending.number])
        elif pending.verdict is not None:
            self._kernels[pending.kernel.id] = pending.kernel
            self._tell(pending.number, pending.kernel, Outcome.evaluated(pending.verdict), recorded=True)
        else:
            self._build(pending.number, pending.kernel)

    def _propose(self, ask: Ask) -> None:
        """Find a new kernel for an ask and send it to be built; a known one is logged and asked for again."""
        known = ""
        for attempt in range(ATTEMPTS):
            kernel = self._kernel_for(ask, attempt)
            if kernel is None:
                break
            if self._search.seen.claim(kernel.id):
                with self._store.step() as step:
                    step.proposed(ask.number, kernel)
                self._listener.on_event(
                    Trying(
                        elapsed_s=self._clock.elapsed_s(),
                        number=ask.number,
                        kernel=kernel.id,
                        operator=ask.operator,
                        move=kernel.origin.move,
                        idea=kernel.front.idea,
                    )
                )
                self._build(ask.number, kernel)
                return
            known = kernel.id
            self._store.append("duplicate", {"number": ask.number, "kernel": kernel.id, "attempt": attempt})
            if ask.operator == "seed":
                break
        self._tell(ask.number, None, Outcome.duplicate(known) if known else Outcome.nothing())

    def _kernel_for(self, ask: Ask, attempt: int) -> Kernel | None:
        if ask.seed_index is not None:
            return self._seeds[ask.seed_index]
        parents = tuple(self._kernels[parent] for parent in ask.parents)
        operator = "crossover" if len(parents) > 1 else "mutate"
        request = Request(operator=operator, parents=parents, seed=ask.seed, attempt=attempt)
        return self._proposer.propose(self._context, request)

    def _build(self, number: int, kernel: Kernel) -> None:
        self._kernels[kernel.id] = kernel
        self._building[number] = kernel
        self._engine.submit(Job(number=number, kind="build", kernel=kernel))

    def _evaluate_next(self) -> None:
        if self._evaluating is not None or not self._ready:
            return
        number, kernel, built = self._ready.popleft()
        incumbent = self._search.incumbent(built.descriptor.cell)
        opponent = None if incumbent is None else self._opponent(incumbent)
        self._evaluating = (number, kernel)
        self._engine.submit(Job(number=number, kind="evaluate", kernel=kernel, opponent=opponent))

    def _opponent(self, kernel_id: str) -> Opponent:
        verdict = self._verdicts[kernel_id]
        if verdict.speedup is None or verdict.speedup_low is None or verdict.speedup_high is None:
            raise EvaluationError(f"elite {kernel_id}: expected a measured speed-up, found none")
        return Opponent(
            kernel=self._kernels[kernel_id],
            speedup=verdict.speedup,
            speedup_low=verdict.speedup_low,
            speedup_high=verdict.speedup_high,
        )

    def _receive(self, report: JobReport) -> None:
        if report.kind == "build":
            kernel = self._building.pop(report.number)
            if report.built is not None:
                self._take_build(report.number, kernel, report.built)
                return
        else:
            assert self._evaluating is not None
            number, kernel = self._evaluating
            assert number == report.number
            self._evaluating = None
        if report.verdict is None:
            raise EvaluationError(f"job {report.number} ({report.kind}): expected a verdict, found none")
        self._tell(report.number, kernel, Outcome.evaluated(report.verdict))

    def _take_build(self, number: int, kernel: Kernel, built: Built) -> None:
        data = {"number": number, "kernel": kernel.id, **built.model_dump(mode="json", exclude={"descriptor"})}
        self._store.append("built", {**data, "cell": built.descriptor.cell})
        self._listener.on_event(
            BuildDone(
                elapsed_s=self._clock.elapsed_s(),
                number=number,
                kernel=kernel.id,
                build_ms=built.build_ms,
                cached=built.cached,
            )
        )
        owner = self._search.seen.claim_code(built.code_digest, kernel.id)
        if owner != kernel.id:
            self._tell(number, kernel, Outcome.duplicate(owner))
            return
        self._ready.append((number, kernel, built))

    def _tell(self, number: int, kernel: Kernel | None, outcome: Outcome, *, recorded: bool = False) -> None:
        """Tell the search and log it in one transaction; ``recorded``: the verdict is in the store already."""
        kernel_id = "" if kernel is None else kernel.id
        best_before = self._search.best
        told = self._search.tell(number, kernel_id, outcome)
        with self._store.step() as step:
            if outcome.verdict is not None and not recorded:
                step.record_verdict(number, outcome.verdict)
            if outcome.verdict is not None:
                step.append("evaluated", {"number": number, "kernel": kernel_id, "status": outcome.verdict.status})
            step.told(number, kernel_id, outcome, told)
        if outcome.verdict is not None:
            self._verdicts[kernel_id] = outcome.verdict
            best = self._search.best
            self._listener.on_event(
                Evaluated(
                    elapsed_s=self._clock.elapsed_s(),
                    number=number,
                    evaluations=self._search.evaluations,
                    kernel=kernel_id,
                    verdict=outcome.verdict,
                    best=best is not None and best != best_before,
                )
            )
        self._listener.on_event(
            Told(
                elapsed_s=self._clock.elapsed_s(),
                number=number,
                kernel=kernel_id,
                outcome=TOLD_AS[told.status] if outcome.verdict is not None else "duplicate",
                cell=told.cell,
                filled=len(self._search.archive),
            )
        )
