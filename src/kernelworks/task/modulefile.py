"""Task files as text and as modules: reading, module-level constants, overrides, execution.

A task file is code of the user. It is parsed before it is executed, so that a syntax error has its line and
so that ``--set NAME=VALUE`` can replace a module-level constant *where it is assigned*: constants derived from
it further down follow. Whatever the file does wrong while it runs becomes one ``TaskError`` with its line.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import linecache
import math
import sys
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

import kernelworks
from kernelworks.errors import KernelworksError, TaskError

Number = bool | int | float
Constant = Number | tuple[Number, ...]
"""What a module-level constant may be: a number, or a tuple of numbers (``input_shape = (32768,)``)."""

_INT64_MAX = 2**63 - 1
_MESSAGE_LIMIT = 300


def read_text(path: Path) -> str:
    """The text of a task file.

    Raises:
        TaskError: the file is missing, unreadable or not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(f"{path}: expected a readable file, found: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: expected UTF-8 text, found byte {error.object[error.start]:#04x}") from error


def parse(path: Path) -> ast.Module:
    """The syntax tree of a Python task file.

    Raises:
        TaskError: as ``read_text``; a syntax error, with its line.
    """
    text = read_text(path)
    try:
        return ast.parse(text, filename=str(path))
    except SyntaxError as error:
        raise TaskError(f"{path}, line {error.lineno}: expected Python, found a syntax error: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; nesting beyond the parser's limit
        raise TaskError(f"{path}: expected Python, found text that cannot be parsed: {error}") from error


def constants(tree: ast.Module) -> dict[str, Constant]:
    """Module-level constants: names assigned a number, or a tuple of numbers, written without other names.

    ``2048 * 2`` counts; ``N * 2`` is derived and does not. A name assigned twice has its last value; a name that
    is also assigned something else is no constant.
    """
    found: dict[str, Constant] = {}
    other: set[str] = set()
    for statement in tree.body:
        target, expression = _assignment(statement)
        if target is None or expression is None:
            continue
        value = _constant_value(expression)
        if value is None:
            other.add(target.id)
        else:
            found[target.id] = value
    return {name: value for name, value in found.items() if name not in other}


def parse_value(name: str, text: str, current: Constant) -> Constant:
    """The value of ``--set NAME=VALUE`` for a constant whose value in the file is ``current``.

    Raises:
        TaskError: no numeric literal, not finite, outside int64, or another type than the constant's.
    """
    try:
        expression = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        expression = None
    value = None if expression is None else _constant_value(expression)
    if value is None:
        raise TaskError(f"--set {name}: expected a finite numeric literal, found {text!r}")
    for item in value if isinstance(value, tuple) else (value,):
        if abs(item) > _INT64_MAX and isinstance(item, int):
            raise TaskError(f"--set {name}: expected a number that fits int64, found {item}")
    wanted = _kind(current)
    if _kind(value) == wanted:
        return value
    if wanted == "float" and isinstance(value, int):
        return float(value)
    raise TaskError(f"--set {name}: expected {wanted} (the file has {current!r}), found {text!r}")


def parse_overrides(overrides: Mapping[str, str], known: Mapping[str, Constant]) -> dict[str, Constant]:
    """The values of all ``--set`` options.

    Raises:
        TaskError: as ``parse_value``; a name that is no module-level constant, with those that exist.
    """
    for name in overrides:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise TaskError(f"--set {name}: expected the name of a module-level numeric constant ({listed})")
    return {name: parse_value(name, text, known[name]) for name, text in overrides.items()}


def override(tree: ast.Module, values: Mapping[str, Constant]) -> ast.Module:
    """A copy of the tree in which the assignments of these constants have other values, at the same lines."""
    body: list[ast.stmt] = []
    for statement in tree.body:
        target, expression = _assignment(statement)
        if target is None or expression is None or target.id not in values:
            body.append(statement)
            continue
        literal = ast.copy_location(ast.parse(repr(values[target.id]), mode="eval").body, expression)
        changed = ast.copy_location(ast.Assign(targets=[target], value=literal), statement)
        body.append(ast.fix_missing_locations(changed))
    return ast.Module(body=body, type_ignores=tree.type_ignores)


def execute(path: Path, tree: ast.Module, values: Mapping[str, Constant] | None = None) -> ModuleType:
    """Run a task file as a module of its own, with some constants overridden.

    The module is registered in ``sys.modules`` under a name made from path and overrides; the file's folder is
    importable while it runs.

    Raises:
        TaskError: the file raised anything, with its line.
    """
    values = values or {}
    identity = f"{path.resolve()}{sorted(values.items())}".encode(errors="surrogateescape")
    suffix = hashlib.sha256(identity).hexdigest()[:12]
    name = f"_kernelworks_task_{suffix}"
    module = ModuleType(name)
    module.__file__ = str(path)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, origin=str(path))
    linecache.checkcache(str(path))
    folder = str(path.resolve().parent)
    sys.modules[name] = module
    sys.path.insert(0, folder)
    try:
        with foreign_code(path, "the task file"):
            exec(compile(override(tree, values), str(path), "exec"), module.__dict__)  # noqa: S102 the user's task
    except TaskError:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(folder)
    return module


