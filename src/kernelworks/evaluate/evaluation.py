"""One evaluation: parse and static check -> build -> answers -> honesty -> time -> verdict.

Cheap stages first; the first stage that fails ends the evaluation with its status.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from kernelworks.errors import KernelError
from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.checks import (
    candidate_faults,
    check_answers,
    check_company,
    check_float_mode,
    check_libraries,
)
from kernelworks.evaluate.determinism import check_process, check_repeats, repeatable
from kernelworks.evaluate.domain import Domain, domain_of
from kernelworks.evaluate.endings import (
    EndedEvaluation,
    above_peak,
    last_deeds,
    loudness,
    narrow_findings,
    precision_findings,
    problem_finding,
)
from kernelworks.evaluate.large import check_large, largest_elements
from kernelworks.evaluate.load import LoadWatch
from kernelworks.evaluate.module_hints import module_hints
from kernelworks.evaluate.module_process import ModuleCandidate
from kernelworks.evaluate.module_proof import prove_submission, weight_findings
from kernelworks.evaluate.opponent import Opponent
from kernelworks.evaluate.process import Candidate
from kernelworks.evaluate.records import CaseReport
from kernelworks.evaluate.sanitizers import check_sanitized
from kernelworks.evaluate.sides import BoundCase
from kernelworks.evaluate.trial import Rival, TimedPart, opponent_failed
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Finding, Status, Verdict
from kernelworks.targets.base import Artefact, Target
from kernelworks.task.model import Task


class Evaluation:
    """Of one kernel on one bench. Use once.

    Args:
        bench: shared parts.
        kernel: the candidate.
        final: the verdict goes on record, so that checks which are too costly for every candidate are made too.
        sanitize: run it in a build that watches itself, too.
    """

    def __init__(self, bench: Bench, kernel: Kernel, *, final: bool = False, sanitize: bool = False) -> None:
        self._bench = bench
        self._kernel = kernel
        self._final = final
        self._sanitize = sanitize
        self._stages_ms: dict[str, float] = {}
        self._fields: dict[str, Any] = {}
        self._findings: list[Finding] = []
        self._fingerprints: dict[str, str] = {}
        """Bits of the checked answers of timed cases, by key."""
        self._watch = LoadWatch()

    def run(self, opponent: Opponent | None) -> Verdict:
        """The verdict; timed against the opponent, or the anchor where there is none."""
        try:
            with self._stage("static"):
                domain = domain_of(self._kernel, self._bench.task, self._bench.hardware)
            self._fields |= {"params": domain.point, "coverage": domain.coverage}
            self._fields["tolerance"] = self._bench.task.tolerance.relative_rms
            with self._stage("build"):
                artefact = self._build_own()
            self._check(artefact, domain)
            if self._sanitize:
                with self._stage("sanitize"):
                    self._note(*check_sanitized(self._bench, self._kernel, domain.cases))
            self._time(artefact, opponent)
        except EndedEvaluation as ended:
            if "check" in self._stages_ms:  # it has run
                self._repair(refuse=False)
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
        self._note(*narrow_findings(built.descriptor, self._bench.task))
        return built

    def _check(self, artefact: Artefact, domain: Domain) -> None:
        """Right and honest on every case, in a process of its own; on the large one, where asked, in another."""
        bench, settings = self._bench, self._bench.settings
        checks = [c for c in bench.checks if c.prepared.case in domain.cases]
        with self._candidate(artefact) as candidate, self._stage("check"):
            check_float_mode(candidate)
            self._meet(candidate)
            self._fields["dropped_families"] = tuple(bench.dropped)
            cases, timeout_s = [*checks, *bench.timed], settings.call_timeout_s
            self._note(*check_answers(candidate, cases, bench.judge, timeout_s, self._note_report, artefact.flags))
            self._repeat(candidate, checks)
            check_float_mode(candidate)
            check_company(candidate, settings.threads, "after the calls")
            if not isinstance(candidate, ModuleCandidate):
                check_libraries(candidate, "while it was checked")
            self._prove(candidate)
        ran = [bench.task.case(c.prepared.case) for c in cases]
        if settings.large and self._final:
            with self._stage("large"):
                large, untested = check_large(
                    bench.judge.reference, bench.task, settings, domain.cases, lambda: self._candidate(artefact)
                )
            self._note(*filter(None, [untested]))
            ran.extend(filter(None, [large]))
        self._fields["tested_elements"] = largest_elements(bench.task, ran)

    def _meet(self, candidate: Candidate) -> None:
        """Before any call: nobody else runs, and what a submission's set-up says."""
        if not isinstance(candidate, ModuleCandidate):
            check_company(candidate, 1, "before any call")
            return
        check_company(candidate, self._bench.settings.threads, "before any call")  # its constructor may call kernels
        self._fields["setup_ms"] = candidate.setup_ms
        self._note(*weight_findings(candidate), *module_hints(self._kernel.text))

    def _prove(self, candidate: Candidate) -> None:
        """A submission's answers are its own work; the process may be of no use afterwards."""
        if isinstance(candidate, ModuleCandidate):
            self._fields["own_share"], found = prove_submission(candidate, self._bench)
            self._note(*found)

    def _repeat(self, candidate: Candidate, checks: Sequence[BoundCase]) -> None:
        """Timed and small cases again: the same inputs must give right answers, and should give the same bits."""
        bench = self._bench
        for case in bench.timed:
            self._fingerprints[case.key] = bench.judge.fingerprint(case.key, 0)
        for case in (*bench.timed, *repeatable(checks)):
            with candidate_faults(case.label):
                varies = check_repeats(candidate, case, bench.judge, bench.settings.call_timeout_s)
            self._note(*filter(None, [varies]))

    def _repeat_elsewhere(self, candidate: Candidate) -> None:
        """The same in another process than the one that was checked."""
        bench = self._bench
        for case in bench.timed:
            with candidate_faults(case.label):
                fingerprint, limit_s = self._fingerprints[case.key], bench.settings.call_timeout_s
                varies = check_process(candidate, case, bench.judge, fingerprint, limit_s)
            self._note(*filter(None, [varies]))

    def _time(self, artefact: Artefact, opponent: Opponent | None) -> None:
        """Against the opponent; then, if it is the first of its cell or won, against every baseline."""
        rival = self._rival_of(opponent)
        with self._stage("time"):
            # The experts' own templates keep nothing: in a search they are spared that test; finalists have it all.
            recall = self._final or self._kernel.origin.proposer != "experts"
            part = TimedPart(
                self._bench, artefact, rival, self._candidate, self._note, self._repeat_elsewhere, recall=recall
            )
            measured = part.run(self._watch)
        self._repair(refuse=True)
        trial, load = measured.trial, measured.load
        self._fields |= {"foreign_load_cores": load.foreign_cores, "steal_cores": load.steal_cores}
        self._fields |= {"host_ms": trial.host_ms, "waited_ms": measured.waited_s * 1e3}
        if trial.void is not None:
            self._fields |= {"comparisons": trial.tied.comparisons}
            return
        self._fields |= trial.tied.fields()
        bounds = tuple(self._bench.bound(case) for case in self._bench.timed)
        self._fields |= {"roofline_detail": bounds}
        self._note(*above_peak(bounds, trial.tied.comparisons))

    def _rival_of(self, opponent: Opponent | None) -> Rival | None:
        """The opponent, built before the clock: a build waits for the end of every timing."""
        if opponent is None:
            return None
        try:
            return Rival(opponent, self._build(opponent.kernel))
        except EndedEvaluation as ended:
            self._note(opponent_failed(opponent, ended.findings[0].message))
            return None

    @contextmanager
    def _candidate(self, artefact: Artefact) -> Generator[Candidate]:
        """The candidate in a fresh process; what it leaves behind at its end is dishonest."""
        with candidate_faults(""):
            candidate = self._bench.start(artefact)
        try:
            yield candidate
        finally:
            ending = candidate.end()
            self._note(*loudness(ending))
        left = last_deeds(ending)
        if left:
            raise EndedEvaluation(Status.DISHONEST, *left)

    def _repair(self, *, refuse: bool) -> None:
        """Give the next candidate the inputs as they were drawn, whatever this one did to them in calls that nobody
        looked at.

        Raises:
            EndedEvaluation: wrong, if ``refuse`` and it changed some.
        """
        changed = self._bench.judge.repair()
        if changed and refuse:
            findings = [problem_finding(problem, f"{key}, in timed calls") for key, problem in changed]
            raise EndedEvaluation(Status.WRONG, *findings)

    def _note_report(self, report: CaseReport) -> None:
        """Keep what published gates say (several timed cases must all pass), and which precision the errors show."""
        gates = self._fields.setdefault("gates", {})
        gates.update({name: passed and gates.get(name, True) for name, passed in report.gates.items()})
        self._note(*precision_findings(report))

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
            sandbox=self._bench.pool.sandbox.kind,
            sandbox_lacks=self._bench.pool.sandbox.lacking,
            stages_ms=self._stages_ms,
            **self._fields,
        )


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
