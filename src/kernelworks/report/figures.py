"""The report's figures as inline SVG, drawn without a plotting library. Colours are CSS variables of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from kernelworks.kernel.descriptor import AXES, LEVELS
from kernelworks.kernel.verdict import Status
from kernelworks.report.model import Elite, EvaluationRow, ReportData
from kernelworks.report.tables import baseline_title, interval, times

LEVEL_NAMES: dict[str, tuple[str, str, str, str]] = {
    "memory": ("scalar or strided", "packed", "reuse", "non-temporal, prefetch"),
    "compute": ("scalar", "packed", "FMA chains", "FMA tile"),
    "parallelism": ("one thread", "static", "dynamic, partials", "several regions"),
}
"""Short names of the descriptor's levels on a CPU."""

_WIDTH, _HEIGHT = 960, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 128, 16, 44
_LANE = 18
_LABEL = 15
_WIDE = 3.0
"""Ratio of the speed-up axis's ends from which its ticks are leading digits."""
_CELL = 64

_Scale = Callable[[float], float]
"""From a value to a coordinate of the figure."""


@dataclass(frozen=True)
class _Best:
    """The best so far from one evaluation on."""

    number: int
    speedup: float
    low: float
    high: float


def best_so_far(rows: Iterable[EvaluationRow]) -> tuple[_Best, ...]:
    """The steps of the best kernel so far, by the lower bound of its speed-up."""
    steps: list[_Best] = []
    for row in rows:
        verdict = row.verdict
        if verdict.speedup is None or verdict.speedup_low is None or verdict.speedup_high is None:
            continue
        if not steps or verdict.speedup_low > steps[-1].low:
            steps.append(_Best(row.number, verdict.speedup, verdict.speedup_low, verdict.speedup_high))
    return tuple(steps)


def progress_figure(data: ReportData) -> Markup:
    """Speed-up over evaluations: points by status, the best so far as a step line with its interval as a band."""
    rows = data.evaluations
    last = max((row.number for row in rows), default=1)
    lanes = list(data.failures)
    steps = best_so_far(rows)
    rivals = _rivals(data)
    values = [v for s in steps for v in (s.low, s.high)] + [1.0] + [ratio for _, ratio in rivals]
    values += [row.verdict.speedup for row in rows if row.verdict.speedup is not None]
    low, high = min(values) / 1.08, max(values) * 1.08
    floor = _HEIGHT - _BOTTOM - _LANE * len(lanes)

    def x(number: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (number - 0.5) / last

    def y(speedup: float) -> float:
        return _TOP + (floor - _TOP) * (1 - math.log(speedup / low) / math.log(high / low))

    right = _WIDTH - _RIGHT
    parts: list[str] = []
    for tick in _ticks(low, high):
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}x</text>')
    parts.extend(_number_axis(last, x))
    labels: list[tuple[float, str, str]] = []
    for lane, status in enumerate(lanes):
        middle = floor + _LANE * (lane + 0.5)
        labels.append((middle, "tick", status))
        parts.append(f'<line class="lane" x1="{_LEFT}" x2="{right}" y1="{middle:.1f}" y2="{middle:.1f}"/>')
    for name, ratio in [(data.anchor, 1.0), *rivals]:
        labels.append((y(ratio), "rival-name", baseline_title(name)))
        parts.append(f'<line class="rival" x1="{_LEFT}" x2="{right}" y1="{y(ratio):.1f}" y2="{y(ratio):.1f}"/>')
    if steps:
        labels.append((y(steps[-1].speedup), "best-name", f"best {times(steps[-1].speedup)}"))
        parts.extend(_step_line(steps, last, x, y))
    parts.extend(_right_labels(labels))
    for row in rows:
        parts.append(_point(row, x(row.number), lanes, floor, y))
    label = f"Speed-up over {baseline_title(data.anchor)} by evaluation"
    return _svg(_WIDTH, _HEIGHT, label, parts)


def _rivals(data: ReportData) -> list[tuple[str, float]]:
    """Other baselines as speed-ups over the anchor, policy ``kernel``, from the winner's final measurement."""
    if data.winner is None:
        return []
    found = {b.name: b.speedup for b in data.winner.verdict.baselines if b.policy == "kernel"}
    anchor = found.pop(data.anchor, None)
    return [] if anchor is None else [(name, anchor / speedup) for name, speedup in found.items()]


