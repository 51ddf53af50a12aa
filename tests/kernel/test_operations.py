from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from kernelworks.kernel.operations import count_work
from kernelworks.kernel.roofline import Work
from kernelworks.task.lazytorch import fake_mode
from kernelworks.task.trace import trace_reference


def work(what: str, *tensors: torch.Tensor) -> Work:
    """The work of an expression in ``a``, ``b``, ..., by its traced graph."""
    letters = "abcdef"[: len(tensors)]
    function: Callable[..., Any] = eval(f"lambda {','.join(letters)}: {what}", {"torch": torch, "F": functional})
    with fake_mode():
        inputs = [(a, torch.empty(tuple(t.shape), dtype=t.dtype)) for a, t in zip(letters, tensors, strict=True)]
    return count_work(trace_reference(lambda values: function(*values), inputs, sizes={}))


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def test_bytes_are_each_input_once_and_each_output_once() -> None:
    found = work("((a + b) * a, a.sum())", ones(8, 4), ones(4, dtype=torch.float32))
    assert (found.read_bytes, found.written_bytes) == ((32 + 4) * 4, (32 + 1) * 4)
    assert found.others == {"float32": 32 + 32 + 32}
    assert (found.products, found.uncounted) == ({}, ())


def test_a_gather_reads_what_it_takes() -> None:
    table, rows = ones(1000, 16), torch.zeros(5, dtype=torch.int64)
    found = work("F.embedding(b, a)", table, rows)
    assert (found.read_bytes, found.written_bytes) == (5 * 16 * 4 + 5 * 8, 5 * 16 * 4)
    assert found.operations == 0
    both = work("F.embedding(b, a).sum() + a.sum()", table, rows)
    assert both.read_bytes == 1000 * 16 * 4 + 5 * 8
    assert work("a[2:4].clone() * 2", ones(100, 8)).read_bytes == 2 * 8 * 4


def test_an_argument_without_use_is_not_read() -> None:
    assert work("a + 1", ones(4), ones(400)).read_bytes == 16


@pytest.mark.parametrize(
    ("what", "shapes", "products"),
    [
        ("torch.matmul(a, b)", ((3, 5), (5, 7)), 3 * 5 * 7),
        ("torch.bmm(a, b)", ((2, 3, 5), (2, 5, 7)), 2 * 3 * 5 * 7),
        ("torch.matmul(a, b)", ((2, 4, 3, 5), (5,)), 2 * 4 * 3 * 5),
        ("torch.mv(a, b)", ((3, 5), (5,)), 15),
        ("torch.addmm(a, b, c)", ((7,), (3, 5), (5, 7)), 3 * 5 * 7),
        ("F.linear(a, b, c)", ((6, 5), (7, 5), (7,)), 6 * 5 * 7),
        ("torch.einsum('bij,bjk->bik', a, b)", ((2, 3, 5), (2, 5, 7)), 2 * 3 * 5 * 7),
        ("torch.tensordot(a, b, dims=2)", ((3, 4, 5), (4, 5, 6)), 3 * 4 * 5 * 6),
    ],
)
def test_matrix_products_are_counted_exactly(what: str, shapes: tuple[tuple[int, ...], ...], products: int) -> None:
    found = work(what, *(ones(*shape) for shape in shapes))
    assert found.products == {"float32": 2 * products}
    assert found.uncounted == ()


def convolved(source: tuple[int, ...], weight: tuple[int, ...], *, transposed: bool, **options: Any) -> int:
    """Products that a convolution of ones with ones adds up: the sum of its result."""
    rank = len(source) - 2
    name = f"conv_transpose{rank}d" if transposed else f"conv{rank}d"
    function: Callable[..., torch.Tensor] = getattr(functional, name)
    total = function(ones(*source), ones(*weight), **options).double().sum()
    found = work(f"F.{name}(a, b, **{options!r})", ones(*source), ones(*weight))
    assert found.products["float32"] == 2 * round(float(total)), (source, weight, options)
    return found.products["float32"]


