"""Tables on the console: the result of a run, the list of runs, the doctor's report."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kernelworks.app.results import Best, DoctorReport, OptimizeResult, RunSummary
from kernelworks.report.tables import (
    PolicyCell,
    baseline_rows,
    baseline_title,
    bound_sentence,
    duration,
    milliseconds,
    times,
)

PIPE_WIDTH = 160
"""Columns where there is no terminal that says its width."""


def show(*parts: RenderableType, stderr: bool = False) -> None:
    """Print on stdout, or on stderr."""
    console = Console(highlight=False, soft_wrap=True, stderr=stderr)
    if not console.is_terminal:
        console = Console(highlight=False, soft_wrap=True, width=PIPE_WIDTH, stderr=stderr)
    for part in parts:
        console.print(part, markup=False) if isinstance(part, str) else console.print(part)


def show_result(result: OptimizeResult, *, stderr: bool = False) -> None:
    """The final table with every baseline under both policies, the winner's path, and what to do next."""
    show(*result_parts(result), stderr=stderr)


def result_parts(result: OptimizeResult) -> list[RenderableType]:
    """What ``show_result`` prints, in order."""
    made = f"{result.evaluations} evaluations in {duration(result.elapsed_s)}, seed {result.seed}"
    ended = f", stopped by {result.stopped_by}" if result.stopped_by else ""
    parts: list[RenderableType] = [f"{result.task} on {result.device} ({result.target}): {made}{ended}"]
    if result.best is None:
        parts.append("no kernel was correct" if result.evaluations else "nothing was evaluated")
    else:
        parts.extend(_best_parts(result.best))
    if result.failures:
        parts.append("failures: " + ", ".join(f"{status} {count}" for status, count in result.failures.items()))
    if result.report:
        parts.append(f"report: {result.report}")
    if result.status != "done":
        parts.append(f"the run is {result.status}; continue it with: kernelworks runs resume {result.run}")
    return parts


def _best_parts(best: Best) -> list[RenderableType]:
    verdict = best.verdict
    table = Table(title=f"the winner, {milliseconds(verdict.time_ms)} a call, against", title_justify="left")
    table.add_column("baseline")
    for policy in ("kernel", "as_called"):
        table.add_column(f"{policy}: time", justify="right")
        table.add_column("speed-up", justify="right", style="bold")
        table.add_column("interval", justify="right", style="dim")
    for row in baseline_rows(verdict):
        table.add_row(row.title, *_policy_cells(row.kernel), *_policy_cells(row.as_called))
    parts: list[RenderableType] = [
        table,
        "kernel: outputs allocated before the clock (the figure of record); as_called: everyone allocates",
    ]
    bound = bound_sentence(verdict)
    if bound:
        parts.append(f"it runs at {bound}")
    if not best.beats_baselines:
        parts.append("nothing was faster than the fastest correct baseline")
    slower = [b for b in best.baselines if b.policy == "as_called" and b.speedup_high < 1]
    parts.extend(f"mind: where everyone allocates, {baseline_title(b.name)} is faster" for b in slower)
    parts.extend(f"mind: {finding.message}" for finding in verdict.findings)
    parts.append(f"winner: {best.path}")
    return parts


def _policy_cells(cell: PolicyCell | None) -> tuple[str, str, str]:
    return ("not measured", "", "") if cell is None else (cell.time, cell.speedup, cell.interval)


def runs_table(runs: Sequence[RunSummary]) -> Table:
    """The list of runs."""
    table = Table()
    for title in ("run", "task", "status", "started"):
        table.add_column(title, overflow="fold")
    for title in ("evaluations", "best", "at least"):
        table.add_column(title, justify="right")
    for run in runs:
        low = "" if run.speedup_low is None else times(run.speedup_low)
        best = "" if run.speedup is None else times(run.speedup)
        table.add_row(run.run, run.task, run.status, run.started, str(run.evaluations), best, low)
    return table


def doctor_table(report: DoctorReport) -> Table:
    """A line a target: usable or not, its device, its versions, or the problem and the mend."""
    table = Table()
    for title in ("target", "usable", "device", "versions, or what is missing"):
        table.add_column(title, overflow="fold")
    for name, probe in report.targets.items():
        if probe.usable:
            last = ", ".join(f"{tool} {version}" for tool, version in probe.versions.items())
        else:
            last = f"{probe.problem}; {probe.mend}" if probe.mend else probe.problem
        table.add_row(name, "yes" if probe.usable else "no", probe.device, Text(last))
    return table


def sandbox_lines(report: DoctorReport) -> list[str]:
    """Whether kernels can be confined, and how to mend it; targets that share an answer share a line."""
    found: dict[str, list[str]] = {}
    for name, target in report.targets.items():
        text = target.sandbox
        if target.sandbox_lacks:
            text += f" ({'; '.join(target.sandbox_lacks)}): {target.sandbox_mend}"
        found.setdefault(text, []).append(name)
    return [f"sandbox of {', '.join(names)}: {text}" for text, names in found.items()]


def torch_line(report: DoctorReport) -> str:
    """Whether tasks with a torch reference can be used."""
    if report.torch:
        return f"torch {report.torch}: references, torch eager and torch.compile"
    return "torch is not installed: only NumPy tasks can be used; pip install 'kernelworks[torch]'"
