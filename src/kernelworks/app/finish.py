"""The end of a run: the finalists are measured afresh against every baseline, the winner is written down."""

from __future__ import annotations

from kernelworks.app.events import Listener, Phase
from kernelworks.app.loop import COLLECT_S, Clock
from kernelworks.app.runs import write_report_of, write_winner
from kernelworks.engine.base import Engine, Job
from kernelworks.errors import EvaluationError
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Verdict
from kernelworks.search.core import Search
from kernelworks.store.run import RunStore

FINALISTS = 3
"""Elites that are measured again: the best of a search was partly lucky, so the runners-up get their chance."""


def finish_run(store: RunStore, search: Search, engine: Engine, listener: Listener, clock: Clock) -> None:
    """Measure the finalists, write the winner and the report into the run's folder."""
    listener.on_event(Phase(elapsed_s=clock.elapsed_s(), name="final"))
    kernels = {kernel.id: kernel for kernel in store.kernels()}
    best_first = sorted(search.archive, key=lambda elite: -elite.fitness)
    for elite in best_first[:FINALISTS]:
        verdict = _measure(engine, kernels[elite.kernel_id])
        with store.step() as step:
            step.record_verdict(None, verdict)
            step.append("evaluated", {"kernel": verdict.kernel, "status": verdict.status, "final": "measured"})
    store.append("evaluated", {"final": "done"})
    listener.on_event(Phase(elapsed_s=clock.elapsed_s(), name="report"))
    write_winner(store)
    write_report_of(store)


def _measure(engine: Engine, kernel: Kernel) -> Verdict:
    """The final verdict of one kernel; reports of the search that come late are of no use any more."""
    engine.submit(Job(number=0, kind="final", kernel=kernel))
    while True:
        for report in engine.collect(COLLECT_S):
            if report.kind == "final":
                if report.verdict is None:
                    raise EvaluationError(f"final measurement of {kernel.id}: expected a verdict, found none")
                return report.verdict
