"""The search loop against a made-up world: what it asks, builds, times and tells, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from support.world import CONTEXT, Numbers, RecordedEngine, ScriptedEngine, Stage, World, number_kernel, number_of

from kernelworks.app.events import BuildDone, Evaluated, Told, Trying
from kernelworks.app.loop import ATTEMPTS, Clock
from kernelworks.engine.base import Job, JobReport
from kernelworks.errors import EvaluationError
from kernelworks.kernel.outcome import Outcome
from kernelworks.kernel.verdict import Status
from kernelworks.search.core import Search
from kernelworks.search.stopping import StopRules
from kernelworks.store.records import Event
from kernelworks.store.replay import restore
from kernelworks.store.run import RunStore


def last_in(jobs: Sequence[Job]) -> int:
    """The newest job is answered first."""
    return len(jobs) - 1


def builds_first(jobs: Sequence[Job]) -> int:
    """Evaluations wait as long as anything is built."""
    return next((at for at, job in enumerate(jobs) if job.kind == "build"), 0)


class Dice:
    """Jobs are answered in random order."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def __call__(self, jobs: Sequence[Job]) -> int:
        return self._random.randrange(len(jobs))


def told(events: Sequence[Event]) -> list[Event]:
    return [e for e in events if e.kind == "told"]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "run")


def test_failures_count_as_evaluations_and_the_seeds_come_first_and_once(stage: Stage) -> None:
    engine = stage.engine = ScriptedEngine(World(broken=5, wrong=7))
    with stage.create() as store:
        search = stage.search()
        assert stage.go(store, search) == "evaluations"
        verdicts, events = store.verdicts(), store.events()
    assert search.evaluations == len(verdicts) == 20
    assert {v.verdict.status for v in verdicts} == {Status.CORRECT, Status.BUILD_ERROR, Status.WRONG}
    evaluated = {job.kernel.id for job in engine.submitted if job.kind == "evaluate"}
    broken = {v.verdict.kernel for v in verdicts if v.verdict.status is Status.BUILD_ERROR}
    assert broken and not broken & evaluated
    seeds = [e.data for e in events if e.kind == "asked" and e.data["operator"] == "seed"]
    assert [s["seed_index"] for s in seeds] == [0, 1, 2]
    assert [number_of(job.kernel) for job in engine.submitted if job.kind == "build"][:3] == [0, 1, 2]


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("batch", [1, 9])
@pytest.mark.parametrize("limit", [1, 2, 7, 20])
def test_the_budget_is_never_exceeded(stage: Stage, depth: int, batch: int, limit: int) -> None:
    stage.depth, stage.rules = depth, StopRules(evaluations=limit)
    engine = stage.engine = ScriptedEngine(World(broken=3), order=Dice(depth), batch=batch)
    with stage.create() as store:
        search = stage.search()
        assert stage.go(store, search) == "evaluations"
        assert search.evaluations == limit == len(store.verdicts())
    assert not search.in_flight, "nothing was begun in vain"
    assert len(engine.answered) == len(engine.submitted)


def test_no_more_is_ahead_than_the_depth(stage: Stage) -> None:
    ahead: list[int] = []

    class Watched(ScriptedEngine):
        def collect(self, timeout_s: float) -> Sequence[JobReport]:
            builds = Counter(job.kind for job in self.submitted)["build"]
            ahead.append(builds - sum(r.verdict is not None for r in self.answered))
            return super().collect(timeout_s)

    stage.engine = Watched(order=builds_first)
    with stage.create() as store:
        stage.go(store, stage.search())
    assert max(ahead) == stage.depth + 1, "the depth, and the one that is evaluated"


@pytest.mark.parametrize("seed", range(4))
def test_builds_that_end_out_of_order_are_told_under_their_own_asks(stage: Stage, seed: int) -> None:
    engine = stage.engine = ScriptedEngine(World(broken=6), order=Dice(seed))
    with stage.create() as store:
        stage.go(store, stage.search())
        events = store.events()
    kernel_of = {e.data["number"]: e.data["kernel"] for e in events if e.kind == "proposed"}
    numbers = [e.data["number"] for e in told(events) if e.data["result"] == "evaluated"]
    assert numbers != sorted(numbers)
    assert all(e.data["kernel"] == kernel_of[e.data["number"]] for e in told(events) if e.data["kernel"])
    assert engine.evaluations_at_once == 1