@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_count_the_taps_that_meet_an_element(transposed: bool) -> None:
    for stride, padding, dilation, groups in itertools.product((1, 2), (0, 1, 2), (1, 2), (1, 2)):
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        weight = (4, 6 // groups, 3, 2) if transposed else (6, 4 // groups, 3, 2)
        assert convolved((2, 4, 9, 8), weight, transposed=transposed, **options) > 0
    convolved((1, 2, 11), (2, 4, 3) if transposed else (4, 2, 3), transposed=transposed, stride=3)
    convolved((1, 2, 4, 5, 6), (2, 3, 2, 2, 3) if transposed else (3, 2, 2, 2, 3), transposed=transposed, padding=1)


def test_padding_by_name_counts_likewise() -> None:
    convolved((1, 2, 9, 9), (4, 2, 3, 3), transposed=False, padding="same")
    convolved((1, 2, 9, 9), (4, 2, 3, 3), transposed=False, padding="valid")


def test_attention_counts_the_pairs_that_are_not_hidden() -> None:
    query, key, value = ones(2, 3, 4, 8), ones(2, 3, 6, 8), ones(2, 3, 6, 5)
    whole = work("F.scaled_dot_product_attention(a, b, c)", query, key, value)
    assert whole.products == {"float32": 2 * (2 * 3 * 4 * 6) * (8 + 5)}
    causal = work("F.scaled_dot_product_attention(a, b, c, is_causal=True)", query, key, value)
    assert causal.products == {"float32": 2 * (2 * 3 * (1 + 2 + 3 + 4)) * (8 + 5)}
    assert causal.others == {"float32": 13 * 2 * 3 * 10}


def test_reductions_count_what_they_read() -> None:
    assert work("a.sum(dim=1)", ones(8, 4)).others == {"float32": 32}
    assert work("a.amax()", ones(8, 4)).others == {"float32": 32}
    assert work("torch.softmax(a, dim=-1)", ones(8, 4)).others == {"float32": 13 * 32}
    assert work("F.layer_norm(a, (4,))", ones(8, 4)).others == {"float32": 5 * 32}
    assert work("F.avg_pool2d(a, 2)", ones(1, 1, 4, 4)).others == {"float32": 4 * 4}
    assert work("F.max_pool1d(a, 3, stride=1)", ones(1, 1, 6)).others == {"float32": 4 * 3}


def test_powers_and_transcendental_functions_have_their_weights() -> None:
    assert work("torch.exp(a)", ones(10)).others == {"float32": 100}
    assert work("a**2", ones(10)).others == {"float32": 10}
    assert work("a**0.5", ones(10)).others == {"float32": 10}
    assert work("a**1.7", ones(10)).others == {"float32": 160}


def test_arithmetic_is_told_apart_by_dtype() -> None:
    assert work("a + a", ones(10, dtype=torch.float64)).others == {"float64": 10}
    assert work("torch.matmul(a, b)", ones(2, 2, dtype=torch.bfloat16), ones(2, 2, dtype=torch.bfloat16)).products == {
        "half": 16
    }
    assert work("a + a", ones(10, dtype=torch.int32)).others == {"integer": 10}
    assert work(
        "torch.matmul(a, b)", ones(2, 2, dtype=torch.complex64), ones(2, 2, dtype=torch.complex64)
    ).products == {"float32": 64}


def test_movements_and_constants_count_nothing() -> None:
    moved = work("torch.cat([a.T.flip(0), a.T], dim=1).reshape(-1).to(torch.float64)", ones(8, 4))
    assert (moved.operations, moved.uncounted) == (0, ())
    masked = work("torch.tril(a) * torch.exp(torch.arange(4)).sum()", ones(4, 4))
    assert masked.others == {"float32": 16}, "what hangs on no input could be computed once"


def test_an_unknown_operator_is_named_and_counts_nothing() -> None:
    found = work("torch.sort(a, dim=-1).values + 1", ones(8, 4))
    assert found.uncounted == ("aten.sort.default",)
    assert found.others == {"float32": 32}
