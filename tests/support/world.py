"""A made-up world for the search loop: kernels that are numbers, an engine that answers by the kernel alone.

Real search, real store, real loop; only compilers and clocks are left out. No figure here was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from kernelworks.app.events import RunEvent
from kernelworks.app.loop import Clock, SearchLoop
from kernelworks.engine.base import Built, Engine, Job, JobReport
from kernelworks.kernel.descriptor import Descriptor
from kernelworks.kernel.frontmatter import parse_kernel
from kernelworks.kernel.model import Kernel, Language, Origin
from kernelworks.kernel.verdict import Comparison, Decision, Finding, Status, Verdict
from kernelworks.propose.base import ProposalContext, Request
from kernelworks.search.core import Search, SearchConfig
from kernelworks.search.stopping import StopReason, StopRules
from kernelworks.store.records import RunMeta
from kernelworks.store.replay import Pending
from kernelworks.store.run import RunStore
from support.samples import sample_hardware, sample_task

CONTEXT = ProposalContext(task=sample_task(), graph=None, target="cpp", hardware=sample_hardware())
Order = Callable[[Sequence[Job]], int]
"""Which of the queued jobs is answered next."""


def number_kernel(number: int, origin: Origin | None = None) -> Kernel:
    """The kernel of this number."""
    text = f"/*---\ncontract: function\nidea: number {number}\n---*/\n// {number}\n"
    return parse_kernel(text, Language.CPP, origin or Origin(proposer="numbers", operator="seed"))


def number_of(kernel: Kernel) -> int:
    """The number that a kernel is."""
    return int(kernel.text.rsplit("// ")[-1])


class Numbers:
    """A proposer whose kernels are the numbers below ``limit``; it keeps every request."""

    name = "numbers"

    def __init__(self, limit: int, *, seeds: Sequence[int] = (0, 1, 2)) -> None:
        self._limit = limit
        self._seeds = seeds
        self.requests: list[Request] = []

    def seeds(self, context: ProposalContext) -> Sequence[Kernel]:
        return [number_kernel(number) for number in self._seeds]

    def propose(self, context: ProposalContext, request: Request) -> Kernel | None:
        self.requests.append(request)
        if self._limit == 0:
            return None
        origin = Origin(
            proposer=self.name, operator=request.operator, parents=tuple(p.id for p in request.parents), move="another"
        )
        return number_kernel(Random(f"{request.seed} {request.attempt}").randrange(self._limit), origin)


@dataclass(frozen=True)
class World:
    """What is true of a kernel: by its number. Numbers divisible by ``broken`` do not build."""

    broken: int = 1_000_000
    wrong: int = 1_000_000
    codes: int = 1_000_000
    """Numbers that are equal modulo this have the same machine code."""
    levels: int = 2

    def descriptor(self, number: int) -> Descriptor:
        return Descriptor(
            memory=number % self.levels, compute=number // self.levels % self.levels, parallelism=number // 4 % 2
        )

    def build(self, job: Job) -> JobReport:
        number = number_of(job.kernel)
        if number % self.broken == self.broken - 1:
            return JobReport(number=job.number, kind="build", verdict=_failed(job.kernel, Status.BUILD_ERROR, ""))
        built = Built(
            descriptor=self.descriptor(number),
            code_digest=f"code {number % self.codes}",
            flags=("-O3",),
            build_ms=1.0,
            cached=False,
        )
        return JobReport(number=job.number, kind="build", built=built)

    def evaluate(self, job: Job) -> JobReport:
        number = number_of(job.kernel)
        if number % self.wrong == self.wrong - 1:
            verdict = _failed(job.kernel, Status.WRONG, f"code {number % self.codes}")
            return JobReport(number=job.number, kind=job.kind, verdict=verdict)
        speedup = 1.0 + Random(number).random()
        rival = "eager" if job.opponent is None else job.opponent.kernel.id
        ratio = speedup if job.opponent is None else speedup / job.opponent.speedup
        decision = Decision.FASTER if ratio > 1.01 else Decision.SLOWER if ratio < 0.99 else Decision.UNDECIDED
        duel = Comparison(
            opponent=rival,
            policy="kernel",
            case="large",
            time_ms=1.0,
            opponent_time_ms=ratio,
            ratio=ratio,
            ratio_low=ratio * 0.995,
            ratio_high=ratio * 1.005,
            decision=decision,
            blocks=12,
            cache="warm",
        )
        verdict = Verdict(
            kernel=job.kernel.id,
            status=Status.CORRECT,
            decision=Decision.FASTER,
            speedup=speedup,
            speedup_low=speedup * 0.99,
            speedup_high=speedup * 1.01,
            time_ms=1.0 / speedup,
            descriptor=self.descriptor(number),
            code_digest=f"code {number % self.codes}",
            comparisons=(duel,),
        )
        return JobReport(number=job.number, kind=job.kind, verdict=verdict)


def _failed(kernel: Kernel, status: Status, code: str) -> Verdict:
    finding = Finding(kind=status.value, message="made up")
    return Verdict(kernel=kernel.id, status=status, findings=(finding,), code_digest=code)


@dataclass
class ScriptedEngine:
    """Answers one queued job a call, in the order that ``order`` chooses."""

    world: World = field(default_factory=World)
    order: Order = lambda jobs: 0
    batch: int = 1
    """Answers a call."""
    submitted: list[Job] = field(default_factory=list[Job])
    answered: list[JobReport] = field(default_factory=list[JobReport])
    evaluations_at_once: int = 0
    """The most that ever were."""
    _queue: list[Job] = field(default_factory=list[Job])

    def submit(self, job: Job) -> None:
        self.submitted.append(job)
        self._queue.append(job)
        self.evaluations_at_once = max(self.evaluations_at_once, sum(job.kind == "evaluate" for job in self._queue))

    def collect(self, timeout_s: float) -> Sequence[JobReport]:
        reports = [self._answer() for _ in range(min(self.batch, len(self._queue)))]
        self.answered.extend(reports)
        return reports

    def close(self) -> None:
        self._queue.clear()

    def _answer(self) -> JobReport:
        job = self._queue.pop(self.order(self._queue))
        return self.world.build(job) if job.kind == "build" else self.world.evaluate(job)


class RecordedEngine:
    """Answers with recorded reports in the order in which they were recorded, however jobs come."""

    def __init__(self, reports: Sequence[JobReport]) -> None:
        self._reports = list(reports)
        self._open: set[tuple[int, str]] = set()
        self.submitted: list[Job] = []

    def submit(self, job: Job) -> None:
        self.submitted.append(job)
        self._open.add((job.number, job.kind))

    def collect(self, timeout_s: float) -> Sequence[JobReport]:
        report = self._reports.pop(0)
        assert (report.number, report.kind) in self._open, "an answer that nobody waits for"
        return [report]

    def close(self) -> None:
        self._reports.clear()


class Recorder:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []

    def on_event(self, event: RunEvent) -> None:
        self.events.append(event)


@dataclass
class Stage:
    """One session of a loop with everything that it needs, in a folder."""

    folder: Path
    proposer: Numbers = field(default_factory=lambda: Numbers(1000))
    engine: Engine = field(default_factory=ScriptedEngine)
    rules: StopRules = field(default_factory=lambda: StopRules(evaluations=20))
    depth: int = 3
    seed: int = 7
    run: str = "20261201-0000abcd"
    clock: Clock = field(default_factory=Clock)
    listener: Recorder = field(default_factory=Recorder)

    def numbers(self) -> SearchConfig:
        return SearchConfig(seeds=len(self.proposer.seeds(CONTEXT)))

    def search(self) -> Search:
        return Search(self.seed, self.numbers())

    def create(self) -> RunStore:
        meta = RunMeta(
            run=self.run,
            created_at="2026-12-01T00:00:00+00:00",
            task="norm",
            task_data={"task": CONTEXT.task.model_dump(mode="json")},
            target="cpp",
            proposer="numbers",
            seed=self.seed,
            search=self.numbers().model_dump(mode="json"),
            hardware=CONTEXT.hardware,
        )
        return RunStore.create(self.folder, meta)

    def go(self, store: RunStore, search: Search, requeue: Sequence[Pending] = ()) -> StopReason:
        """Search until a rule stops it."""
        store.append("started", {})
        loop = SearchLoop(
            store=store,
            search=search,
            engine=self.engine,
            proposer=self.proposer,
            context=CONTEXT,
            seeds=self.proposer.seeds(CONTEXT),
            rules=self.rules,
            clock=self.clock,
            listener=self.listener,
            kernels={kernel.id: kernel for kernel in store.kernels()},
            verdicts={v.verdict.kernel: v.verdict for v in store.verdicts()},
            depth=self.depth,
        )
        return loop.run(requeue)
