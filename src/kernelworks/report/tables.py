"""Plain rows for tables: what the console and the HTML report both show. No formatting library here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernelworks.kernel.verdict import Baseline, Policy, Status, Verdict

POLICIES: tuple[Policy, ...] = ("kernel", "as_called")
BASELINE_TITLES = {
    "eager": "torch eager",
    "compile": "torch.compile",
    "reference": "the reference itself",
}


@dataclass(frozen=True)
class PolicyCell:
    """A baseline under one allocation policy."""

    time: str
    """``11.42 ms``."""
    speedup: str
    """``4.21x``: baseline time over the kernel's time."""
    interval: str
    """``[4.15, 4.27]``."""


@dataclass(frozen=True)
class BaselineRow:
    """A baseline under both policies; None where it was not measured."""

    name: str
    title: str
    kernel: PolicyCell | None
    as_called: PolicyCell | None


def baseline_title(name: str) -> str:
    """A baseline's name for a reader."""
    return BASELINE_TITLES.get(name, name)


def baseline_rows(verdict: Verdict) -> tuple[BaselineRow, ...]:
    """One row a baseline, in the order of the verdict."""
    found: dict[str, dict[str, PolicyCell]] = {}
    for baseline in verdict.baselines:
        found.setdefault(baseline.name, {})[baseline.policy] = _cell(baseline)
    return tuple(
        BaselineRow(name, baseline_title(name), cells.get("kernel"), cells.get("as_called"))
        for name, cells in found.items()
    )


def _cell(baseline: Baseline) -> PolicyCell:
    return PolicyCell(
        time=milliseconds(baseline.time_ms),
        speedup=times(baseline.speedup),
        interval=interval(baseline.speedup_low, baseline.speedup_high),
    )


def failure_rows(statuses: Iterable[Status]) -> tuple[tuple[str, int], ...]:
    """(status, count) of those that are not correct, in the order of the ladder."""
    counts = dict.fromkeys(Status, 0)
    for status in statuses:
        counts[status] += 1
    return tuple((s.value, n) for s, n in counts.items() if n and s is not Status.CORRECT)


def milliseconds(time_ms: float | None) -> str:
    """A time with three significant digits and its unit; a dash for None."""
    if time_ms is None:
        return "-"
    if time_ms >= 1000:
        return f"{time_ms / 1000:.3g} s"
    if time_ms < 0.1:
        return f"{time_ms * 1000:.3g} µs"
    return f"{_significant(time_ms)} ms"


def times(ratio: float | None) -> str:
    """A ratio with three significant digits; a dash for None."""
    return "-" if ratio is None else f"{_significant(ratio)}x"


def interval(low: float | None, high: float | None) -> str:
    """A confidence interval; empty for None."""
    return "" if low is None or high is None else f"[{_significant(low)}, {_significant(high)}]"


def bound_title(verdict: Verdict) -> str:
    """Which bound a share of the roofline is a share of."""
    binds = {bound.binds for bound in verdict.roofline_detail}
    if len(binds) == 2:
        return "the roofline, memory in some cases and arithmetic in others"
    return "the arithmetic bound" if binds == {"arithmetic"} else "the memory bound"


def bound_sentence(verdict: Verdict) -> str:
    """How far the kernel is from its bound, which side of the roofline binds, and what the other says; empty if no
    bound is known."""
    if verdict.roofline is None or verdict.time_ms is None:
        return ""
    parts = [milliseconds(verdict.roofline * verdict.time_ms)]
    if len(verdict.roofline_detail) == 1:
        bound = verdict.roofline_detail[0]
        if bound.binds == "arithmetic":
            parts.append(
                f"for the operations of the reference; the bytes that must move take {milliseconds(bound.memory_ms)}"
            )
        else:
            parts.append("for the bytes that must move")
            if bound.arithmetic_ms:
                parts[-1] += f"; the operations take {milliseconds(bound.arithmetic_ms)}"
    uncounted = sorted({name for bound in verdict.roofline_detail for name in bound.uncounted})
    said = " ".join(parts) + (f"; not counted: {', '.join(uncounted)}" if uncounted else "")
    return f"{verdict.roofline:.0%} of {bound_title(verdict)} ({said})"


def duration(seconds: float) -> str:
    """``1 h 02 min``, ``3 min 05 s`` or ``12 s``."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole} s"


def size(count_bytes: int) -> str:
    """Bytes in binary units with three significant digits."""
    value = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def _significant(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
