"""Listing, showing and reporting runs that exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.world import ScriptedEngine, Stage, World

from kernelworks.app.finish import finish_run
from kernelworks.app.runs import list_runs, show_run, write_report
from kernelworks.errors import StoreError
from kernelworks.store.registry import register
from kernelworks.store.run import RunStore


def make_run(folder: Path, run: str, *, finish: bool, world: World | None = None) -> None:
    """A registered run in a made-up world."""
    engine = ScriptedEngine(world or World(broken=5))
    stage = Stage(folder, engine=engine, run=run)
    with stage.create() as store:
        register(run, folder, task="norm", target="cpp", created_at=store.meta.created_at)
        search = stage.search()
        reason = stage.go(store, search)
        if finish:
            store.append("stopped", {"reason": reason})
            finish_run(store, search, engine, stage.listener, stage.clock.elapsed_s())


def test_runs_are_listed_newest_first_with_what_show_says(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "20260101-00000001", finish=True)
    make_run(tmp_path / "b", "20260101-00000002", finish=False)
    make_run(tmp_path / "c", "20260101-00000003", finish=True, world=World(broken=1))
    found = list_runs()
    assert [(run.run[-1], run.status) for run in found] == [("3", "done"), ("2", "interrupted"), ("1", "done")]
    for line in found:
        shown = show_run(line.run)
        best = None if shown.best is None else shown.best.verdict
        assert (line.status, line.evaluations, line.folder) == (shown.status, shown.evaluations, shown.folder)
        assert line.speedup == (None if best is None else best.speedup)
        assert line.speedup_low == (None if best is None else best.speedup_low)
    assert found[0].speedup is None
    assert found[1].speedup is not None
    assert show_run(str(tmp_path / "a")) == show_run("20260101-00000001")


def test_a_damaged_run_does_not_hide_the_others_and_a_lost_one_is_left_out(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b", "c"), start=1):
        make_run(tmp_path / name, f"20260101-0000000{number}", finish=True)
    (tmp_path / "b" / "run.sqlite").write_bytes(b"not a database" * 100)
    (tmp_path / "c" / "run.sqlite").unlink()
    assert [(run.run[-1], run.status) for run in list_runs()] == [("2", "unreadable"), ("1", "done")]


def test_a_run_that_is_written_now_is_running(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "20260101-00000001", finish=True)
    with RunStore.open(tmp_path / "a"):
        assert [run.status for run in list_runs()] == ["running"]
        assert show_run("20260101-00000001").status == "running"


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    assert list_runs() == []
    for act in (show_run, write_report):
        with pytest.raises(StoreError, match="there is no such run"):
            act("20260101-00000001")


def test_the_report_of_a_run_that_is_not_finished_can_be_written(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "20260101-00000001", finish=False)
    assert show_run("20260101-00000001").report == ""
    path = write_report("20260101-00000001")
    assert path == tmp_path / "a" / "report.html"
    assert show_run("20260101-00000001").report == str(path)
    best = show_run("20260101-00000001").best
    assert best is not None and best.path == "", "the winner is not decided yet"
    assert best.kernel in path.read_text()


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "20260101-00000001", finish=False)
    (tmp_path / "a" / "report.html").mkdir()
    with pytest.raises(StoreError, match="expected a writable run folder"):
        write_report("20260101-00000001")
