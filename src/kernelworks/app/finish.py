"""The end of a run: the finalists are measured afresh against every baseline, the winner is written down."""

from __future__ import annotations

from typing import Literal

from kernelworks.app.events import Listener, Phase
from kernelworks.app.loop import COLLECT_S
from kernelworks.app.runs import write_report_of, write_winner
from kernelworks.app.state import Figures
from kernelworks.engine.base import Engine, Job
from kernelworks.errors import EvaluationError
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Status, Verdict
from kernelworks.search.core import Search
from kernelworks.store.run import RunStore

FINALISTS = 3
"""Elites that are measured again: the best of a search was partly lucky, so the runners-up get their chance."""


def finish_run(store: RunStore, search: Search, engine: Engine, listener: Listener, elapsed_s: float) -> None:
    """Measure the finalists, write the winner and the report into the run's folder.

    Every finalist is checked and timed in a fresh process, policy ``kernel``; the best of them also under
    ``as_called``. One that is not correct this time gives its place to the next elite. The search's clock stands at
    ``elapsed_s`` meanwhile.
    """
    listener.on_event(Phase(elapsed_s=elapsed_s, name="final"))
    kernels = {kernel.id: kernel for kernel in store.kernels()}
    finals = _measure_finalists(store, search, engine, kernels)
    row, winner = _choose_winner(store, engine, finals, kernels)
    store.append("evaluated", {"final": "winner", "verdict": row})
    listener.on_event(Phase(elapsed_s=elapsed_s, name="report"))
    write_winner(store)
    write_report_of(store)
    store.append("evaluated", {"final": "done", "figures": Figures.of(search.evaluations, winner)})


def _measure_finalists(store: RunStore, search: Search, engine: Engine, kernels: dict[str, Kernel]) -> list[Verdict]:
    """Verdicts of the finalists that were correct again."""
    finals: list[Verdict] = []
    for elite in sorted(search.archive, key=lambda elite: -elite.fitness):
        if len(finals) == FINALISTS:
            break
        verdict = _measure(engine, kernels[elite.kernel_id], "evaluate")
        _record(store, verdict)
        if _is_measured(verdict):
            finals.append(verdict)
    return finals


def _choose_winner(
    store: RunStore, engine: Engine, finals: list[Verdict], kernels: dict[str, Kernel]
) -> tuple[int | None, Verdict | None]:
    """The best finalist that is correct under ``as_called`` too: the row of its joined verdict, and the verdict."""
    for verdict in sorted(finals, key=lambda v: -(v.speedup_low or 0.0)):
        as_called = _measure(engine, kernels[verdict.kernel], "as_called")
        if _is_measured(as_called):
            joined = _joined(verdict, as_called)
            return _record(store, joined), joined
        _record(store, as_called)
    return None, None


def _is_measured(verdict: Verdict) -> bool:
    return verdict.status is Status.CORRECT and verdict.speedup_low is not None


def _record(store: RunStore, verdict: Verdict) -> int:
    with store.step() as step:
        row = step.record_verdict(None, verdict)
        step.append("evaluated", {"kernel": verdict.kernel, "status": verdict.status, "final": "measured"})
    return row


def _joined(kernel: Verdict, as_called: Verdict) -> Verdict:
    """The verdict of record with the timings under ``as_called`` beside its own."""
    return kernel.model_copy(
        update={
            "baselines": (*kernel.baselines, *as_called.baselines),
            "comparisons": (*kernel.comparisons, *as_called.comparisons),
            "findings": (*kernel.findings, *(f for f in as_called.findings if f not in kernel.findings)),
        }
    )


def _measure(engine: Engine, kernel: Kernel, kind: Literal["evaluate", "as_called"]) -> Verdict:
    """One measurement outside the search (number 0); reports of the search that come late are of no use any more."""
    engine.submit(Job(number=0, kind=kind, kernel=kernel))
    while True:
        for report in engine.collect(COLLECT_S):
            if report.number == 0:
                if report.verdict is None:
                    raise EvaluationError(f"final measurement of {kernel.id}: expected a verdict, found none")
                return report.verdict
