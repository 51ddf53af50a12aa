"""Kernel files of the user, one verdict each."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelworks.app.evaluate import evaluate_files
from kernelworks.app.options import EvaluateOptions
from kernelworks.errors import TaskRefusedError, UsageError
from kernelworks.kernel.verdict import Status, Verdict
from kernelworks.task.source import TaskReference

TASK = """
import numpy as np
from jaxtyping import Float32
from kernelworks.task import case, task

@task(cases=[case("main", "timed", rows=64, cols=256), case("odd", "check", rows=7, cols=33)])
def twice(x: Float32[np.ndarray, "rows cols"]) -> Float32[np.ndarray, "rows cols"]:
    return x * np.float32(2.0)
"""
RIGHT = """/*---
contract: function
---*/
#include <cstdint>
extern "C" int launch(const float* x, float* out0, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows * cols; ++i) out0[i] = x[i] * 2.0f;
    return 0;
}
"""
KERNELS = {
    "right.cpp": RIGHT,
    "wrong.cpp": RIGHT.replace("2.0f", "2.1f"),
    "bare.cpp": RIGHT.split("---*/\n")[1],
    "unknown.cpp": RIGHT.replace("function\n", 'function\nconstraints: ["BLOCK <= cols"]\n'),
    "text.md": RIGHT,
    "broken.cpp": RIGHT.replace("return 0;", "return nothing;"),
}


def evaluate(tmp_path: Path, names: list[str], task: str = TASK) -> tuple[int, list[Verdict]]:
    (tmp_path / "twice.py").write_text(task)
    for name, text in KERNELS.items():
        (tmp_path / name).write_text(text)
    found: list[Verdict] = []
    reference = TaskReference(target=str(tmp_path / "twice.py"))
    code = evaluate_files(reference, [str(tmp_path / name) for name in names], EvaluateOptions(), found.append)
    return code, found


def test_every_file_has_its_verdict_in_the_order_given(tmp_path: Path) -> None:
    code, verdicts = evaluate(tmp_path, list(KERNELS))
    assert code == 1
    assert {Path(v.path).name: v.status for v in verdicts} == {
        "right.cpp": Status.CORRECT,
        "wrong.cpp": Status.WRONG,
        "bare.cpp": Status.INVALID,
        "unknown.cpp": Status.INVALID,
        "text.md": Status.INVALID,
        "broken.cpp": Status.BUILD_ERROR,
    }
    assert [v.path for v in verdicts] == [str(tmp_path / name) for name in KERNELS]
    messages = {Path(v.path).name: v.findings[0].message for v in verdicts if v.findings}
    assert "expected front matter" in messages["bare.cpp"]
    assert "unknown name 'BLOCK'" in messages["unknown.cpp"]
    assert ".cpp" in messages["text.md"]
    assert "nothing" in messages["broken.cpp"]


def test_only_correct_kernels_give_zero(tmp_path: Path) -> None:
    code, (verdict,) = evaluate(tmp_path, ["right.cpp"])
    assert (code, verdict.status) == (0, Status.CORRECT)
    assert verdict.speedup is not None


def test_a_file_that_is_not_there_stops_it_before_anything_is_evaluated(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"kernel .*none\.cpp: expected a file, found none"):
        evaluate(tmp_path, ["right.cpp", "none.cpp"])


def test_a_task_on_which_no_verdict_would_mean_anything_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskRefusedError, match="constant"):
        evaluate(tmp_path, ["right.cpp"], TASK.replace("x * np.float32(2.0)", "np.zeros_like(x)"))
