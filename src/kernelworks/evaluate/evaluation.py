"""One evaluation: parse and static check -> build -> answers -> honesty -> time -> verdict.

Cheap stages first; the first stage that fails ends the evaluation with its status.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from kernelworks.errors import KernelError
from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.checks import (
    candidate_faults,
    check_answers,
    check_clock,
    check_company,
    check_float_mode,
)
from kernelworks.evaluate.domain import Domain, domain_of
from kernelworks.evaluate.duel import Duel, Tied, combine
from kernelworks.evaluate.endings import EndedEvaluation, left_behind, loudness
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
        bench, threads = self._bench, self._bench.settings.threads
        checks = [c for c in bench.checks if c.prepared.case in domain.cases]
        with self._candidate(artefact) as candidate:
            with self._stage("check"):
                check_float_mode(candidate)
                with candidate_faults(""):
                    threads_before = candidate.thread_count()
                check_answers(candidate, [*checks, *bench.timed], bench.judge, bench.settings.call_timeout_s)
                check_float_mode(candidate)
                check_company(candidate, threads_before, threads)
            with self._stage("clock"), process_gate().timing():
                self._fields["host_ms"] = check_clock(candidate, bench.timed[0], bench.settings.call_timeout_s)

    def _time(self, artefact: Artefact, opponent: Opponent | None) -> None:
        """Against the opponent; then, if it is the first of its cell or won, against every baseline."""
        with self._stage("time"), process_gate().timing():
            tied = self._timed(artefact, opponent)
            if self._below_floor(tied.comparisons):
                tied = self._timed(artefact, opponent)
                if below := self._below_floor(tied.comparisons):
                    raise EndedEvaluation(Status.DISHONEST, below)
        self._fields |= tied.fields()

    def _timed(self, artefact: Artefact, opponent: Opponent | None) -> Tied:
        with ExitStack() as stack:
            candidate = stack.enter_context(self._candidate(artefact))
            duel = Duel(self._bench, candidate)
            comparisons: list[Comparison] = []
            if opponent is not None:
                rival = stack.enter_context(self._rival(opponent.kernel))
                comparisons = duel.against_kernel(opponent.kernel.id, rival)
                if combine(comparisons, self._bench.task.aggregate).decision is not Decision.FASTER:
                    return Tied.through(opponent, comparisons, self._bench)
            for name in self._bench.baselines.names:
                comparisons += duel.against_baseline(name)
            return Tied.directly(comparisons, self._bench)

    def _below_floor(self, comparisons: Sequence[Comparison]) -> Finding | None:
        for case in self._bench.timed:
            floor_ms = FLOOR_SHARE * self._bench.bound_ms(case)
            times = [c.time_ms for c in comparisons if c.case == case.prepared.case]
            if times and min(times) < floor_ms:
                message = (
                    f"{min(times):.4f} ms in case {case.prepared.case}, twice: moving the bytes that the operation"
                    f" needs takes at least {floor_ms:.4f} ms on this device"
                )
                evidence = {"time_ms": min(times), "floor_ms": floor_ms}
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
        left = left_behind(ending)
        if left:
            raise EndedEvaluation(Status.DISHONEST, *left)
        self._findings.extend(f for f in loudness(ending) if f.kind not in {g.kind for g in self._findings})

    @contextmanager
    def _rival(self, kernel: Kernel) -> Generator[Candidate]:
        """An incumbent in a process of its own: it was checked before and is only timed."""
        rival = self._bench.pool.start(self._build(kernel).path)
        try:
            yield rival
        finally:
            rival.end()

    @contextmanager
    def _stage(self, name: str) -> Generator[None]:
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self._stages_ms[name] = self._stages_ms.get(name, 0.0) + (time.perf_counter() - start_s) * 1e3

    def _verdict(self, status: Status, findings: tuple[Finding, ...]) -> Verdict:
        kernel = self._kernel
        measured = ("decision", "speedup", "speedup_low", "speedup_high", "time_ms", "roofline", "cache")
        fields = {k: v for k, v in self._fields.items() if status is Status.CORRECT or k not in measured}
        return Verdict(
            kernel=kernel.id,
            path=kernel.path,
            status=status,
            contract=kernel.front.contract,
            findings=findings,
            stages_ms=self._stages_ms,
            **fields,
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
