"""The examples load, run in both precisions, and can be traced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kernelworks.task.model import CaseRole, element_count
from kernelworks.task.resolve import load_task
from kernelworks.task.source import TaskReference

EXAMPLES = Path(__file__).parents[2] / "examples"


def gated_rms_norm(x: Any, z: Any, w: Any) -> Any:
    gated = x * z * torch.sigmoid(z)
    return gated / (gated.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w


def softmax(x: Any) -> Any:
    powers = torch.exp(x - x.max(dim=-1, keepdim=True).values)
    return powers / powers.sum(-1, keepdim=True)


def layer_norm_gelu(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    y = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias
    return y * 0.5 * (1 + torch.erf(y / 2**0.5))


def bias_gelu_residual(x: Any, bias: Any, residual: Any, scale: float) -> Any:
    y = x + bias
    return residual + scale * y * 0.5 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (y + 0.044715 * y**3)))


ANSWERS = (gated_rms_norm, softmax, layer_norm_gelu, bias_gelu_residual)


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {answer.__name__ for answer in ANSWERS}


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.__name__)
def test_example(answer: Any) -> None:
    loaded = load_task(TaskReference(target=str(EXAMPLES / f"{answer.__name__}.py")))
    task = loaded.task
    assert task.name == answer.__name__
    assert {c.role for c in task.cases} == {CaseRole.TIMED, CaseRole.CHECK, CaseRole.EDGE}
    assert any(c.sizes["rows"] == 1 for c in task.cases) and any(c.sizes["cols"] == 1 for c in task.cases)
    for case in task.cases_of(CaseRole.CHECK, CaseRole.EDGE):
        arrays = loaded.make_inputs(case, case.seed)
        wide = [a.double() if isinstance(a, torch.Tensor) else a for a in arrays]
        torch.testing.assert_close(loaded.run(arrays, double=True)[0], answer(*wide))
        torch.testing.assert_close(loaded.run(arrays)[0].double(), answer(*wide), rtol=1e-4, atol=1e-5)
    assert not any(c.derived for c in task.cases), "the authors wrote check and edge cases"
    assert task.large is not None and max(element_count(a, task.large) for a in task.tensors) > 2**31
    graph = loaded.trace(task.cases[0])
    assert graph.specialised == ()
    assert [graph.node(r.ref).values[r.index].dtype for r in graph.outputs] == ["float32"]


def test_the_demo_operation_is_that_of_mamba_2() -> None:
    task = load_task(TaskReference(target=str(EXAMPLES / "gated_rms_norm.py")), load_only=True).task
    (main,) = task.cases_of(CaseRole.TIMED)
    assert main.sizes == {"rows": 4096, "cols": 2048}
