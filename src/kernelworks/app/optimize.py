"""Use case ``optimize``: one run from the task to the winner, new or resumed."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

from kernelworks import __version__
from kernelworks.app.config import Budget, Config, settings_of
from kernelworks.app.events import BaselineTimed, Finished, Listener, Phase, Started
from kernelworks.app.finish import finish_run
from kernelworks.app.loop import Clock, SearchLoop
from kernelworks.app.options import OptimizeOptions, ResumeOptions
from kernelworks.app.results import OptimizeResult
from kernelworks.app.runs import run_result
from kernelworks.app.seeds import NoMoves, proposer_and_seeds, read_own, refuse_unknown_names
from kernelworks.app.state import read_state
from kernelworks.app.tasks import refuse_bad_task
from kernelworks.engine.registry import open_engine
from kernelworks.errors import UsageError
from kernelworks.evaluate.sandbox import OWN_PROPOSERS, find_sandbox
from kernelworks.evaluate.session import Session
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Verdict
from kernelworks.propose.base import ProposalContext, Proposer
from kernelworks.propose.registry import available_proposers, get_proposer
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
        UsageError: a seed kernel cannot be read.
        TaskError: the task cannot be loaded or is refused.
        ProposeError: the proposer cannot work on the task.
        EnvironmentLackError: no compiler, or no sandbox for kernels of foreign origin and no leave to do without.
        StoreError: the run's folder cannot be used.
    """
    config = options.config
    own = [read_own(file) for file in options.seed_kernels]
    run = new_run_id()
    folder = Path(options.folder).absolute() if options.folder is not None else default_folder(run)
    with ExitStack() as stack:
        if not folder.exists():
            stack.callback(_remove_if_empty, folder)
        claim_folder(folder)
        listener.on_event(Phase(elapsed_s=0.0, name="load", detail=options.task.target))
        session = stack.enter_context(_open_session(options.task, config, listener))
        refuse_unknown_names(own, session.task)
        _require_sandbox(config, own)
        context = _context(session, config.evaluation.target)
        proposer, seeds = proposer_and_seeds(config.search.proposer, context, own)  # first: it is quick to say no
        listener.on_event(Phase(elapsed_s=0.0, name="check"))
        refuse_bad_task(session)
        numbers = SearchConfig(seeds=len(seeds), aggregate=session.task.aggregate)
        meta = _meta(run, options, session, numbers, proposer.name, seeds)
        store = stack.enter_context(RunStore.create(folder, meta))
        register(run, folder, task=session.task.name, target=meta.target, created_at=meta.created_at)
        run_ = _Run(store, session, config, listener, proposer, context, seeds)
        return run_.go(Search(config.search.seed, numbers), (), {}, 0.0)


def resume(run: str, options: ResumeOptions, listener: Listener) -> OptimizeResult:
    """Continue a run where it stopped; what was in flight is done first.

    Raises:
        UsageError: the task is another one now.
        StoreError: no such run, in use, or its log does not fit this version.
        TaskError: the task cannot be loaded any more.
        EnvironmentLackError: no compiler.
    """
    folder = find(run)
    with ExitStack() as stack:
        store = stack.enter_context(RunStore.open(folder))
        meta = store.meta
        config = _resumed_config(store, options)
        reference = TaskReference.model_validate(meta.task_data["reference"])
        search = Search(meta.seed, SearchConfig.model_validate(meta.search))
        restored = restore(store, search)
        if _is_over(store, restored, config):
            return run_result(store)
        listener.on_event(Phase(elapsed_s=restored.elapsed_s, name="load", detail=reference.target))
        session = stack.enter_context(_open_session(reference, config, listener))
        if session.task.digest != meta.task_data["digest"]:
            raise UsageError(
                f"run {meta.run}: expected the task as it was when the run began, found it changed",
                mend="start a new run",
            )
        proposer = NoMoves() if meta.proposer == NoMoves.name else get_proposer(meta.proposer)
        seeds = [Kernel.model_validate(seed) for seed in meta.task_data["seeds"]]
        run_ = _Run(store, session, config, listener, proposer, _context(session, meta.target), seeds)
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
        """Search, measure the finalists, report; an interrupt ends any of it, and the run can be resumed."""
        try:
            self._announce(before_s, search.evaluations)
            self._time_baselines(before_s)
            self._search(search, requeue, verdicts, before_s)
        except KeyboardInterrupt:
            self._store.append("stopped", {"reason": "interrupt"})
        result = run_result(self._store)
        self._listener.on_event(
            Finished(elapsed_s=result.elapsed_s, stopped_by=result.stopped_by, evaluations=result.evaluations)
        )
        return result

    def _search(
        self, search: Search, requeue: Sequence[Pending], verdicts: dict[str, Verdict], before_s: float
    ) -> None:
        store, config, listener = self._store, self._config, self._listener
        listener.on_event(Phase(elapsed_s=before_s, name="search"))
        budget = config.budget.model_dump(mode="json")
        begins = "resumed" if before_s or search.evaluations else "started"
        store.append(begins, {"evaluations": search.evaluations, "budget": budget})
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
            store.append("stopped", {"reason": loop.run(requeue)})
            finish_run(store, search, engine, listener, clock.elapsed_s())

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


def _open_session(reference: TaskReference, config: Config, listener: Listener) -> Session:
    def notice(word: str) -> None:
        listener.on_event(Phase(elapsed_s=0.0, name="waiting", detail=word))

    return Session.open(reference, config.evaluation.target, settings_of(config.evaluation), notice)


def _require_sandbox(config: Config, own: Sequence[Kernel]) -> None:
    """Say at once what the first such kernel would be refused for.

    Raises:
        EnvironmentLackError: kernels of foreign origin will come, and nothing confines them.
    """
    proposer = config.search.proposer
    if config.evaluation.allow_unsandboxed:
        return
    if own:
        find_sandbox().require(f"kernel {own[0].path}")
    elif proposer not in OWN_PROPOSERS and proposer in available_proposers():
        find_sandbox().require(f"what {proposer} proposes")


def _context(session: Session, target: str) -> ProposalContext:
    timed = session.task.model_copy(update={"cases": session.task.cases_of(CaseRole.TIMED)})
    return ProposalContext(
        task=timed, graph=session.graph, target=target, hardware=session.hardware, untraced=session.untraced
    )


def _remove_if_empty(folder: Path) -> None:
    """A folder that was made for a run that did not begin goes again."""
    with suppress(OSError):
        folder.rmdir()


def _meta(
    run: str,
    options: OptimizeOptions,
    session: Session,
    numbers: SearchConfig,
    proposer: str,
    seeds: Sequence[Kernel],
) -> RunMeta:
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
            # Kept, not made again: files may change, and a proposer may begin otherwise on another machine.
            "seeds": [seed.model_dump(mode="json") for seed in seeds],
        },
        target=config.evaluation.target,
        device=session.hardware.name,
        proposer=proposer,
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


def _resumed_config(store: RunStore, options: ResumeOptions) -> Config:
    """The run's configuration with the limits of its last session, or those that are given now."""
    config = Config.model_validate(store.meta.config)
    budgets = [e.data["budget"] for e in store.events() if e.kind in ("started", "resumed")]
    last = Budget.model_validate(budgets[-1]) if budgets else config.budget
    changed = last.model_copy(update=options.model_dump(exclude_none=True))
    return config.model_copy(update={"budget": changed})
