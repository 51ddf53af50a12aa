"""Whole runs through the command line: from a task to a winner, interrupted, killed and resumed."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.cli import SMALL_TASK, answer_of, interrupt, kernelworks, kill, read_until, start

from kernelworks.app.state import read_state
from kernelworks.store.run import RunStore

EVALUATIONS = 6
SORTED = SMALL_TASK.replace("torch.softmax(2.0 * x, dim=-1)", "torch.sort(x, dim=-1).values")
# Without torch a session takes seconds; the kernels are then the user's.
NUMPY_SORT = """
import numpy as np
from jaxtyping import Float32

from kernelworks.task import case, task


@task(cases=[case("main", "timed", rows=300, cols=500), case("odd", "check", rows=7, cols=33)])
def sorted_rows(x: Float32[np.ndarray, "rows cols"]) -> Float32[np.ndarray, "rows cols"]:
    return np.sort(x, axis=-1)
"""
SORTING = """/*---
contract: function
idea: sort a copy of each row, NaN last as NumPy does
---*/
#include <algorithm>
#include <cstdint>
extern "C" int launch(const float* x, float* out0, int64_t rows, int64_t cols) {
#pragma omp parallel for
    for (int64_t row = 0; row < rows; ++row) {
        std::copy(x + row * cols, x + (row + 1) * cols, out0 + row * cols);
        std::sort(out0 + row * cols, out0 + (row + 1) * cols,
                  [](float a, float b) { return a < b || (a == a && b != b); });
    }
    return 0;
}
"""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    path = tmp_path / "scaled_softmax.py"
    path.write_text(SMALL_TASK)
    return path


def assert_whole(folder: Path, evaluations: int) -> None:
    """Nothing lost, nothing twice."""
    with RunStore.open(folder, read_only=True) as store:
        state = read_state(store)
    numbers = Counter(e.data["number"] for e in state.events if e.kind == "told")
    assert set(numbers.values()) == {1}
    assert set(Counter(v.verdict.kernel for v in state.asked).values()) == {1}
    assert len(state.asked) == state.restored.evaluations == evaluations


def test_a_run_ends_with_a_winner_a_report_and_a_place_in_the_registry(task_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = kernelworks("optimize", str(task_file), "--evaluations", str(EVALUATIONS), "--run", str(folder), "--json")
    answer = answer_of(done)
    assert (answer["status"], answer["evaluations"], answer["stopped_by"]) == ("done", EVALUATIONS, "evaluations")
    best = answer["best"]
    assert Path(best["path"]).read_text().startswith("/*---")
    assert 0 < best["speedup_low"] <= best["speedup"] <= best["speedup_high"]
    assert "-march=native" in best["flags"]
    policies = {(b["name"], b["policy"]) for b in best["baselines"]}
    assert {("eager", "kernel"), ("eager", "as_called")} <= policies
    rivals = [b for b in best["baselines"] if b["policy"] == "kernel"]
    beaten = min(rivals, key=lambda b: b["time_ms"])["speedup_low"] > 1.0
    assert done.returncode == (0 if beaten else 1)
    report = (folder / "report.html").read_text()
    assert "http://" not in report.replace("http://www.w3.org/", "") and "src=" not in report
    assert answer_of(kernelworks("runs", "show", answer["run"], "--json")) == answer
    (listed,) = answer_of(kernelworks("runs", "list", "--json"))["runs"]
    assert (listed["run"], listed["status"], listed["speedup"]) == (answer["run"], "done", best["speedup"])
    assert_whole(folder, EVALUATIONS)

    again = kernelworks("evaluate", str(task_file), best["path"], "--allow-unsandboxed", "--json")
    assert again.returncode == 0, again.stderr
    assert answer_of(again)["status"] == "correct"

    resumed = kernelworks("runs", "resume", answer["run"], "--events")
    assert resumed.returncode == done.returncode
    assert '"kind"' not in resumed.stdout, "nothing was done again"
    occupied = kernelworks("optimize", str(task_file), "--run", str(folder), "--json")
    assert occupied.returncode == 2
    assert "expected a new or empty folder, found a run" in answer_of(occupied)["error"]["message"]
    task_file.write_text(SMALL_TASK.replace("2.0 *", "3.0 *"))
    changed = kernelworks("runs", "resume", answer["run"], "--evaluations", "99", "--json")
    assert changed.returncode == 2
    assert "expected the task as it was when the run began" in answer_of(changed)["error"]["message"]


@pytest.fixture
def sorting(tmp_path: Path) -> list[str]:
    """Task and options of a run over six kernels that sort."""
    task = tmp_path / "sorted_rows.py"
    task.write_text(NUMPY_SORT)
    arguments = [str(task), "--allow-unsandboxed"]
    for chunk in range(1, EVALUATIONS + 1):
        kernel = tmp_path / f"sort_{chunk}.cpp"
        kernel.write_text(SORTING.replace("parallel for", f"parallel for schedule(static, {chunk})"))
        arguments += ["--seed-kernel", str(kernel)]
    return arguments


def test_an_interrupted_and_a_killed_run_go_on_to_the_same_total(sorting: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    limit = ("--evaluations", str(EVALUATIONS))
    process = start("optimize", *sorting, *limit, "--run", str(folder), "--events", "--json")
    read_until(process, "evaluated", 2)
    out, _ = interrupt(process)
    assert process.returncode == 4
    answer = json.loads(out.splitlines()[-1])
    assert (answer["status"], answer["stopped_by"]) == ("interrupted", "interrupt")
    assert answer["next"] == f"kernelworks runs resume {answer['run']}"
    assert 2 <= answer["evaluations"] < EVALUATIONS

    process = start("runs", "resume", answer["run"], "--events", "--json")
    read_until(process, "evaluated", 2)
    kill(process)
    with RunStore.open(folder, read_only=True) as store:
        before = read_state(store)
    assert before.status == "interrupted"
    assert answer["evaluations"] + 2 <= before.restored.evaluations <= EVALUATIONS

    done = kernelworks("runs", "resume", str(folder), "--json")
    assert done.returncode in (0, 1), done.stderr
    assert answer_of(done)["evaluations"] == EVALUATIONS
    assert_whole(folder, EVALUATIONS)
    with RunStore.open(folder, read_only=True) as store:
        after = read_state(store)
    assert after.asked[: len(before.asked)] == before.asked


def test_an_interrupt_outside_the_search_can_be_resumed_too(sorting: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start("optimize", *sorting, "--evaluations", "2", "--run", str(folder), "--events")
    read_until(process, "baseline")
    out, err = interrupt(process, signal.SIGTERM)
    assert process.returncode == 4
    assert "continue it with: kernelworks runs resume" in err
    assert all(json.loads(line)["kind"] for line in out.splitlines())

    process = start("runs", "resume", str(folder), "--events", "--json")
    read_until(process, "phase", name="final")
    out, _ = interrupt(process)
    assert process.returncode == 4
    answer = json.loads(out.splitlines()[-1])
    assert (answer["status"], answer["evaluations"]) == ("interrupted", 2)

    done = answer_of(kernelworks("runs", "resume", str(folder), "--json"))
    assert (done["status"], done["evaluations"], done["stopped_by"]) == ("done", 2, "evaluations")

    more = ("--evaluations", "3", "--json")
    done = answer_of(kernelworks("runs", "resume", str(folder), *more))
    assert (done["status"], done["evaluations"], done["stopped_by"]) == ("done", 3, "evaluations")
    assert_whole(folder, 3)


def test_an_operation_that_no_expert_knows_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sorting.py"
    path.write_text(SORTED)
    folder = tmp_path / "run"
    done = kernelworks("optimize", str(path), "--evaluations", "2", "--run", str(folder), "--json")
    assert done.returncode == 2
    error = answer_of(done)["error"]
    assert error["kind"] == "propose"
    assert "sort" in error["message"]
    assert "--seed-kernel" in error["message"] + error["mend"]
    assert not folder.exists(), "nothing began"


def test_kernels_of_the_user_stand_alone_where_no_expert_knows_the_operation(tmp_path: Path) -> None:
    path, good, bad = tmp_path / "sorting.py", tmp_path / "good.cpp", tmp_path / "bad.cpp"
    path.write_text(NUMPY_SORT)
    good.write_text(SORTING)
    bad.write_text(SORTING.replace("idea:", 'constraints: ["cols < 0"]\nidea:'))
    seeds = ("--allow-unsandboxed", "--seed-kernel", str(bad), "--seed-kernel", str(good))
    process = start("optimize", str(path), *seeds, "--run", str(tmp_path / "run"), "--events", "--json")
    read_until(process, "trying")
    good.unlink()  # the run keeps its seeds
    kill(process)
    done = kernelworks("runs", "resume", str(tmp_path / "run"), "--json")
    assert done.returncode in (0, 1), done.stderr
    answer = answer_of(done)
    assert (answer["status"], answer["evaluations"], answer["stopped_by"]) == ("done", 2, "exhausted")
    assert answer["failures"] == {"invalid": 1}
    assert Path(answer["best"]["path"]).read_text() == SORTING


BAD_TASKS: dict[str, tuple[str, str]] = {
    "syntax error": (SMALL_TASK.replace("return", "return ("), "never closed"),
    "unknown dims in a case": (SMALL_TASK.replace("cols=500", "columns=500"), "'columns'"),
    "no cases": (SMALL_TASK.replace('[case("main", "timed", rows=300, cols=500), ', "[][:0] and ["), "case"),
    "size overflow": (SMALL_TASK.replace("rows=300", "rows=2**62"), "overflow"),
    "non-finite output": (SMALL_TASK.replace("torch.softmax(2.0 * x, dim=-1)", "torch.log(x - x)"), "finite"),
    "NaN in a constant": (
        SMALL_TASK.replace("]) -> Float32", "], s: float) -> Float32").replace(
            "cols=500)", "cols=500, s=float('nan'))"
        ),
        "NaN",
    ),
    "no task in it": ("x = 1\n", "task"),
    "ends its process": (SMALL_TASK + "\nimport os\nos._exit(3)\n", "ended during 'load' (exit code 3)"),
}


@pytest.mark.parametrize("name", BAD_TASKS)
def test_a_bad_task_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    text, says = BAD_TASKS[name]
    path, folder = tmp_path / "bad.py", tmp_path / "run"
    path.write_text(text)
    done = kernelworks("optimize", str(path), "--run", str(folder), "--json")
    assert_one_sentence(done, says)
    assert not folder.exists(), "nothing began"


def bad_options(tmp_path: Path, task_file: Path) -> dict[str, tuple[list[str], str]]:
    """Arguments of ``optimize`` that cannot be, and what the answer must name."""
    file = tmp_path / "a_file"
    file.write_text("")
    config, nested = tmp_path / "config.toml", tmp_path / "nested.toml"
    config.write_text("speed = 1\n")
    nested.write_text("[budget]\nevaluatoins = 3\n")
    kernel = tmp_path / "plain.cpp"
    kernel.write_text("int launch();\n")
    slip = tmp_path / "slip.cpp"
    slip.write_text(SORTING.replace("idea:", 'constraints: ["BLOCK <= cols"]\nidea:'))
    task = str(task_file)
    return {
        "missing task": ([str(tmp_path / "nowhere.py")], "nowhere.py"),
        "folder is a file": ([task, "--run", str(file)], "a_file"),
        "folder below a file": ([task, "--run", str(file / "run")], "a_file"),
        "folder cannot be made": ([task, "--run", "/proc/kernelworks/run"], "/proc/kernelworks"),
        "unknown key": ([task, "--config", str(config)], "speed"),
        "unknown nested key": ([task, "--config", str(nested)], "evaluatoins"),
        "missing seed kernel": ([task, "--seed-kernel", str(tmp_path / "none.cpp")], "none.cpp"),
        "seed kernel without front matter": ([task, "--seed-kernel", str(kernel)], "plain.cpp: line 1: expected front"),
        "unknown proposer": ([task, "--proposer", "oracle"], "'oracle'"),
        "unknown target": ([task, "--target", "abacus"], "'abacus'"),
        "unknown name in a constraint": ([task, "--seed-kernel", str(slip)], "'BLOCK'"),
        "unknown constant": ([task, "--set", "ROWS=3"], "ROWS"),
    }


def test_bad_options_are_refused_in_one_sentence(tmp_path: Path, task_file: Path) -> None:
    for arguments, says in bad_options(tmp_path, task_file).values():
        assert_one_sentence(kernelworks("optimize", *arguments, "--json"), says)


def assert_one_sentence(done: Any, says: str) -> None:
    assert done.returncode == 2, (done.args, done.stdout, done.stderr)
    message = answer_of(done)["error"]["message"]
    assert says in message
    assert "\n" not in message
    assert done.stderr.splitlines()[-1].startswith(f"kernelworks: error: {message}")
    assert "Traceback" not in done.stderr
