from __future__ import annotations

import io

from rich.console import Console
from support.events import finished_event, sample_events

from kernelworks.cli.live import LiveView, render
from kernelworks.cli.state import RunState


def drawn(state: RunState) -> str:
    console = Console(file=io.StringIO(), width=110, record=True)
    console.print(render(state))
    return console.export_text()


def test_the_view_shows_what_was_asked_for() -> None:
    state = RunState()
    for event in sample_events():
        state.take(event)
    text = drawn(state)
    for part in (
        "rms_norm on Example CPU (cpp)",
        "2 of 10 evaluations",
        "about 8 s left",
        "3.00x [2.96, 3.04] over torch eager, 4.00 ms, kernel k1",
        "#3 on the device: schedule -> dynamic",
        "1 of 48 cells filled",
        "wrong 1",
        "torch.compile (kernel): not measured",
    ):
        assert part in text, part


def test_an_empty_state_draws() -> None:
    text = drawn(RunState())
    assert "loading the task" in text
    assert "none yet" in text


def test_markup_in_a_move_is_text() -> None:
    state = RunState()
    for event in sample_events():
        state.take(event.model_copy(update={"move": "[bold]x[/nonsense]"}) if event.kind == "trying" else event)
    assert "[bold]x[/nonsense]" in drawn(state)


def test_the_view_lives_on_a_terminal_and_leaves_nothing_behind() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=110, height=40, force_terminal=True)
    with LiveView(console) as view:
        for event in [*sample_events(), finished_event()]:
            view.on_event(event)
    written = stream.getvalue()
    assert "rms_norm on Example CPU" in written
    assert written.endswith("\x1b[2K")  # the last act erases the view


def test_long_moves_stay_on_their_line() -> None:
    state = RunState()
    for event in sample_events():
        state.take(event.model_copy(update={"move": "m" * 300}) if event.kind == "trying" else event)
    lines = drawn(state).splitlines()
    assert sum("mmm" in line for line in lines) == 1
    assert len({len(line) for line in lines}) == 1
