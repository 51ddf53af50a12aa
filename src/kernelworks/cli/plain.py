"""Text without colours or cursor movement: the progress off a terminal, and the answers that are lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from kernelworks.app.events import BaselineTimed, BuildDone, Evaluated, Finished, Phase, RunEvent, Started, Told, Trying
from kernelworks.app.results import TaskCheck
from kernelworks.cli.state import RunState
from kernelworks.kernel.verdict import Status, Verdict
from kernelworks.report.tables import baseline_title, duration, interval, milliseconds, times
from kernelworks.task.model import Task


class PlainListener:
    """A line an event; with ``verbose`` also proposals, builds and the archive's answers."""

    def __init__(self, stream: TextIO, *, verbose: bool = False) -> None:
        self._stream = stream
        self._verbose = verbose
        self._state = RunState()

    def on_event(self, event: RunEvent) -> None:
        """Print the event's line, if it has one."""
        self._state.take(event)
        text = self._text(event)
        if text:
            self._stream.write(f"[{event.elapsed_s:7.1f} s] {text}\n")
            self._stream.flush()

    def _text(self, event: RunEvent) -> str:
        match event:
            case Started():
                return f"run {event.run}: {event.task} on {event.device} ({event.target}), folder {event.folder}"
            case Phase():
                return f"{event.name}: {event.detail}" if event.detail else event.name
            case BaselineTimed():
                return baseline_text(event)
            case Evaluated():
                return self._evaluated(event)
            case Finished():
                return f"stopped by {event.stopped_by} after {event.evaluations} evaluations"
            case Trying() | BuildDone() | Told():
                return self._detail(event) if self._verbose else ""

    def _detail(self, event: Trying | BuildDone | Told) -> str:
        match event:
            case Trying():
                return f"#{event.number} {event.kernel} {event.operator}: {event.move or event.idea}"
            case BuildDone():
                return f"#{event.number} built in {event.build_ms:.0f} ms{' (cached)' if event.cached else ''}"
            case Told():
                where = "" if event.cell is None else f" in cell {event.cell}"
                return f"#{event.number} {event.outcome}{where}; {event.filled} of {event.reachable} cells filled"

    def _evaluated(self, event: Evaluated) -> str:
        state = self._state
        limit = state.started.evaluations if state.started is not None else None
        count = f"{event.evaluations}/{limit}" if limit else f"{event.evaluations}"
        mark = " best so far" if event.best else ""
        move = state.move_of(event.number)
        line = f"{count:>9}  {verdict_summary(event.verdict)}{mark}{'  ' + move if move else ''}"
        failed = event.verdict.status is not Status.CORRECT
        if event.verdict.findings and (failed or self._verbose):
            line += f"  ({event.verdict.findings[0].message})"
        return line


def baseline_text(event: BaselineTimed) -> str:
    """A baseline's time, or why it has none."""
    title = baseline_title(event.name)
    if event.time_ms is None:
        return f"baseline {title} ({event.policy}): not measured, {event.problem}"
    return f"baseline {title} ({event.policy}): {milliseconds(event.time_ms)}"


def verdict_summary(verdict: Verdict) -> str:
    """Status and, for a timed kernel, its speed-up over the anchor with the interval."""
    if verdict.speedup is None:
        return f"{verdict.status.value:<11}"
    bounds = interval(verdict.speedup_low, verdict.speedup_high)
    return f"{verdict.status.value:<11} {times(verdict.speedup):>6} {bounds}"


def verdict_text(verdict: Verdict, *, verbose: bool = False) -> str:
    """What ``evaluate`` prints for one kernel: a line, then one a finding; ``verbose`` adds flags and evidence."""
    name = verdict.path or verdict.kernel
    lines = [f"{name}: {verdict_summary(verdict).rstrip()}"]
    if verdict.decision is not None:
        lines[0] += f" {verdict.decision.value}, {milliseconds(verdict.time_ms)}"
    for baseline in verdict.baselines:
        bounds = interval(baseline.speedup_low, baseline.speedup_high)
        title = f"{baseline_title(baseline.name)} ({baseline.policy})"
        lines.append(f"  over {title}: {times(baseline.speedup)} {bounds}, it takes {milliseconds(baseline.time_ms)}")
    for finding in verdict.findings:
        lines.append(f"  {finding.kind}: {finding.message}")
        if verbose:
            lines.extend(f"    {key}: {value}" for key, value in finding.evidence.items())
    if verbose and verdict.flags:
        lines.append(f"  compile arguments: {' '.join(verdict.flags)}")
    if verdict.status is Status.CORRECT and verdict.coverage is not None and verdict.coverage < 1:
        lines.append(f"  covers {verdict.coverage:.0%} of the edge cases")
    if verdict.status is Status.CORRECT and (verdict.tested_elements or 0) > 0:
        lines.append(f"  not tested above {verdict.tested_elements:,} elements a tensor")
    if verdict.tolerance is not None:
        lines.append(f"  judged by the task's own tolerance, {verdict.tolerance:g}, not by the derived bound")
    if verbose and verdict.gates:
        told = ", ".join(f"{name} {'accepts' if passed else 'refuses'} it" for name, passed in verdict.gates.items())
        lines.append(f"  published gates: {told}")
    return "\n".join(lines)


def task_check_text(answer: TaskCheck, *, verbose: bool = False) -> str:
    """What ``task check`` prints; ``verbose`` lists the cases."""
    lines: list[str] = []
    if answer.prototype:
        lines.append(answer.prototype)
    if verbose and answer.task is not None:
        for case in answer.task.cases:
            sizes = ", ".join(f"{dim}={size}" for dim, size in case.sizes.items())
            lines.append(f"case {case.name} ({case.role.value}): {sizes}")
    if answer.task is not None:
        lines.extend(_particulars(answer.task))
    lines.extend(
        f"{'left out' if kind == 'case_left_out' else f'problem, {kind}'}: {message}"
        for kind, message in answer.problems
        if verbose or kind != "case_left_out"
    )
    lines.append("the task can be used" if answer.ok else "the task is refused")
    return "\n".join(lines)


def _particulars(task: Task) -> Iterator[str]:
    """What the task says about itself that is not the default."""
    if task.tolerance.relative_rms is not None:
        yield (
            f"tolerance of the task's own: RMS error up to {task.tolerance.relative_rms:g} of the RMS of the exact"
            " answer, in place of the derived bound"
        )
    if task.precision != "strict":
        yield f"precision: {task.precision}"
    if task.layout != "contiguous":
        yield f"layout: {task.layout}"
    if task.deterministic is not None:
        yield "deterministic: " + ("yes, kernels must give the same bits" if task.deterministic else "no")
    if task.mutates:
        yield f"changes in place: {', '.join(task.mutates)}"
    if task.aggregate != "geomean":
        yield f"several timed cases count by their {task.aggregate}"
    if task.instructions:
        yield f"instructions: {task.instructions}"


def time_left_text(left_s: float | None) -> str:
    """``about 40 s``; empty before it can be told."""
    return "" if left_s is None else f"about {duration(left_s)}"
