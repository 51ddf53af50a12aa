from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.references import numpy_task, prepared, tensor

from kernelworks.evaluate.bound import Bound, Moved, ReferenceError, derive_bound, pooled, reduction_lengths
from kernelworks.evaluate.casestate import compare, poison, view
from kernelworks.evaluate.families import FAMILIES
from kernelworks.task.graph import Graph, Node, Ref, Value
from kernelworks.task.model import Case, CaseRole, DType, Task, TensorArgument, Tolerance

Floats = NDArray[Any]
Answer = Callable[..., Floats]

OUT = TensorArgument(name="out0", dtype=DType.FLOAT32, shape=("m", "n"), role="output")


def verdict(
    reference: Answer, answer: Answer, sizes: dict[str, int], shapes: tuple[str, ...], family: str, seed: int = 1
) -> bool:
    """Whether an answer passes as the reference's: inputs a, b, ... of these shapes ("mk"), the last the output."""
    names = [chr(ord("a") + i) for i in range(len(shapes) - 1)]
    inputs = [tensor(name, *shape) for name, shape in zip(names, shapes, strict=False)]
    state = prepared(numpy_task(reference, inputs, [tensor("out0", *shapes[-1])], sizes), family, seed)
    try:
        poison(state, 0, 0, np.random.default_rng(0))
        view(state.lanes[0]["out0"], DType.FLOAT32)[...] = answer(*state.drawn).reshape(-1)
        return not compare(state, 0, explain=False).problems
    finally:
        state.close()


def sequential(terms: Floats) -> Floats:
    """Sum along the last axis, one term after the other in float32."""
    return np.add.accumulate(terms, axis=-1, dtype=np.float32)[..., -1]


def lanes(terms: Floats) -> Floats:
    """Sum along the last axis in 16 partial sums."""
    parts = terms.reshape(*terms.shape[:-1], -1, 16)
    return sequential(np.ascontiguousarray(np.add.accumulate(parts, axis=-2, dtype=np.float32)[..., -1, :]))


def row_sum(a: Floats) -> Floats:
    return a.sum(-1)


def total(a: Floats) -> NDArray[Any]:
    return np.asarray(a.sum(), np.float32)


def total_sequential(a: Floats) -> Floats:
    return sequential(a.reshape(1, -1))


def softmax(a: Floats) -> Floats:
    e = np.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_sequential(a: Floats) -> Floats:
    e = np.exp(a - a.max(-1, keepdims=True))
    return e * (np.float32(1) / sequential(e)[..., None])


def rms_norm(a: Floats, b: Floats) -> Floats:
    return a / np.sqrt((a * a).mean(-1, keepdims=True) + 1e-5) * b


def rms_norm_sequential(a: Floats, b: Floats) -> Floats:
    mean = sequential(a * a) * np.float32(1 / a.shape[-1])
    return a * (np.float32(1) / np.sqrt(mean + np.float32(1e-5)))[..., None] * b


def matmul(a: Floats, b: Floats) -> Floats:
    return a @ b


def matmul_serial(a: Floats, b: Floats) -> Floats:
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total += a[:, k, None] * b[None, k, :]
    return total


