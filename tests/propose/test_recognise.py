from __future__ import annotations

import importlib
import time
from typing import Any

import pytest

from kernelworks.errors import ProposeError
from kernelworks.propose.experts.ir import Layout
from kernelworks.propose.experts.recipe import choices_for
from kernelworks.propose.experts.recognise import recognise

from .conftest import Job, Lambda, make_job

# torch has partial types only.
torch: Any = importlib.import_module("torch")
functional: Any = torch.nn.functional


def job(reference: Lambda, *shapes: tuple[int, ...]) -> Job:
    return make_job(reference, {name: torch.empty(shape) for name, shape in zip("xyz", shapes, strict=False)})


FOUND: list[tuple[Lambda, list[tuple[int, ...]], Layout, list[str]]] = [
    (lambda x: torch.relu(x), [(6, 8)], Layout.FLAT, ["x_0 * x_1"]),
    (lambda x, y: x + y, [(6, 8), (8,)], Layout.FLAT, ["x_0", "x_1"]),
    (lambda x: torch.softmax(x, -1), [(2, 6, 8)], Layout.ROWS, ["x_0 * x_1", "x_2"]),
    (lambda x: x.mean((1, 2)), [(2, 6, 8)], Layout.ROWS, ["x_0", "x_1 * x_2"]),
    (lambda x: x.amax(1), [(2, 6, 8)], Layout.COLUMNS, ["x_0", "x_1", "x_2"]),
    (lambda x: x.sum((0, 2)), [(2, 6, 8)], Layout.ROWS, ["x_0", "x_1", "x_2"]),
    (lambda x: x.square().mean(), [(6, 8)], Layout.FLAT, ["x_0 * x_1"]),
    (lambda x: functional.group_norm(x, 2), [(3, 4, 5)], Layout.ROWS, ["x_0 * 2", "(x_1 / 2) * x_2"]),
    (lambda x: x.view(3, 20).sum(1), [(3, 4, 5)], Layout.ROWS, ["x_0", "x_1 * x_2"]),
]


@pytest.mark.parametrize(("reference", "shapes", "layout", "axes"), FOUND)
def test_axes_are_merged_as_far_as_all_tensors_agree(
    reference: Lambda, shapes: list[tuple[int, ...]], layout: Layout, axes: list[str]
) -> None:
    made = job(reference, *shapes)
    (program,) = recognise(made.task, made.graph)
    assert program.layout is layout
    assert [axis.size for axis in program.axes] == axes


def test_equal_work_is_done_once() -> None:
    made = job(lambda x: torch.sigmoid(x) * torch.sigmoid(x) + x * torch.sigmoid(x), (6, 8))
    (program,) = recognise(made.task, made.graph)
    assert sum(node.op == "exp" for node in program.nodes) == 1


def test_outputs_without_a_common_axis_get_a_nest_each() -> None:
    made = job(lambda x, y, z: (torch.relu(y), torch.softmax(x + z, -1), y.amax(), z + 1), (6, 8), (6, 8), (8,))
    elements, rows = recognise(made.task, made.graph)
    assert [o.argument for o in elements.outputs] == ["out0", "out2"]
    assert [o.argument for o in rows.outputs] == ["out1", "out3"]
    assert (elements.layout, rows.layout) == (Layout.FLAT, Layout.ROWS)
    assert [axis.size for axis in elements.axes] == ["y_0 * y_1"]


def test_nests_differ_in_what_they_can_be_vectors_of() -> None:
    def reference(x: Any, k: Any) -> Any:
        return torch.softmax(x, -1), k + 3

    made = make_job(reference, {"x": torch.randn(6, 8), "k": torch.ones(6, 8, dtype=torch.int32)})
    choices = choices_for(recognise(made.task, made.graph), 512)
    assert [program.knobs["style"][0] for program in choices.programs] == ["vector", "simd"]
    assert choices.knobs["style"] == ("vector", "simd", "plain")


def refusal(made: Job) -> str:
    with pytest.raises(ProposeError) as caught:
        recognise(made.task, made.graph)
    assert "\n" not in caught.value.message
    for way in ("--model", "agent", "--seed-kernel FILE"):
        assert way in caught.value.message
    return caught.value.message


def test_unknown_operators_are_all_named_once() -> None:
    made = job(lambda x, y: (torch.matmul(x, y).cumsum(0), torch.matmul(x, y) + 1), (6, 8), (8, 6))
    assert "aten.matmul.default, aten.cumsum.default" in refusal(made)


REFUSED: list[tuple[Lambda, list[tuple[int, ...]], str]] = [
    (lambda x: x.sum(0, keepdim=True) + x.sum(1, keepdim=True), [(6, 8)], "reductions over different axes"),
    (lambda x: x + x.t(), [(6, 6)], "aten.permute.default"),
    (lambda x: torch.max(x, 1)[1], [(6, 8)], "result 1 of aten.max.dim"),
    (lambda x: x.expand(4, 8).sum(0), [(1, 8)], "expanded"),
    (lambda x: x.unsqueeze(0).expand(3, 6, 8) * 1.0, [(6, 8)], "expanded"),
    (lambda x: torch.softmax(x, 0).sum((0, 1)) * x.sum(1), [(6, 6)], "different axes"),
]


@pytest.mark.parametrize(("reference", "shapes", "reason"), REFUSED)
def test_what_one_loop_nest_cannot_do_is_refused_with_the_reason(
    reference: Lambda, shapes: list[tuple[int, ...]], reason: str
) -> None:
    assert reason in refusal(job(reference, *shapes))


def test_tasks_that_change_their_arguments_are_refused() -> None:
    made = job(torch.relu, (6, 8))
    assert "changes its argument 'x'" in refusal(
        Job(made.reference, made.task.model_copy(update={"mutates": ("x",)}), made.graph)
    )


def test_scalars_that_decide_the_shape_are_refused() -> None:
    made = job(torch.relu, (6, 8))
    graph = made.graph.model_copy(update={"specialised": ("n",)})
    assert "scalar 'n'" in refusal(Job(made.reference, made.task, graph))


def test_recognition_is_quick() -> None:
    """A guard against accidental quadratic work; the limit is far above what is needed."""

    def deep(x: Any, y: Any) -> Any:
        for _ in range(100):
            x = torch.tanh(x * y) + x
        return x

    made = job(deep, (6, 8), (8,))
    before_s = time.process_time()
    recognise(made.task, made.graph)
    assert time.process_time() - before_s < 10.0
