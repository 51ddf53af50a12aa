from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

from kernelworks.errors import TaskError
from kernelworks.task.graph import Graph, Node, Ref
from kernelworks.task.lazytorch import fake_mode
from kernelworks.task.trace import trace_reference


def trace(what: str | Callable[..., Any], *inputs: float | tuple[int, ...], **options: Any) -> Graph:
    """Trace an expression in ``a``, ``b``, ..., or a function: shapes give float32 tensors, scalars stay."""
    letters = "abcdef"[: len(inputs)]
    scope = {"torch": torch, "F": functional}
    function: Callable[..., Any] = eval(f"lambda {','.join(letters)}: {what}", scope) if isinstance(what, str) else what
    named: list[tuple[str, Any]] = []
    with fake_mode():
        for letter, value in zip(letters, inputs, strict=True):
            named.append((letter, torch.empty(value) if isinstance(value, tuple) else value))
    return trace_reference(lambda values: function(*values), named, sizes={"n": 1}, **options)


def calls(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.kind == "call"]


def ops(graph: Graph) -> list[str]:
    return [node.op for node in calls(graph)]


A, B = {"ref": "a", "index": 0}, {"ref": "b", "index": 0}


def test_a_chain_in_full() -> None:
    graph = trace("F.gelu(a * b + 1) / 2", (4, 8), (8,))
    assert [(n.name, n.kind, n.argument) for n in graph.nodes[:2]] == [
        ("a", "placeholder", "a"),
        ("b", "placeholder", "b"),
    ]
    mul, add, gelu, div = calls(graph)
    assert (mul.op, mul.args, mul.kwargs) == ("aten.mul.Tensor", (A, B), {})
    assert (add.op, add.args, add.kwargs) == ("aten.add.Tensor", ({"ref": mul.name, "index": 0}, 1), {"alpha": 1})
    assert (gelu.op, gelu.kwargs) == ("aten.gelu.default", {"approximate": "none"})
    assert (div.op, div.args[1]) == ("aten.div.Tensor", 2)
    assert graph.outputs == (Ref(ref=div.name),)
    assert div.values[0].model_dump(mode="json") == {"shape": [4, 8], "dtype": "float32"}
    assert graph.sizes == {"n": 1}
    assert Graph.model_validate_json(graph.model_dump_json()) == graph


@pytest.mark.parametrize(
    ("function", "op"),
    [
        ("torch.softmax(a, -1)", "aten.softmax.int"),
        ("torch.special.softmax(a, -1)", "aten.softmax.int"),
        ("torch.log_softmax(a, 1)", "aten.log_softmax.int"),
        ("F.layer_norm(a, (8,))", "aten.layer_norm.default"),
        ("F.rms_norm(a, (8,))", "aten.rms_norm.default"),
        ("F.silu(a)", "aten.silu.default"),
        ("torch.sigmoid(a)", "aten.sigmoid.default"),
        ("torch.special.expit(a)", "aten.sigmoid.default"),
        ("torch.absolute(a)", "aten.abs.default"),
        ("torch.clip(a, 0, 1)", "aten.clamp.default"),
        ("torch.relu_(a.clone())", "aten.relu.default"),
        ("a.multiply(3.0)", "aten.mul.Tensor"),
        ("torch.true_divide(a, a + 1)", "aten.div.Tensor"),
        ("a.sum(-1)", "aten.sum.dim_IntList"),
        ("a.mean()", "aten.mean.default"),
        ("torch.logsumexp(a, 1)", "aten.logsumexp.default"),
        ("torch.linalg.vector_norm(a, dim=1)", "aten.linalg_vector_norm.default"),
        ("a.reshape(-1)", "aten.view.default"),
        ("a.unsqueeze(0)", "aten.view.default"),
        ("a.flatten()", "aten.view.default"),
        ("a.t()", "aten.permute.default"),
        ("a.transpose(-1, 0)", "aten.permute.default"),
        ("a.mT", "aten.permute.default"),
        ("a[None].expand(3, -1, -1)", "aten.expand.default"),
        ("a.broadcast_to(3, 4, 8)", "aten.expand.default"),
        ("a.half()", "aten.to.dtype"),
        ("a.to(torch.int32)", "aten.to.dtype"),
    ],
)
def test_one_spelling(function: str, op: str) -> None:
    assert ops(trace(function, (4, 8)))[-1] == op


def test_arguments_of_shape_operators_are_complete() -> None:
    def args(function: str) -> tuple[Any, ...]:
        return calls(trace(function, (4, 8)))[-1].args

    assert args("a.reshape(2, -1)") == (A, [2, 16])
    assert args("a.transpose(0, -1)") == (A, [1, 0])
    assert args("a.broadcast_to(3, 4, 8)") == (A, [3, 4, 8], False)
    assert args("a.to(torch.float64)") == (A, "float64")
    assert args("a.clamp(min=-torch.inf, max=1.0)") == (A, "-inf", 1.0)
    assert args("F.layer_norm(a, (8,))")[:5] == (A, [8], None, None, 1e-5)
    assert args("torch.special.softmax(a, 1)") == (A, 1, None)
    assert args("torch.cat([a, a * 2])[:, 1:3]")[1:] == (1, 1, 3, 1)


def test_subtraction_from_a_number() -> None:
    (sub,) = calls(trace("1 - a", (4,)))
    assert (sub.op, sub.args, sub.kwargs) == ("aten.sub.Tensor", (1, A), {"alpha": 1})
    (sub,) = calls(trace("torch.rsub(a, b, alpha=3)", (4,), (4,)))
    assert (sub.args, sub.kwargs) == ((B, A), {"alpha": 3})