def test_equal_texts_are_asked_for_again_and_then_given_up(stage: Stage) -> None:
    stage.proposer = Numbers(4, seeds=(0, 1, 2, 3))
    stage.rules = StopRules(evaluations=50, patience=5)
    with stage.create() as store:
        search = stage.search()
        assert stage.go(store, search) == "exhausted"
        events, verdicts = store.events(), store.verdicts()
    assert len(verdicts) == 4
    assert set(Counter(v.verdict.kernel for v in verdicts).values()) == {1}
    given_up = [e.data for e in told(events) if e.data["result"] == "duplicate"]
    assert len(given_up) >= 5
    for outcome in given_up:
        tries = [e.data for e in events if e.kind == "duplicate" and e.data["number"] == outcome["number"]]
        assert [t["attempt"] for t in tries] == list(range(ATTEMPTS))
        assert outcome["of"] == tries[-1]["kernel"]
    assert {request.attempt for request in stage.proposer.requests} == set(range(ATTEMPTS))


def test_a_seed_that_is_known_is_not_asked_for_again(stage: Stage) -> None:
    stage.proposer = Numbers(1000, seeds=(5, 5))
    stage.rules = StopRules(evaluations=1)
    with stage.create() as store:
        search = stage.search()
        stage.go(store, search)
        number = search.ask()
        assert number is None or number.operator == "seed"
        events = store.events()
    assert [e.data["kernel"] for e in events if e.kind == "proposed"] == [number_kernel(5).id]


def test_equal_machine_code_is_not_evaluated_twice(stage: Stage) -> None:
    engine = stage.engine = ScriptedEngine(World(codes=12))
    stage.rules = StopRules(evaluations=12)
    with stage.create() as store:
        stage.go(store, stage.search())
        events = store.events()
    codes = [number_of(job.kernel) % 12 for job in engine.submitted if job.kind == "evaluate"]
    assert sorted(codes) == list(range(12))
    built = {e.data["kernel"]: e.data["code_digest"] for e in events if e.kind == "built"}
    twins = [e.data for e in told(events) if e.data["result"] == "duplicate" and e.data["kernel"]]
    assert twins
    for twin in twins:
        assert twin["of"] != twin["kernel"]
        assert built[twin["of"]] == built[twin["kernel"]]


def test_a_proposer_without_moves_exhausts_the_search(stage: Stage) -> None:
    stage.proposer = Numbers(0)
    with stage.create() as store:
        search = stage.search()
        assert stage.go(store, search) == "exhausted"
        results = Counter(e.data["result"] for e in told(store.events()))
    assert search.evaluations == results["evaluated"] == 3
    assert results["nothing"] >= 3
    assert not search.in_flight


def test_patience_waits_for_what_is_in_flight(stage: Stage) -> None:
    """Duplicates come at once while a kernel is still built: it must not be thrown away."""
    stage.proposer = Numbers(12, seeds=(0, 1, 2))
    stage.rules = StopRules(patience=1)
    stage.engine = ScriptedEngine(order=last_in)
    with stage.create() as store:
        search = stage.search()
        assert stage.go(store, search) == "exhausted"
        proposed = {e.data["number"] for e in store.events() if e.kind == "proposed"}
        assert proposed == {v.number for v in store.verdicts()}
    assert not search.in_flight


def test_the_opponent_is_the_incumbent_of_the_cell_with_its_figures(stage: Stage) -> None:
    engine = stage.engine = ScriptedEngine()
    with stage.create() as store:
        search = stage.search()
        stage.go(store, search)
        stored = {v.verdict.kernel: v.verdict for v in store.verdicts()}
        events = store.events()
    replayed = Search(stage.seed, stage.numbers())
    incumbents: dict[str, str | None] = {}
    jobs = {job.kernel.id: job for job in engine.submitted if job.kind == "evaluate"}
    for event in events:
        if event.kind == "asked":
            replayed.ask()
        elif event.kind == "told":
            data = event.data
            verdict = stored.get(data["kernel"]) if data["result"] == "evaluated" else None
            if verdict is not None and verdict.descriptor is not None:
                incumbents[data["kernel"]] = replayed.incumbent(verdict.descriptor.cell)
            replayed.tell(
                data["number"], data["kernel"], Outcome(result=data["result"], verdict=verdict, of=data["of"])
            )
    met = 0
    for kernel, incumbent in incumbents.items():
        opponent = jobs[kernel].opponent
        assert (None if opponent is None else opponent.kernel.id) == incumbent
        if opponent is not None:
            rival = stored[opponent.kernel.id]
            figures = (opponent.speedup, opponent.speedup_low, opponent.speedup_high)
            assert figures == (rival.speedup, rival.speedup_low, rival.speedup_high)
            met += 1
    assert met > 5