@contextmanager
def foreign_code(path: Path, what: str) -> Generator[None]:
    """The border to code of the user: anything that it raises becomes a one-sentence ``TaskError``.

    The line is that of the innermost frame inside the file. Our own errors pass.
    """
    try:
        yield
    except KernelworksError:
        raise
    except (Exception, SystemExit) as error:  # border: the code behind it is not ours and may raise anything
        raise TaskError(f"{_place(path, error)}: {what} failed: {one_sentence(error)}", mend=_mend(error)) from error


def one_sentence(error: BaseException) -> str:
    """Type and message of a foreign exception on one line of bounded length."""
    message = " ".join(str(error).split())
    if len(message) > _MESSAGE_LIMIT:
        message = message[: _MESSAGE_LIMIT - 3] + "..."
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def digest(text: str, overrides: Mapping[str, str]) -> str:
    """SHA-256 over a task's text, its overrides and the version of this package."""
    parts = [kernelworks.__version__, text, *(f"{name}={value}" for name, value in sorted(overrides.items()))]
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()


def is_int(value: object) -> TypeGuard[int]:
    """Whether a value is an integer and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def _place(path: Path, error: BaseException) -> str:
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _mend(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return "pip install 'kernelworks[torch]'"
    return ""


def _assignment(statement: ast.stmt) -> tuple[ast.Name | None, ast.expr | None]:
    """Target and value of ``name = value`` or ``name: annotation = value``."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return (target, statement.value) if isinstance(target, ast.Name) else (None, None)
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target, statement.value
    return None, None


def _kind(value: Constant) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return type(value).__name__


def _constant_value(expression: ast.expr) -> Constant | None:
    """The value of a constant expression; None if it is none, or not finite."""
    if isinstance(expression, ast.Tuple):
        items = [_number(item) for item in expression.elts]
        numbers = tuple(item for item in items if item is not None)
        return numbers if numbers and len(numbers) == len(items) else None
    return _number(expression)


def _number(expression: ast.expr) -> Number | None:
    value = _evaluate(expression)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value


def _evaluate(expression: ast.expr) -> Number | None:
    if isinstance(expression, ast.Constant):
        return expression.value if isinstance(expression.value, bool | int | float) else None
    if isinstance(expression, ast.UnaryOp):
        operand = _evaluate(expression.operand)
        if operand is None or not isinstance(expression.op, ast.USub | ast.UAdd):
            return None
        return -operand if isinstance(expression.op, ast.USub) else +operand
    if isinstance(expression, ast.BinOp):
        left, right = _evaluate(expression.left), _evaluate(expression.right)
        if left is None or right is None:
            return None
        return _apply(expression.op, left, right)
    return None


def _apply(operator: ast.operator, left: Number, right: Number) -> Number | None:
    try:
        match operator:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():
                return left / right
            case ast.FloorDiv():
                return left // right
            case ast.Mod():
                return left % right
            case ast.Pow() if 0 <= right < 64 and abs(left) < 2**63:  # bounded: 9**9**9 must not hang
                return left**right
            case ast.LShift() if is_int(left) and is_int(right) and 0 <= right < 64 and abs(left) < 2**63:
                return left << right
            case _:
                return None
    except (ArithmeticError, ValueError):
        return None