def to_bfloat16(a: Floats) -> Floats:
    words = a.view(np.uint32)
    return ((words + 0x7FFF + ((words >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def layer_norm(a: Floats, b: Floats, c: Floats) -> Floats:
    d = a - a.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * b + c


def layer_norm_sequential(a: Floats, b: Floats, c: Floats) -> Floats:
    count = np.float32(a.shape[-1])
    d = a - (sequential(a) / count)[:, None]
    variance = sequential(d * d) / count
    return d * (np.float32(1) / np.sqrt(variance + np.float32(1e-5)))[:, None] * b + c


HONEST: dict[str, tuple[Answer, Answer, dict[str, int], tuple[str, ...]]] = {
    "sequential sum": (row_sum, sequential, {"m": 512, "n": 4096}, ("mn", "m")),
    "sum in 16 lanes": (row_sum, lanes, {"m": 512, "n": 4096}, ("mn", "m")),
    "softmax": (softmax, softmax_sequential, {"m": 256, "n": 2048}, ("mn", "mn")),
    "RMS norm": (rms_norm, rms_norm_sequential, {"m": 256, "n": 2048}, ("mn", "n", "mn")),
    "serial matmul": (matmul, matmul_serial, {"m": 48, "k": 4096, "n": 48}, ("mk", "kn", "mn")),
    "total": (total, total_sequential, {"m": 64, "n": 1024}, ("mn", "")),
    "layer norm": (layer_norm, layer_norm_sequential, {"m": 64, "n": 4096}, ("mn", "n", "n", "mn")),
    "layer norm of one row": (layer_norm, layer_norm_sequential, {"m": 1, "n": 4096}, ("mn", "n", "n", "mn")),
}
FEW = {
    "total": (total, total_sequential, {"m": 16, "n": 256}, ("mn", "")),
    "row": (row_sum, sequential, {"m": 1, "n": 4096}, ("mn", "m")),
    "layer norm": HONEST["layer norm of one row"],
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", HONEST)
def test_honest_arithmetic_of_another_order_passes(name: str, family: str) -> None:
    reference, answer, sizes, shapes = HONEST[name]
    assert verdict(reference, answer, sizes, shapes, family)


@pytest.mark.parametrize("family", ["normal", "wide", "shifted", "heavy"])
@pytest.mark.parametrize("name", FEW)
def test_a_single_number_or_row_passes_for_all_seeds(name: str, family: str) -> None:
    """Its error is a single draw, and may be large where the sum itself happens to be close to zero."""
    reference, answer, sizes, shapes = FEW[name]
    assert all(verdict(reference, answer, sizes, shapes, family, seed) for seed in range(60))


def variance(a: Floats) -> Floats:
    return a.var(-1)


def variance_in_one_pass(a: Floats) -> Floats:
    return (a * a).mean(-1) - np.square(a.mean(-1))


def test_a_variance_that_cancels_fails_on_shifted_inputs_alone() -> None:
    sizes = {"m": 64, "n": 4096}
    assert verdict(variance, variance_in_one_pass, sizes, ("mn", "m"), "normal")
    assert not verdict(variance, variance_in_one_pass, sizes, ("mn", "m"), "shifted")


def tail_wrong(a: Floats, b: Floats) -> Floats:
    right = rms_norm(a, b)
    right[:, -3:] = 0
    return right


def one_element_wrong(a: Floats, b: Floats) -> Floats:
    right = rms_norm(a, b)
    right[7, 11] += 0.001 * np.sqrt(np.square(right).mean())
    return right


def half_computed(a: Floats, b: Floats) -> Floats:
    right = rms_norm(a, b)
    right[right.shape[0] // 2 :] = 0
    return right


def in_bfloat16(a: Floats, b: Floats) -> Floats:
    return rms_norm(to_bfloat16(a), b)


def zeros(a: Floats, _: Floats) -> Floats:
    return np.zeros_like(a)


def ones(a: Floats, _: Floats) -> Floats:
    return np.ones_like(a)


def copy(a: Floats, _: Floats) -> Floats:
    return a


def matmul_in_bfloat16(a: Floats, b: Floats) -> Floats:
    return to_bfloat16(a) @ to_bfloat16(b)


def without_epsilon_and_mean_of_half(a: Floats, b: Floats) -> Floats:
    half = a[:, : a.shape[1] // 2]
    return a / np.sqrt((half * half).mean(-1, keepdims=True)) * b


@pytest.mark.parametrize("family", ["normal", "wide"])
@pytest.mark.parametrize(
    "answer",
    [
        tail_wrong,
        one_element_wrong,
        half_computed,
        in_bfloat16,
        without_epsilon_and_mean_of_half,
        zeros,
        ones,
        copy,
    ],
)
def test_wrong_answers_fail(answer: Answer, family: str) -> None:
    assert not verdict(rms_norm, answer, {"m": 256, "n": 2048}, ("mn", "n", "mn"), family)


def test_a_matrix_product_in_bfloat16_fails() -> None:
    sizes = {"m": 48, "k": 4096, "n": 48}
    assert not verdict(matmul, matmul_in_bfloat16, sizes, ("mk", "kn", "mn"), "normal")


def make_task(**options: object) -> Task:
    base = Task(
        name="t",
        source="python",
        digest="0" * 64,
        framework="torch",
        inputs=(tensor("x", "m", "k"), tensor("y", "k", "n")),
        outputs=(OUT,),
        dims=("m", "k", "n"),
        cases=(Case(name="main", role=CaseRole.TIMED, sizes={"m": 8, "k": 512, "n": 16}),),
    )
    return base.model_copy(update=options)


def bound_of(dtype: DType, length: int, family: str = "normal", **options: object) -> Bound:
    own = ReferenceError(rms=1e-9, largest=1e-8, golden_rms=2.0)
    argument = OUT.model_copy(update={"dtype": dtype})
    return derive_bound(argument, make_task(**options), length, own, own, family)


def test_the_derived_limit_is_the_contract() -> None:
    assert bound_of(DType.FLOAT32, 4096).rms_limit == pytest.approx(2.0**-24 * (4 + 32) * 2.0)
    assert bound_of(DType.FLOAT32, 4096, "constant").rms_limit == pytest.approx(2.0**-24 * (4 + 2048) * 2.0)
    assert bound_of(DType.BFLOAT16, 1).rms_limit == pytest.approx(2.0**-8 * 4.5 * 2.0)


@pytest.mark.parametrize(("dtype", "factor"), [(DType.FLOAT32, 2), (DType.FLOAT16, 3), (DType.BFLOAT16, 3)])
def test_a_reference_with_large_errors_of_its_own_widens_the_limit(dtype: DType, factor: int) -> None:
    own = ReferenceError(rms=0.5, largest=2.0, golden_rms=1.0)
    bound = derive_bound(OUT.model_copy(update={"dtype": dtype}), make_task(), 1, own, own, "normal")
    assert bound.rms_limit == pytest.approx(factor * 0.5)
    assert bound.max_floor == pytest.approx(6.0)


def test_few_independent_errors_have_a_wider_limit() -> None:
    own = ReferenceError(rms=0.0, largest=0.0, golden_rms=1.0)

    def limit(elements: int, length: int) -> float:
        return derive_bound(OUT, make_task(), length, own, own, "normal", elements=elements).rms_limit

    many = derive_bound(OUT, make_task(), 64, own, own, "normal").rms_limit
    assert limit(1, 64) == pytest.approx(3 * many)
    assert limit(63, 64) == pytest.approx((1 + 2 / math.sqrt(63)) * many)
    assert limit(64, 64) == pytest.approx(3 * many), "one row, which may share the error of its mean"
    assert limit(64 * 10**8, 64) == pytest.approx(many, rel=1e-3)


def test_an_answer_that_moves_with_its_inputs_has_a_wider_limit() -> None:
    own = ReferenceError(rms=0.0, largest=0.0, golden_rms=1.0)
    amount = 2.0**-24 * (4 + 4)
    moved = Moved(rms=0.01, largest=0.04, amount=amount)
    bound = derive_bound(OUT, make_task(), 64, own, own, "normal", moved=moved)
    assert (bound.rms_limit, bound.max_floor) == (pytest.approx(0.01), pytest.approx(0.12))
    twice = derive_bound(OUT, make_task(), 64, own, own, "normal", moved=Moved(0.01, 0.04, 2 * amount))
    assert twice.rms_limit == pytest.approx(0.005), "what moved by twice as much as the bound asks"


def test_the_tasks_own_tolerance_replaces_the_derived_limit() -> None:
    assert bound_of(DType.FLOAT32, 1, tolerance=Tolerance(relative_rms=0.01)).rms_limit == pytest.approx(0.02)


def test_relaxed_precision_grants_the_roundoff_of_tf32() -> None:
    strict, relaxed = bound_of(DType.FLOAT32, 64), bound_of(DType.FLOAT32, 64, precision="relaxed")
    assert relaxed.rms_limit == pytest.approx(strict.rms_limit * 2.0**13)
    assert bound_of(DType.FLOAT64, 64, precision="relaxed") == bound_of(DType.FLOAT64, 64)


def test_a_golden_output_of_zeros_has_an_absolute_floor() -> None:
    own = ReferenceError(rms=0.0, largest=0.0, golden_rms=0.0)
    bound = derive_bound(OUT, make_task(), 64, own, own, "normal")
    assert (bound.rms_limit, bound.max_floor) == (1e-20, 1e-20)


def test_errors_are_pooled_over_seeds() -> None:
    pool = pooled([ReferenceError(0.0, 0.0, 1.0), ReferenceError(2.0, 3.0, 1.0)])
    assert (pool.rms, pool.largest, pool.golden_rms) == (pytest.approx(math.sqrt(2.0)), 3.0, 1.0)


def graph_of(op: str, *shapes: tuple[int, ...], out: tuple[int, ...], extra: tuple[object, ...] = ()) -> Graph:
    """Placeholders of these shapes into one call, and a pointwise call after it."""
    places = [
        Node(name=f"p{i}", kind="placeholder", argument=f"p{i}", values=(Value(shape=s, dtype=DType.FLOAT32),))
        for i, s in enumerate(shapes)
    ]
    value = (Value(shape=out, dtype=DType.FLOAT32),)
    args = (*({"ref": p.name, "index": 0} for p in places), *extra)
    call = Node(name="call", kind="call", op=op, args=args, values=value)
    after = Node(name="after", kind="call", op="aten.exp.default", args=({"ref": "call", "index": 0},), values=value)
    return Graph(nodes=(*places, call, after), outputs=(Ref(ref="after"),), sizes={})


@pytest.mark.parametrize(
    ("graph", "length"),
    [
        (graph_of("aten.mul.Tensor", (8, 16), (16,), out=(8, 16)), 1),
        (graph_of("aten.sum.dim_IntList", (8, 512), out=(8,), extra=([1], False)), 512),
        (graph_of("aten.mean.default", (8, 512), out=()), 4096),
        (graph_of("aten.matmul.default", (8, 512), (512, 16), out=(8, 16)), 512),
        (graph_of("aten.addmm.default", (16,), (8, 512), (512, 16), out=(8, 16)), 512),
        (graph_of("aten.linear.default", (8, 512), (16, 512), (16,), out=(8, 16)), 512),
        (graph_of("aten.softmax.int", (8, 33, 4), out=(8, 33, 4), extra=(1,)), 33),
        (graph_of("aten.layer_norm.default", (8, 6, 7), out=(8, 6, 7), extra=([6, 7],)), 42),
        (graph_of("aten.group_norm.default", (2, 6, 7), out=(2, 6, 7), extra=(3,)), 14),
        (graph_of("aten.batch_norm.default", (4, 6, 7), out=(4, 6, 7)), 28),
        (graph_of("aten.cumsum.default", (8, 99), out=(8, 99), extra=(1,)), 99),
        (graph_of("aten.conv2d.default", (1, 4, 9, 9), (5, 4, 3, 3), out=(1, 5, 7, 7)), 36),
        (graph_of("aten.conv_transpose2d.input", (1, 4, 9, 9), (4, 5, 3, 3), out=(1, 5, 11, 11)), 36),
        (graph_of("aten.avg_pool2d.default", (1, 4, 9, 9), out=(1, 4, 7, 7), extra=([3, 3],)), 9),
        (graph_of("aten.embedding.default", (50_000, 64), (8,), out=(8, 64)), 1),
        (graph_of("aten.einsum.default", (8, 512), (512, 16), out=(8, 16)), 512),
    ],
)
def test_the_trace_gives_the_reduction_length(graph: Graph, length: int) -> None:
    task = make_task()
    assert reduction_lengths(task, task.cases[0], graph) == (length,)


def test_without_a_trace_shapes_give_the_reduction_length() -> None:
    task = make_task()
    assert reduction_lengths(task, task.cases[0], None) == (512,)
