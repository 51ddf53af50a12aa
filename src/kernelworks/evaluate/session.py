"""One task on one target: opens the judge, prepares what evaluations share, and evaluates."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from importlib.metadata import version
from typing import Self

from kernelworks.errors import EnvironmentLackError
from kernelworks.evaluate.bench import Bench, open_bench
from kernelworks.evaluate.domain import domain_of
from kernelworks.evaluate.duel import total_ms
from kernelworks.evaluate.endings import EndedEvaluation
from kernelworks.evaluate.evaluation import Evaluation, build_kernel
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.opponent import Opponent
from kernelworks.evaluate.process import CandidatePool
from kernelworks.evaluate.records import BaselineTime, Heap, TaskProblem
from kernelworks.evaluate.settings import Settings
from kernelworks.evaluate.supervision import Limits
from kernelworks.kernel.hardware import Hardware
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Verdict
from kernelworks.targets.base import Artefact, Target
from kernelworks.targets.gate import process_gate
from kernelworks.targets.registry import get_target
from kernelworks.task.graph import Graph
from kernelworks.task.model import Task
from kernelworks.task.source import TaskReference

BASELINE_CALLS = 10
"""Timed calls of a baseline alone; against a candidate it is timed again, interleaved."""


class Session:
    """A context manager. ``build`` may run in several threads beside one evaluation, everything else in one thread."""

    def __init__(self, reference: TaskReference, target: Target, settings: Settings) -> None:
        self._probe = target.probe()
        if not self._probe.usable:
            raise EnvironmentLackError(f"target {target.name}: {self._probe.problem}", mend=self._probe.mend)
        self._reference = reference
        self._target = target
        self._settings = settings
        self._heap: Heap = "warm"
        self._judge = Judge.start(reference, heap=self._heap, threads=settings.threads)
        self._task = self._judge.task
        self._pool = CandidatePool(threads=settings.threads, limits=Limits())
        self._bench: Bench | None = None
        self._traced: tuple[Graph | None, str] | None = None
        self._problems: Sequence[TaskProblem] | None = None

    @classmethod
    def open(cls, reference: TaskReference, target: str, settings: Settings) -> Self:
        """Load the task in a judge of its own.

        Raises:
            TaskError: it cannot be loaded.
            UsageError: no such target.
            EnvironmentLackError: the target does not build and run a tiny kernel, or the task needs torch and there is
                none.
        """
        return cls(reference, get_target(target), settings)

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
            self._problems = self._judge.check_task()
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
            return Verdict(
                kernel=kernel.id,
                path=kernel.path,
                status=ending.status,
                contract=kernel.front.contract,
                params=kernel.params,
                findings=ending.findings,
            )

    def evaluate(self, kernel: Kernel, opponent: Opponent | None) -> Verdict:
        """Check a kernel and time it against the opponent, or against every baseline where there is none.

        A kernel that is decided faster than its opponent is tied to every baseline too.
        """
        return Evaluation(self._bench_on("warm"), kernel).run(opponent)

    def evaluate_as_called(self, kernel: Kernel) -> Verdict:
        """Time a kernel against every baseline under the policy ``as_called``: everyone allocates.

        The judge is exchanged for one with the C library's own heap, and all cases are prepared anew: do not alternate
        with ``evaluate``. Only timed cases are checked again.
        """
        return Evaluation(self._bench_on("default"), kernel).run(None)

    def close(self) -> None:
        """End the judge and every candidate; idempotent."""
        self._close_bench()
        self._pool.close()
        self._judge.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _trace(self) -> tuple[Graph | None, str]:
        if self._traced is None:
            self._traced = self._judge.trace()
        return self._traced

    def _bench_on(self, heap: Heap) -> Bench:
        if self._heap != heap:
            self._close_bench()
            self._judge.close()
            self._judge = Judge.start(self._reference, heap=heap, threads=self._settings.threads)
            self._heap = heap
        if self._bench is None:
            self._bench = open_bench(self._judge, self._target, self._settings, self._pool, heap=heap)
        return self._bench

    def _close_bench(self) -> None:
        if self._bench is not None:
            self._bench.close()
            self._bench = None

    def _time_baseline(self, bench: Bench, name: str) -> BaselineTime:
        medians: list[float] = []
        with process_gate().timing():
            for case in bench.timed:
                timed = bench.judge.time_baseline(name, case.key, BASELINE_CALLS, bench.flush_bytes(case))
                medians.append(statistics.median(timed.elapsed_ns) / 1e6)
        return BaselineTime(name=name, policy=bench.policy, time_ms=total_ms(medians, bench.task.aggregate))
