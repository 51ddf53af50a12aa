"""One evaluation: parse and static check -> build -> answers -> honesty -> time -> verdict.

Cheap stages first; the first stage that fails ends the evaluation with its status.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kernelworks.errors import KernelError
from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.checks import (
    candidate_faults,
    check_answers,
    check_clock,
    check_company,
    check_float_mode,
    doubt_claim,
)
from kernelworks.evaluate.domain import Domain, domain_of
from kernelworks.evaluate.duel import Duel, RivalFailedError, Tied, combine, rival_faults
from kernelworks.evaluate.endings import EndedEvaluation, left_behind, load_findings, loudness
from kernelworks.evaluate.load import LoadWatch
from kernelworks.evaluate.opponent import Opponent
from kernelworks.evaluate.process import Candidate
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Comparison, Decision, Finding, Status, Verdict
from kernelworks.targets.base import Artefact, Target
from kernelworks.targets.gate import process_gate
from kernelworks.task.model import Task

FLOOR_SHARE = 0.75
"""A time below this share of the memory bound is held, confirmed in a new process, and then dishonest."""


class Evaluation:
    """Of one kernel on one bench. Use once.

    Args:
        bench: shared parts.
        kernel: the candidate.
    """

    def __init__(self, bench: Bench, kernel: Kernel) -> None:
        self._bench = bench
        self._kernel = kernel
        self._stages_ms: dict[str, float] = {}
        self._fields: dict[str, Any] = {}
        self._findings: list[Finding] = []

    def run(self, opponent: Opponent | None) -> Verdict:
        """The verdict; timed against the opponent, or the anchor where there is none."""
        try:
            with self._stage("static"):
                domain = domain_of(self._kernel, self._bench.task, self._bench.hardware)
            self._fields |= {"params": domain.point, "coverage": domain.coverage}
            with self._stage("build"):
                artefact = self._build_own()
            self._check(artefact, domain)
            self._time(artefact, opponent)
        except EndedEvaluation as ended:
            return self._verdict(ended.status, (*ended.findings, *self._findings))
        return self._verdict(Status.CORRECT, tuple(self._findings))

    def _build(self, kernel: Kernel) -> Artefact:
        bench = self._bench
        return build_kernel(bench.target, bench.task, kernel, bench.settings.build_timeout_s)

    def _build_own(self) -> Artefact:
        built = self._build(self._kernel)
        self._fields |= {
            "flags": built.flags,
            "descriptor": built.descriptor,
            "code_digest": built.code_digest,
        }
        return built

    def _check(self, artefact: Artefact, domain: Domain) -> None:
        """Right and honest on every case, in a process of its own."""
        bench, settings = self._bench, self._bench.settings
        checks = [c for c in bench.checks if c.prepared.case in domain.cases]
        with self._candidate(artefact) as candidate:
            with self._stage("check"):
                check_float_mode(candidate)
                check_company(candidate, 1, "before any call")
                self._fields["dropped_families"] = tuple(bench.dropped)
                check_answers(candidate, [*checks, *bench.timed], bench.judge, settings.call_timeout_s)
                check_float_mode(candidate)
                check_company(candidate, settings.threads, "after the calls")
            with self._stage("clock"), process_gate().timing():
                case = bench.timed[0]
                self._fields["host_ms"] = check_clock(candidate, case, bench.judge, settings.call_timeout_s)

    def _time(self, artefact: Artefact, opponent: Opponent | None) -> None:
        """Against the opponent; then, if it is the first of its cell or won, against every baseline.

        A time that cannot be believed is held, confirmed in a new process, and then dishonest.
        """
        rival = self._rival_of(opponent)
        with self._stage("time"), process_gate().timing():
            watch = LoadWatch()
            tied, doubt = self._timed(artefact, rival)
            if doubt is not None:
                tied, doubt = self._timed(artefact, rival)
            load = watch.load()
            if doubt is not None:
                raise EndedEvaluation(Status.DISHONEST, doubt)
        self._note(*load_findings(load))
        self._fields |= tied.fields()
        self._fields |= {"foreign_load_cores": load.foreign_cores, "steal_cores": load.steal_cores}

    def _rival_of(self, opponent: Opponent | None) -> _Rival | None:
        """The opponent, built before the clock: a build waits for the end of every timing."""
        if opponent is None:
            return None
        try:
            return _Rival(opponent, self._build(opponent.kernel))
        except EndedEvaluation as ended:
            self._note(_opponent_failed(opponent, ended.findings[0].message))
            return None

    def _timed(self, artefact: Artefact, rival: _Rival | None) -> tuple[Tied, Finding | None]:
        """All timings in one new process, and why they cannot be believed, if so."""
        bench = self._bench
        with self._candidate(artefact) as candidate:
            duel = Duel(bench, candidate)
            comparisons = self._against_rival(duel, rival)
            if rival and comparisons and combine(comparisons, bench.task.aggregate).decision is not Decision.FASTER:
                tied = Tied.through(rival.opponent, comparisons, bench)
            else:
                for name in bench.baselines.names:
                    comparisons += duel.against_baseline(name)
                tied = Tied.directly(comparisons, bench)
            check_company(candidate, bench.settings.threads, "after the timed calls")
            threads = 1 if artefact.descriptor.parallelism == 0 else bench.settings.threads
            return tied, self._below_floor(comparisons) or self._doubt(candidate, comparisons, threads)

    def _against_rival(self, duel: Duel, rival: _Rival | None) -> list[Comparison]:
        """Timings against the incumbent; none where it fails, and the baselines have to do."""
        if rival is None:
            return []
        try:
            with self._process_of(rival) as process:
                return duel.against_kernel(rival.opponent.kernel.id, process)
        except RivalFailedError as error:
            self._note(_opponent_failed(rival.opponent, str(error)))
            return []

    def _doubt(self, candidate: Candidate, comparisons: Sequence[Comparison], threads: int) -> Finding | None:
        """Whether the harness's own clock contradicts what the candidate's process claimed."""
        bench = self._bench
        for case in bench.timed:
            claimed_ms = min(c.time_ms for c in comparisons if c.case == case.prepared.case)
            doubt = doubt_claim(candidate, case, bench.judge, claimed_ms, threads, bench.settings.call_timeout_s)
            if doubt is not None:
                return doubt
        return None

    def _below_floor(self, comparisons: Sequence[Comparison]) -> Finding | None:
        for case in self._bench.timed:
            floor_ms = FLOOR_SHARE * self._bench.bound_ms(case)
            time_ms = min(c.time_ms for c in comparisons if c.case == case.prepared.case)
            if time_ms < floor_ms:
                message = (
                    f"{time_ms:.4g} ms in case {case.prepared.case}, in two processes: moving the bytes that the"
                    f" operation needs takes at least {floor_ms:.4g} ms on this device"
                )
                evidence = {"time_ms": time_ms, "floor_ms": floor_ms}
                return Finding(kind="below_floor", message=message, evidence=evidence)
        return None

    @contextmanager
    def _candidate(self, artefact: Artefact) -> Generator[Candidate]:
        """The candidate in a fresh process; what it leaves behind at its end is dishonest."""
        with candidate_faults(""):
            candidate = self._bench.pool.start(artefact.path)
        try:
            yield candidate
        finally:
            ending = candidate.end()
            self._note(*loudness(ending))
        left = left_behind(ending)
        if left:
            raise EndedEvaluation(Status.DISHONEST, *left)

    @contextmanager
    def _process_of(self, rival: _Rival) -> Generator[Candidate]:
        """An incumbent in a process of its own: it was checked before and is only timed."""
        with rival_faults():
            process = self._bench.pool.start(rival.artefact.path)
        try:
            yield process
        finally:
            process.end()

    def _note(self, *findings: Finding) -> None:
        """Keep findings beside the status, the first of each kind."""
        for finding in findings:
            if all(finding.kind != other.kind for other in self._findings):
                self._findings.append(finding)

    @contextmanager
    def _stage(self, name: str) -> Generator[None]:
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self._stages_ms[name] = self._stages_ms.get(name, 0.0) + (time.perf_counter() - start_s) * 1e3

    def _verdict(self, status: Status, findings: tuple[Finding, ...]) -> Verdict:
        kernel = self._kernel
        return Verdict(
            kernel=kernel.id,
            path=kernel.path,
            status=status,
            contract=kernel.front.contract,
            findings=findings,
            stages_ms=self._stages_ms,
            **self._fields,
        )


@dataclass(frozen=True)
class _Rival:
    """An opponent that is built."""

    opponent: Opponent
    artefact: Artefact


def _opponent_failed(opponent: Opponent, why: str) -> Finding:
    message = f"timed against the baselines alone, since the incumbent {opponent.kernel.id} failed: {why}"
    return Finding(kind="opponent_failed", message=message)


def build_kernel(target: Target, task: Task, kernel: Kernel, timeout_s: float) -> Artefact:
    """Compile a kernel.

    Raises:
        EndedEvaluation: it breaks a rule, does not build, or the compiler failed for reasons of its own.
    """
    try:
        built = target.build(task, kernel, timeout_s=timeout_s)
    except KernelError as error:
        raise EndedEvaluation(Status.INVALID, Finding(kind=error.kind, message=error.message)) from error
    if isinstance(built, Artefact):
        return built
    diagnostics = [d.model_dump(mode="json") for d in built.diagnostics]
    status = Status.SETUP_ERROR if built.environment else Status.BUILD_ERROR
    evidence = {"diagnostics": diagnostics, "log": built.log}
    raise EndedEvaluation(status, Finding(kind="build", message=built.reason, evidence=evidence))
