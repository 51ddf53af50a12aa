"""What the use cases answer. ``as_json`` is the documented form of the command line (docs/runs.md)."""

from __future__ import annotations

from typing import Any, Literal

from kernelworks.data import Frozen
from kernelworks.kernel.verdict import Baseline, Verdict
from kernelworks.targets.base import Probe
from kernelworks.task.model import Task


class Best(Frozen):
    """The winner of a run."""

    kernel: str
    path: str
    """The file that holds its text."""
    verdict: Verdict
    """Of the final measurement against all baselines under both policies."""
    idea: str = ""

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """Every baseline, under both allocation policies."""
        return self.verdict.baselines

    @property
    def beats_baselines(self) -> bool:
        """Whether it is faster than the fastest correct baseline, policy ``kernel``, by its lower bound."""
        rivals = [b for b in self.baselines if b.policy == "kernel"]
        if not rivals:
            return (self.verdict.speedup_low or 0.0) > 1.0
        return min(rivals, key=lambda b: b.time_ms).speedup_low > 1.0


class OptimizeResult(Frozen):
    """The outcome of a run, finished or not."""

    run: str
    folder: str
    task: str
    status: Literal["running", "done", "interrupted", "failed"]
    evaluations: int
    stopped_by: str
    """``evaluations``, ``minutes``, ``exhausted`` (no move is left), ``interrupt``; empty while it runs."""
    target: str
    device: str
    best: Best | None
    """None if no kernel was correct."""
    failures: dict[str, int] = {}
    """Status: how many kernels ended so, the correct ones apart."""
    filled: int = 0
    """Cells of the archive that hold an elite."""
    report: str = ""
    """The HTML report; empty if it was not written."""
    seed: int = 0
    elapsed_s: float = 0.0

    @property
    def exit_code(self) -> int:
        """0: a kernel is faster than the fastest correct baseline; 1: none is; 4: not finished and resumable."""
        if self.status != "done":
            return 4
        return 0 if self.best is not None and self.best.beats_baselines else 1

    @property
    def next_command(self) -> str:
        """How an interrupted run goes on; empty otherwise."""
        return f"kernelworks runs resume {self.run}" if self.status == "interrupted" else ""

    def as_json(self) -> dict[str, Any]:
        """The object that ``optimize --json`` and ``runs show --json`` print."""
        return {
            "run": self.run,
            "status": self.status,
            "evaluations": self.evaluations,
            "stopped_by": self.stopped_by,
            "target": self.target,
            "device": self.device,
            "best": None if self.best is None else _best_json(self.best),
            "failures": self.failures,
            "folder": self.folder,
            "task": self.task,
            "seed": self.seed,
            "report": self.report,
            "elapsed_s": round(self.elapsed_s, 3),
            "next": self.next_command,
        }


def _best_json(best: Best) -> dict[str, Any]:
    verdict = best.verdict
    return {
        "kernel": best.kernel,
        "path": best.path,
        "idea": best.idea,
        "params": verdict.params,
        "flags": list(verdict.flags),
        "speedup": verdict.speedup,
        "speedup_low": verdict.speedup_low,
        "speedup_high": verdict.speedup_high,
        "time_ms": verdict.time_ms,
        "roofline": verdict.roofline,
        "roofline_detail": [b.model_dump(mode="json") for b in verdict.roofline_detail],
        "findings": [f.model_dump(mode="json") for f in verdict.findings],
        "baselines": [b.model_dump(mode="json") for b in best.baselines],
    }


def verdict_line(verdict: Verdict) -> dict[str, Any]:
    """The line that ``evaluate --json`` prints for one kernel."""
    fields = (
        "kernel path status decision speedup speedup_low speedup_high time_ms contract params flags host_ms"
        " coverage setup_ms own_share tested_elements tolerance gates roofline roofline_detail cache sandbox"
        " sandbox_lacks baselines findings dropped_families"
    ).split()
    return verdict.model_dump(mode="json", include=set(fields))


class TaskCheck(Frozen):
    """The outcome of ``task check``."""

    ok: bool
    problems: tuple[tuple[str, str], ...] = ()
    """(kind, message)."""
    prototype: str = ""
    task: Task | None = None

    def as_json(self) -> dict[str, Any]:
        """The object that ``task check --json`` prints."""
        return {
            "ok": self.ok,
            "problems": [{"kind": kind, "message": message} for kind, message in self.problems],
            "prototype": self.prototype,
            "task": None if self.task is None else self.task.model_dump(mode="json"),
        }


class RunSummary(Frozen):
    """One line of ``runs list``."""

    run: str
    folder: str
    task: str
    status: str
    started: str
    """ISO 8601, UTC."""
    evaluations: int
    speedup: float | None = None
    speedup_low: float | None = None


class TargetReport(Probe):
    """A target, and whether its kernels can be confined."""

    sandbox: str = "none"
    sandbox_lacks: tuple[str, ...] = ()
    """What is missing of the full sandbox, one sentence each."""
    sandbox_mend: str = ""


class DoctorReport(Frozen):
    """What ``doctor`` found: one report a target, and the framework of most references."""

    targets: dict[str, TargetReport]
    torch: str = ""
    """Version of torch; empty where it is not installed, and only NumPy tasks can be used."""
