"""One task on one target: opens the judge, prepares what evaluations share, and evaluates."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Self

from kernelworks.errors import DoesNotFitError, EnvironmentLackError
from kernelworks.evaluate.bench import Bench, open_bench
from kernelworks.evaluate.domain import domain_of
from kernelworks.evaluate.duel import total_ms
from kernelworks.evaluate.endings import EndedEvaluation, unfit_verdict
from kernelworks.evaluate.evaluation import Evaluation, build_kernel
from kernelworks.evaluate.health import DeviceHealth, check_by_call
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.lease import device_lease
from kernelworks.evaluate.opponent import Opponent
from kernelworks.evaluate.patience import Notice
from kernelworks.evaluate.process import CandidatePool
from kernelworks.evaluate.records import BaselineTime, Heap, TaskProblem
from kernelworks.evaluate.sandbox import OWN_PROPOSERS
from kernelworks.evaluate.settings import Settings
from kernelworks.evaluate.supervision import Limits
from kernelworks.kernel.hardware import Hardware
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Finding, Status, Verdict
from kernelworks.targets.base import Artefact, Target
from kernelworks.targets.gate import process_gate
from kernelworks.targets.registry import available_targets, get_target
from kernelworks.task.graph import Graph
from kernelworks.task.model import Task
from kernelworks.task.source import TaskReference

BASELINE_CALLS = 10
"""Timed calls of a baseline alone; against a candidate it is timed again, interleaved."""


class Session:
    """A context manager. ``build`` may run in several threads beside one evaluation, everything else in one thread."""

    def __init__(
        self,
        reference: TaskReference,
        target: Target,
        settings: Settings,
        notice: Notice | None = None,
        *,
        by_language: bool = False,
    ) -> None:
        self._probe = target.probe()
        if not self._probe.usable:
            raise EnvironmentLackError(f"target {target.name}: {self._probe.problem}", mend=self._probe.mend)
        self._reference = reference
        self._target = target
        self._by_language = by_language
        self._others: dict[str, Target] = {}
        self._settings = settings
        self._heap: Heap = "warm"
        self._notice = notice
        self._judge = self._start_judge()
        self._task = self._judge.task
        self._pool = CandidatePool(threads=settings.threads, limits=Limits())
        self._health = DeviceHealth(f"target {target.name}", lambda: check_by_call(self._pool))
        self._bench: Bench | None = None
        self._traced: tuple[Graph | None, str] | None = None
        self._problems: Sequence[TaskProblem] | None = None
        self._unfit: DoesNotFitError | None = None
        """Why nothing can be evaluated here."""
        self._judges_lost = 0

    @classmethod
    def open(
        cls,
        reference: TaskReference,
        target: str,
        settings: Settings,
        notice: Notice | None = None,
        *,
        by_language: bool = False,
    ) -> Self:
        """Load the task in a judge of its own; ``notice`` is told when the reference keeps everyone waiting.

        ``by_language``: a kernel in another language is evaluated on the target that has its language's name.

        Raises:
            TaskError: it cannot be loaded.
            UsageError: no such target.
            EnvironmentLackError: the target does not build and run a tiny kernel, or the task needs torch and there is
                none.
        """
        return cls(reference, get_target(target), settings, notice, by_language=by_language)

    @property
    def task(self) -> Task:
        """The task as plain data."""
        return self._task

    @property
    def graph(self) -> Graph | None:
        """The traced reference; None where it cannot be traced."""
        return self._trace()[0]

    @property
    def untraced(self) -> str:
        """Why there is no graph; empty if there is one."""
        return self._trace()[1]

    @property
    def hardware(self) -> Hardware:
        """The device, with measured bandwidths."""
        return self._target.hardware()

    @property
    def versions(self) -> dict[str, str]:
        """Of what builds the candidates, and of the framework of the reference."""
        return {**self._probe.versions, self.task.framework: version(self.task.framework)}

    @property
    def anchor(self) -> str:
        """The baseline over which speed-ups are stated."""
        return self._judge.baseline_names().names[0]

    def check_task(self) -> Sequence[TaskProblem]:
        """What is wrong with the task; where a problem ``refuses``, no verdict on it would mean anything."""
        if self._problems is None:
            try:
                self._problems = self._judge.check_task()
            except DoesNotFitError as error:
                self._unfit = error
                raise
        return self._problems

    def time_baselines(self) -> list[BaselineTime]:
        """Make every baseline ready and time it alone, policy ``kernel``."""
        bench = self._bench_on("warm")
        found = [self._time_baseline(bench, name) for name in bench.baselines.names]
        for name, problem in bench.baselines.missing.items():
            found.append(BaselineTime(name=name, policy=bench.policy, time_ms=None, problem=problem))
        return found

    def build(self, kernel: Kernel) -> Artefact | Verdict:
        """Compile a kernel, or give the verdict on one that breaks a rule, has no place here or does not build.

        Safe to call from several threads.
        """
        try:
            domain_of(kernel, self.task, self.hardware)
            return build_kernel(self._target, self.task, kernel, self._settings.build_timeout_s)
        except EndedEvaluation as ending:
            return self._refused(kernel, ending.status, ending.findings)

    def evaluate(self, kernel: Kernel, opponent: Opponent | None, *, final: bool = False) -> Verdict:
        """Check a kernel and time it against the opponent, or against every baseline where there is none.

        A kernel that is decided faster than its opponent is tied to every baseline too. After a crash or a time limit
        the device is looked at; once it does not answer any more, every verdict is ``setup_error``.

        Raises:
            EnvironmentLackError: the kernel is of foreign origin, and there is no sandbox.

        ``final`` adds the checks that are too costly for every candidate of a search.
        """
        self._require_sandbox(kernel, opponent)
        sanitize = final and self._settings.sanitize

        def run() -> Verdict:
            return Evaluation(self._bench_for(kernel), kernel, final=final, sanitize=sanitize).run(opponent)

        return self._fitting(kernel, run)

    def evaluate_as_called(self, kernel: Kernel) -> Verdict:
        """Time a kernel against every baseline under the policy ``as_called``: everyone allocates.

        The judge is exchanged for one with the C library's own heap, and all cases are prepared anew: do not alternate
        with ``evaluate``. Only timed cases are checked again. The kernel runs under sanitizers, too: this is the last
        that is asked of the winner of a run.
        """
        self._require_sandbox(kernel, None)
        return self._fitting(kernel, lambda: Evaluation(self._bench_on("default"), kernel, sanitize=True).run(None))

    def abort(self) -> None:
        """End the judge and every candidate at once, from any thread; an evaluation that runs then fails."""
        self._pool.close()
        bench = self._bench
        if bench is not None:
            bench.modules.close()
        self._judge.close()

    def close(self) -> None:
        """End the judge and every candidate; idempotent."""
        self.abort()
        self._close_bench()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_sandbox(self, kernel: Kernel, opponent: Opponent | None) -> None:
        """Nobody else's code runs where nothing confines it, unless the user said so."""
        if self._settings.allow_unsandboxed:
            return
        for one in (kernel, opponent.kernel if opponent is not None else None):
            if one is not None and one.origin.proposer not in OWN_PROPOSERS:
                self._pool.sandbox.require(f"kernel {one.path or one.id}")

    def _refused(self, kernel: Kernel, status: Status, findings: tuple[Finding, ...]) -> Verdict:
        """The verdict on a kernel of which nothing has run."""
        return Verdict(
            kernel=kernel.id,
            path=kernel.path,
            status=status,
            contract=kernel.front.contract,
            params=kernel.params,
            sandbox=self._pool.sandbox.kind,
            sandbox_lacks=self._pool.sandbox.lacking,
            findings=findings,
        )

    def _fitting(self, kernel: Kernel, evaluate: Callable[[], Verdict]) -> Verdict:
        """The verdict, which is ``does_not_fit`` where the memory is too small: never the kernel's fault.

        A judge that the system ended is replaced for the next kernel, once: what is ended twice does not fit.
        """
        try:
            if self._unfit is not None:
                raise self._unfit
            if (finding := self._health.finding()) is not None:
                return self._refused(kernel, Status.SETUP_ERROR, (finding,))
            verdict = evaluate()
            self._health.after(verdict)
            return verdict
        except DoesNotFitError as error:
            if self._judge.alive or self._judges_lost:
                self._unfit = error
            else:
                self._judges_lost += 1
                self._replace_judge(self._heap)
            return unfit_verdict(error, kernel.id, kernel.path, kernel.front.contract)

    def _trace(self) -> tuple[Graph | None, str]:
        if self._traced is None:
            self._traced = self._judge.trace()
        return self._traced

    def _bench_on(self, heap: Heap) -> Bench:
        if self._heap != heap:
            self._replace_judge(heap)
        if self._bench is None:
            self._bench = open_bench(self._judge, self._target, self._settings, self._pool, heap=heap)
        return self._bench

    def _bench_for(self, kernel: Kernel) -> Bench:
        """The bench, with the target of the kernel's language where it is that which decides."""
        bench, name = self._bench_on("warm"), kernel.front.lang.value
        if not self._by_language or name == self._target.name or name not in available_targets():
            return bench
        if name not in self._others:
            target = get_target(name)
            probe = target.probe()
            if not probe.usable:
                raise EnvironmentLackError(f"target {name}: {probe.problem}", mend=probe.mend)
            self._others[name] = target
        return replace(bench, target=self._others[name])

    def _replace_judge(self, heap: Heap) -> None:
        self._close_bench()
        self._judge.close()
        self._heap = heap
        self._judge = self._start_judge()

    def _start_judge(self) -> Judge:
        settings = self._settings
        return Judge.start(
            self._reference,
            heap=self._heap,
            threads=settings.threads,
            reference_timeout_s=settings.reference_timeout_s,
            notice=self._notice,
        )

    def _close_bench(self) -> None:
        if self._bench is not None:
            self._bench.close()
            self._bench = None

    def _time_baseline(self, bench: Bench, name: str) -> BaselineTime:
        medians: list[float] = []
        with device_lease(bench.hardware.name), process_gate().timing():
            for case in bench.timed:
                side = bench.baseline_side(name, (case,))
                medians.append(statistics.median(side.time(0).elapsed_ms for _ in range(BASELINE_CALLS)))
        return BaselineTime(name=name, policy=bench.policy, time_ms=total_ms(medians, bench.task.aggregate))
