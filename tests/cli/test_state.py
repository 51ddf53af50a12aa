from __future__ import annotations

import pytest
from support.events import finished_event, sample_events

from kernelworks.app.events import Phase
from kernelworks.cli.state import RunState
from kernelworks.kernel.verdict import Status


def state_after(evaluations: int | None = 10, minutes: float | None = None) -> RunState:
    state = RunState()
    for event in sample_events(evaluations, minutes):
        state.take(event)
    return state


def test_state_is_the_sum_of_events() -> None:
    state = state_after()
    assert state.evaluations == 2
    assert state.best is not None
    assert state.best.kernel == "k1"
    assert state.failures == {Status.WRONG: 1}
    assert list(state.in_flight) == [3]
    assert state.built == [3]
    assert (state.filled, state.reachable) == (1, 48)
    assert state.phase == "search"
    assert state.move_of(2) == "unroll 2 -> 4"
    state.take(finished_event())
    assert state.finished is not None


def test_time_left_follows_the_rate_of_evaluations() -> None:
    # 2 evaluations in 2.1 s of search, 8 to go.
    assert state_after(10).left_s == pytest.approx(8 * 2.1 / 2)
    assert state_after(10).share_done == pytest.approx(0.2)


def test_time_left_follows_the_minutes() -> None:
    state = state_after(None, 0.5)
    assert state.left_s == pytest.approx(30 - 2.1)
    assert state.share_done == pytest.approx(2.1 / 30)


def test_the_nearer_limit_counts() -> None:
    assert state_after(10, 0.1).left_s == pytest.approx(6 - 2.1)


def test_nothing_is_told_before_the_search() -> None:
    state = RunState()
    assert state.left_s is None
    assert state.share_done == 0.0


def test_a_resumed_run_counts_from_where_it_stopped() -> None:
    state = RunState()
    for event in sample_events(10, 1.0):
        later = event.model_copy(update={"elapsed_s": event.elapsed_s + 30})
        if later.kind == "started":
            later = later.model_copy(update={"done": 5})
        if later.kind == "evaluated":
            later = later.model_copy(update={"evaluations": later.evaluations + 5})
        state.take(later)
    assert state.evaluations == 7
    assert state.left_s == pytest.approx(3 * 2.1 / 2)
    assert state.share_done == pytest.approx(0.7)


def test_no_time_is_left_once_the_search_is_over() -> None:
    state = state_after()
    state.take(Phase(elapsed_s=5.0, name="final"))
    assert state.left_s is None