@pytest.mark.parametrize(
    "function",
    [
        "a.clone()",
        "a.contiguous().detach()",
        "a.float()",
        "a.view(4, 8)",
        "a.expand(4, 8)",
        "a.permute(0, 1)",
        "F.dropout(a, 0.5, training=False)",
        "torch.broadcast_tensors(a, a)[0]",
        "(a + 1, a)[1]",
    ],
)
def test_what_changes_nothing_is_removed(function: str) -> None:
    graph = trace(function, (4, 8))
    assert ops(graph) == []
    assert graph.outputs == (Ref(ref="a"),)


def test_reinterpreted_bits_are_no_reshape() -> None:
    assert ops(trace("a.view(torch.int32)", (4, 8))) == ["aten.view.dtype"]


def test_dropout_while_training_stays() -> None:
    assert ops(trace("F.dropout(a, 0.5)", (4, 8))) == ["aten.native_dropout.default"]


def test_several_results() -> None:
    graph = trace("torch.max(a, dim=1)", (4, 8))
    (node,) = calls(graph)
    assert [v.dtype for v in node.values] == ["float32", "int64"]
    assert graph.outputs == (Ref(ref=node.name, index=0), Ref(ref=node.name, index=1))


def test_broadcast_tensors_are_expands() -> None:
    graph = trace("sum(torch.broadcast_tensors(a, b))", (4, 8), (8,))
    expand = next(n for n in calls(graph) if n.op == "aten.expand.default")
    assert expand.args == (B, [4, 8], False)
    assert {"ref": expand.name, "index": 0} in [a for n in calls(graph) for a in n.args]


def test_unused_inputs_stay_and_dead_nodes_go() -> None:
    def function(a: Any, b: Any) -> Any:
        torch.exp(b)
        return a + 1

    graph = trace(function, (4,), (4,))
    assert [n.name for n in graph.nodes if n.kind == "placeholder"] == ["a", "b"]
    assert ops(graph) == ["aten.add.Tensor"]


def test_literals_become_constants() -> None:
    graph = trace("a * torch.tensor(2.5) + torch.tensor([3])", (4,))
    found = {(n.constant, n.values[0].shape, n.values[0].dtype.value) for n in graph.nodes if n.kind == "constant"}
    assert found == {(2.5, (), "float32"), (3, (1,), "int64")}


def test_scalars_are_placeholders() -> None:
    graph = trace("a * b + c", (4,), 0.5, 3, True)
    values = {n.argument: n.values[0] for n in graph.nodes if n.kind == "placeholder"}
    assert {k: (v.shape, v.dtype.value) for k, v in values.items()} == {
        "a": ((4,), "float32"),
        "b": ((), "float64"),
        "c": ((), "int64"),
        "d": ((), "bool"),
    }
    assert calls(graph)[0].args == (A, B)
    assert calls(graph)[-1].values[0].dtype == "float32"
    assert graph.specialised == ()


@pytest.mark.parametrize(
    "function",
    [
        "a.sum(dim=b)",
        "sum(a * k for k in range(b + 1))",
        "a * 2 if b else a",
        "F.layer_norm(a, (8,), eps=float(b))",
    ],
)
def test_scalars_whose_value_is_needed_are_baked_in(function: str) -> None:
    graph = trace(function, (4, 8), 1)
    assert graph.specialised == ("b",)
    assert [n.argument for n in graph.nodes if n.kind == "placeholder"] == ["a"]


def test_arguments_called_like_operators() -> None:
    with fake_mode():
        named = [("mul", torch.empty(4)), ("add", torch.empty(4))]

    def call(values: Sequence[Any]) -> Any:
        return values[0] * values[1] + values[0]

    graph = trace_reference(call, named, sizes={})
    assert len({n.name for n in graph.nodes}) == 4
    assert calls(graph)[0].args == ({"ref": "mul", "index": 0}, {"ref": "add", "index": 0})


def test_in_place_results_follow_the_returned_ones() -> None:
    def function(a: Any, b: Any) -> Any:
        a.add_(b)
        return a.sum()

    graph = trace(function, (4,), (4,), mutates=["a", "b"])
    assert [graph.node(r.ref).op for r in graph.outputs] == ["aten.sum.default", "aten.add.Tensor", ""]
    assert graph.outputs[2] == Ref(ref="b")


def test_weights_have_their_names() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 3), torch.nn.BatchNorm1d(3))
    names = {name: f"w_{k}" for k, (name, _) in enumerate([*model.named_parameters(), *model.named_buffers()])}
    with fake_mode():
        named = [("x", torch.empty(4, 8))]
    graph = trace_reference(lambda v: model(v[0]), named, sizes={}, model=model, weights=names)
    assert [n.argument for n in graph.nodes if n.kind == "placeholder"] == ["x", *names.values()]
    assert ops(graph) == ["aten.linear.default", "aten._native_batch_norm_legit_functional.default"]
    assert len(graph.outputs) == 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("a * torch.arange(4).tolist()[1] if a.sum() > 0 else a", "the reference cannot be traced"),
        ("a + torch.tensor([1.0, 2.0])", "it holds a constant tensor of shape (2,)"),
        ("(a, 3)", "it returns something that is no tensor"),
        ("a * torch.tensor(1j)", "the complex constant 1j"),
        ("a.to(torch.complex128)", "expected one of float32, "),
    ],
)
def test_what_cannot_be_traced(function: str, message: str) -> None:
    with pytest.raises(TaskError) as caught:
        trace(function, (2,))
    assert "cannot be traced" in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
