"""Whole runs through the command line: from a task to a winner, killed and resumed, and what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.cli import SMALL_TASK, answer_of, kernelworks, kill_after, start

from kernelworks.app.state import read_state
from kernelworks.store.run import RunStore

EVALUATIONS = 8

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def task_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("task") / "scaled_softmax.py"
    path.write_text(SMALL_TASK)
    return path


@pytest.fixture
def finished(task_file: Path, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path / "run"
    done = kernelworks("optimize", str(task_file), "--evaluations", str(EVALUATIONS), "--run", str(folder), "--json")
    assert done.returncode in (0, 1), done.stderr
    return folder, answer_of(done)


def test_a_run_ends_with_a_winner_a_report_and_a_place_in_the_registry(
    finished: tuple[Path, dict[str, Any]], task_file: Path
) -> None:
    folder, answer = finished
    assert answer["status"] == "done"
    assert answer["evaluations"] == EVALUATIONS
    assert answer["stopped_by"] == "evaluations"
    best = answer["best"]
    assert Path(best["path"]).read_text().startswith("/*---")
    assert 0 < best["speedup_low"] <= best["speedup"] <= best["speedup_high"]
    assert any(flag.startswith("-DLANES=") or flag == "-O3" for flag in best["flags"])
    policies = {(b["name"], b["policy"]) for b in best["baselines"]}
    assert {("eager", "kernel"), ("eager", "as_called")} <= policies
    report = (folder / "report.html").read_text()
    assert "http://" not in report.replace("http://www.w3.org/", "") and "src=" not in report
    shown = answer_of(kernelworks("runs", "show", answer["run"], "--json"))
    assert shown == answer
    listed = answer_of(kernelworks("runs", "list", "--json"))["runs"]
    assert [run["run"] for run in listed] == [answer["run"]]
    again = kernelworks("evaluate", str(task_file), best["path"], "--json")
    assert again.returncode == 0, again.stderr
    assert answer_of(again)["status"] == "correct"


def test_a_killed_run_is_resumed_to_the_same_total(task_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(
        "optimize", str(task_file), "--evaluations", str(EVALUATIONS), "--run", str(folder), "--events", "--json"
    )
    kill_after(process, "evaluated", 3)
    with RunStore.open(folder, read_only=True) as store:
        before = read_state(store)
    assert before.status == "interrupted"
    assert 3 <= before.restored.evaluations < EVALUATIONS
    done = kernelworks("runs", "resume", str(folder), "--json")
    assert done.returncode in (0, 1), done.stderr
    assert answer_of(done)["evaluations"] == EVALUATIONS
    with RunStore.open(folder, read_only=True) as store:
        after = read_state(store)
        told = Counter(e.data["number"] for e in after.events if e.kind == "told")
        kernels = Counter(v.verdict.kernel for v in after.asked)
    assert set(told.values()) == {1}
    assert set(kernels.values()) == {1}
    assert len(after.asked) == EVALUATIONS
    first = [v.verdict.kernel for v in before.asked]
    assert [v.verdict.kernel for v in after.asked][: len(first)] == first


def test_an_operation_that_no_expert_knows_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sorting.py"
    path.write_text(SMALL_TASK.replace("torch.softmax(2.0 * x, dim=-1)", "torch.sort(x, dim=-1).values"))
    done = kernelworks("optimize", str(path), "--evaluations", "2", "--json")
    assert done.returncode == 2
    error = answer_of(done)["error"]
    assert error["kind"] == "propose"
    assert "sort" in error["message"]
    assert "--seed-kernel" in error["message"] + error["mend"]
