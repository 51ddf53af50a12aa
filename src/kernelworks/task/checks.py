"""Rules that every task obeys, whatever its format: names, sizes, scalars. Each breach is one sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from kernelworks.errors import TaskError
from kernelworks.task.model import Axis, CaseRole, ScalarArgument, Task, TensorArgument, size_bytes, stride_name
from kernelworks.task.prototype import C_KEYWORDS

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INT64_MAX = 2**63 - 1


def check_task(task: Task) -> Task:
    """The task itself, if its names can stand in a prototype and its sizes can be addressed.

    Raises:
        TaskError: a name that is no C identifier or is a C keyword; two things of one name; a tensor of 2**63
            bytes or more; no timed case.
    """
    strides = [stride_name(argument, axis) for argument in task.strided for axis in range(len(argument.shape))]
    check_names(task.name, task.arguments, [*task.dims, *strides], task.constants)
    if not task.cases_of(CaseRole.TIMED):
        raise TaskError(f"task {task.name!r}: expected at least one case with role 'timed', found none")
    for case in (*task.cases, *filter(None, [task.large])):
        for tensor in task.tensors:
            if size_bytes(tensor, case) > _INT64_MAX:
                raise TaskError(
                    f"task {task.name!r}, case {case.name!r}: expected sizes whose product fits int64,"
                    f" found an integer overflow in {tensor.name!r} ({describe(tensor.shape, case.sizes)})"
                )
    return task


def check_names(
    task: str,
    arguments: Sequence[TensorArgument | ScalarArgument],
    dims: Sequence[str],
    constants: Mapping[str, object],
) -> None:
    """Refuse names that a C prototype cannot hold.

    Raises:
        TaskError: no C identifier, a C keyword, or two things of one name.
    """
    named = [("argument", a.name) for a in arguments]
    named += [("dim", d) for d in dims] + [("constant", c) for c in constants]
    seen: dict[str, str] = {}
    for kind, name in named:
        if not _IDENTIFIER.fullmatch(name):
            raise TaskError(f"task {task!r}: expected a C identifier, found {kind} {name!r}")
        if name in C_KEYWORDS:
            raise TaskError(f"task {task!r}: expected a name that C allows, found {kind} {name!r}")
        if name in seen:
            raise TaskError(f"task {task!r}: expected distinct names, found {name!r} as {seen[name]} and {kind}")
        seen[name] = kind


def check_size(task: str, case: str, dim: str, size: object, *, least: int = 1) -> int:
    """One dim's size.

    Raises:
        TaskError: no integer, below ``least`` (0 in edge cases, else 1), or 2**63 and more.
    """
    if not isinstance(size, int) or isinstance(size, bool):
        raise TaskError(f"task {task!r}, case {case!r}: expected an integer size of dim {dim!r}, found {size!r}")
    if size < least:
        message = f"expected a size of at least {least} for dim {dim!r}, found {size}"
        raise TaskError(f"task {task!r}, case {case!r}: {message}")
    if size > _INT64_MAX:
        raise TaskError(
            f"task {task!r}, case {case!r}: expected a size of dim {dim!r} that fits int64,"
            f" found an integer overflow ({size})"
        )
    return size


def check_scalar(where: str, argument: ScalarArgument, value: object) -> bool | int | float:
    """A Python scalar's value; an int where a float is wanted becomes one.

    Raises:
        TaskError: another type, NaN, or an int outside int64.
    """
    if argument.type == "float" and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    types = {"bool": bool, "int": int, "float": float}
    if type(value) is not types[argument.type]:
        raise TaskError(f"{where}: expected {argument.name!r} as {argument.type}, found {value!r}")
    assert isinstance(value, bool | int | float)
    if isinstance(value, float) and math.isnan(value):
        raise TaskError(f"{where}: expected {argument.name!r} as a number, found NaN")
    if isinstance(value, int) and not -(2**63) <= value <= _INT64_MAX:
        raise TaskError(f"{where}: expected {argument.name!r} to fit int64, found {value}")
    return value


def check_constant(where: str, name: str, value: float) -> bool | int | float:
    """A hyper-parameter that becomes a compile-time constant.

    Raises:
        TaskError: NaN, infinite, or an int outside int64.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise TaskError(f"{where}: expected a finite constant {name!r}, found {value}")
    if isinstance(value, int) and not -(2**63) <= value <= _INT64_MAX:
        raise TaskError(f"{where}: expected a constant {name!r} that fits int64, found {value}")
    return value


def describe(shape: Sequence[Axis], sizes: Mapping[str, int]) -> str:
    """``rows=37 cols=1000 3``: a shape with the sizes of its dims."""
    return " ".join(f"{axis}={sizes[axis]}" if isinstance(axis, str) else str(axis) for axis in shape) or "scalar"
