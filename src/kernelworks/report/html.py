"""The run's report as one HTML file: no network, no external script, safe to pass on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from kernelworks.kernel.hardware import Hardware
from kernelworks.kernel.verdict import Status, Verdict
from kernelworks.report import tables
from kernelworks.report.code import coloured, difference
from kernelworks.report.figures import archive_figure, progress_figure
from kernelworks.report.model import EvaluationRow, ReportData
from kernelworks.task.model import CaseRole, Task


@dataclass(frozen=True)
class _VerdictRow:
    """One line of the verdict table; ``*_key`` sorts."""

    number: int
    kernel: str
    status: str
    speedup: str
    speedup_key: float
    interval: str
    time: str
    time_key: float
    cell: str
    move: str
    parents: str
    finding: str


def render_html(data: ReportData) -> str:
    """The whole report of a run. Every text that came from a task, kernel or compiler is escaped."""
    environment = Environment(
        loader=PackageLoader("kernelworks.report"),
        autoescape=select_autoescape(["html.j2"], default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    winner = data.winner
    return environment.get_template("report.html.j2").render(
        data=data,
        winner=winner,
        headline=tuple(_headline(data)),
        floor=tables.bound_sentence(winner.verdict) if winner else "",
        baselines=tables.baseline_rows(winner.verdict) if winner else (),
        anchor=tables.baseline_title(data.anchor),
        progress=progress_figure(data),
        archive=archive_figure(data.elites),
        rows=tuple(_verdict_row(row) for row in data.evaluations),
        counts=_counts(data),
        code=coloured(winner.text) if winner else Markup(""),
        diff=tuple(difference(winner.parent_text, winner.text)) if winner and winner.parent_text else (),
        hardware=tuple(_hardware(data.hardware)),
        cases=tuple(_cases(data.task)),
        elapsed=tables.duration(data.elapsed_s),
    )


def _headline(data: ReportData) -> Iterator[tuple[str, str, str]]:
    """(figure, what it is, its interval or remark)."""
    total = len(data.evaluations)
    if data.winner is not None:
        verdict = data.winner.verdict
        for baseline in verdict.baselines:
            if baseline.policy == "kernel":
                bounds = tables.interval(baseline.speedup_low, baseline.speedup_high)
                yield tables.times(baseline.speedup), f"over {tables.baseline_title(baseline.name)}", bounds
        yield tables.milliseconds(verdict.time_ms), "time of one call", "outputs allocated before the clock"
        if verdict.roofline is not None:
            bound = tables.milliseconds((verdict.time_ms or 0.0) * verdict.roofline)
            yield f"{verdict.roofline:.0%}", f"of {tables.bound_title(verdict)}", f"the bound is {bound}"
    correct = sum(row.verdict.status is Status.CORRECT for row in data.evaluations)
    yield f"{total}", "evaluations", f"{correct} correct, {tables.duration(data.elapsed_s)}"


def _verdict_row(row: EvaluationRow) -> _VerdictRow:
    verdict = row.verdict
    return _VerdictRow(
        number=row.number,
        kernel=row.kernel,
        status=verdict.status.value,
        speedup=tables.times(verdict.speedup),
        speedup_key=verdict.speedup or 0.0,
        interval=tables.interval(verdict.speedup_low, verdict.speedup_high),
        time=tables.milliseconds(verdict.time_ms),
        time_key=verdict.time_ms if verdict.time_ms is not None else float(10**9),
        cell=" ".join(str(level) for level in verdict.descriptor.cell) if verdict.descriptor else "",
        move=row.move or row.operator,
        parents=", ".join(parent[:8] for parent in row.parents),
        finding=_finding(verdict),
    )


def _finding(verdict: Verdict) -> str:
    if not verdict.findings:
        return ""
    first = verdict.findings[0]
    return f"{first.kind}: {first.message}"


def _counts(data: ReportData) -> tuple[tuple[str, int], ...]:
    correct = sum(row.verdict.status is Status.CORRECT for row in data.evaluations)
    return (("correct", correct), *data.failures.items())


def _hardware(hardware: Hardware) -> Iterator[tuple[str, str]]:
    yield "device", hardware.name
    yield "cores", str(hardware.cores)
    yield "vector width", f"{hardware.simd_bits} bits"
    for name, count_bytes in (
        ("L1 data", hardware.l1_bytes),
        ("L2", hardware.l2_bytes),
        ("L3", hardware.l3_bytes),
        ("memory", hardware.memory_bytes),
    ):
        if count_bytes:
            yield name, tables.size(count_bytes)
    for bandwidth in hardware.bandwidths:
        rates = f"read {bandwidth.read_gbs:.1f}, copy {bandwidth.copy_gbs:.1f}, triad {bandwidth.triad_gbs:.1f} GB/s"
        yield f"bandwidth, {bandwidth.level}", f"{rates} (working set {tables.size(bandwidth.working_set_bytes)})"
    for peak in hardware.peaks:
        rates = f"{peak.fused_gops:.0f} fused, {peak.mixed_gops:.0f} mixed, 1e9 operations/s"
        yield f"peak, {peak.kind}", rates
    if hardware.features:
        yield "features", " ".join(hardware.features)


def _cases(task: Task) -> Iterator[tuple[str, str, str]]:
    """(name, role, sizes)."""
    for case in task.cases_of(*CaseRole):
        yield case.name, case.role.value, ", ".join(f"{dim} = {size}" for dim, size in case.sizes.items())
