"""The timed part of one evaluation: wait for quiet, time, and confirm in a new process what is hard to believe."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.checks import check_answers, check_company, check_libraries
from kernelworks.evaluate.duel import Duel, RivalFailedError, Tied, combine, rival_faults
from kernelworks.evaluate.endings import EndedEvaluation
from kernelworks.evaluate.lease import LeaseHeldError, device_lease
from kernelworks.evaluate.load import BusyError, Load, LoadWatch, Quiet
from kernelworks.evaluate.module_process import ModuleCandidate
from kernelworks.evaluate.module_proof import timed_fallback
from kernelworks.evaluate.opponent import Opponent
from kernelworks.evaluate.process import Candidate
from kernelworks.evaluate.remarks import load_findings
from kernelworks.kernel.model import Contract
from kernelworks.kernel.verdict import Comparison, Decision, Finding, Status
from kernelworks.targets.base import Artefact
from kernelworks.targets.gate import process_gate

FLOOR_SHARE = 0.75
"""A time below this share of the floor is held against rates measured anew, confirmed in a new process, and then
dishonest."""
BIG_WIN = 10.0
"""A speed-up over the anchor above this is confirmed in a new process on new inputs before it is believed."""
_MOST_TRIALS = 3
"""Of which two that cannot be believed are dishonest."""
_TOLD_S = 0.1
"""From here on a wait is a finding."""


class Note(Protocol):
    """Keeps findings beside the status."""

    def __call__(self, *findings: Finding) -> None:
        """Keep them."""
        ...


@dataclass(frozen=True)
class Rival:
    """An opponent that is built."""

    opponent: Opponent
    artefact: Artefact


@dataclass(frozen=True)
class Trial:
    """All timings of one process."""

    tied: Tied
    doubt: Finding | None
    """Why they cannot be believed."""
    void: Finding | None
    """Why no figure may rest on them."""
    notes: tuple[Finding, ...]
    host_ms: float

    @property
    def is_big_win(self) -> bool:
        """Over the anchor itself: through an incumbent it rests on a claim that was confirmed before."""
        return bool(self.tied.baselines) and self.tied.speedup.value > BIG_WIN


@dataclass(frozen=True)
class Measured:
    """What the timed part found."""

    trial: Trial
    load: Load
    waited_s: float


class TimedPart:
    """Of one candidate. Use once.

    Args:
        bench: shared parts.
        artefact: the candidate.
        rival: the incumbent of its cell, if it has one.
        start: the candidate in a new process.
        note: keeps findings.
        after: what a candidate has to do after its timings, in the same process.
        recall: whether it might keep answers (``Duel``).
    """

    def __init__(
        self,
        bench: Bench,
        artefact: Artefact,
        rival: Rival | None,
        start: Callable[[Artefact], AbstractContextManager[Candidate]],
        note: Note,
        after: Callable[[Candidate], None],
        *,
        recall: bool,
    ) -> None:
        self._recall = recall
        self._bench = bench
        self._artefact = artefact
        self._rival = rival
        self._start = start
        self._note = note
        self._after = after
        settings = bench.settings
        self._quiet = Quiet(settings.on_load, settings.load_limit_cores, settings.load_wait_s)

    def run(self, before: LoadWatch) -> Measured:
        """Time the candidate; ``before`` has watched the machine until now.

        Raises:
            EndedEvaluation: dishonest, or the machine is busy and timings are to be refused then.
        """
        try:
            with device_lease(self._bench.hardware.name) as leased_s, process_gate().timing():
                self._quiet.settle(before)
                trial, load = self._undisturbed()
                trial = self._believed(trial)
        except (BusyError, LeaseHeldError) as error:
            message = f"not timed: {error}"
            raise EndedEvaluation(Status.SETUP_ERROR, Finding(kind="busy", message=message)) from error
        self._tell_waits(leased_s)
        self._note(*trial.notes, *load_findings(load, self._bench.settings.load_limit_cores))
        if trial.void is not None:
            self._note(trial.void)
        return Measured(trial, load, leased_s + self._quiet.waited_s)

    def _undisturbed(self) -> tuple[Trial, Load]:
        """The timings and the load beside them; repeated once where that was too high and there is time left."""
        trial, load = self._watched()
        if not self._quiet.is_quiet(load) and self._quiet.patient:
            self._quiet.settle()
            trial, load = self._watched()
        if not self._quiet.is_quiet(load) and self._bench.settings.on_load == "refuse":
            raise BusyError(load)
        return trial, load

    def _watched(self) -> tuple[Trial, Load]:
        watch = LoadWatch()
        with self._start(self._artefact) as candidate:
            trial = self._trial(self._bench, candidate)
            self._after(candidate)
        return trial, watch.load()

    def _believed(self, first: Trial) -> Trial:
        """The first trial, or, where it is hard to believe, what further ones in new processes leave of it."""
        trials = [first]
        while self._is_open(trials):
            with self._bench.renewed() as fresh, self._start(self._artefact) as candidate:
                check_answers(candidate, fresh.timed, fresh.judge, fresh.settings.call_timeout_s)
                trials.append(self._trial(fresh, candidate))
        doubts = [trial.doubt for trial in trials if trial.doubt is not None]
        if len(doubts) > 1:
            raise EndedEvaluation(Status.DISHONEST, doubts[-1])
        if len(trials) == 1:
            return first
        speedups = ", then ".join(f"{trial.tied.speedup.value:.3g}x" for trial in trials)
        message = f"confirmed in a new process on new inputs: {speedups} over {self._bench.anchor}; the least stands"
        if doubts:
            message += f". Not believed at first: {doubts[0].message}"
        self._note(Finding(kind="confirmed", message=message, evidence={"trials": len(trials), "doubts": len(doubts)}))
        return min((t for t in trials if t.doubt is None), key=lambda trial: trial.tied.speedup.value)

    def _is_open(self, trials: list[Trial]) -> bool:
        """Whether another trial has to tell."""
        doubted = [trial.doubt is not None for trial in trials]
        if len(trials) == 1:
            return doubted[0] or trials[0].is_big_win
        return sum(doubted) == 1 and doubted[-1] and len(trials) < _MOST_TRIALS

    def _trial(self, bench: Bench, candidate: Candidate) -> Trial:
        """All timings in one process."""
        duel = Duel(bench, candidate, recall=self._recall)
        comparisons = self._against_rival(duel)
        rival = self._rival
        if rival and comparisons and combine(comparisons, bench.task.aggregate).decision is not Decision.FASTER:
            tied = Tied.through(rival.opponent, comparisons, bench)
        else:
            for name in bench.baselines.names:
                comparisons += duel.against_baseline(name)
            tied = Tied.directly(comparisons, bench)
        check_company(candidate, bench.settings.threads, "after the timed calls")
        if self._artefact.contract is Contract.FUNCTION:
            check_libraries(candidate, "while it was timed")
        doubt = duel.doubts[0] if duel.doubts else self._below_floor(comparisons)
        if doubt is None and isinstance(candidate, ModuleCandidate):
            doubt = self._fallback(candidate, bench, comparisons)
        void = duel.voids[0] if duel.voids else None
        return Trial(tied, doubt, void, tuple(duel.notes), duel.host_ms)

    def _against_rival(self, duel: Duel) -> list[Comparison]:
        """Timings against the incumbent; none where it fails, and the baselines have to do."""
        if self._rival is None:
            return []
        try:
            with self._process_of(self._rival) as process:
                return duel.against_kernel(self._rival.opponent.kernel.id, process)
        except RivalFailedError as error:
            self._note(opponent_failed(self._rival.opponent, str(error)))
            return []

    @staticmethod
    def _fallback(candidate: ModuleCandidate, bench: Bench, comparisons: list[Comparison]) -> Finding | None:
        """A submission that lets somebody else work when it is timed, in the first case that shows it."""
        for case in bench.timed:
            time_ms = max(c.time_ms for c in comparisons if c.case == case.prepared.case)
            found = timed_fallback(candidate, case, time_ms, bench.settings.call_timeout_s)
            if found is not None:
                return found
        return None

    def _below_floor(self, comparisons: list[Comparison]) -> Finding | None:
        bench = self._bench
        for case in bench.timed:
            time_ms = min(c.time_ms for c in comparisons if c.case == case.prepared.case)
            if time_ms < FLOOR_SHARE * bench.bound(case).floor_ms:
                bench.measure_device_again()
            floor_ms = FLOOR_SHARE * bench.bound(case).floor_ms
            if time_ms < floor_ms:
                message = (
                    f"{time_ms:.4g} ms in case {case.prepared.case}, in two processes: moving the bytes that the"
                    f" operation needs takes at least {floor_ms:.4g} ms on this device"
                )
                evidence = {"time_ms": time_ms, "floor_ms": floor_ms}
                return Finding(kind="below_floor", message=message, evidence=evidence)
        return None

    @contextmanager
    def _process_of(self, rival: Rival) -> Generator[Candidate]:
        """An incumbent in a process of its own: it was checked before and is only timed."""
        with rival_faults():
            process = self._bench.start(rival.artefact)
        try:
            yield process
        finally:
            process.end()

    def _tell_waits(self, leased_s: float) -> None:
        for waited_s, whom in ((leased_s, "another timing on this device"), (self._quiet.waited_s, "other work")):
            if waited_s > _TOLD_S:
                message = f"waited {waited_s:.1f} s for {whom} to end"
                self._note(Finding(kind="waited", message=message, evidence={"waited_s": waited_s}))


def opponent_failed(opponent: Opponent, why: str) -> Finding:
    """An incumbent could not be timed."""
    message = f"timed against the baselines alone, since the incumbent {opponent.kernel.id} failed: {why}"
    return Finding(kind="opponent_failed", message=message)
