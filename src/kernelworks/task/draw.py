"""Draws the inputs of our own task format: standard normal floats unless the task says otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from kernelworks.errors import TaskError
from kernelworks.task.declare import Declaration, Distribution
from kernelworks.task.lazytorch import to_torch, torch_module
from kernelworks.task.model import Argument, Case, DType, ScalarArgument, TensorArgument, concrete_shape

_UNSIGNED = {DType.UINT8}


def draw_inputs(
    arguments: Sequence[Argument],
    declaration: Declaration,
    case: Case,
    seed: int,
    framework: Literal["torch", "numpy"],
) -> list[Any]:
    """Inputs of a case in prototype order: arrays of the framework on the CPU, contiguous, and Python scalars.

    Raises:
        TaskError: the task's ``inputs=`` names an unknown argument, or returns another shape or dtype.
    """
    draw = _draw_torch if framework == "torch" else _draw_numpy
    generator = _generator(framework, seed)
    given: Mapping[str, Any] = {}
    distributions: Mapping[str, Distribution] = {}
    if callable(declaration.inputs):
        given = declaration.inputs(generator, dict(case.sizes))
    elif declaration.inputs is not None:
        distributions = declaration.inputs
    unknown = sorted((set(given) | set(distributions)) - {a.name for a in arguments if a.kind == "tensor"})
    if unknown:
        raise TaskError(f"inputs of case {case.name!r}: expected names of tensor arguments, found {unknown[0]!r}")
    found: list[Any] = []
    for argument in arguments:
        if isinstance(argument, ScalarArgument):
            found.append(case.scalars[argument.name])
            continue
        shape = concrete_shape(argument, case)
        if argument.name in given:
            found.append(_given(given[argument.name], argument, shape, framework, case.name))
        else:
            distribution = distributions.get(argument.name, default_distribution(argument.dtype))
            found.append(draw(generator, shape, argument.dtype, distribution))
    return found


def default_distribution(dtype: DType) -> Distribution:
    """Floats standard normal, integers in [-8, 8) (unsigned [0, 16)), bools even."""
    if dtype.is_floating:
        return Distribution("normal", 0.0, 1.0)
    if dtype is DType.BOOL:
        return Distribution("integers", 0, 2)
    return Distribution("integers", 0, 16) if dtype in _UNSIGNED else Distribution("integers", -8, 8)


def _generator(framework: str, seed: int) -> Any:
    if framework == "torch":
        return torch_module().Generator().manual_seed(seed)
    import numpy as np

    return np.random.default_rng(seed)


def _draw_torch(generator: Any, shape: tuple[int, ...], dtype: DType, distribution: Distribution) -> Any:
    torch = torch_module()
    kind, a, b = distribution.kind, distribution.a, distribution.b
    native = to_torch(dtype)
    if kind == "integers":
        return torch.randint(int(a), int(b), shape, generator=generator).to(native)
    drawn_as = native if dtype.is_floating else torch.float32
    if kind == "uniform":
        return (torch.rand(shape, generator=generator, dtype=drawn_as) * (b - a) + a).to(native)
    drawn = torch.randn(shape, generator=generator, dtype=drawn_as)
    return (drawn if (a, b) == (0.0, 1.0) else drawn * b + a).to(native)


def _draw_numpy(generator: Any, shape: tuple[int, ...], dtype: DType, distribution: Distribution) -> Any:
    import numpy as np

    kind, a, b = distribution.kind, distribution.a, distribution.b

    def real() -> Any:
        if kind == "integers":
            return generator.integers(int(a), int(b), shape)
        if kind == "uniform":
            return generator.uniform(a, b, shape)
        return generator.normal(a, b, shape)

    if dtype is DType.COMPLEX64:
        return np.asarray(real() + 1j * real(), dtype=dtype.value)
    return np.asarray(real(), dtype=dtype.value)


def _given(value: Any, argument: TensorArgument, shape: tuple[int, ...], framework: str, case: str) -> Any:
    """An array of the task's own ``inputs`` function, checked and contiguous."""
    found = (tuple(getattr(value, "shape", ())), str(getattr(value, "dtype", type(value).__name__)))
    if found != (shape, f"torch.{argument.dtype}" if framework == "torch" else argument.dtype.value):
        raise TaskError(
            f"inputs of case {case!r}: expected {argument.name!r} as {argument.dtype} of shape {shape},"
            f" found {found[1]} of shape {found[0]}"
        )
    if framework == "torch":
        return value.contiguous()
    import numpy as np

    return np.asarray(value, order="C")
