"""Reads a reference function's annotations into arguments.

``Float32[Tensor, "rows 3 cols"]`` is a tensor with two dims and a fixed size; plain ``float``, ``int`` and ``bool``
are Python scalars. Exactly one dtype and only names and sizes are allowed, since a kernel's prototype has no
variadic or computed axes.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from kernelworks.errors import TaskError
from kernelworks.task.model import Argument, Axis, DType, ScalarArgument, TensorArgument
from kernelworks.task.modulefile import one_sentence

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCALARS: dict[object, Literal["bool", "int", "float"]] = {bool: "bool", int: "int", float: "float"}
_NUMPY_LACKS = {DType.BFLOAT16}


@dataclass(frozen=True)
class Signature:
    """What the annotations say."""

    framework: Literal["torch", "numpy"]
    inputs: tuple[Argument, ...]
    outputs: tuple[TensorArgument, ...]
    dims: tuple[str, ...]
    """In order of first appearance."""
    defaults: dict[str, object]
    """Defaults of Python scalars; a case may leave these out."""


def read_signature(function: Callable[..., Any], task: str, output_names: tuple[str, ...] = ()) -> Signature:
    """The arguments of a reference function.

    Args:
        function: every parameter annotated, return annotation a tensor, ``tuple[...]`` of tensors, or None.
        task: the task's name, for messages.
        output_names: names of the outputs; () gives ``out0``, ``out1``, ...

    Raises:
        TaskError: an annotation that is missing, cannot be evaluated or is not supported; mixed frameworks.
    """
    try:
        hints = inspect.get_annotations(function, eval_str=True)
    except Exception as error:
        message = f"task {task!r}: expected annotations that can be evaluated, found {one_sentence(error)}"
        raise TaskError(message) from error
    frameworks: set[str] = set()
    inputs: list[Argument] = []
    defaults: dict[str, object] = {}
    for parameter in inspect.signature(function).parameters.values():
        where = f"task {task!r}, argument {parameter.name!r}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TaskError(f"{where}: expected a positional parameter, found {parameter.kind.description}")
        if parameter.name not in hints:
            raise TaskError(f"{where}: expected a jaxtyping annotation or float, int, bool, found none")
        hint = hints[parameter.name]
        if isinstance(hint, type) and hint in _SCALARS:
            inputs.append(ScalarArgument(name=parameter.name, type=_SCALARS[hint]))
            if parameter.default is not parameter.empty:
                defaults[parameter.name] = parameter.default
            continue
        inputs.append(_tensor(parameter.name, hint, "input", where, frameworks))
    outputs = _outputs(hints, task, output_names, frameworks)
    if len(frameworks) != 1:
        found = " and ".join(sorted(frameworks)) or "no tensor"
        raise TaskError(f"task {task!r}: expected tensors of one framework, found {found}")
    framework: Literal["torch", "numpy"] = "torch" if "torch" in frameworks else "numpy"
    tensors = [a for a in (*inputs, *outputs) if isinstance(a, TensorArgument)]
    for tensor in tensors:
        if framework == "numpy" and tensor.dtype in _NUMPY_LACKS:
            raise TaskError(f"task {task!r}: expected a dtype that NumPy has, found {tensor.dtype} ({tensor.name!r})")
    return Signature(framework, tuple(inputs), outputs, _dims(tensors), defaults)


def parse_axes(text: str, where: str) -> tuple[Axis, ...]:
    """The axes of a jaxtyping shape string: names and sizes, separated by blanks; "" is a scalar tensor.

    Raises:
        TaskError: any other jaxtyping form (``...``, ``*name``, ``#name``, ``_``, ``a+1``, ``name=3``), a size below 1.
    """
    axes: list[Axis] = []
    for token in text.split():
        if token.isascii() and token.isdigit():
            if not 1 <= int(token) < 2**63:
                raise TaskError(f"{where}: expected a fixed size from 1 to 2**63-1, found {token}")
            axes.append(int(token))
        elif _NAME.fullmatch(token) and token.strip("_"):
            axes.append(token)
        else:
            raise TaskError(f"{where}: expected dim names and sizes as axes, found unsupported annotation {token!r}")
    return tuple(axes)


def _outputs(
    hints: dict[str, Any], task: str, names: tuple[str, ...], frameworks: set[str]
) -> tuple[TensorArgument, ...]:
    if "return" not in hints:
        raise TaskError(f"task {task!r}: expected a return annotation, found none")
    hint = hints["return"]
    if hint is None or hint is type(None):
        items: tuple[Any, ...] = ()
    elif typing.get_origin(hint) is tuple:
        items = typing.get_args(hint)
    else:
        items = (hint,)
    names = names or tuple(f"out{k}" for k in range(len(items)))
    if len(names) != len(items):
        raise TaskError(f"task {task!r}: expected {len(items)} names of outputs, found {len(names)}")
    return tuple(
        _tensor(name, item, "output", f"task {task!r}, output {name!r}", frameworks)
        for name, item in zip(names, items, strict=True)
    )


def _tensor(name: str, hint: Any, role: Literal["input", "output"], where: str, frameworks: set[str]) -> TensorArgument:
    """One tensor from its jaxtyping annotation; adds its framework to the set."""
    dtypes = getattr(hint, "dtypes", None)
    axes = getattr(hint, "dim_str", None)
    array = getattr(hint, "array_type", None)
    if not isinstance(axes, str) or not isinstance(dtypes, tuple):
        scalars = ", float, int, bool" if role == "input" else ""
        raise TaskError(f"{where}: expected Float32[Tensor, 'rows cols'] or similar{scalars}, found {hint!r}")
    frameworks.add(_framework(array, where))
    return TensorArgument(name=name, dtype=_dtype(hint, where), shape=parse_axes(axes, where), role=role)


def _framework(array: object, where: str) -> str:
    if isinstance(array, type):
        root = array.__module__.partition(".")[0]
        if root in ("torch", "numpy"):
            return root
    raise TaskError(f"{where}: expected torch.Tensor or numpy.ndarray, found unsupported annotation {array!r}")


def _dtype(hint: Any, where: str) -> DType:
    names: set[str] = {str(name).rstrip("_") for name in hint.dtypes}  # NumPy calls bool ``bool_`` too
    if len(names) == 1:
        name = names.pop()
        if name in set(DType):
            return DType(name)
        raise TaskError(f"{where}: expected one of {', '.join(DType)}, found unsupported annotation {name}")
    found = getattr(hint.dtype, "__name__", str(hint.dtype))
    raise TaskError(f"{where}: expected one exact dtype such as Float32, found unsupported annotation {found}")


def _dims(tensors: Iterable[TensorArgument]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(axis for tensor in tensors for axis in tensor.shape if isinstance(axis, str)))
