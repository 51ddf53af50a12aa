"""What a report shows, as plain data. ``app`` fills it from the store; everything drawn comes from here."""

from __future__ import annotations

from kernelworks.data import Frozen
from kernelworks.kernel.descriptor import Cell
from kernelworks.kernel.hardware import Hardware
from kernelworks.kernel.verdict import Status, Verdict
from kernelworks.task.model import Task


class EvaluationRow(Frozen):
    """One evaluation of the run."""

    number: int
    """From 1, in the order in which the verdicts came."""
    kernel: str
    verdict: Verdict
    operator: str = ""
    """``seed``, ``mutate``, ``crossover`` or ``file``."""
    move: str = ""
    parents: tuple[str, ...] = ()


class Elite(Frozen):
    """One filled cell of the archive."""

    cell: Cell
    kernel: str
    speedup: float
    """Over the anchor, policy ``kernel``."""
    speedup_low: float
    speedup_high: float


class Winner(Frozen):
    """The best kernel with the text of its first parent."""

    kernel: str
    text: str
    verdict: Verdict
    """Of the final measurement: all baselines, both policies."""
    idea: str = ""
    path: str = ""
    move: str = ""
    parent: str = ""
    """Id of the first parent; empty for a seed."""
    parent_text: str = ""


class ReportData(Frozen):
    """One run."""

    run: str
    task: Task
    prototype: str
    target: str
    seed: int
    started: str
    """ISO 8601, UTC."""
    elapsed_s: float
    stopped_by: str
    anchor: str
    """Name of the baseline over which every speed-up is stated: ``eager`` or ``reference``."""
    hardware: Hardware
    versions: dict[str, str]
    """Name to version: Kernelworks, Python, torch, compiler ..."""
    evaluations: tuple[EvaluationRow, ...]
    elites: tuple[Elite, ...] = ()
    winner: Winner | None = None
    """None if no kernel was correct."""
    config_toml: str = ""
    event_counts: dict[str, int] = {}
    """Kind of event: how many the run's log holds."""
    notes: tuple[str, ...] = ()
    """What a reader must know: a baseline that does not work here, foreign load during timings."""

    @property
    def failures(self) -> dict[str, int]:
        """Status to count, in the order of the ladder, without ``correct``."""
        counts = {status.value: 0 for status in Status if status is not Status.CORRECT}
        for row in self.evaluations:
            if row.verdict.status is not Status.CORRECT:
                counts[row.verdict.status.value] += 1
        return {status: count for status, count in counts.items() if count}
