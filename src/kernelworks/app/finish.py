"""The end of a run: the finalists are measured afresh against every baseline, the winner is written down."""

from __future__ import annotations

from typing import Literal

from kernelworks.app.events import Listener, Phase
from kernelworks.app.loop import COLLECT_S, Clock
from kernelworks.app.runs import write_report_of, write_winner
from kernelworks.engine.base import Engine, Job
from kernelworks.errors import EvaluationError
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Status, Verdict
from kernelworks.search.core import Search
from kernelworks.store.run import RunStore

FINALISTS = 3
"""Elites that are measured again: the best of a search was partly lucky, so the runners-up get their chance."""


def finish_run(store: RunStore, search: Search, engine: Engine, listener: Listener, clock: Clock) -> None:
    """Measure the finalists, write the winner and the report into the run's folder.

    Every finalist is checked and timed in a fresh process, policy ``kernel``; the best of them also under
    ``as_called``.
    """
    listener.on_event(Phase(elapsed_s=clock.elapsed_s(), name="final"))
    kernels = {kernel.id: kernel for kernel in store.kernels()}
    best_first = sorted(search.archive, key=lambda elite: -elite.fitness)
    finals: list[Verdict] = []
    for elite in best_first[:FINALISTS]:
        verdict = _measure(engine, kernels[elite.kernel_id], "evaluate")
        finals.append(verdict)
        _record(store, verdict)
    correct = [v for v in finals if v.status is Status.CORRECT]
    if correct:
        winner = max(correct, key=lambda v: v.speedup_low or 0.0)
        as_called = _measure(engine, kernels[winner.kernel], "as_called")
        _record(store, _joined(winner, as_called))
    store.append("evaluated", {"final": "done"})
    listener.on_event(Phase(elapsed_s=clock.elapsed_s(), name="report"))
    write_winner(store)
    write_report_of(store)


def _record(store: RunStore, verdict: Verdict) -> None:
    with store.step() as step:
        step.record_verdict(None, verdict)
        step.append("evaluated", {"kernel": verdict.kernel, "status": verdict.status, "final": "measured"})


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
