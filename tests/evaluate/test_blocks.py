"""Rows computed in blocks: what the graph proves, and that the results are those of a whole run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from kernelworks.evaluate import blocks as module
from kernelworks.evaluate.blocks import Blocks, find_blocks
from kernelworks.evaluate.interpret import tensors_of
from kernelworks.task.lazytorch import fake_mode
from kernelworks.task.trace import trace_reference

ROWS = 12


def function_of(what: str, count: int) -> Callable[..., Any]:
    return eval(f"lambda {','.join('abcdef'[:count])}: {what}", {"torch": torch, "F": functional})


def found(what: str, *tensors: torch.Tensor, sliced: str = "a") -> Blocks | None:
    """How an expression in ``a``, ``b``, ... goes by rows of the arguments ``sliced``."""
    function = function_of(what, len(tensors))
    with fake_mode():
        inputs = [
            (a, torch.empty(tuple(t.shape), dtype=t.dtype))
            for a, t in zip("abcdef"[: len(tensors)], tensors, strict=True)
        ]
    graph = trace_reference(lambda values: function(*values), inputs, sizes={})
    return find_blocks(graph, [frozenset(sliced)])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the tensors of these tests were large: a few rows make a block."""
    monkeypatch.setattr(module, "BLOCK_BYTES", 5)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


SEPARABLE: list[tuple[str, tuple[torch.Tensor, ...], str]] = [
    ("a * F.silu(b) * c", (rand(ROWS, 5), rand(ROWS, 5), rand(5)), "ab"),
    ("a * torch.rsqrt((a * a).mean(dim=-1, keepdim=True) + 1e-5) * b", (rand(ROWS, 5), rand(5)), "a"),
    ("torch.softmax(a, dim=-1)", (rand(ROWS, 5),), "a"),
    ("a - a.amax(dim=(1, 2))[:, None, None]", (rand(ROWS, 5, 3),), "a"),
    ("F.layer_norm(a, (5,), b, c)", (rand(ROWS, 5), rand(5), rand(5)), "a"),
    ("a.reshape(12, 15).sum(1)", (rand(ROWS, 5, 3),), "a"),
    ("a.transpose(0, 1).cumsum(0).transpose(0, 1)", (rand(ROWS, 5),), "a"),
    ("F.gelu(F.linear(a, b, c))", (rand(ROWS, 5), rand(7, 5), rand(7)), "a"),
    ("torch.addmm(c, a, b)", (rand(ROWS, 5), rand(5, 7), rand(7)), "a"),
    ("torch.bmm(a, b)", (rand(ROWS, 5, 3), rand(ROWS, 3, 4)), "ab"),
    ("F.conv2d(a, b, c, padding=1)", (rand(ROWS, 3, 5, 5), rand(4, 3, 3, 3), rand(4)), "a"),
    ("F.max_pool2d(a, 2)", (rand(ROWS, 3, 6, 6),), "a"),
    ("F.group_norm(a, 2)", (rand(ROWS, 4, 6),), "a"),
    ("F.scaled_dot_product_attention(a, b, c)", (rand(ROWS, 2, 4, 8), rand(ROWS, 2, 5, 8), rand(ROWS, 2, 5, 8)), "abc"),
    ("torch.cat([a[:, 1:], a[:, :1]], dim=1) / 12", (rand(ROWS, 5),), "a"),
    ("(a.max(dim=1).values, a.argmin(dim=1))", (rand(ROWS, 5),), "a"),
    ("a[:, 2] + b.expand(1)", (rand(ROWS, 5), rand(1)), "a"),
    ("torch.where(a > 0, a, torch.zeros_like(a)).norm(dim=1)", (rand(ROWS, 5),), "a"),
    ("torch.triu(a) + torch.maximum(a, b)", (rand(ROWS, 4, 4), rand(4, 4)), "a"),
]


