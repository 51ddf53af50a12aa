"""The end of a run against a made-up world: who is measured again, who wins, what is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.world import ScriptedEngine, Stage, World

from kernelworks.app.finish import FINALISTS, finish_run
from kernelworks.app.runs import run_result
from kernelworks.app.state import read_state
from kernelworks.engine.base import Job, JobReport
from kernelworks.kernel.verdict import Finding, Status, Verdict
from kernelworks.search.core import Search
from kernelworks.store.run import RunStore


class Moody(ScriptedEngine):
    """Finds some kernels wrong when they are measured again: by kind of job."""

    def __init__(self, bad: dict[str, set[str]]) -> None:
        super().__init__(World())
        self._bad = bad

    def _answer(self) -> JobReport:
        report = super()._answer()
        if report.number == 0 and report.verdict is not None and report.verdict.kernel in self._bad[report.kind]:
            finding = Finding(kind="values", message="made up")
            wrong = Verdict(kernel=report.verdict.kernel, status=Status.WRONG, findings=(finding,))
            return report.model_copy(update={"verdict": wrong})
        return report


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "run")


def searched(stage: Stage, store: RunStore) -> Search:
    """A search that has used up its evaluations."""
    search = stage.search()
    store.append("stopped", {"reason": stage.go(store, search)})
    return search


def final_jobs(engine: ScriptedEngine) -> list[Job]:
    return [job for job in engine.submitted if job.number == 0]


def test_the_best_elites_are_measured_again_and_one_wins(stage: Stage) -> None:
    engine = stage.engine = ScriptedEngine()
    with stage.create() as store:
        search = searched(stage, store)
        assert read_state(store).status == "interrupted"
        finish_run(store, search, engine, stage.listener, stage.clock.elapsed_s())
        state, result = read_state(store), run_result(store)
    ranked = [e.kernel_id for e in sorted(search.archive, key=lambda e: -e.fitness)]
    jobs = final_jobs(engine)
    assert [job.kernel.id for job in jobs if job.kind == "evaluate"] == ranked[:FINALISTS]
    assert all(job.opponent is None for job in jobs)
    assert [job.kernel.id for job in jobs if job.kind == "as_called"] == ranked[:1]
    assert state.winner is not None and state.winner.kernel == ranked[0]
    assert len(state.winner.comparisons) == 2, "of both policies"
    assert result.status == "done" and result.best is not None
    assert Path(result.best.path).read_text() == jobs[0].kernel.text
    assert Path(result.report).is_file()
    assert result.evaluations == len(state.asked) == 20, "final measurements are no evaluations"


def test_one_that_is_not_correct_again_gives_its_place_to_the_next(stage: Stage) -> None:
    first = Stage(stage.folder.with_name("first"))
    with first.create() as store:
        ranked = [e.kernel_id for e in sorted(searched(first, store).archive, key=lambda e: -e.fitness)]
    engine = stage.engine = Moody({"evaluate": {ranked[0]}, "as_called": {ranked[1]}})
    with stage.create() as store:
        finish_run(store, searched(stage, store), engine, stage.listener, stage.clock.elapsed_s())
        state = read_state(store)
    jobs = final_jobs(engine)
    assert [job.kernel.id for job in jobs if job.kind == "evaluate"] == ranked[: FINALISTS + 1]
    assert [job.kernel.id for job in jobs if job.kind == "as_called"] == ranked[1:3]
    assert state.winner is not None and state.winner.kernel == ranked[2]


def test_without_a_correct_kernel_there_is_no_winner(stage: Stage) -> None:
    engine = stage.engine = ScriptedEngine(World(broken=1))
    with stage.create() as store:
        finish_run(store, searched(stage, store), engine, stage.listener, stage.clock.elapsed_s())
        result = run_result(store)
    assert (result.status, result.best, result.exit_code) == ("done", None, 1)
    assert result.failures == {"build_error": 20}
    assert not list(stage.folder.glob("winner*"))
    assert Path(result.report).is_file()


def test_elites_that_all_fail_again_leave_no_winner(stage: Stage) -> None:
    first = Stage(stage.folder.with_name("first"))
    with first.create() as store:
        every = {e.kernel_id for e in searched(first, store).archive}
    engine = stage.engine = Moody({"evaluate": every, "as_called": set()})
    with stage.create() as store:
        finish_run(store, searched(stage, store), engine, stage.listener, stage.clock.elapsed_s())
        result = run_result(store)
    assert (result.status, result.best) == ("done", None)


def test_answers_to_the_search_that_come_late_are_ignored(stage: Stage) -> None:
    engine = stage.engine = ScriptedEngine()
    with stage.create() as store:
        search = searched(stage, store)
        late = Job(number=99, kind="build", kernel=store.kernels()[0])
        engine.submit(late)
        finish_run(store, search, engine, stage.listener, stage.clock.elapsed_s())
        assert read_state(store).status == "done"
