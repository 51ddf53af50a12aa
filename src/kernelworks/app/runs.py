"""Use cases on runs that exist: list, show, report; and what they share: the result of a run from its store."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from kernelworks.app.config import Config, config_toml
from kernelworks.app.results import Best, OptimizeResult, RunSummary
from kernelworks.app.state import Figures, RunState, ending_of, kernels_by_id, read_state
from kernelworks.errors import StoreError
from kernelworks.evaluate.records import BaselineTime
from kernelworks.kernel.model import SUFFIXES, Kernel
from kernelworks.kernel.pinning import pinned_text
from kernelworks.kernel.verdict import Verdict
from kernelworks.report.model import Elite, EvaluationRow, ReportData, Winner
from kernelworks.store.lock import is_locked
from kernelworks.store.registry import RunEntry, find
from kernelworks.store.registry import list_runs as registered_runs
from kernelworks.store.run import RunStore
from kernelworks.task.model import Task
from kernelworks.task.prototype import prototype

REPORT = "report.html"


def list_runs() -> list[RunSummary]:
    """Every registered run whose folder is there, newest first."""
    return [_summary(entry) for entry in reversed(registered_runs()) if entry.exists]


def _summary(entry: RunEntry) -> RunSummary:
    """One run in a line. One that cannot be read has its line too, so that it does not hide the others."""
    try:
        status, figures = _figures(Path(entry.folder))
    except StoreError:
        status, figures = "unreadable", Figures(evaluations=0)
    return RunSummary(
        run=entry.run,
        folder=entry.folder,
        task=entry.task,
        status=status,
        started=entry.created_at,
        evaluations=figures.evaluations,
        speedup=figures.speedup,
        speedup_low=figures.speedup_low,
    )


def _figures(folder: Path) -> tuple[str, Figures]:
    """Status and figures: of a run that is over from its last event, which spares the replay of its whole log."""
    live = is_locked(folder)
    with RunStore.open(folder, read_only=True) as store:
        ending = None if live else ending_of(store.events())
        if ending is not None:
            return "done", Figures.model_validate(ending.data["figures"])
        state = read_state(store, live=live)
        return state.status, Figures.of(state.restored.evaluations, state.winner)


def show_run(run: str) -> OptimizeResult:
    """The result of a run, finished or not.

    Raises:
        StoreError: no such run.
    """
    folder = find(run)
    live = is_locked(folder)
    with RunStore.open(folder, read_only=True) as store:
        return run_result(store, live=live)


def write_report(run: str) -> Path:
    """Write the HTML report of a run and return its path.

    Raises:
        StoreError: no such run, or its folder cannot be written.
    """
    with RunStore.open(find(run), read_only=True) as store:
        return write_report_of(store)


def run_result(store: RunStore, *, live: bool = False) -> OptimizeResult:
    """The result of an open run."""
    state = read_state(store, live=live)
    meta = store.meta
    report = store.folder / REPORT
    return OptimizeResult(
        run=meta.run,
        folder=str(store.folder),
        task=meta.task,
        status=state.status,
        evaluations=state.restored.evaluations,
        stopped_by=state.restored.stopped,
        target=meta.target,
        device=meta.device,
        best=_best(store, state),
        failures=state.failures,
        filled=len(state.search.archive),
        report=str(report) if report.is_file() else "",
        seed=meta.seed,
        elapsed_s=state.restored.elapsed_s,
    )


def write_winner(store: RunStore) -> Path | None:
    """Write the winner's text, its point listed first, into the run's folder; None if no kernel was correct.

    Raises:
        StoreError: the folder cannot be written.
    """
    verdict = read_state(store).winner
    if verdict is None:
        return None
    kernel = store.kernel(verdict.kernel).model_copy(update={"params": verdict.params})
    return _write(winner_path(store, kernel), pinned_text(kernel))


def winner_path(store: RunStore, kernel: Kernel) -> Path:
    """Where the winner's text lies once it was written."""
    suffix = next(suffix for suffix, language in SUFFIXES.items() if language is kernel.front.lang)
    return store.folder / f"winner{suffix}"


def write_report_of(store: RunStore) -> Path:
    """Write the report of an open run into its folder.

    Raises:
        StoreError: the folder cannot be written.
    """
    from kernelworks.report.html import render_html

    return _write(store.folder / REPORT, render_html(report_data(store)))


def _write(path: Path, text: str) -> Path:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{path}: expected a writable run folder, found {error.strerror}") from error
    return path


def report_data(store: RunStore) -> ReportData:
    """Everything that a report shows."""
    state = read_state(store)
    meta = store.meta
    task = Task.model_validate(meta.task_data["task"])
    kernels = kernels_by_id(store)
    baselines = [BaselineTime.model_validate(e.data) for e in state.events if e.kind == "baseline"]
    if meta.hardware is None:
        raise StoreError(f"run {meta.run}: expected a hardware record, found none")
    return ReportData(
        run=meta.run,
        task=task,
        prototype=prototype(task),
        target=meta.target,
        seed=meta.seed,
        started=meta.created_at,
        elapsed_s=state.restored.elapsed_s,
        stopped_by=state.restored.stopped,
        anchor=next((b.name for b in baselines if b.time_ms is not None), "reference"),
        hardware=meta.hardware,
        versions=meta.versions,
        evaluations=tuple(_row(at, v.verdict, kernels[v.verdict.kernel]) for at, v in enumerate(state.asked, start=1)),
        elites=_elites(state),
        winner=_winner(store, state, kernels),
        config_toml=config_toml(Config.model_validate(meta.config)),
        event_counts=dict(Counter(e.kind for e in state.events)),
        notes=tuple(sorted({f"{b.name}: {b.problem}" for b in baselines if b.problem})),
    )


def _best(store: RunStore, state: RunState) -> Best | None:
    verdict = state.winner
    if verdict is None:
        return None
    kernel = store.kernel(verdict.kernel)
    path = winner_path(store, kernel)
    shown = str(path) if path.is_file() else ""
    return Best(kernel=kernel.id, path=shown, verdict=verdict, idea=kernel.front.idea)


def _row(number: int, verdict: Verdict, kernel: Kernel) -> EvaluationRow:
    origin = kernel.origin
    return EvaluationRow(
        number=number,
        kernel=kernel.id,
        verdict=verdict,
        operator=origin.operator,
        move=origin.move,
        parents=origin.parents,
    )


def _elites(state: RunState) -> tuple[Elite, ...]:
    verdicts = {v.verdict.kernel: v.verdict for v in state.asked}
    found: list[Elite] = []
    for elite in state.search.archive:
        verdict = verdicts[elite.kernel_id]
        assert verdict.speedup is not None and verdict.speedup_low is not None and verdict.speedup_high is not None
        found.append(
            Elite(
                cell=elite.cell,
                kernel=elite.kernel_id,
                speedup=verdict.speedup,
                speedup_low=verdict.speedup_low,
                speedup_high=verdict.speedup_high,
            )
        )
    return tuple(found)


def _winner(store: RunStore, state: RunState, kernels: dict[str, Kernel]) -> Winner | None:
    verdict = state.winner
    if verdict is None:
        return None
    kernel = kernels[verdict.kernel]
    parent = kernels[kernel.origin.parents[0]] if kernel.origin.parents else None
    return Winner(
        kernel=kernel.id,
        text=kernel.text,
        verdict=verdict,
        idea=kernel.front.idea,
        path=str(winner_path(store, kernel)),
        move=kernel.origin.move,
        parent=parent.id if parent is not None else "",
        parent_text=parent.text if parent is not None else "",
    )
