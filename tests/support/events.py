"""The events of a short run. No figure here was measured."""

from __future__ import annotations

from kernelworks.app.events import BaselineTimed, BuildDone, Evaluated, Finished, Phase, RunEvent, Started, Told, Trying
from kernelworks.kernel.verdict import Status
from support.samples import correct_verdict, failed_verdict


def sample_events(evaluations: int | None = 10, minutes: float | None = None) -> list[RunEvent]:
    """Two evaluations, one of them wrong, and a third kernel in flight."""
    return [
        Phase(elapsed_s=0.0, name="load", detail="task.py"),
        Started(
            elapsed_s=0.0,
            run="run-1",
            folder="runs/run-1",
            task="rms_norm",
            prototype='extern "C" int launch()',
            target="cpp",
            device="Example CPU",
            evaluations=evaluations,
            minutes=minutes,
        ),
        BaselineTimed(elapsed_s=0.0, name="eager", time_ms=12.0),
        BaselineTimed(elapsed_s=0.0, name="compile", time_ms=None, problem="no compiler for it"),
        Phase(elapsed_s=0.0, name="search"),
        Trying(elapsed_s=0.1, number=1, kernel="k1", operator="seed", idea="one pass a row"),
        Trying(elapsed_s=0.1, number=2, kernel="k2", operator="mutate", move="unroll 2 -> 4"),
        Trying(elapsed_s=0.2, number=3, kernel="k3", operator="mutate", move="schedule -> dynamic"),
        BuildDone(elapsed_s=0.6, number=1, kernel="k1", build_ms=480.0),
        Evaluated(elapsed_s=1.0, number=1, evaluations=1, kernel="k1", verdict=correct_verdict("k1", 3.0), best=True),
        Told(elapsed_s=1.0, number=1, kernel="k1", outcome="new", cell=(1, 1, 1), filled=1, reachable=48),
        BuildDone(elapsed_s=1.5, number=2, kernel="k2", build_ms=2.0, cached=True),
        Evaluated(
            elapsed_s=2.0,
            number=2,
            evaluations=2,
            kernel="k2",
            verdict=failed_verdict("k2", Status.WRONG, "the tail is wrong"),
        ),
        Told(elapsed_s=2.0, number=2, kernel="k2", outcome="rejected", filled=1, reachable=48),
        BuildDone(elapsed_s=2.1, number=3, kernel="k3", build_ms=480.0),
    ]


def finished_event() -> Finished:
    """The end of the same run."""
    return Finished(elapsed_s=4.0, stopped_by="evaluations", evaluations=10)
