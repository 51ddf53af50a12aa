"""Compile arguments of a kernel: its own flags from an allow-list, and ``-D`` for params and constants."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from kernelworks.errors import KernelError, TaskError
from kernelworks.kernel.expression import Scalar
from kernelworks.kernel.frontmatter import compile_time_names, default_point
from kernelworks.kernel.model import Kernel, Params
from kernelworks.task.model import CaseRole, Task
from kernelworks.task.prototype import C_KEYWORDS

ALLOWED_FLAGS = (
    "-O2",
    "-O3",
    "-ffast-math",
    "-funsafe-math-optimizations",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffinite-math-only",
    "-fassociative-math",
    "-freciprocal-math",
    "-fno-signed-zeros",
    "-funroll-loops",
    "-fno-tree-vectorize",
    "-ffp-contract=fast",
    "-ffp-contract=on",
    "-ffp-contract=off",
    "-mprefer-vector-width=128",
    "-mprefer-vector-width=256",
    "-mprefer-vector-width=512",
)
"""Flags that change how code is optimised and nothing else: no includes, no linking, no plug-ins."""

_INT64 = range(-(1 << 63), 1 << 63)
_MACRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def chosen_flags(kernel: Kernel) -> tuple[str, ...]:
    """The flags of a kernel at its point: for each name of ``flags`` the chosen value, else the first listed.

    One value may hold several flags, or none (``""``).

    Raises:
        KernelError: a listed flag is not allowed, or a chosen value is not listed.
    """
    for name, values in kernel.front.flags.items():
        for flag in (word for value in values for word in value.split()):
            if flag not in ALLOWED_FLAGS:
                raise KernelError(f"flags: {name}: expected flags among {', '.join(ALLOWED_FLAGS)}, found {flag!r}")
    for name, value in kernel.flags.items():
        listed = kernel.front.flags.get(name, ())
        if value not in listed:
            raise KernelError(f"flags: {name}: expected one of {list(listed)}, found {value!r}")
    chosen = (kernel.flags.get(name, values[0]) for name, values in kernel.front.flags.items())
    return tuple(word for value in chosen for word in value.split())


def bound_point(task: Task, kernel: Kernel) -> Params:
    """The point at which a kernel is compiled: its params, the rest by default for the first timed case.

    Raises:
        KernelError: a param is not listed, or no point satisfies the constraints.
        ExpressionError: a constraint uses an unknown name.
    """
    case = (task.cases_of(CaseRole.TIMED) or task.cases)[0]
    return default_point(kernel.front, case.sizes, kernel.params)


def compile_time_bindings(task: Task, kernel: Kernel) -> Params:
    """All names that become ``-D``: params, ``let`` names that use params only, and the task's constants.

    Raises:
        KernelError: as ``bound_point``; a ``let`` name that is no compile-time constant; a name that is bound twice.
        TaskError: a constant is not finite or not a 64-bit integer.
    """
    bindings = compile_time_names(kernel.front, bound_point(task, kernel))
    unbound = sorted(set(kernel.front.let) - set(bindings))
    if unbound:
        raise KernelError(
            f"let: expected expressions of params only in the function contract, found {unbound[0]} = "
            f"{kernel.front.let[unbound[0]]}"
        )
    reserved = sorted(name for name in bindings if name in C_KEYWORDS or name.startswith("__"))
    if reserved:
        raise KernelError(f"params: expected names that C++ does not reserve, found {', '.join(reserved)}")
    clash = sorted(set(bindings) & {*task.constants, *task.dims, *(a.name for a in task.arguments)})
    if clash:
        raise KernelError(f"params: expected names that the task does not use, found {', '.join(clash)}")
    for name, value in task.constants.items():
        _check_constant(name, value)
    return {**bindings, **task.constants}


def definitions(bindings: Mapping[str, Scalar]) -> tuple[str, ...]:
    """``-D`` arguments in the order of the names: booleans as 1 and 0, floats with all their digits."""
    return tuple(f"-D{name}={_literal(value)}" for name, value in sorted(bindings.items()))


def _check_constant(name: str, value: bool | float) -> None:
    if not _MACRO_NAME.match(name):
        raise TaskError(f"constant {name!r}: expected a C identifier")
    if isinstance(value, float) and not math.isfinite(value):
        raise TaskError(f"constant {name}: expected a finite number, found {value}")
    if isinstance(value, int) and value not in _INT64:
        raise TaskError(f"constant {name}: expected an integer of 64 bits, found {value}")


def _literal(value: Scalar) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(int(value))
    if value == _INT64.start and isinstance(value, int):
        return f"({value + 1}-1)"  # C has no literal for the least integer.
    text = repr(value)
    return f"({text})" if text.startswith("-") else text
