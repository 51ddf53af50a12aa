"""Random pointwise graphs with broadcasting, against torch in float64."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelworks.propose.experts.recipe import Recipe

from .conftest import Workshop, golden, make_job
from .test_generate import Writer

# torch has partial types only.
torch: Any = importlib.import_module("torch")
functional: Any = torch.nn.functional

# Continuous functions of moderate slope: rounding must not be amplified or flip a choice.
UNARY: dict[str, Callable[[Any], Any]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "abs": torch.abs,
    "neg": torch.neg,
    "gelu": functional.gelu,
    "softplus": functional.softplus,
    "elu": functional.elu,
    "log1p": lambda x: torch.log1p(x.abs()),
    "sqrt": lambda x: torch.sqrt(x * x + 1),
    "clamp": lambda x: x.clamp(-0.75, 1.25),
    "halved": lambda x: x / 2 - 0.25,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "product": lambda x, y: torch.tanh(x) * y,
}
INPUTS = 3


@dataclass(frozen=True)
class Step:
    """One operation on earlier values; indices count from the latest."""

    op: str
    first: int
    second: int


steps = st.lists(
    st.builds(Step, st.sampled_from([*UNARY, *BINARY]), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=10
)


def evaluate(graph: list[Step], inputs: tuple[Any, ...]) -> tuple[Any, Any]:
    # Every input takes part, so that the shape of the outputs is that of all of them.
    values = [*inputs, inputs[0] + inputs[1] + inputs[2]]
    for step in graph:
        first, second = values[-1 - step.first % len(values)], values[-1 - step.second % len(values)]
        values.append(UNARY[step.op](first) if step.op in UNARY else BINARY[step.op](first, second))
    return values[-1], values[INPUTS]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph=steps, seed=st.integers(0, 99), style=st.sampled_from(["vector", "simd", "plain"]))
def test_random_graphs_compute_what_torch_computes(
    workshop: Workshop, graph: list[Step], seed: int, style: str
) -> None:
    torch.manual_seed(seed)

    def make(rows: int, columns: int) -> list[Any]:
        return [torch.randn(rows, columns), torch.randn(columns), torch.randn(rows, 1)]

    def reference(x: Any, y: Any, z: Any) -> Any:
        return evaluate(graph, (x, y, z))

    job = make_job(reference, dict(zip("xyz", make(12, 40), strict=True)))
    writer = Writer(job)
    kernel = writer.kernel(writer.moves.point(Recipe(style=style, math="short" if seed % 2 else "precise")))
    for rows, columns in ((7, 130), (3, 16), (2, 1)):
        inputs = make(rows, columns)
        found = workshop.run(kernel, job, inputs)
        native, wanted = golden(job.reference, inputs, double=False), golden(job.reference, inputs, double=True)
        for ours, theirs, exact in zip(found, native, wanted, strict=True):
            allowed = 4 * float((theirs - exact).abs().max()) + 16 * 2.0**-24 * (1 + float(exact.abs().max()))
            assert float((ours - exact).abs().max()) <= allowed
