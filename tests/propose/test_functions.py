"""The stated error of our own float32 functions, against float64, in both styles."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from kernelworks.propose.experts.recipe import Recipe

from .conftest import Workshop, golden, make_job
from .test_generate import Writer

# torch has partial types only.
torch: Any = importlib.import_module("torch")
functional: Any = torch.nn.functional

SMALLEST_NORMAL = 1.17549435e-38
FLUSHED_BELOW = 1.7e-38
"""The short exponential gives 0 below."""
ULPS = {"exp": 2.0, "expm1": 2.0, "log": 2.0, "log1p": 2.0, "tanh": 3.0, "erf": 2.0}
SHORT_EXP_ULPS = 3.0
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "tanh": torch.tanh,
    "erf": torch.erf,
}


@lru_cache(maxsize=1)
def sample() -> Any:
    """Bit patterns of all kinds, dense stretches where functions bend, and the extremes."""
    patterns = np.arange(0, 2**32, 8_191, dtype=np.uint64).astype(np.uint32).view(np.float32)
    parts = [
        patterns,
        np.linspace(-110, 110, 300_001, dtype=np.float32),
        np.linspace(-4.5, 4.5, 300_001, dtype=np.float32),
        np.linspace(0.4, 2.2, 200_001, dtype=np.float32),
        np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-45, -1e-45, SMALLEST_NORMAL], np.float32),
        np.array([3.4028235e38, -3.4028235e38, 88.72, 88.73, 89, -87.3, -87.4, -103.9, -104.1], np.float32),
    ]
    return torch.from_numpy(np.concatenate(parts)[None].copy())


def measured(workshop: Workshop, function: Callable[[Any], Any], style: str, accuracy: str) -> tuple[Any, Any, Any]:
    """Arguments, results and golden results of a kernel that applies one function."""
    x = sample()
    job = make_job(function, {"x": x})
    writer = Writer(job)
    point = writer.moves.point(Recipe(style=style, math=accuracy))
    assert point.recipe.math == accuracy
    (found,) = workshop.run(writer.kernel(point), job, [x])
    return x, found, function(x.double())


def check_ulps(found: Any, wanted: Any, ulps: float, smallest: float) -> None:
    rounded = wanted.float()
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found[rounded.isinf()], rounded[rounded.isinf()])
    judged = rounded.isfinite() & (rounded.abs() >= smallest)
    unit = torch.from_numpy(np.spacing(np.abs(rounded[judged].numpy()))).double()
    assert float(((found[judged].double() - wanted[judged]).abs() / unit).max()) <= ulps


@pytest.mark.parametrize("style", ["vector", "simd"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_precise_functions_keep_their_stated_error(workshop: Workshop, name: str, style: str) -> None:
    _, found, wanted = measured(workshop, FUNCTIONS[name], style, "precise")
    check_ulps(found, wanted, ULPS[name], 0.0)


@pytest.mark.parametrize("style", ["vector", "simd"])
def test_the_short_exponential_keeps_its_stated_error(workshop: Workshop, style: str) -> None:
    _, found, wanted = measured(workshop, torch.exp, style, "short")
    check_ulps(found, wanted, SHORT_EXP_ULPS, FLUSHED_BELOW)
    assert float(found[wanted.abs() < FLUSHED_BELOW].abs().max()) < FLUSHED_BELOW


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_short_functions_alone_are_as_good_as_precise_ones(workshop: Workshop, name: str) -> None:
    _, found, wanted = measured(workshop, FUNCTIONS[name], "vector", "short")
    check_ulps(found, wanted, ULPS[name], 0.0)


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_short_functions_to_which_one_is_added_keep_their_absolute_error(workshop: Workshop, name: str) -> None:
    function = FUNCTIONS[name]
    _, found, wanted = measured(workshop, lambda x: function(x) + 1, "vector", "short")
    assert torch.equal(found.isnan(), wanted.isnan())
    finite = ~wanted.isnan()
    # 2^-22 of the function, and the rounding of a sum of at most 2.
    assert float((found.double() - wanted)[finite].abs().max()) <= 2.0**-22 + 2.0**-24


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": functional.relu,
    "relu6": functional.relu6,
    "leaky_relu": functional.leaky_relu,
    "elu": functional.elu,
    "selu": functional.selu,
    "celu": functional.celu,
    "hardtanh": functional.hardtanh,
    "hardsigmoid": functional.hardsigmoid,
    "hardswish": functional.hardswish,
    "hardshrink": functional.hardshrink,
    "softshrink": functional.softshrink,
    "threshold": lambda x: functional.threshold(x, 0.5, -1.0),
    "softplus": functional.softplus,
    "mish": functional.mish,
    "logsigmoid": functional.logsigmoid,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "softsign": functional.softsign,
    "clamp": lambda x: x.clamp(-1.5, 2.5),
    "maximum": lambda x: torch.maximum(x, x.new_zeros(())),
    "minimum": lambda x: torch.minimum(x, x * 0 + 1),
    "sign": torch.sign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "reciprocal": torch.reciprocal,
    "rsqrt": torch.rsqrt,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "powers": lambda x: (x**3, x**-1, x**0.5, x**2.5),
    "isnan": lambda x: (torch.isnan(x), torch.isinf(x), ~(x > 0)),
    "logs": lambda x: (torch.log2(x), torch.log10(x), torch.exp2(x)),
    "circle": lambda x: (torch.sin(x), torch.cos(x), torch.atan(x)),
    "rows": lambda x: (x.amax(-1), x.amin(-1), x.sum(-1), torch.softmax(x, -1), torch.logsumexp(x, -1)),
}
EXTREMES = [
    0.0,
    -0.0,
    torch.inf,
    -torch.inf,
    torch.nan,
    1.0,
    -1.0,
    1e-40,
    -1e-40,
    1e30,
    -1e30,
    100.0,
    -100.0,
    0.5,
    -2.5,
]


@pytest.mark.parametrize("style", ["vector", "simd"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nan_and_infinity_go_where_torch_sends_them(workshop: Workshop, name: str, style: str) -> None:
    x = torch.tensor([EXTREMES, [1.0] * 15, [-torch.inf] * 15, [*[0.25] * 14, torch.nan], [*[0.25] * 14, torch.inf]])
    job = make_job(ACTIVATIONS[name], {"x": x})
    writer = Writer(job)
    found = workshop.run(writer.kernel(writer.moves.point(Recipe(style=style))), job, [x])
    for ours, theirs in zip(found, golden(ACTIVATIONS[name], [x], double=False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=1e-37, equal_nan=True)
