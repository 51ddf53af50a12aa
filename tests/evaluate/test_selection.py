"""Index outputs: which are recognised, and that they are judged by the value that they select."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.evaluations import SETTINGS, bench_on, write_task

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.checks import check_answers
from kernelworks.evaluate.endings import EndedEvaluation
from kernelworks.evaluate.evaluation import Evaluation
from kernelworks.evaluate.selection import Origin, Selection, compare_selected, origin_of
from kernelworks.kernel.frontmatter import parse_kernel
from kernelworks.kernel.model import Kernel, Language
from kernelworks.kernel.model import Origin as KernelOrigin
from kernelworks.kernel.verdict import Status
from kernelworks.targets.base import Artefact
from kernelworks.task.graph import Graph, Node, Ref, Value
from kernelworks.task.model import DType

FLOATS = DType.FLOAT32
X = Node(name="x", kind="placeholder", argument="x", values=(Value(shape=(2, 8, 3), dtype=FLOATS),))


def call(op: str, *extra: object, out: tuple[tuple[int, ...], ...], index: int, **named: object) -> tuple[Graph, Ref]:
    """A graph of one call on ``x`` and the output that is its result ``index``."""
    values = tuple(Value(shape=shape, dtype=DType.INT64 if i == index else FLOATS) for i, shape in enumerate(out))
    args = ({"ref": "x", "index": 0}, *extra)
    node = Node(name="call", kind="call", op=op, args=args, kwargs=dict(named), values=values)
    ref = Ref(ref="call", index=index)
    return Graph(nodes=(X, node), outputs=(ref,), sizes={}), ref


LINE = Origin(Ref(ref="x"), lines=8, picks=1, inner=3, distinct=False)


@pytest.mark.parametrize(
    ("found", "origin"),
    [
        (call("aten.argmax.default", 1, False, out=((2, 3),), index=0), LINE),
        (call("aten.argmin.default", -2, True, out=((2, 1, 3),), index=0), LINE),
        (call("aten.argmax.default", None, False, out=((),), index=0), Origin(Ref(ref="x"), 48, 1, 1, False)),
        (call("aten.max.dim", 1, False, out=((2, 3), (2, 3)), index=1), LINE),
        (call("aten.median.dim", 1, False, out=((2, 3), (2, 3)), index=1), LINE),
        (call("aten.kthvalue.default", 2, 1, False, out=((2, 3), (2, 3)), index=1), LINE),
        (
            call("aten.topk.default", 5, 1, True, True, out=((2, 5, 3), (2, 5, 3)), index=1),
            Origin(Ref(ref="x"), 8, 5, 3, True),
        ),
        (call("aten.sort.default", out=((2, 8, 3), (2, 8, 3)), index=1), Origin(Ref(ref="x"), 3, 3, 1, True)),
        (
            call("aten.sort.stable", stable=False, dim=1, out=((2, 8, 3),) * 2, index=1),
            Origin(Ref(ref="x"), 8, 8, 3, True),
        ),
        (call("aten.sort.stable", stable=True, dim=1, out=((2, 8, 3),) * 2, index=1), None),
        (call("aten.cummax.default", 1, out=((2, 8, 3),) * 2, index=1), Origin(Ref(ref="x"), 8, 8, 3, False)),
        (
            call("aten.max_pool2d_with_indices.default", [2, 2], out=((2, 4, 1), (2, 4, 1)), index=1),
            Origin(Ref(ref="x"), 24, 4, 1, False),
        ),
        (call("aten.searchsorted.Tensor", out=((2, 8, 3),), index=0), None),
        (call("aten.topk.default", 5, 1, True, True, out=((2, 5, 3), (2, 5, 3)), index=0), None),
    ],
)
def test_indices_are_recognised_in_the_trace(found: tuple[Graph, Ref], origin: Origin | None) -> None:
    assert origin_of(*found) == origin


def test_an_index_that_is_cast_and_reshaped_is_still_one() -> None:
    graph, ref = call("aten.argmax.default", 1, False, out=((2, 3),), index=0)
    narrow = (Value(shape=(2, 3), dtype=DType.INT32),)
    flat = (Value(shape=(6,), dtype=DType.INT32),)
    cast = Node(
        name="cast", kind="call", op="aten.to.dtype", args=({"ref": "call", "index": 0}, "int32"), values=narrow
    )
    view = Node(name="view", kind="call", op="aten.view.default", args=({"ref": "cast", "index": 0}, [6]), values=flat)
    longer = graph.model_copy(update={"nodes": (*graph.nodes, cast, view)})
    assert origin_of(longer, Ref(ref="view")) == origin_of(graph, ref) is not None
    moved = Node(name="moved", kind="call", op="aten.add.Tensor", args=({"ref": "call", "index": 0}, 1), values=narrow)
    assert origin_of(graph.model_copy(update={"nodes": (*graph.nodes, moved)}), Ref(ref="moved")) is None


def select(values: list[list[float]], *, picks: int = 1, distinct: bool = False, floor: float = 0.0) -> Selection:
    raw = np.array(values, np.float32)
    return Selection(Origin(Ref(ref="x"), raw.shape[1], picks, 1, distinct), raw.reshape(-1), FLOATS, floor=floor)


def mismatches(selection: Selection, found: list[int], golden: list[int]) -> int:
    made = compare_selected(np.array(found), np.array(golden), DType.INT64, -1, selection)
    return made.mismatches


def test_ties_are_admitted_and_nothing_else() -> None:
    selection = select([[1, 5, 5, 2], [np.nan, np.nan, 0, 0]])
    assert mismatches(selection, [1, 0], [1, 0]) == 0
    assert mismatches(selection, [2, 1], [1, 0]) == 0
    assert mismatches(selection, [3, 2], [1, 0]) == 2
    assert mismatches(selection, [4, -1], [1, 0]) == 2


def test_near_ties_are_admitted_where_values_are_computed() -> None:
    selection = select([[1.0, 1.0 + 1e-6, 0.9]], floor=1e-5)
    assert [mismatches(selection, [k], [1]) for k in range(3)] == [0, 0, 1]
    assert selection.determined(np.array([0]), np.array([1])).tolist() == [False]
    assert select([[1.0, 1.1, 0.9]], floor=1e-5).determined(np.array([0]), np.array([1])).tolist() == [True]


def test_an_order_names_every_element_once() -> None:
    selection = select([[3, 3, 3, 1]], picks=4, distinct=True)
    assert mismatches(selection, [3, 2, 1, 0], [3, 0, 1, 2]) == 0
    assert mismatches(selection, [3, 2, 2, 0], [3, 0, 1, 2]) > 0
    assert mismatches(selection, [3, 0, 0, 0], [3, 0, 1, 2]) == 2


TASK = """
import torch
from jaxtyping import Float32, Int32, Int64
from torch import Tensor
from torch.nn import functional

