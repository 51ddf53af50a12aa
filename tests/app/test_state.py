"""Where a run stands, read from its log."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.world import ScriptedEngine, Stage

from kernelworks.app.finish import finish_run
from kernelworks.app.state import RunState, read_state
from kernelworks.search.stopping import StopRules
from kernelworks.store.replay import restore
from kernelworks.store.run import RunStore


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "run", rules=StopRules(evaluations=6))


def state_of(folder: Path, *, live: bool = False) -> RunState:
    with RunStore.open(folder, read_only=True) as store:
        return read_state(store, live=live)


def finish(stage: Stage, evaluations: int) -> None:
    """Start the run, or resume it, and carry it to its end."""
    new = not stage.folder.exists()
    stage.rules, stage.engine = StopRules(evaluations=evaluations), ScriptedEngine()
    with stage.create() if new else RunStore.open(stage.folder) as store:
        search = stage.search()
        requeue = restore(store, search).requeue
        store.append("stopped", {"reason": stage.go(store, search, requeue)})
        finish_run(store, search, stage.engine, stage.listener, stage.clock.elapsed_s())


def test_before_the_final_measurements_the_best_elite_leads(stage: Stage) -> None:
    with stage.create() as store:
        search = stage.search()
        stage.go(store, search)
    state = state_of(stage.folder)
    assert (state.status, state.restored.stopped) == ("interrupted", "")
    assert search.best is not None and state.winner is not None
    assert state.winner.kernel == search.best.kernel_id
    assert state.search.state_digest() == search.state_digest()
    assert state_of(stage.folder, live=True).status == "running"


def test_a_run_without_an_event_is_interrupted(stage: Stage) -> None:
    stage.create().close()
    state = state_of(stage.folder)
    assert (state.status, state.winner, state.asked, state.failures) == ("interrupted", None, (), {})


def test_a_run_is_done_until_its_search_goes_on(stage: Stage) -> None:
    finish(stage, 6)
    assert state_of(stage.folder).status == "done"
    with RunStore.open(stage.folder) as store:
        search = stage.search()
        restore(store, search)
        stage.rules, stage.engine = StopRules(evaluations=12), ScriptedEngine()
        store.append("stopped", {"reason": stage.go(store, search)})
    state = state_of(stage.folder)
    assert (state.status, state.restored.stopped) == ("interrupted", "evaluations"), "the finalists are to be measured"
    finish(stage, 12)
    again = state_of(stage.folder)
    assert (again.status, len(again.asked)) == ("done", 12)


def test_an_interrupt_of_the_final_measurements_leaves_it_interrupted(stage: Stage) -> None:
    with stage.create() as store:
        store.append("stopped", {"reason": stage.go(store, stage.search())})
        store.append("stopped", {"reason": "interrupt"})
    assert state_of(stage.folder).status == "interrupted"
