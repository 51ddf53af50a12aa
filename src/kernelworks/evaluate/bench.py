"""Everything that the evaluations of one session share: the judge, the prepared cases, the baselines, the device."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from kernelworks.errors import TaskError
from kernelworks.evaluate.faults import fault_shim
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.perturb import VARIANTS
from kernelworks.evaluate.process import CandidatePool
from kernelworks.evaluate.records import BaselineNames, Heap, PreparedCase
from kernelworks.evaluate.settings import Settings
from kernelworks.evaluate.sides import BaselineSide, BoundCase, cache_state, flush_bytes_for
from kernelworks.kernel.hardware import Bandwidth, Hardware
from kernelworks.kernel.verdict import Policy
from kernelworks.targets.base import Target
from kernelworks.task.model import Case, CaseRole, Task, size_bytes

SMALL_CASE_BYTES = 64 << 20
"""Up to this size a check case is prepared in every family, above it with the task's own draw only."""
CHECK_FAMILIES = ("normal", "wide", "integers", "constant")
EDGE_FAMILIES = ("normal", "constant")
PREPARE_TRIES = 3
"""Seeds that are tried before a family of a case is dropped."""


@dataclass
class Bench:
    """A judge whose cases are prepared. Seeds are the operating system's, so that nobody knows the inputs."""

    judge: Judge
    target: Target
    hardware: Hardware
    settings: Settings
    pool: CandidatePool
    policy: Policy
    checks: list[BoundCase] = field(default_factory=list[BoundCase])
    """Check and edge cases, small ones in several families."""
    timed: list[BoundCase] = field(default_factory=list[BoundCase])
    baselines: BaselineNames = field(default_factory=lambda: BaselineNames(names=()))
    dropped: list[str] = field(default_factory=list[str])
    """Families that cannot judge this task, with the reason each."""
    necessary_bytes: dict[str, int] = field(default_factory=dict[str, int])
    """By case, for the floor."""
    rng: random.Random = field(default_factory=random.SystemRandom)

    @property
    def task(self) -> Task:
        """The task."""
        return self.judge.task

    @property
    def anchor(self) -> str:
        """The baseline over which speed-ups are stated."""
        return self.baselines.names[0]

    def flush_bytes(self, case: BoundCase) -> int:
        """How much memory is read before each timed call so that it starts cold."""
        return flush_bytes_for(case.working_set_bytes, self._last_level_bytes)

    def cache_state(self, case: BoundCase) -> Literal["cold", "warm"]:
        """What a timed call finds in the caches."""
        return cache_state(case.working_set_bytes, self._last_level_bytes)

    def baseline_side(self, name: str, case: BoundCase) -> BaselineSide:
        """A baseline on the clock."""
        return BaselineSide(self.judge, name, case, self.flush_bytes(case))

    def bound_ms(self, case: BoundCase) -> float:
        """The memory bound of a case: bytes shown necessary over the best measured rate at its level."""
        return self.necessary_bytes[case.prepared.case] / (self._bandwidth(case).best_gbs * 1e6)

    def close(self) -> None:
        """Unmap all buffers."""
        for case in (*self.checks, *self.timed):
            case.close()
        self.checks.clear()
        self.timed.clear()

    @property
    def _last_level_bytes(self) -> int:
        return self.hardware.l3_bytes or self.hardware.l2_bytes

    def _bandwidth(self, case: BoundCase) -> Bandwidth:
        """The level at which the working set lives: the smallest whose probe was at least as large."""
        levels = sorted(self.hardware.bandwidths, key=lambda b: b.working_set_bytes)
        return next((b for b in levels if b.working_set_bytes >= case.working_set_bytes), levels[-1])


def open_bench(judge: Judge, target: Target, settings: Settings, pool: CandidatePool, *, heap: Heap) -> Bench:
    """Prepare the cases of a task and make its baselines ready.

    Args:
        judge: with the task loaded, on this heap.
        target: where candidates run.
        settings: how.
        pool: of candidates' processes.
        heap: of the judge, and so the allocation policy of all timings. On the default heap only timed cases are
            prepared: what is timed there was checked before.

    Raises:
        TaskError: a timed case cannot be judged, since its reference is not finite where the exact answer is.
    """
    fault_shim()  # built now, since a build inside a timing would wait for itself
    policy: Policy = "kernel" if heap == "warm" else "as_called"
    bench = Bench(judge, target, target.hardware(), settings, pool, policy)
    for case in judge.task.cases:
        families = _families(judge.task, case) if heap == "warm" or case.role is CaseRole.TIMED else ()
        for family in families:
            prepared = _prepare(bench, case, family)
            if prepared.dropped and case.role is CaseRole.TIMED:
                bench.close()
                raise TaskError(f"case {case.name}: expected inputs on which answers can be judged: {prepared.dropped}")
            if prepared.dropped:
                bench.dropped.append(f"{case.name}, {family} inputs: {prepared.dropped}")
            elif case.role is CaseRole.TIMED:
                bench.timed.append(BoundCase(prepared))
            else:
                bench.checks.append(BoundCase(prepared))
    for case in bench.timed:
        bench.necessary_bytes[case.prepared.case] = judge.necessary_bytes(case.key)
        for variant in range(VARIANTS):  # made now: each costs a run of the reference, which no block should pay
            judge.apply(case.key, variant)
        judge.apply(case.key, None)
        for name in judge.baseline_names().names:
            bench.baselines = judge.warm_baseline(name, case.key)
    return bench


def _prepare(bench: Bench, case: Case, family: str) -> PreparedCase:
    """A case with a seed that nobody knows, and another where that draw cannot be judged (near ties of an argmax)."""
    for _ in range(PREPARE_TRIES - 1):
        prepared = bench.judge.prepare(case.name, bench.rng.getrandbits(31), family)
        if not prepared.dropped:
            return prepared
    return bench.judge.prepare(case.name, bench.rng.getrandbits(31), family)


def _families(task: Task, case: Case) -> tuple[str, ...]:
    if case.role is CaseRole.TIMED:
        return ("normal",)
    total_bytes = sum(size_bytes(a, case) for a in task.tensors)
    if total_bytes > SMALL_CASE_BYTES:
        return ("normal",)
    return CHECK_FAMILIES if case.role is CaseRole.CHECK else EDGE_FAMILIES
