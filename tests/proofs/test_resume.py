"""A real run that is killed at random moments loses nothing, does nothing twice and ends where it would have ended."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from support.cli import SMALL_TASK, answer_of, kernelworks, kill, read_until, start

from kernelworks.app.state import RunState, read_state
from kernelworks.kernel.verdict import Status
from kernelworks.store.run import RunStore

EVALUATIONS = 30
KILLS = 5

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1800)]


def state_of(folder: Path) -> RunState:
    """Replays the whole log: the search must ask and answer as it did, or this raises."""
    with RunStore.open(folder, read_only=True) as store:
        return read_state(store)


def assert_goes_on(before: RunState, after: RunState) -> None:
    """The log only grew, and no best got worse."""
    assert after.events[: len(before.events)] == before.events
    assert after.verdicts[: len(before.verdicts)] == before.verdicts
    assert after.restored.elapsed_s >= before.restored.elapsed_s
    if before.search.best is not None:
        assert after.search.best is not None
        assert after.search.best.fitness >= before.search.best.fitness


def assert_whole(state: RunState) -> None:
    """Nothing lost, nothing twice, every seed once."""
    asked = [e.data for e in state.events if e.kind == "asked"]
    told = [e.data for e in state.events if e.kind == "told"]
    assert [a["number"] for a in asked] == list(range(1, len(asked) + 1))
    assert sorted(t["number"] for t in told) == [a["number"] for a in asked]
    assert len(state.asked) == EVALUATIONS
    assert [v.number for v in state.asked] == [t["number"] for t in told if t["result"] == "evaluated"]
    assert set(Counter(v.verdict.kernel for v in state.asked).values()) == {1}
    seeds = [a["seed_index"] for a in asked if a["operator"] == "seed"]
    assert seeds == list(range(len(seeds)))
    codes = Counter(v.verdict.code_digest for v in state.asked if v.verdict.code_digest)
    assert set(codes.values()) == {1}, "equal machine code was evaluated twice"


@pytest.mark.parametrize("seed", [1, 2])
def test_kill_9_at_five_random_moments(tmp_path: Path, seed: int) -> None:
    dice = Random(seed)
    task, folder = tmp_path / "scaled_softmax.py", tmp_path / "run"
    task.write_text(SMALL_TASK)
    first = ("optimize", str(task), "--evaluations", str(EVALUATIONS), "--seed", str(seed), "--run", str(folder))
    states: list[RunState] = []
    for session in range(KILLS):
        process = start(*(first if session == 0 else ("runs", "resume", str(folder))), "--events")
        read_until(process, dice.choice(["trying", "built", "evaluated", "told"]), dice.randint(1, 4))
        kill(process, after_s=dice.uniform(0.0, 0.5))
        state = state_of(folder)
        assert state.status == "interrupted"
        assert state.restored.evaluations < EVALUATIONS, "the kills came too late to show anything"
        if states:
            assert_goes_on(states[-1], state)
        states.append(state)

    done = kernelworks("runs", "resume", str(folder), "--json", timeout_s=900)
    assert done.returncode in (0, 1), done.stderr
    answer = answer_of(done)
    assert (answer["status"], answer["evaluations"], answer["stopped_by"]) == ("done", EVALUATIONS, "evaluations")
    final = state_of(folder)
    assert_goes_on(states[-1], final)
    assert_whole(final)
    assert sum(e.kind == "resumed" for e in final.events) == KILLS
    assert any(v.verdict.status is Status.CORRECT for v in final.asked)

    again = state_of(folder)
    assert again.search.state_digest() == final.search.state_digest()
