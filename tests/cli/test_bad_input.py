"""Tasks that cannot be used: one sentence, exit code 2, no traceback, in bounded time."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli import answer_of, kernelworks

HEAD = """
import time
import numpy as np
from jaxtyping import Float32
from kernelworks.task import case, task

@task(cases=[case("main", n=64)])
def f(x: Float32[np.ndarray, "n"]) -> Float32[np.ndarray, "n"]:
    """
MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x):
        return BODY

n = 256

def get_inputs():
    return [torch.rand(n, 64)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + "raise ValueError('no\\nsuch thing')", "line 9: the reference of task 'f' failed: ValueError: no such"),
        (HEAD + "return x + np.ones(1 << 46, np.float32)[:1]", "the reference of task 'f' failed: MemoryError"),
        (HEAD + "return x[:, None]", "output 'out0': expected shape n=64, found (64, 1)"),
        (HEAD + "return x.astype(np.float64)", "output 'out0': expected dtype float32, found float64"),
        (MODEL.replace("class Model(", "class ModelNew("), "found no Model"),
        (MODEL.replace("forward(self, x)", "forward(self)"), "expected at most 0 inputs for forward(), found 1"),
        (MODEL.replace("BODY", "torch.nonzero(x)"), "size depends on values (aten.nonzero)"),
    ],
)
def test_one_sentence_and_exit_2(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "op.py"
    path.write_text(text)
    done = kernelworks("task", "check", str(path))
    assert done.returncode == 2, done.stderr
    assert says in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "text", [HEAD + "time.sleep(300)", HEAD.replace("@task", "time.sleep(300)\n@task") + "return x"]
)
def test_a_reference_that_hangs_is_given_up(tmp_path: Path, text: str) -> None:
    path, config = tmp_path / "op.py", tmp_path / "config.toml"
    path.write_text(text)
    config.write_text("[evaluation]\nreference_timeout_s = 1\n")
    done = kernelworks("task", "check", str(path), "--config", str(config), timeout_s=200)
    assert done.returncode == 2, done.stderr
    assert "the task's reference did not finish: one run took more than 1 s" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        ("(lambda y: y - y.mean(1, keepdim=True))(x.max(1, keepdim=True).values)", "constant_output", "output out0"),
        ("torch.empty_like(x).uniform_()", "not_deterministic", "aten.uniform"),
        ("self.drop(x)", "not_deterministic", "aten.native_dropout"),
    ],
)
def test_untestable_models_are_refused_with_the_reason(tmp_path: Path, body: str, kind: str, says: str) -> None:
    path = tmp_path / "op.py"
    path.write_text(MODEL.replace("BODY", body))
    done = kernelworks("task", "check", str(path), "--json")
    assert done.returncode == 2
    answer = answer_of(done)
    assert not answer["ok"]
    assert any(p["kind"] == kind and says in p["message"] for p in answer["problems"]), answer["problems"]


def test_what_is_not_the_default_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "op.py"
    options = 'tolerance=1e-4, layout="strided", precision="relaxed", instructions="mind the tail"'
    path.write_text(HEAD.replace("n=64)]", f"n=65536)], {options}") + "return np.cumsum(x)")
    done = kernelworks("task", "check", str(path), "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    for line in (
        "int64_t n, int64_t x_stride_0)",
        "case n_0 (edge): n=0",
        "tolerance of the task's own: RMS error up to 0.0001 of the RMS of the exact answer",
        "precision: relaxed",
        "layout: strided",
        "instructions: mind the tail",
        "the task can be used",
    ):
        assert line in done.stdout, done.stdout
    strict = kernelworks("task", "check", str(path), "--precision", "strict")
    assert "precision" not in strict.stdout, "the option has the last word"
    unknown = kernelworks("task", "check", str(path), "--precision", "loose")
    assert unknown.returncode == 2
    assert "precision: expected 'strict' or 'relaxed', found 'loose'" in unknown.stderr


def test_a_tolerance_under_which_a_wrong_answer_passes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "op.py"
    path.write_text(HEAD.replace("n=64)]", "n=65536)], tolerance=0.05") + "return np.tanh(x)")
    done = kernelworks("task", "check", str(path))
    assert done.returncode == 2
    assert "would pass as right under the task's own tolerance of 0.05" in done.stdout
