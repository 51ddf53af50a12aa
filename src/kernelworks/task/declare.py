"""The vocabulary of our own task format: ``@task`` over a reference function, ``case`` for its sizes.

A task file in full::

    from jaxtyping import Float32
    from torch import Tensor
    from kernelworks.task import case, task

    @task(cases=[case("main", "timed", rows=4096, cols=2048), case("odd", "check", rows=37, cols=1000)])
    def scale(x: Float32[Tensor, "rows cols"], w: Float32[Tensor, "cols"]) -> Float32[Tensor, "rows cols"]:
        return x * w

The annotations name the dims and dtypes; each case gives every dim a size and every Python scalar a value.
Nothing here imports torch, NumPy or jaxtyping; the annotations are read when the task is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, ParamSpec, TypeVar

from kernelworks.errors import TaskError
from kernelworks.task.model import CaseRole

P = ParamSpec("P")
R = TypeVar("R")

InputMaker = Callable[[Any, Mapping[str, int]], Mapping[str, Any]]
"""``inputs=`` of a task: (generator, sizes) -> {argument: array}. The generator is a seeded ``torch.Generator``
for a torch reference and a ``numpy.random.Generator`` for a NumPy one; arguments left out are drawn as usual."""


@dataclass(frozen=True)
class Distribution:
    """How one input is drawn: ``normal`` (a: mean, b: standard deviation), ``uniform`` in [a, b), ``integers`` in
    [a, b)."""

    kind: Literal["normal", "uniform", "integers"]
    a: float
    b: float


@dataclass(frozen=True)
class CaseDeclaration:
    """One ``case(...)`` as written: values of dims and scalars, not yet checked against a function."""

    name: str
    role: CaseRole
    values: Mapping[str, object]


@dataclass(frozen=True)
class Declaration:
    """All that ``@task(...)`` was given, checked as far as it can be without the function's annotations."""

    cases: tuple[CaseDeclaration, ...]
    name: str
    tolerance: float | None
    mutates: tuple[str, ...]
    inputs: Mapping[str, Distribution] | InputMaker | None
    outputs: tuple[str, ...]
    deterministic: bool | None
    aggregate: Literal["geomean", "total"]
    layout: Literal["contiguous", "strided"]
    precision: Literal["strict", "relaxed"]
    instructions: str


@dataclass(frozen=True)
class TaskFunction(Generic[P, R]):
    """A reference function with its declaration; calling it calls the function."""

    function: Callable[P, R]
    declaration: Declaration

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function's result."""
        return self.function(*args, **kwargs)


def case(name: str, role: str = "timed", /, **values: float) -> CaseDeclaration:
    """One set of sizes and scalars of a task.

    Args:
        name: distinct within the task.
        role: ``timed`` (measured, must be right), ``check`` (must be right; hidden from whoever writes kernels),
            ``edge`` (must be right where the kernel covers it) or ``large`` (one at most; run on request only).
        values: size of every dim, value of every Python scalar without default.

    Raises:
        TaskError: an unknown role.
    """
    try:
        return CaseDeclaration(name, CaseRole(role), dict(values))
    except ValueError:
        raise TaskError(f"case {name!r}: expected role {', '.join(CaseRole)}, found {role!r}") from None


