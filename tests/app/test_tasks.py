"""Checking a task and writing a new one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelworks.app.tasks import check_task, new_task
from kernelworks.errors import TaskError, UsageError
from kernelworks.task.source import TaskReference

TWICE = """
import numpy as np
from jaxtyping import Float32
from kernelworks.task import case, task

@task(cases=[case("main", "timed", rows=64, cols=256), case("odd", "check", rows=7, cols=33)])
def twice(x: Float32[np.ndarray, "rows cols"]) -> Float32[np.ndarray, "rows cols"]:
    return x * np.float32(2.0)
"""


def reference(tmp_path: Path, text: str) -> TaskReference:
    path = tmp_path / "op.py"
    path.write_text(text)
    return TaskReference(target=str(path))


def test_a_good_task_has_its_prototype(tmp_path: Path) -> None:
    answer = check_task(reference(tmp_path, TWICE), load_only=False)
    assert answer.ok, answer.problems
    assert answer.prototype == 'extern "C" int launch(const float* x, float* out0, int64_t rows, int64_t cols)'
    assert answer.task is not None and answer.task.dims == ("rows", "cols")


@pytest.mark.parametrize(
    ("returned", "kind"),
    [("np.ones_like(x)", "constant"), ("x.copy()", "copy"), ("x + np.float32(np.random.rand())", "determin")],
)
def test_a_task_that_no_verdict_would_mean_anything_on(tmp_path: Path, returned: str, kind: str) -> None:
    answer = check_task(reference(tmp_path, TWICE.replace("x * np.float32(2.0)", returned)), load_only=False)
    assert not answer.ok
    assert any(kind in name + message for name, message in answer.problems)
    assert check_task(reference(tmp_path, TWICE), load_only=True).problems == ()


def test_load_only_makes_no_inputs(tmp_path: Path) -> None:
    huge = TWICE.replace("rows=64, cols=256", "rows=2**30, cols=2**20")
    assert check_task(reference(tmp_path, huge), load_only=True).ok


def test_a_task_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"op\.py"):
        check_task(reference(tmp_path, "def ("), load_only=False)


def test_a_new_task_can_be_checked_as_it_is(tmp_path: Path) -> None:
    path = new_task("my_op", tmp_path)
    assert path == tmp_path / "my_op.py"
    assert check_task(TaskReference(target=str(path)), load_only=False).ok


def test_a_new_task_overwrites_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n")
    with pytest.raises(UsageError, match="expected a new file, found an existing one"):
        new_task("mine", tmp_path)
    assert (tmp_path / "mine.py").read_text() == "x = 1\n"
    with pytest.raises(TaskError, match="expected a name"):
        new_task("for", tmp_path)
    with pytest.raises(UsageError, match="expected a writable folder"):
        new_task("op", tmp_path / "mine.py")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]
