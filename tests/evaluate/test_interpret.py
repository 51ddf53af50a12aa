from __future__ import annotations

from typing import Any

import pytest

from kernelworks.evaluate.interpret import tensors_of
from kernelworks.task.trace import trace_reference

torch = pytest.importorskip("torch")


def traced(function: Any, *values: Any) -> tuple[Any, dict[str, Any]]:
    names = [f"a{i}" for i in range(len(values))]
    graph = trace_reference(lambda given: function(*given), list(zip(names, values, strict=True)), sizes={})
    return graph, dict(zip(names, values, strict=True))


def everything(x: Any, w: Any, scale: float) -> Any:
    y = torch.softmax(x.to(torch.bfloat16).float() * w, -1) + scale
    z = torch.nn.functional.gelu(y.transpose(0, 1), approximate="tanh").reshape(-1, 2)
    top = torch.topk(z, 2, 0)
    full = torch.full((2,), float("-inf"))
    return torch.cat([top.values, torch.maximum(z, full).sum(0, keepdim=True, dtype=torch.float64)]), top.indices


def test_a_trace_computes_what_the_reference_does() -> None:
    x, w = torch.randn(6, 8), torch.randn(8)
    graph, arguments = traced(everything, x, w, 0.25)
    native = tensors_of(graph, graph.outputs, arguments, double=False)
    for found, wanted in zip(native, everything(x, w, 0.25), strict=True):
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)


def test_double_precision_widens_what_is_narrow_inside() -> None:
    x, w = torch.randn(6, 8), torch.randn(8)
    graph, arguments = traced(everything, x, w, 0.25)
    values, indices = tensors_of(graph, graph.outputs, arguments, double=True)
    y = torch.softmax(x.double() * w.double(), -1) + 0.25
    z = torch.nn.functional.gelu(y.transpose(0, 1), approximate="tanh").reshape(-1, 2)
    top = torch.topk(z, 2, 0)
    assert values.dtype == torch.float64
    assert torch.allclose(values[:2], top.values, rtol=1e-12)
    assert torch.equal(indices, top.indices)