def task(
    *,
    cases: Sequence[CaseDeclaration],
    name: str = "",
    tolerance: float | None = None,
    mutates: Sequence[str] = (),
    inputs: Mapping[str, Distribution] | InputMaker | None = None,
    outputs: Sequence[str] = (),
    deterministic: bool | None = None,
    aggregate: Literal["geomean", "total"] = "geomean",
    layout: Literal["contiguous", "strided"] = "contiguous",
    precision: Literal["strict", "relaxed"] = "strict",
    workspace_limit: int | None = None,
    instructions: str = "",
) -> Callable[[Callable[P, R]], TaskFunction[P, R]]:
    """Declare a function as the reference of a task.

    Args:
        cases: at least one, with distinct names, at least one ``timed``. Without a ``check`` or without an ``edge``
            case, such cases are derived from the first timed one (``derive``).
        name: the task's name; default: the function's.
        tolerance: RMS error allowed, relative to the RMS of the exact answer; default: the derived bound.
        mutates: names of inputs that the reference changes in place. Each is a result too, after the returned ones.
        inputs: how inputs are drawn: a distribution for some arguments, or a function (see ``InputMaker``). Default:
            floats standard normal, integers in [-8, 8) (unsigned [0, 16)), bools even.
        outputs: names of the outputs in the prototype; default ``out0``, ``out1``, ...
        deterministic: True asks kernels for the same bits on every call; False says that the reference varies too.
            Default: the reference does not vary, and kernels may within the bound.
        aggregate: how several timed cases become one figure.
        layout: ``contiguous``: all tensors are dense and row-major. ``strided``: inputs may be transposed or have gaps,
            and kernels are given their strides.
        precision: ``relaxed`` allows float32 outputs as rough as tf32's; ``--precision`` has the last word.
        workspace_limit: refused: no target of this version gives kernels a workspace.
        instructions: free text for whoever writes kernels.

    Raises:
        TaskError: no cases, two of one name, a tolerance that is no positive number, another word than those allowed,
            a workspace limit.
    """
    where = f"task {name!r}" if name else "@task"
    _check_cases(where, cases)
    if tolerance is not None and not (math.isfinite(tolerance) and tolerance > 0):
        raise TaskError(f"{where}: expected a positive tolerance, found {tolerance}")
    for key, value, words in (
        ("layout", layout, ("contiguous", "strided")),
        ("aggregate", aggregate, ("geomean", "total")),
        ("precision", precision, ("strict", "relaxed")),
    ):
        if value not in words:
            raise TaskError(f"{where}: expected {key} {words[0]!r} or {words[1]!r}, found {value!r}")
    if workspace_limit is not None:
        raise TaskError(
            f"{where}: expected no workspace_limit, since no target of this version gives kernels a workspace,"
            f" found {workspace_limit!r}"
        )
    declaration = Declaration(
        cases=tuple(cases),
        name=name,
        tolerance=tolerance,
        mutates=tuple(mutates),
        inputs=inputs,
        outputs=tuple(outputs),
        deterministic=deterministic,
        aggregate=aggregate,
        layout=layout,
        precision=precision,
        instructions=instructions,
    )

    def declare(function: Callable[P, R]) -> TaskFunction[P, R]:
        return TaskFunction(function, declaration)

    return declare


def _check_cases(where: str, cases: Sequence[CaseDeclaration]) -> None:
    if not cases:
        raise TaskError(f"{where}: expected at least one case, found none")
    names = [c.name for c in cases]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise TaskError(f"{where}: expected distinct case names, found {twice[0]!r} twice")
    if sum(c.role is CaseRole.LARGE for c in cases) > 1:
        raise TaskError(f"{where}: expected at most one case with role 'large', found several")
    if not any(c.role is CaseRole.TIMED for c in cases):
        raise TaskError(f"{where}: expected at least one case with role 'timed', found none")


def normal(mean: float = 0.0, std: float = 1.0) -> Distribution:
    """Normal values."""
    return _distribution("normal", mean, std, std > 0)


def uniform(low: float = 0.0, high: float = 1.0) -> Distribution:
    """Uniform values in [low, high)."""
    return _distribution("uniform", low, high, low < high)


def integers(low: int, high: int) -> Distribution:
    """Uniform integers in [low, high), as values of any dtype."""
    return _distribution("integers", low, high, low < high)


def _distribution(kind: Literal["normal", "uniform", "integers"], a: float, b: float, valid: bool) -> Distribution:
    if not (valid and math.isfinite(a) and math.isfinite(b)):
        raise TaskError(f"{kind}({a}, {b}): expected finite numbers, a positive spread, found {a} and {b}")
    return Distribution(kind, a, b)
