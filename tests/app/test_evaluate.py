"""Kernel files of the user, one verdict each."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelworks.app import evaluate as module
from kernelworks.app.config import load_config
from kernelworks.app.evaluate import evaluate_files
from kernelworks.app.options import EvaluateOptions
from kernelworks.errors import EnvironmentLackError, TaskRefusedError, UsageError
from kernelworks.evaluate.sandbox import Sandbox
from kernelworks.kernel.model import Contract
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
    options = EvaluateOptions(config=load_config(None, {"evaluation.allow_unsandboxed": True}))
    code = evaluate_files(reference, [str(tmp_path / name) for name in names], options, found.append)
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


def test_a_task_that_does_not_fit_gives_each_kernel_its_line(tmp_path: Path) -> None:
    huge = TASK.replace("rows=64, cols=256", "rows=1048576, cols=1048576")
    code, verdicts = evaluate(tmp_path, ["right.cpp", "bare.cpp", "wrong.cpp"], huge)
    assert code == 1
    assert [v.status for v in verdicts] == [Status.DOES_NOT_FIT, Status.INVALID, Status.DOES_NOT_FIT]
    (finding,) = verdicts[0].findings
    assert finding.kind == "does_not_fit"
    assert finding.evidence["need_bytes"] > 8 << 40
    assert finding.evidence["left_bytes"] > 0
    assert "case main of task twice does not fit" in finding.message


def test_without_a_sandbox_files_need_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_sandbox", lambda: Sandbox(lacking=("bubblewrap is not installed",)))
    (tmp_path / "right.cpp").write_text(RIGHT)
    reference = TaskReference(target="nowhere.py")  # refused before it is looked for
    with pytest.raises(EnvironmentLackError, match="a kernel from a file needs a sandbox") as caught:
        evaluate_files(reference, [str(tmp_path / "right.cpp")], EvaluateOptions(), lambda _: None)
    assert caught.value.exit_code == 3


OPTIONS = EvaluateOptions(config=load_config(None, {"evaluation.allow_unsandboxed": True}))
MODULE_TASK = """
import torch
from jaxtyping import Float32
from torch import Tensor
from kernelworks.task import case, task

@task(cases=[case("main", "timed", rows=64, cols=256), case("odd", "check", rows=7, cols=33)])
def twice(x: Float32[Tensor, "rows cols"]) -> Float32[Tensor, "rows cols"]:
    return x * 2.0
"""
SUBMISSION = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x + x\n"


def evaluate_mixed(tmp_path: Path, options: EvaluateOptions, task: str = MODULE_TASK) -> list[Verdict]:
    (tmp_path / "twice.py").write_text(task)
    (tmp_path / "right.cpp").write_text(RIGHT)
    (tmp_path / "submission.py").write_text(SUBMISSION)
    found: list[Verdict] = []
    files = [str(tmp_path / name) for name in ("right.cpp", "submission.py")]
    evaluate_files(TaskReference(target=str(tmp_path / "twice.py")), files, options, found.append)
    return found


def test_each_file_goes_to_the_target_of_its_language(tmp_path: Path) -> None:
    right, submission = evaluate_mixed(tmp_path, OPTIONS)
    assert right.status is Status.CORRECT, right.findings
    assert (submission.status, submission.contract) == (Status.DISHONEST, Contract.MODULE)
    assert submission.findings[0].kind == "fallback"


def test_a_target_that_was_asked_for_takes_all(tmp_path: Path) -> None:
    config = load_config(None, {"evaluation.allow_unsandboxed": True, "evaluation.target": "cpp"})
    right, submission = evaluate_mixed(tmp_path, EvaluateOptions(config=config))
    assert right.status is Status.CORRECT, right.findings
    assert submission.status is Status.INVALID
    assert "target cpp: expected lang cpp" in submission.findings[0].message


def test_a_numpy_task_has_no_submissions(tmp_path: Path) -> None:
    right, submission = evaluate_mixed(tmp_path, OPTIONS, TASK)
    assert right.status is Status.CORRECT, right.findings
    assert submission.status is Status.INVALID
    assert "found a NumPy one" in submission.findings[0].message
