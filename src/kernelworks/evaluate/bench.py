"""Everything that the evaluations of one session share: the judge, the prepared cases, the baselines, the device."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from kernelworks.errors import TaskError
from kernelworks.evaluate.doorbell import Sweep, doorbell_shim
from kernelworks.evaluate.families import FAMILIES
from kernelworks.evaluate.faults import fault_shim
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.module_process import ModulePool
from kernelworks.evaluate.overhead import measure_overhead
from kernelworks.evaluate.perturb import VARIANTS
from kernelworks.evaluate.plan import families_by_case
from kernelworks.evaluate.process import Candidate, CandidatePool
from kernelworks.evaluate.records import BaselineNames, CountedWork, Heap, NecessaryBytes, PreparedCase
from kernelworks.evaluate.settings import Settings
from kernelworks.evaluate.sides import BaselineSide, BoundCase, Overhead, cache_state, flush_bytes_for
from kernelworks.kernel.hardware import Hardware
from kernelworks.kernel.model import Contract
from kernelworks.kernel.roofline import CaseBound, case_bound
from kernelworks.kernel.verdict import Policy
from kernelworks.targets.base import Artefact, Target
from kernelworks.task.model import Case, CaseRole, Task

OVERHEAD_S = 60.0
"""After so long the overhead of a ring is measured anew."""
TWIN_BYTES = 2 << 20
"""Up to this size of inputs and outputs a timed case has twins."""
TWINS = 8
"""Draws of a small timed case, itself included, that are called behind one ring: together they take long enough to make
little of what the ring itself takes, and each has to be computed, for its inputs are its own."""
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
    modules: ModulePool
    """Of PyTorch submissions' processes."""
    policy: Policy
    checks: list[BoundCase] = field(default_factory=list[BoundCase])
    """Check and edge cases, small ones in several families."""
    timed: list[BoundCase] = field(default_factory=list[BoundCase])
    baselines: BaselineNames = field(default_factory=lambda: BaselineNames(names=()))
    dropped: list[str] = field(default_factory=list[str])
    """Families that cannot judge this task, with the reason each."""
    needs: dict[str, tuple[NecessaryBytes, CountedWork]] = field(
        default_factory=dict[str, tuple[NecessaryBytes, CountedWork]]
    )
    """By timed case: what must be moved and what the reference computes, for floor and bound."""
    warmed: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Baselines whose times have settled, with the key of the case."""
    rng: random.Random = field(default_factory=random.SystemRandom)
    _twins: dict[str, tuple[BoundCase, ...]] = field(default_factory=dict[str, tuple[BoundCase, ...]])
    _overheads: dict[tuple[int, int, int], tuple[float, Overhead]] = field(
        default_factory=dict[tuple[int, int, int], tuple[float, Overhead]]
    )
    """With when it was measured last."""
    _sweeps: dict[int, Sweep] = field(default_factory=dict[int, Sweep])

    @property
    def task(self) -> Task:
        """The task."""
        return self.judge.task

    @property
    def anchor(self) -> str:
        """The baseline over which speed-ups are stated."""
        return self.baselines.names[0]

    def flush_bytes(self, case: BoundCase) -> int:
        """How much memory is read before each timed call so that it starts cold; 0 where it shall start warm."""
        return flush_bytes_for(self._last_level_bytes, self.settings.cache)

    def cache_state(self, case: BoundCase) -> Literal["cold", "warm"]:
        """What a timed call finds in the caches."""
        return cache_state(case.working_set_bytes, self._last_level_bytes, self.settings.cache)

    def sweep(self, case: BoundCase) -> Sweep | None:
        """What evicts the caches before a ring."""
        size_bytes = self.flush_bytes(case)
        if size_bytes and size_bytes not in self._sweeps:
            self._sweeps[size_bytes] = Sweep(size_bytes)
        return self._sweeps.get(size_bytes)

    def twins(self, case: BoundCase) -> tuple[BoundCase, ...]:
        """The case and, if it is small, other draws of it; prepared when they are first asked for."""
        if case.key not in self._twins:
            found = [case]
            small = case.working_set_bytes <= TWIN_BYTES
            for _ in range(TWINS - 1 if small else 0):
                prepared = _prepare(self, self.task.case(case.prepared.case), case.prepared.family)
                if not prepared.dropped:
                    found.append(BoundCase(prepared))
                    for name in self.baselines.names:
                        self.judge.warm_baseline(name, prepared.key)
            self._twins[case.key] = tuple(found)
        return self._twins[case.key]

    def overhead(self, case: BoundCase, calls: int) -> Overhead:
        """What a ring with so many calls of the case takes besides them: the least that was measured so far.

        Measured again every minute: one that was taken in a busy moment would credit candidates with too much.
        """
        key = (len(case.lanes[0]), self.flush_bytes(case), calls)
        measured_s, least = self._overheads.get(key, (-math.inf, None))
        if least is None or time.monotonic() - measured_s > OVERHEAD_S:
            found = measure_overhead(self.pool, case, calls, self.sweep(case), self.settings.call_timeout_s)
            least = found if least is None or found.round_trip_ns < least.round_trip_ns else least
            self._overheads[key] = (time.monotonic(), least)
        return least

    def baseline_side(self, name: str, cases: tuple[BoundCase, ...]) -> BaselineSide:
        """A baseline on the clock."""
        return BaselineSide(self.judge, name, cases, self.flush_bytes(cases[0]))

    @contextmanager
    def renewed(self) -> Generator[Bench]:
        """The same bench with new inputs for the timed cases, which no candidate has seen; for a confirmation."""
        bench = replace(self, timed=[], _twins={})
        try:
            for case in self.timed:
                bench.timed.append(BoundCase(_prepare_timed(bench, self.task.case(case.prepared.case))))
                for name in self.baselines.names:
                    self.judge.warm_baseline(name, bench.timed[-1].key)
            yield bench
        finally:
            for case in bench.all_timed():
                case.close()
                self.judge.release(case.key)

    def all_timed(self) -> list[BoundCase]:
        """The timed cases and their twins."""
        return [twin for case in self.timed for twin in self._twins.get(case.key, (case,))]

    def bound(self, case: BoundCase) -> CaseBound:
        """The least time of a timed case on this device, by memory and by arithmetic."""
        necessary, counted = self.needs[case.prepared.case]
        return case_bound(
            case.prepared.case,
            self.hardware,
            counted.work,
            bytes_shown=necessary.total_bytes,
            working_set_bytes=case.working_set_bytes,
            cold_bytes=necessary.read_bytes if self.cache_state(case) == "cold" else 0,
            narrow=self.task.precision == "relaxed",
            untraced=counted.untraced,
        )

    def bound_ms(self, case: BoundCase) -> float:
        """The larger bound of a timed case."""
        return self.bound(case).bound_ms

    def measure_device_again(self) -> None:
        """Before a kernel is accused of being faster than the device: rates taken in a busy moment are too low."""
        self.hardware = self.target.measure_again()

    @contextmanager
    def unseen(self, case: BoundCase) -> Generator[BoundCase]:
        """Other inputs of a timed case, which no candidate has seen; given back afterwards."""
        fresh = BoundCase(_prepare_timed(self, self.task.case(case.prepared.case)))
        try:
            yield fresh
        finally:
            fresh.close()
            self.judge.release(fresh.key)

    def start(self, artefact: Artefact) -> Candidate:
        """A candidate in a fresh process, of the kind that its contract asks for; errors as ``CandidatePool.start``."""
        pool = self.modules if artefact.contract is Contract.MODULE else self.pool
        return pool.start(artefact.path)

    def close(self) -> None:
        """Unmap all buffers, end the spare process of submissions."""
        self.modules.close()
        for case in (*self.checks, *self.all_timed()):
            case.close()
        for sweep in self._sweeps.values():
            sweep.close()
        self.checks.clear()
        self.timed.clear()
        self._twins.clear()
        self._sweeps.clear()

    @property
    def _last_level_bytes(self) -> int:
        return self.hardware.l3_bytes or self.hardware.l2_bytes


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
    fault_shim()  # both built now, since a build inside a timing would wait for itself
    doorbell_shim()
    policy: Policy = "kernel" if heap == "warm" else "as_called"
    modules = ModulePool(judge, settings, heap, pool.sandbox)
    bench = Bench(judge, target, target.hardware(), settings, pool, modules, policy)
    families = families_by_case(judge.task)
    timed_shapes: list[BoundCase] = []
    for case in judge.task.cases:
        for family in families[case.name] if heap == "warm" or case.role is CaseRole.TIMED else ():
            timed = case.role is CaseRole.TIMED
            if timed and family == FAMILIES[0]:
                bench.timed.append(BoundCase(_prepare_timed(bench, case)))
                continue
            if timed and heap != "warm":
                continue
            prepared = _prepare(bench, case, family)
            if prepared.dropped:
                bench.dropped.append(f"{case.name}, {family} inputs: {prepared.dropped}")
            else:
                (timed_shapes if timed else bench.checks).append(BoundCase(prepared))
    bench.checks += timed_shapes  # last: a message about a small case says more
    for case in bench.timed:
        name = case.prepared.case
        bench.needs[name] = (judge.necessary_bytes(case.key), judge.work(name))
        for variant in range(VARIANTS):  # made now: each costs a run of the reference, which no block should pay
            judge.apply(case.key, variant)
        judge.apply(case.key, None)
        for name in judge.baseline_names().names:
            bench.baselines = judge.warm_baseline(name, case.key)
    return bench


def _prepare_timed(bench: Bench, case: Case) -> PreparedCase:
    """A timed case.

    Raises:
        TaskError: it cannot be judged.
    """
    prepared = _prepare(bench, case, FAMILIES[0])
    if prepared.dropped:
        bench.close()
        raise TaskError(f"case {case.name}: expected inputs on which answers can be judged: {prepared.dropped}")
    return prepared


def _prepare(bench: Bench, case: Case, family: str) -> PreparedCase:
    """A case with a seed that nobody knows, and another where that draw cannot be judged (near ties of an argmax).

    A derived case that the reference does not allow is dropped.
    """
    for _ in range(PREPARE_TRIES - 1):
        prepared = _try_prepare(bench, case, family)
        if not prepared.dropped:
            return prepared
    return _try_prepare(bench, case, family)


def _try_prepare(bench: Bench, case: Case, family: str) -> PreparedCase:
    seed = bench.rng.getrandbits(31)
    try:
        return bench.judge.prepare(case.name, seed, family)
    except TaskError as error:
        if not case.derived or not bench.judge.alive:
            raise
        return PreparedCase(key="", case=case.name, family=family, seed=seed, dropped=error.message)