def test_the_minutes_stop_it_and_what_is_in_flight_stays_for_a_resume(stage: Stage) -> None:
    stage.rules = StopRules(minutes=1.0)
    stage.clock = Clock(before_s=61.0)
    with stage.create() as store:
        search = stage.search()
        assert stage.go(store, search) == "minutes"
        again = stage.search()
        assert {p.number for p in restore(store, again).requeue} == set(search.in_flight)
    assert search.in_flight


def test_events_tell_the_way_of_every_kernel(stage: Stage) -> None:
    stage.engine = ScriptedEngine(World(broken=6, codes=40), order=Dice(3))
    with stage.create() as store:
        search = stage.search()
        stage.go(store, search)
        logged = store.events()
    events = stage.listener.events
    proposed = [e.data["kernel"] for e in logged if e.kind == "proposed"]
    assert [e.kernel for e in events if isinstance(e, Trying)] == proposed
    assert [e.kernel for e in events if isinstance(e, BuildDone)] == [
        e.data["kernel"] for e in logged if e.kind == "built"
    ]
    assert [e.evaluations for e in events if isinstance(e, Evaluated)] == list(range(1, 21))
    assert [e.number for e in events if isinstance(e, Told)] == [e.data["number"] for e in told(logged)]
    best = [e.kernel for e in events if isinstance(e, Evaluated) and e.best]
    assert search.best is not None and best[-1] == search.best.kernel_id
    assert max(e.filled for e in events if isinstance(e, Told)) == len(search.archive)
    outcomes = {e.outcome for e in events if isinstance(e, Told)}
    assert outcomes <= {"new", "improved", "rejected", "duplicate"}
    assert all(a.elapsed_s <= b.elapsed_s for a, b in pairwise(events))


def test_an_answer_without_a_verdict_is_a_defect_of_the_harness(stage: Stage) -> None:
    class Mute(ScriptedEngine):
        def collect(self, timeout_s: float) -> Sequence[JobReport]:
            return [JobReport(number=1, kind="build")]

    stage.engine = Mute()
    with stage.create() as store, pytest.raises(EvaluationError, match=r"job 1 \(build\): expected a verdict"):
        stage.go(store, stage.search())


def pending_run(stage: Stage) -> RunStore:
    """A run that died with three asks in flight: nothing proposed, proposed, and judged but not told."""
    store = stage.create()
    search = stage.search()
    store.append("started", {})
    kernels = stage.proposer.seeds(CONTEXT)
    for index in range(3):
        ask = search.ask()
        assert ask is not None
        with store.step() as step:
            step.asked(ask)
            if index > 0:
                step.proposed(ask.number, kernels[index])
    report = World().evaluate(Job(number=3, kind="evaluate", kernel=kernels[2]))
    assert report.verdict is not None
    store.record_verdict(3, report.verdict)
    store.close()
    return RunStore.open(stage.folder)


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_what_was_in_flight_is_done_first_and_within_the_budget(stage: Stage, limit: int) -> None:
    stage.rules = StopRules(evaluations=limit)
    engine = stage.engine = ScriptedEngine(batch=9)
    with pending_run(stage) as store:
        search = stage.search()
        restored = restore(store, search)
        assert stage.go(store, search, restored.requeue) == "evaluations"
        events, verdicts = store.events(), store.verdicts()
    assert search.evaluations == len(told(events)) == limit
    first = [number_kernel(number).id for number in (1, 2, 0)]
    assert {e.data["kernel"] for e in told(events)[:3]} == set(first[:limit])
    assert number_kernel(2).id not in {job.kernel.id for job in engine.submitted}, "its verdict was recorded"
    assert set(Counter(e.data["number"] for e in told(events)).values()) == {1}
    assert set(Counter(v.verdict.kernel for v in verdicts).values()) == {1}


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seed_and_the_recorded_answers_give_the_same_decisions(tmp_path: Path, seed: int) -> None:
    live = ScriptedEngine(World(broken=6, wrong=5, codes=60), order=Dice(seed))
    first = Stage(tmp_path / "first", proposer=Numbers(80), engine=live, seed=seed, rules=StopRules(evaluations=40))
    with first.create() as store:
        search = first.search()
        first.go(store, search)
        log = [(e.kind, e.data) for e in store.events()]
        restored = first.search()
        restore(store, restored)
        assert restored.state_digest() == search.state_digest()
    again = RecordedEngine(live.answered)
    second = Stage(tmp_path / "second", proposer=Numbers(80), engine=again, seed=seed, rules=first.rules)
    with second.create() as store:
        repeated = second.search()
        second.go(store, repeated)
        assert [(e.kind, e.data) for e in store.events()] == log
    assert again.submitted == live.submitted
    assert repeated.state_digest() == search.state_digest()