from kernelworks.task import case, task


@task(
    cases=[case("main", "timed", rows=64, cols=256, half=128), case("odd", "check", rows=13, cols=34, half=17)],
    outputs=["largest", "hidden", "order", "most", "pooled", "tied"],
)
def indices(x: Float32[Tensor, "rows cols"], n: Int32[Tensor, "rows cols"]) -> tuple[
    Int64[Tensor, "rows"], Int64[Tensor, "rows"], Int64[Tensor, "rows cols"], Int64[Tensor, "rows 3"],
    Int64[Tensor, "rows half"], Int64[Tensor, "rows"],
]:
    softened = torch.softmax(x * 0.5, -1)
    return (
        x.argmax(-1), softened.argmin(-1), x.argsort(-1), x.topk(3, -1).indices,
        functional.max_pool1d(x[:, None], 2, return_indices=True)[1][:, 0], n.argmax(-1),
    )
"""
BODY = """
    for (int64_t i = 0; i < rows; i++) {
      const float* v = x + i * cols;
      auto nan = [&](int64_t a) { return v[a] != v[a]; };
      auto less = [&](int64_t a, int64_t b) {
        return nan(a) != nan(b) ? nan(b) : v[a] < v[b] || (v[a] == v[b] && a TIES b);
      };
      int64_t* o = order + i * cols;
      bool spoilt = false;
      for (int64_t j = 0; j < cols; j++) { o[j] = j; spoilt |= nan(j) || v[j] == INFINITY; }
      std::sort(o, o + cols, less);
      largest[i] = o[cols - 1];
      tied[i] = 0;
      for (int64_t j = 1; j < cols; j++) {
        const int32_t a = n[i * cols + j], b = n[i * cols + tied[i]];
        if (a > b || (a == b && tied[i] TIES j)) tied[i] = j;
      }
      hidden[i] = spoilt ? 0 : o[0];
      for (int k = 0; k < 3; k++) most[3 * i + k] = o[cols - 1 - k];
      for (int64_t j = 0; j < half; j++) pooled[i * half + j] = 2 * j + less(2 * j, 2 * j + 1);
    }
"""
TEXT = """/*---
contract: function
---*/
#include <stdint.h>
#include <math.h>
#include <algorithm>
extern "C" int launch(const float* x, const int32_t* n, int64_t* largest, int64_t* hidden, int64_t* order,
                      int64_t* most, int64_t* pooled, int64_t* tied, int64_t rows, int64_t cols, int64_t half) {
BODY
  return 0;
}
"""


def kernel(ties: str = "<", deed: str = "") -> Kernel:
    """Ties go to one end or the other."""
    body = BODY.replace("TIES", ties) + deed
    return parse_kernel(TEXT.replace("BODY", body), Language.CPP, KernelOrigin(proposer="file"))


@pytest.fixture(scope="module")
def bench(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    pytest.importorskip("torch")
    with bench_on(write_task(tmp_path_factory.mktemp("indices"), TASK)) as found:
        yield found


@pytest.mark.parametrize("ties", ["<", ">"])
def test_either_of_equal_values_is_right(bench: Bench, ties: str) -> None:
    """Also in the timed calls, after rows were rewritten: the integers are full of ties."""
    families = {c.prepared.family for c in bench.checks}
    assert {"integers", "constant", "sparse"} <= families, bench.dropped
    verdict = Evaluation(bench, kernel(ties)).run(None)
    assert verdict.status is Status.CORRECT, verdict.findings


@pytest.mark.parametrize(
    ("deed", "tensor"),
    [
        ("largest[rows - 1] = (largest[rows - 1] + 1) % cols;", "largest"),
        ("hidden[0] = (hidden[0] + 1) % cols;", "hidden"),
        ("order[1] = order[0];", "order"),
        ("most[0] = cols;", "most"),
        ("pooled[half - 1] ^= 1;", "pooled"),
    ],
    ids=["largest", "hidden", "order", "out of range", "pooled"],
)
def test_another_value_is_wrong(bench: Bench, deed: str, tensor: str) -> None:
    built = bench.target.build(bench.task, kernel(deed=deed))
    assert isinstance(built, Artefact), built
    with bench.pool.start(built.path) as candidate, pytest.raises(EndedEvaluation) as caught:
        check_answers(candidate, [*bench.checks, *bench.timed], bench.judge, SETTINGS.call_timeout_s)
    assert caught.value.status is Status.WRONG
    assert {f.evidence["tensor"] for f in caught.value.findings if "tensor" in f.evidence} == {tensor}
