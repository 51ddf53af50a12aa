"""Use case ``optimize``: one run from the task to the winner, new or resumed."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from kernelworks import __version__
from kernelworks.app.config import Config, settings_of
from kernelworks.app.events import BaselineTimed, Finished, Listener, Phase, Started
from kernelworks.app.finish import finish_run
from kernelworks.app.loop import Clock, SearchLoop
from kernelworks.app.options import OptimizeOptions, ResumeOptions
from kernelworks.app.results import OptimizeResult
from kernelworks.app.runs import run_result
from kernelworks.app.state import read_state
from kernelworks.engine.registry import open_engine
from kernelworks.errors import ProposeError, TaskRefusedError, UsageError
from kernelworks.evaluate.session import Session
from kernelworks.kernel.frontmatter import read_kernel
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Verdict
from kernelworks.propose.base import ProposalContext, Proposer, Request
from kernelworks.propose.registry import get_proposer
from kernelworks.search.core import Search, SearchConfig
from kernelworks.search.stopping import StopRules
from kernelworks.store.records import RunMeta
from kernelworks.store.registry import default_folder, find, new_run_id, register
from kernelworks.store.replay import Pending, Restored, restore
from kernelworks.store.run import RunStore, claim_folder
from kernelworks.task.model import CaseRole
from kernelworks.task.prototype import prototype
from kernelworks.task.source import TaskReference


def optimize(options: OptimizeOptions, listener: Listener) -> OptimizeResult:
    """Start a run and carry it to its end.

    Raises:
        TaskError: the task cannot be loaded or is refused.
        ProposeError: the proposer cannot work on the task.
        EnvironmentLackError: no compiler.
        StoreError: the run's folder cannot be used.
    """
    config = options.config
    run = new_run_id()
    folder = Path(options.folder) if options.folder is not None else default_folder(run)
    claim_folder(folder)
    with ExitStack() as stack:
        listener.on_event(Phase(elapsed_s=0.0, name="load", detail=options.task.target))
        session = stack.enter_context(_open_session(options.task, config))
        _refuse_bad_task(session, listener)
        context = _context(session, config.evaluation.target)
        proposer = _able_proposer(config.search.proposer, context, options.seed_kernels)
        seeds = _seeds(proposer, context, options.seed_kernels)
        numbers = SearchConfig(seeds=len(seeds), aggregate=session.task.aggregate)
        meta = _meta(run, options, session, numbers)
        store = stack.enter_context(RunStore.create(folder, meta))
        register(run, folder, task=session.task.name, target=meta.target, created_at=meta.created_at)
        run_ = _Run(store, session, config, listener, proposer, context, seeds)
        return run_.go(Search(config.search.seed, numbers), (), {}, 0.0)


def resume(run: str, options: ResumeOptions, listener: Listener) -> OptimizeResult:
    """Continue a run where it stopped; what was in flight is done first.

    Raises:
        StoreError: no such run, in use, or its log does not fit this version.
        TaskError: the task is gone, or is another one now.
    """
    folder = find(run)
    with ExitStack() as stack:
        store = stack.enter_context(RunStore.open(folder))
        meta = store.meta
        config = _resumed_config(Config.model_validate(meta.config), options)
        reference = TaskReference.model_validate(meta.task_data["reference"])
        search = Search(meta.seed, SearchConfig.model_validate(meta.search))
        restored = restore(store, search)
        if _is_over(store, restored, config):
            return run_result(store)
        listener.on_event(Phase(elapsed_s=restored.elapsed_s, name="load", detail=reference.target))
        session = stack.enter_context(_open_session(reference, config))
        if session.task.digest != meta.task_data["digest"]:
            raise UsageError(
                f"run {meta.run}: expected the task as it was when the run began, found it changed",
                mend="start a new run",
            )
        context = _context(session, meta.target)
        proposer = _able_proposer(meta.proposer, context, meta.task_data["seed_kernels"])
        seeds = _seeds(proposer, context, meta.task_data["seed_kernels"])
        run_ = _Run(store, session, config, listener, proposer, context, seeds)
        verdicts = {v.verdict.kernel: v.verdict for v in store.verdicts() if v.number is not None}
        return run_.go(search, restored.requeue, verdicts, restored.elapsed_s)


class _Run:
    """A run whose parts are all open."""

    def __init__(
        self,
        store: RunStore,
        session: Session,
        config: Config,
        listener: Listener,
        proposer: Proposer,
        context: ProposalContext,
        seeds: Sequence[Kernel],
    ) -> None:
        self._store = store
        self._session = session
        self._config = config
        self._listener = listener
        self._proposer = proposer
        self._context = context
        self._seeds = seeds

    def go(
        self, search: Search, requeue: Sequence[Pending], verdicts: dict[str, Verdict], before_s: float
    ) -> OptimizeResult:
        """Search, measure the finalists, report."""
        store, config, listener = self._store, self._config, self._listener
        self._announce(before_s, search.evaluations)
        self._time_baselines(before_s)
        listener.on_event(Phase(elapsed_s=before_s, name="search"))
        store.append("resumed" if before_s or search.evaluations else "started", {"evaluations": search.evaluations})
        clock = Clock(before_s)
        with ExitStack() as stack:
            engine = open_engine("local", self._session, build_workers=config.evaluation.build_workers)
            stack.callback(engine.close)
            loop = SearchLoop(
                store=store,
                search=search,
                engine=engine,
                proposer=self._proposer,
                context=self._context,
                seeds=self._seeds,
                rules=StopRules(evaluations=config.budget.evaluations, minutes=config.budget.minutes),
                clock=clock,
                listener=listener,
                kernels={kernel.id: kernel for kernel in store.kernels()},
                verdicts=verdicts,
                depth=config.evaluation.build_workers + 1,
            )
            try:
                reason = loop.run(requeue)
            except KeyboardInterrupt:
                store.append("stopped", {"reason": "interrupt"})
                listener.on_event(
                    Finished(elapsed_s=clock.elapsed_s(), stopped_by="interrupt", evaluations=search.evaluations)
                )
                return run_result(store)
            store.append("stopped", {"reason": reason})
            finish_run(store, search, engine, listener, clock)
        listener.on_event(Finished(elapsed_s=clock.elapsed_s(), stopped_by=reason, evaluations=search.evaluations))
        return run_result(store)

    def _announce(self, before_s: float, done: int) -> None:
        meta, budget = self._store.meta, self._config.budget
        self._listener.on_event(
            Started(
                elapsed_s=before_s,
                run=meta.run,
                folder=str(self._store.folder),
                task=self._session.task.name,
                prototype=prototype(self._session.task),
                target=meta.target,
                device=meta.device,
                evaluations=budget.evaluations,
                minutes=budget.minutes,
                done=done,
                anchor=self._session.anchor,
            )
        )

    def _time_baselines(self, before_s: float) -> None:
        self._listener.on_event(Phase(elapsed_s=before_s, name="baselines"))
        for timed in self._session.time_baselines():
            self._store.append("baseline", timed.model_dump(mode="json"))
            self._listener.on_event(
                BaselineTimed(
                    elapsed_s=before_s,
                    name=timed.name,
                    policy=timed.policy,
                    time_ms=timed.time_ms,
                    problem=timed.problem,
                )
            )


def _open_session(reference: TaskReference, config: Config) -> Session:
    return Session.open(reference, config.evaluation.target, settings_of(config.evaluation))


def _refuse_bad_task(session: Session, listener: Listener) -> None:
    listener.on_event(Phase(elapsed_s=0.0, name="check"))
    problems = [p for p in session.check_task() if p.refuses]
    if problems:
        raise TaskRefusedError(
            f"task {session.task.name}: {problems[0].message}", tuple((p.kind, p.message) for p in problems)
        )


def _context(session: Session, target: str) -> ProposalContext:
    timed = session.task.model_copy(update={"cases": session.task.cases_of(CaseRole.TIMED)})
    return ProposalContext(
        task=timed, graph=session.graph, target=target, hardware=session.hardware, untraced=session.untraced
    )


def _seeds(proposer: Proposer, context: ProposalContext, files: Sequence[str]) -> list[Kernel]:
    """The user's kernels first, then the proposer's; each once."""
    found = {kernel.id: kernel for kernel in (read_kernel(Path(file), shown=file) for file in files)}
    for kernel in proposer.seeds(context):
        found.setdefault(kernel.id, kernel)
    return list(found.values())


class _NoMoves:
    """Stands in for a proposer that cannot work on the task, where the user gave kernels: these alone are evaluated."""

    name = "none"

    def seeds(self, context: ProposalContext) -> Sequence[Kernel]:
        return ()

    def propose(self, context: ProposalContext, request: Request) -> Kernel | None:
        return None


def _able_proposer(name: str, context: ProposalContext, files: Sequence[str]) -> Proposer:
    """The proposer of this name.

    Raises:
        ProposeError: it cannot work on the task, and the user gave no kernels of their own.
    """
    proposer = get_proposer(name)
    try:
        proposer.seeds(context)
    except ProposeError:
        if not files:
            raise
        return _NoMoves()
    return proposer


def _meta(run: str, options: OptimizeOptions, session: Session, numbers: SearchConfig) -> RunMeta:
    config = options.config
    reference = options.task
    path = Path(reference.target)
    if path.exists():
        reference = reference.model_copy(update={"target": str(path.resolve())})
    return RunMeta(
        run=run,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        task=session.task.name,
        task_data={
            "reference": reference.model_dump(mode="json"),
            "digest": session.task.digest,
            "task": session.task.model_dump(mode="json"),
            "seed_kernels": [str(Path(file).resolve()) for file in options.seed_kernels],
        },
        target=config.evaluation.target,
        device=session.hardware.name,
        proposer=config.search.proposer,
        seed=config.search.seed,
        search=numbers.model_dump(mode="json"),
        config=config.model_dump(mode="json"),
        hardware=session.hardware,
        versions={"kernelworks": __version__, "python": platform.python_version(), **session.versions},
        command=tuple(sys.argv),
    )


def _is_over(store: RunStore, restored: Restored, config: Config) -> bool:
    """Whether a run is done and the limits leave nothing more to do."""
    rules = StopRules(evaluations=config.budget.evaluations, minutes=config.budget.minutes)
    exhausted = restored.stopped == "exhausted"
    reason = rules.reason(evaluations=restored.evaluations, elapsed_s=restored.elapsed_s, barren=0, none_left=exhausted)
    return reason is not None and read_state(store).status == "done"


def _resumed_config(config: Config, options: ResumeOptions) -> Config:
    changes = options.model_dump(exclude_none=True)
    if not changes:
        return config
    return config.model_copy(update={"budget": config.budget.model_copy(update=changes)})
