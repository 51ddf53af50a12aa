"""One small run through the command line: optimise, show, report, list, resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

EVALUATIONS = 3
TASK = """
from jaxtyping import Float32
from torch import Tensor
from kernelworks.task import case, task

@task(cases=[case("main", "timed", rows=64, cols=256), case("odd", "check", rows=7, cols=33)])
def twice(x: Float32[Tensor, "rows cols"]) -> Float32[Tensor, "rows cols"]:
    return x * 2.0
"""
KERNEL = """/*---
contract: function
idea: plain loop, {name}
---*/
#include <cstdint>
extern "C" int launch(const float* x, float* out0, int64_t rows, int64_t cols) {{
    {pragma}
    for (int64_t i = 0; i < rows * cols; ++i) out0[i] = x[i] * 2.0f;
    return 0;
}}
"""


@dataclass(frozen=True)
class Finished:
    """A finished run and the world in which it lives."""

    folder: Path
    environment: dict[str, str]
    done: subprocess.CompletedProcess[str]

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kernelworks", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
            cwd=self.folder.parent,
        )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("run")
    (folder / "twice.py").write_text(TASK)
    environment = {**os.environ, "KERNELWORKS_HOME": str(tmp_path_factory.mktemp("home"))}
    return run_task(folder, environment, "--evaluations", str(EVALUATIONS), "--json")


def run_task(folder: Path, environment: dict[str, str], *options: str) -> Finished:
    world = Finished(folder / "run", environment, subprocess.CompletedProcess([], 0))
    done = world.call("optimize", "twice.py", "--run", str(world.folder), *options)
    return Finished(world.folder, environment, done)


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON on stdout, after the exit code was seen to be that of a run that ended."""
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def test_optimize_answers_in_json_with_progress_on_stderr(finished: Finished) -> None:
    result = answer(finished.done)
    assert result["status"] == "done"
    assert result["evaluations"] == EVALUATIONS
    assert result["stopped_by"] == "evaluations"
    assert Path(result["best"]["path"]).read_text().startswith("/*---")
    assert {b["policy"] for b in result["best"]["baselines"]} == {"kernel", "as_called"}
    assert "stopped by evaluations" in finished.done.stderr


def test_show_gives_the_same_answer(finished: Finished) -> None:
    shown = answer(finished.call("runs", "show", str(finished.folder), "--json"))
    assert shown == answer(finished.done)
    by_id = answer(finished.call("runs", "show", shown["run"], "--json"))
    assert by_id == shown


def test_list_knows_the_run(finished: Finished) -> None:
    (listed,) = answer(finished.call("runs", "list", "--json"))["runs"]
    assert listed["run"] == answer(finished.done)["run"]
    assert listed["task"] == "twice"


def test_report_is_written_again(finished: Finished) -> None:
    report = finished.folder / "report.html"
    report.unlink()
    done = finished.call("runs", "report", str(finished.folder))
    assert done.stdout.strip() == str(report)
    assert "twice" in report.read_text()


def test_resuming_a_finished_run_changes_nothing(finished: Finished) -> None:
    again = answer(finished.call("runs", "resume", "run", "--json"))
    before = answer(finished.done)
    assert (again["evaluations"], again["status"], again["run"]) == (EVALUATIONS, "done", before["run"])


def test_the_run_folder_must_be_new(finished: Finished) -> None:
    done = finished.call("optimize", "twice.py", "--run", "run", "--evaluations", "1")
    assert done.returncode == 2
    assert done.stderr.count("kernelworks: error: ") == 1


def test_the_users_kernels_come_first_and_events_are_streamed(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(TASK)
    (tmp_path / "mine.cpp").write_text(KERNEL.format(name="mine", pragma="#pragma omp simd"))
    ran = run_task(
        tmp_path, dict(os.environ), "--allow-unsandboxed", "--seed-kernel", "mine.cpp", "--evaluations", "1", "--events"
    )
    assert ran.done.returncode in (0, 1), ran.done.stderr
    lines = [json.loads(line) for line in ran.done.stdout.splitlines() if line.startswith("{")]
    kinds = [event["kind"] for event in lines]
    assert kinds.index("started") < kinds.index("trying") < kinds.index("evaluated") < kinds.index("finished")
    first = next(event for event in lines if event["kind"] == "trying")
    assert first["idea"] == "plain loop, mine"
