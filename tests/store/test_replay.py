from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from support.runs import META, SEEDS, MiniatureRun, fresh_search, propose

import kernelworks
from kernelworks.errors import StoreError
from kernelworks.kernel.outcome import Outcome
from kernelworks.search import Search, SearchConfig
from kernelworks.store.records import Event
from kernelworks.store.replay import Restored, restore, search_time_s
from kernelworks.store.run import RunStore

EVALUATIONS = 60


def start(folder: Path, workers: int) -> subprocess.Popen[bytes]:
    """The miniature run as a process, once its search goes on."""
    paths = [str(Path(kernelworks.__file__).parents[1]), str(Path(__file__).parents[1])]
    process = subprocess.Popen(
        [sys.executable, "-m", "support.runs", str(folder), str(EVALUATIONS), str(workers)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def finish(process: subprocess.Popen[bytes]) -> None:
    with process:
        pass
    assert process.returncode == 0


def replayed(folder: Path) -> tuple[Search, Restored]:
    search = fresh_search()
    with RunStore.open(folder, read_only=True) as store:
        return search, restore(store, search)


def assert_whole(folder: Path) -> None:
    """Nothing lost, nothing twice."""
    with RunStore.open(folder, read_only=True) as store:
        events = store.events()
        told = [e.data for e in events if e.kind == "told"]
        asked = [e.data for e in events if e.kind == "asked"]
        evaluated = [t for t in told if t["result"] == "evaluated"]
        assert len(evaluated) == EVALUATIONS
        assert [a["number"] for a in asked] == list(range(1, len(asked) + 1))
        assert Counter(a["operator"] for a in asked)["seed"] == SEEDS
        assert sorted(t["number"] for t in told) == [a["number"] for a in asked]
        assert len({t["kernel"] for t in evaluated}) == EVALUATIONS
        assert [v.id for v in store.verdicts()] == sorted(t["verdict"] for t in evaluated)
        assert {v.verdict.kernel for v in store.verdicts()} <= {k.id for k in store.kernels()}


@pytest.mark.parametrize("workers", [1, 4])
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_totals(tmp_path: Path, workers: int) -> None:
    moments = Random(workers)
    folder = tmp_path / "run"
    best = float("-inf")
    done = kills = 0
    for _ in range(5):
        process = start(folder, workers)
        time.sleep(moments.uniform(0.0, 0.1))
        process.send_signal(signal.SIGKILL)
        with process:
            pass
        kills += process.returncode == -signal.SIGKILL
        search, restored = replayed(folder)
        assert len(restored.requeue) <= workers
        assert sorted(p.number for p in restored.requeue) == list(search.in_flight)
        assert restored.evaluations == search.evaluations >= done
        now = float("-inf") if search.best is None else search.best.fitness
        assert now >= best
        best, done = now, restored.evaluations
    assert kills > 0
    finish(start(folder, workers))
    assert_whole(folder)
    search, restored = replayed(folder)
    assert restored.requeue == ()
    assert (restored.evaluations, restored.stopped) == (EVALUATIONS, "evaluations")
    assert search.best is not None
    assert search.best.fitness >= best


def test_one_worker_killed_and_resumed_decides_as_one_that_was_not(tmp_path: Path) -> None:
    MiniatureRun(tmp_path / "whole", EVALUATIONS, workers=1).go(pause_s=0.0)
    folder = tmp_path / "cut"
    for moment_s in (0.01, 0.02, 0.03):
        process = start(folder, workers=1)
        time.sleep(moment_s)
        process.send_signal(signal.SIGKILL)
        with process:
            pass
    finish(start(folder, workers=1))
    whole, cut = replayed(tmp_path / "whole")[0], replayed(folder)[0]
    assert whole.state_digest() == cut.state_digest()


def test_a_verdict_that_was_recorded_but_not_told_comes_back(tmp_path: Path) -> None:
    run = MiniatureRun(tmp_path / "run", evaluations=3, workers=1)
    run.go(pause_s=0.0)
    search = fresh_search()
    with RunStore.open(tmp_path / "run", read_only=True) as whole, RunStore.create(tmp_path / "cut", META) as cut:
        kernels = {k.id: k for k in whole.kernels()}
        first = whole.verdicts()[0]
        ask = search.ask()
        assert ask is not None
        with cut.step() as step:
            step.asked(ask)
            step.proposed(1, kernels[first.verdict.kernel])
            step.record_verdict(1, first.verdict)
        (pending,) = restore(cut, fresh_search()).requeue
    assert (pending.number, pending.kernel, pending.verdict) == (1, kernels[first.verdict.kernel], first.verdict)


def test_an_ask_without_a_proposal_comes_back_without_a_kernel(tmp_path: Path) -> None:
    search = fresh_search()
    ask = search.ask()
    assert ask is not None
    with RunStore.create(tmp_path / "run", META) as store:
        with store.step() as step:
            step.asked(ask)
        again = fresh_search()
        (pending,) = restore(store, again).requeue
    assert (pending.number, pending.kernel, pending.verdict) == (1, None, None)
    assert again.in_flight[1] == ask


def test_what_has_a_kernel_is_requeued_before_what_has_none(tmp_path: Path) -> None:
    search = fresh_search()
    with RunStore.create(tmp_path / "run", META) as store:
        for number in (1, 2, 3):
            ask = search.ask()
            assert ask is not None
            kernel = propose(ask)
            assert kernel is not None
            with store.step() as step:
                step.asked(ask)
                if number != 1:
                    step.proposed(number, kernel)
        assert [p.number for p in restore(store, fresh_search()).requeue] == [2, 3, 1]


def test_another_seed_does_not_fit_the_log(tmp_path: Path) -> None:
    MiniatureRun(tmp_path / "run", evaluations=20, workers=1).go(pause_s=0.0)
    with (
        RunStore.open(tmp_path / "run", read_only=True) as store,
        pytest.raises(StoreError, match=r"event 2 \(asked\): expected \{.*\} as recorded, found \{.*another seed"),
    ):
        restore(store, Search(8, SearchConfig(seeds=SEEDS)))


def test_an_answer_that_differs_from_the_recorded_one_is_noticed(tmp_path: Path) -> None:
    search = fresh_search()
    ask = search.ask()
    assert ask is not None
    told = search.tell(1, "", Outcome.nothing())
    with RunStore.create(tmp_path / "run", META) as store:
        with store.step() as step:
            step.asked(ask)
            step.told(1, "", Outcome.nothing(), told.model_copy(update={"best_changed": True}))
        with pytest.raises(StoreError, match=r"event 2 \(told\): expected .*'best_changed': True"):
            restore(store, fresh_search())


def test_a_log_that_tells_twice_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    MiniatureRun(folder, evaluations=3, workers=1).go(pause_s=0.0)
    connection = sqlite3.connect(folder / "run.sqlite")
    with connection:
        copy = "INSERT INTO events (session, at_s, elapsed_s, kind, data) SELECT session, at_s, elapsed_s, kind, data"
        connection.execute(f"{copy} FROM events WHERE kind = 'told' LIMIT 1")
    connection.close()
    with pytest.raises(StoreError, match=r"found a refusal \(tell: expected the number of an ask in flight"):
        replayed(folder)


def event(session: int, elapsed_s: float, kind: str) -> Event:
    return Event(id=1, session=session, at_s=0.0, elapsed_s=elapsed_s, kind=kind, data={})


def test_search_time_is_that_between_start_and_stop_of_each_session() -> None:
    events = [
        event(1, 5.0, "baseline"),
        event(1, 10.0, "started"),
        event(1, 12.0, "asked"),
        event(1, 25.0, "told"),  # cut off here
        event(2, 3.0, "resumed"),
        event(2, 4.5, "told"),
        event(2, 5.0, "stopped"),
        event(2, 60.0, "baseline"),  # final measurements
        event(3, 1.0, "baseline"),  # never searched
    ]
    assert search_time_s(events) == 15.0 + 2.0
    assert search_time_s([]) == 0.0