def _ticks(low: float, high: float) -> list[float]:
    """Round values between the bounds: even steps in a narrow range, leading digits in a wide one."""
    if high / low > _WIDE:
        return [t for t in (m * 10.0**e for e in range(-4, 6) for m in (1, 1.5, 2, 3, 4, 5, 7)) if low <= t <= high]
    step = next(m * 10.0**e for e in range(-6, 6) for m in (1, 2, 5) if (high - low) / (m * 10.0**e) <= 7)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _number_axis(last: int, x: _Scale) -> list[str]:
    base = _HEIGHT - _BOTTOM
    step = next(s * 10**e for e in range(7) for s in (1, 2, 5) if last / (s * 10**e) <= 12)
    parts = [f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>']
    for number in range(step, last + 1, step):
        parts.append(f'<text class="tick" x="{x(number):.1f}" y="{base + 17}" text-anchor="middle">{number}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="name" x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">evaluation</text>')
    return parts


def _right_labels(labels: Iterable[tuple[float, str, str]]) -> list[str]:
    """Labels (height, class, text) at the right edge, moved down where they would overlap."""
    parts: list[str] = []
    lowest = 0.0
    for height, style, text in sorted(labels):
        lowest = max(height + 4, lowest + _LABEL)
        parts.append(f'<text class="{style}" x="{_WIDTH - _RIGHT + 10}" y="{lowest:.1f}">{escape(text)}</text>')
    return parts


def _step_line(steps: Sequence[_Best], last: int, x: _Scale, y: _Scale) -> list[str]:
    ends = [*(s.number for s in steps[1:]), last + 0.5]
    line, upper, lower = "", "", ""
    for step, end in zip(steps, ends, strict=True):
        start, stop = x(step.number), x(end)
        line += f"{'L' if line else 'M'}{start:.1f} {y(step.speedup):.1f}L{stop:.1f} {y(step.speedup):.1f}"
        upper += f"{'L' if upper else 'M'}{start:.1f} {y(step.high):.1f}L{stop:.1f} {y(step.high):.1f}"
        lower = f"L{stop:.1f} {y(step.low):.1f}L{start:.1f} {y(step.low):.1f}{lower}"
    return [f'<path class="band" d="{upper}{lower}Z"/>', f'<path class="best" d="{line}"/>']


def _point(row: EvaluationRow, at: float, lanes: Sequence[str], floor: float, y: _Scale) -> str:
    verdict = row.verdict
    title = f"#{row.number} {row.kernel} {verdict.status.value}"
    if verdict.speedup is not None:
        title += f" {times(verdict.speedup)} {interval(verdict.speedup_low, verdict.speedup_high)}"
        height = y(verdict.speedup)
    elif verdict.status is Status.CORRECT:
        return ""
    else:
        title += f": {verdict.findings[0].message}"
        height = floor + _LANE * (lanes.index(verdict.status.value) + 0.5)
    if row.move:
        title += f" ({row.move})"
    circle = f'<circle class="point {verdict.status.value}" cx="{at:.1f}" cy="{height:.1f}" r="3.6">'
    return f"{circle}<title>{escape(title)}</title></circle>"


def archive_figure(elites: Sequence[Elite]) -> Markup:
    """The archive: a panel for each memory level, compute to the right, parallelism upwards."""
    side = _CELL * LEVELS
    gap, left, top, bottom = 22, 112, 30, 48
    width, height = left + LEVELS * side + (LEVELS - 1) * gap + 8, top + side + bottom
    best = max((e.speedup for e in elites), default=1.0)
    worst = min((e.speedup for e in elites), default=1.0)
    by_cell = {e.cell: e for e in elites}
    parts: list[str] = []
    for memory in range(LEVELS):
        x0 = left + memory * (side + gap)
        name = escape(f"memory {memory}: {LEVEL_NAMES['memory'][memory]}")
        parts.append(f'<text class="panel" x="{x0 + side / 2}" y="{top - 12}" text-anchor="middle">{name}</text>')
        for compute in range(LEVELS):
            for parallelism in range(LEVELS):
                x, y = x0 + compute * _CELL, top + (LEVELS - 1 - parallelism) * _CELL
                elite = by_cell.get((memory, compute, parallelism))
                parts.append(_cell(x, y, (memory, compute, parallelism), elite, worst, best))
            label = escape(LEVEL_NAMES["compute"][compute])
            centre = x0 + (compute + 0.5) * _CELL
            parts.append(f'<text class="tick" x="{centre}" y="{top + side + 16}" text-anchor="middle">{label}</text>')
    for parallelism in range(LEVELS):
        label = escape(LEVEL_NAMES["parallelism"][parallelism])
        middle = top + (LEVELS - 0.5 - parallelism) * _CELL + 4
        parts.append(f'<text class="tick" x="{left - 10}" y="{middle}" text-anchor="end">{label}</text>')
    parts.append(f'<text class="name" x="{left}" y="{height - 8}">compute: to the right; parallelism: upwards</text>')
    return _svg(width, height, f"Archive map over {', '.join(AXES)}", parts)


def _cell(x: float, y: float, at: tuple[int, int, int], elite: Elite | None, worst: float, best: float) -> str:
    box = f'x="{x + 1}" y="{y + 1}" width="{_CELL - 2}" height="{_CELL - 2}" rx="5"'
    if elite is None:
        return f'<rect class="empty" {box}/>'
    share = 1.0 if best <= worst else math.log(elite.speedup / worst) / math.log(best / worst)
    top = " top" if elite.speedup == best else ""
    middle, centre = x + _CELL / 2, y + _CELL / 2
    title = f"{at} {elite.kernel} {times(elite.speedup)} {interval(elite.speedup_low, elite.speedup_high)}"
    return (
        f'<g><title>{escape(title)}</title><rect class="cell{top}" {box} fill-opacity="{0.14 + 0.5 * share:.2f}"/>'
        f'<text class="cell-value" x="{middle}" y="{centre - 1}" text-anchor="middle">{times(elite.speedup)}</text>'
        f'<text class="cell-id" x="{middle}" y="{centre + 17}" text-anchor="middle">{escape(elite.kernel[:8])}</text>'
        "</g>"
    )


def _svg(width: float, height: float, label: str, parts: Iterable[str]) -> Markup:
    head = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">'
    return Markup(head + "".join(parts) + "</svg>")  # noqa: S704  every text in it is escaped above
