"""The live view of a run on a terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kernelworks.app.events import RunEvent, Trying
from kernelworks.cli.plain import baseline_text, time_left_text
from kernelworks.cli.state import RunState
from kernelworks.report.tables import baseline_title, duration, interval, milliseconds, times

REFRESH_S = 0.25
SHOWN_IN_FLIGHT = 3


class LiveView:
    """A listener and a context manager: the view stands while the context is open.

    It draws when an event comes and at most four times a second, never from a thread of its own: a thread that
    wakes up would disturb the timings that it reports.
    """

    def __init__(self, console: Console) -> None:
        self._state = RunState()
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn_s = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def on_event(self, event: RunEvent) -> None:
        """Take an event and draw, unless something was drawn just now."""
        self._state.take(event)
        now = time.monotonic()
        if now - self._drawn_s >= REFRESH_S or event.kind in ("phase", "finished"):
            self._drawn_s = now
            self._live.update(render(self._state), refresh=True)


def render(state: RunState) -> RenderableType:
    """The view of a state."""
    started = state.started
    title = Text(f"{started.task} on {started.device} ({started.target})" if started else "loading the task")
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    rows.add_row("phase", Text(f"{state.phase} {state.detail}".strip()))
    for baseline in state.baselines[-4:]:
        rows.add_row("", Text(baseline_text(baseline)))
    rows.add_row("best", _best(state))
    rows.add_row("trying", _trying(state))
    if state.reachable:
        rows.add_row("archive", Text(f"{state.filled} of {state.reachable} cells filled"))
    failures = ", ".join(f"{status.value} {count}" for status, count in state.failures.most_common())
    rows.add_row("failures", Text(failures or "none", style="yellow" if failures else ""))
    return Panel(Group(_progress(state), rows), title=title, title_align="left", border_style="cyan")


def _progress(state: RunState) -> RenderableType:
    started = state.started
    limits: list[str] = []
    if started is not None and started.evaluations:
        limits.append(f"{state.evaluations} of {started.evaluations} evaluations")
    else:
        limits.append(f"{state.evaluations} evaluations")
    limits.append(duration(state.elapsed_s))
    left = time_left_text(state.left_s)
    if left:
        limits.append(f"{left} left")
    line = Table.grid(padding=(0, 2))
    line.add_row(ProgressBar(total=1.0, completed=state.share_done, width=32), Text(", ".join(limits)))
    return line


def _best(state: RunState) -> Text:
    if state.best is None:
        return Text("none yet")
    verdict = state.best.verdict
    anchor = baseline_title(state.started.anchor) if state.started else "the anchor"
    text = Text(f"{times(verdict.speedup)} ", style="bold green")
    text.append(f"{interval(verdict.speedup_low, verdict.speedup_high)} over {anchor}", style="not bold default")
    text.append(f", {milliseconds(verdict.time_ms)}, kernel {state.best.kernel}", style="not bold default")
    return text


def _trying(state: RunState) -> Text:
    in_order = sorted(state.in_flight, key=lambda number: (number not in state.built, number))
    lines = [f"#{number} {_where(state, number)}: {_what(state.in_flight[number])}" for number in in_order]
    rest = len(lines) - SHOWN_IN_FLIGHT
    shown = lines[:SHOWN_IN_FLIGHT] + ([f"and {rest} more"] if rest > 0 else [])
    return Text("\n".join(shown) or "-", no_wrap=True, overflow="ellipsis")


def _where(state: RunState, number: int) -> str:
    if number not in state.built:
        return "building"
    return "on the device" if number == state.built[0] else "built"


def _what(trying: Trying) -> str:
    return trying.move or trying.idea or trying.operator