@pytest.mark.parametrize(("what", "tensors", "sliced"), SEPARABLE, ids=[s[0] for s in SEPARABLE])
def test_blocks_of_rows_give_what_the_whole_gives(what: str, tensors: tuple[torch.Tensor, ...], sliced: str) -> None:
    plan = found(what, *tensors, sliced=sliced)
    assert plan is not None and (plan.total, plan.sliced) == (ROWS, frozenset(sliced))
    doubles = dict(zip("abcdef", [t.double() for t in tensors], strict=False))
    answer = function_of(what, len(tensors))(*doubles.values())
    whole: list[torch.Tensor] = [answer] if isinstance(answer, torch.Tensor) else list(answer)
    for start, rows in ((0, 5), (5, 5), (10, 2)):
        cut = {name: t[start : start + rows] if name in sliced else t for name, t in doubles.items()}
        graph = plan.of(rows)
        parts = tensors_of(graph, graph.outputs, cut, double=True)
        for right, part in zip(whole, parts, strict=True):
            torch.testing.assert_close(part, right[start : start + rows])


MIXING: list[tuple[str, tuple[torch.Tensor, ...], str]] = [
    ("a - a.mean()", (rand(ROWS, 5),), "a"),
    ("a - a.mean(dim=0)", (rand(ROWS, 5),), "a"),
    ("torch.softmax(a, dim=0)", (rand(ROWS, 5),), "a"),
    ("torch.cumsum(a, dim=-2)", (rand(ROWS, 5),), "a"),
    ("a.flip(0)", (rand(ROWS, 5),), "a"),
    ("a * torch.arange(12)[:, None]", (rand(ROWS, 5),), "a"),
    ("a * b", (rand(ROWS, 5), rand(ROWS, 5)), "a"),
    ("a + a.T", (rand(ROWS, ROWS),), "a"),
    ("a @ b", (rand(ROWS, ROWS), rand(ROWS, ROWS)), "ab"),
    ("b @ a", (rand(ROWS, ROWS), rand(ROWS, ROWS)), "a"),
    ("a.reshape(5, 12).reshape(12, 5)", (rand(ROWS, 5),), "a"),
    ("torch.tril(a)", (rand(ROWS, 5),), "a"),
    ("a[:, 2] + b.expand(12)", (rand(ROWS, 5), rand(1)), "a"),
    ("F.prelu(a, b)", (rand(ROWS), rand(1)), "a"),
    ("torch.outer(a, b)", (rand(ROWS), rand(4)), "a"),
    ("torch.sort(a, dim=0).values", (rand(ROWS, 5),), "a"),
    ("F.layer_norm(a, (12, 5))", (rand(ROWS, 5),), "a"),
    ("F.batch_norm(a, None, None, training=True)", (rand(ROWS, 5),), "a"),
    ("F.conv1d(a, b)", (rand(ROWS, 9), rand(4, ROWS, 3)), "a"),
    ("torch.cat([a, a], dim=0)", (rand(ROWS, 5),), "a"),
    ("a[3:]", (rand(ROWS, 5),), "a"),
    ("F.embedding(torch.zeros(12, dtype=torch.int64), a)", (rand(ROWS, 5),), "a"),
    ("(a + 1, a.sum(dim=1)[:4])", (rand(ROWS, 5),), "a"),
    ("a.view(torch.int32)", (rand(ROWS, 5),), "a"),
]


@pytest.mark.parametrize(("what", "tensors", "sliced"), MIXING, ids=[m[0] for m in MIXING])
def test_what_mixes_rows_or_is_not_known_runs_whole(what: str, tensors: tuple[torch.Tensor, ...], sliced: str) -> None:
    assert found(what, *tensors, sliced=sliced) is None


def test_rows_of_a_block_fill_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 3 * 5 * 8 * 2)
    plan = found("a + 1", rand(ROWS, 5))
    assert plan is not None and plan.rows == 3, "input and result of three rows in double precision"
    monkeypatch.setattr(module, "BLOCK_BYTES", ROWS * 5 * 8)
    assert found("a + 1", rand(ROWS, 5)) is None, "small enough to run whole"


def test_work_without_rows_that_every_block_would_repeat_runs_whole() -> None:
    assert found("a @ (b @ b)", rand(ROWS, 5), rand(5, 5)) is None
