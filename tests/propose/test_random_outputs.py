"""Random sets of outputs, related and unrelated, in random recipes, against torch in float64."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kernelworks.errors import ProposeError
from kernelworks.propose.experts.recipe import KNOBS, Recipe
from kernelworks.propose.experts.recognise import recognise

from .conftest import Job, Workshop, golden, make_job
from .test_generate import Writer

# torch has partial types only.
torch: Any = importlib.import_module("torch")
functional: Any = torch.nn.functional


@dataclass(frozen=True)
class Inputs:
    """What outputs are made of; x, y, k, d and h are of equal size, but only what an output combines is related."""

    x: Any
    y: Any
    column: Any
    """One number for each column of x."""
    row: Any
    """One number for each row of x."""
    cube: Any
    vector: Any
    """Of a size of its own."""
    k: Any
    """int32."""
    n: Any
    """int32, as long as ``vector``."""
    d: Any
    """float64."""
    h: Any
    """bfloat16."""
    factor: Any

    @classmethod
    def of(cls, rows: int, columns: int, length: int) -> Inputs:
        """Random ones."""

        def integers(*shape: int) -> Any:
            return torch.randint(-(2**20), 2**20, shape, dtype=torch.int32)

        return cls(
            x=torch.randn(rows, columns),
            y=torch.randn(rows, columns),
            column=torch.randn(columns),
            row=torch.randn(rows, 1),
            cube=torch.randn(3, rows, columns),
            vector=torch.randn(length),
            k=integers(rows, columns),
            n=integers(length),
            d=torch.randn(rows, columns).double(),
            h=torch.randn(rows, columns).bfloat16(),
            factor=0.75,
        )

    def listed(self) -> list[Any]:
        """As the reference takes them."""
        return [getattr(self, name) for name in NAMES]


NAMES = tuple(Inputs.__dataclass_fields__)


def scores(i: Inputs) -> Any:
    return i.x * i.factor + i.column


OUTPUTS: dict[str, Callable[[Inputs], Any]] = {
    # By row, with what they share.
    "softmax": lambda i: torch.softmax(scores(i), -1),
    "log_softmax": lambda i: torch.log_softmax(scores(i), -1),
    "logsumexp": lambda i: torch.logsumexp(scores(i), -1),
    "largest": lambda i: scores(i).amax(-1),
    "mean": lambda i: i.x.mean(-1),
    "layer_norm": lambda i: functional.layer_norm(i.x, (i.x.shape[-1],), i.column),
    "other_rows": lambda i: torch.softmax(i.y, -1),
    "other_logsumexp": lambda i: torch.logsumexp(i.y, -1, keepdim=True),
    "int_rows": lambda i: i.k.sum(-1),
    "double_rows": lambda i: torch.softmax(i.d, -1),
    "bfloat16_rows": lambda i: torch.softmax(i.h, -1),
    "bfloat16_norm": lambda i: functional.layer_norm(i.h, (i.h.shape[-1],)),
    "float16_norm": lambda i: functional.layer_norm(i.y.half(), (i.y.shape[-1],)),
    "sum_in_double": lambda i: torch.exp(i.y - i.y.amax(-1, keepdim=True)).sum(-1, dtype=torch.float64),
    "softmax_of_column": lambda i: torch.softmax(i.column, 0),
    "weighted": lambda i: i.y * torch.softmax(i.column, 0),
    # Over everything.
    "mean_of_all": lambda i: (i.x * i.x).mean(),
    "largest_of_all": lambda i: i.y.amax(),
    "smallest_integer": lambda i: i.n.amin(),
    "sum_of_column": lambda i: i.column.mean(),
    "softmax_of_vector": lambda i: torch.softmax(i.vector, 0),
    # By column.
    "middle": lambda i: torch.softmax(i.cube, 1),
    "middle_logsumexp": lambda i: torch.logsumexp(i.cube, 1),
    "middle_mean": lambda i: (i.cube + i.column).mean(1),
    "down": lambda i: i.x.amax(0),
    "row_mean": lambda i: (i.row * i.row).mean(),
    # By element.
    "relu": lambda i: torch.relu(i.x),
    "positive": lambda i: i.x > 0,
    "product": lambda i: i.x * i.y,
    "gated": lambda i: torch.tanh(i.x * i.row) * i.y,
    "exp_of_column": lambda i: torch.exp(i.column),
    "row": lambda i: i.row + 1,
    "cube": lambda i: torch.sigmoid(i.cube),
    "vector": lambda i: torch.tanh(i.vector) * i.factor,
    "integers": lambda i: i.k + 3,
    "few_integers": lambda i: i.n * 2,
    "double": lambda i: torch.exp(i.d),
    "bfloat16": lambda i: functional.relu(i.h),
}
SIZES = ((7, 130, 11), (3, 16, 257), (5, 33, 1), (2, 1, 40), (1, 1, 1))

recipes = st.builds(Recipe, **{name: st.sampled_from(list(values)) for name, values in KNOBS.items()})


def job_of(outputs: list[str]) -> Job:
    def reference(*values: Any) -> Any:
        found = Inputs(*values)
        return tuple(OUTPUTS[name](found) for name in outputs)

    inputs = Inputs.of(12, 40, 50)
    return make_job(reference, dict(zip(NAMES, inputs.listed(), strict=True)))


def check(workshop: Workshop, job: Job, recipe: Recipe) -> None:
    writer = Writer(job)
    kernel = writer.kernel(writer.moves.point(recipe))
    torch.manual_seed(1)
    for size in SIZES:
        inputs = Inputs.of(*size).listed()
        found = workshop.run(kernel, job, inputs)
        native, wanted = golden(job.reference, inputs, double=False), golden(job.reference, inputs, double=True)
        for argument, ours, theirs, exact in zip(job.task.outputs, found, native, wanted, strict=True):
            where = (argument.name, size, recipe)
            if not theirs.is_floating_point():
                assert torch.equal(ours, theirs), where
                continue
            error, unit = (ours.double() - exact).abs().max(), torch.finfo(theirs.dtype).eps
            allowed = 4 * float((theirs.double() - exact).abs().max()) + 16 * unit * (1 + float(exact.abs().max()))
            assert float(error) <= allowed, where


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(outputs=st.lists(st.sampled_from([*OUTPUTS]), min_size=2, max_size=4), recipe=recipes)
def test_any_outputs_together_are_right_or_refused_in_a_sentence(
    workshop: Workshop, outputs: list[str], recipe: Recipe
) -> None:
    job = job_of(outputs)
    try:
        recognise(job.task, job.graph)
    except ProposeError as error:
        assert "different axes" in error.message or "different orders" in error.message, error.message
        assume(False)
    check(workshop, job, recipe)


@pytest.mark.parametrize("outputs", [("softmax", "logsumexp"), ("middle", "middle_logsumexp")])
@pytest.mark.parametrize("style", KNOBS["style"])
@pytest.mark.parametrize("fusion", KNOBS["fusion"])
def test_sums_against_one_maximum_are_gathered_together(
    workshop: Workshop, outputs: tuple[str, ...], style: str, fusion: str
) -> None:
    for names in (outputs, outputs[::-1]):
        job = job_of([*names])
        check(workshop, job, Recipe(style=style, fusion=fusion, softmax="online"))


@pytest.mark.parametrize("style", KNOBS["style"])
def test_sums_against_an_infinite_maximum_end_as_torch_says(workshop: Workshop, style: str) -> None:
    def reference(x: Any) -> Any:
        return torch.logsumexp(x, -1), torch.softmax(x, -1)

    job = make_job(reference, {"x": torch.randn(6, 40)})
    writer = Writer(job)
    x = torch.randn(4, 70)
    x[0], x[1, 3], x[2, 5:] = -torch.inf, torch.inf, -torch.inf
    found = workshop.run(writer.kernel(writer.moves.point(Recipe(style=style, softmax="online"))), job, [x])
    for ours, theirs in zip(found, golden(job.reference, [x], double=False), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)
