"""Expressions of the front matter: int64 arithmetic, comparisons, boolean logic, a few functions. Nothing else.

Parsed with Python's own parser into an allow-listed tree, evaluated without ``eval``. ``/`` is refused: sizes are
integers, and a silent float would round a grid.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache

from kernelworks.errors import ExpressionError

Scalar = int | float | bool | str
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
MAX_LENGTH = 1000


def _ceildiv(a: int, b: int) -> int:
    return -(-a // b)


def _next_pow2(a: int) -> int:
    return 1 << max(0, a - 1).bit_length()


def _log2(a: int) -> int:
    if a <= 0:
        raise ExpressionError(f"log2: expected a positive number, found {a}")
    return a.bit_length() - 1


FUNCTIONS: dict[str, tuple[Callable[..., int], int | None]] = {
    "min": (min, None),
    "max": (max, None),
    "ceildiv": (_ceildiv, 2),
    "next_pow2": (_next_pow2, 1),
    "log2": (_log2, 1),
}
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Scalar, Scalar], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,  # pyright: ignore[reportAssignmentType]
    ast.LtE: operator.le,  # pyright: ignore[reportAssignmentType]
    ast.Gt: operator.gt,  # pyright: ignore[reportAssignmentType]
    ast.GtE: operator.ge,  # pyright: ignore[reportAssignmentType]
}


class Expression:
    """One parsed expression; immutable and cheap to evaluate again.

    Raises:
        ExpressionError: at construction, if the text uses anything that is not allowed.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > MAX_LENGTH:
            raise ExpressionError(f"expression: expected at most {MAX_LENGTH} characters, found {len(text)}")
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
            _check(self._tree, text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ExpressionError(f"expression {text!r}: expected int arithmetic, found {error}") from error
        self.names: frozenset[str] = frozenset(
            node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name) and node.id not in FUNCTIONS
        )

    def evaluate(self, names: Mapping[str, Scalar]) -> Scalar:
        """The value with these names bound.

        Raises:
            ExpressionError: unknown name, division by zero, int64 overflow, a word used as a number.
        """
        return _evaluate(self._tree, names, self.text)


@lru_cache(maxsize=4096)
def parse_expression(text: str) -> Expression:
    """The expression of this text, parsed once a process."""
    return Expression(text)


def _check(node: ast.expr, text: str) -> None:
    match node:
        case ast.Constant(value=value):
            if not isinstance(value, (int, float, bool, str)):
                raise ExpressionError(f"expression {text!r}: expected a number or word, found {value!r}")
        case ast.Name():
            return
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=operand):
            _check(operand, text)
        case ast.BinOp(left=left, op=op, right=right):
            if type(op) not in _BINARY:
                raise ExpressionError(f"expression {text!r}: expected one of + - * // %, found {type(op).__name__}")
            _check(left, text)
            _check(right, text)
        case ast.BoolOp(values=values):
            for value in values:
                _check(value, text)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for op in ops:
                if type(op) not in _COMPARE:
                    raise ExpressionError(f"expression {text!r}: expected a comparison, found {type(op).__name__}")
            for value in (left, *comparators):
                _check(value, text)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            for value in (test, body, orelse):
                _check(value, text)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            if name not in FUNCTIONS:
                raise ExpressionError(f"expression {text!r}: expected one of {sorted(FUNCTIONS)}, found {name!r}")
            arity = FUNCTIONS[name][1]
            if not args or (arity is not None and len(args) != arity):
                raise ExpressionError(
                    f"expression {text!r}: {name} expects {arity or 'some'} arguments, found {len(args)}"
                )
            for value in args:
                _check(value, text)
        case _:
            raise ExpressionError(f"expression {text!r}: {type(node).__name__} is not allowed")


def _evaluate(node: ast.expr, names: Mapping[str, Scalar], text: str) -> Scalar:
    match node:
        case ast.Constant(value=value):
            return value  # pyright: ignore[reportReturnType]
        case ast.Name(id=name):
            if name not in names:
                raise ExpressionError(f"expression {text!r}: unknown name {name!r}, known are {sorted(names)}")
            return names[name]
        case ast.UnaryOp(op=op, operand=operand):
            value = _evaluate(operand, names, text)
            if isinstance(op, ast.Not):
                return not value
            number = _number(value, text)
            return _bounded(-number if isinstance(op, ast.USub) else number, text)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _number(_evaluate(left, names, text), text), _number(_evaluate(right, names, text), text)
            try:
                return _bounded(_BINARY[type(op)](a, b), text)
            except ZeroDivisionError as error:
                raise ExpressionError(f"expression {text!r}: division by zero") from error
        case ast.BoolOp(op=op, values=values):
            wanted = isinstance(op, ast.Or)
            return any(bool(_evaluate(v, names, text)) == wanted for v in values) == wanted
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            current = _evaluate(left, names, text)
            for op, comparator in zip(ops, comparators, strict=True):
                following = _evaluate(comparator, names, text)
                if isinstance(current, str) != isinstance(following, str):
                    raise ExpressionError(f"expression {text!r}: cannot compare {current!r} with {following!r}")
                if not _COMPARE[type(op)](current, following):
                    return False
                current = following
            return True
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _evaluate(body if _evaluate(test, names, text) else orelse, names, text)
        case ast.Call(func=ast.Name(id=name), args=args):
            values = [_number(_evaluate(a, names, text), text) for a in args]
            try:
                return _bounded(FUNCTIONS[name][0](*values), text)
            except ZeroDivisionError as error:
                raise ExpressionError(f"expression {text!r}: division by zero") from error
        case _:
            raise ExpressionError(f"expression {text!r}: {type(node).__name__} is not allowed")


def _number(value: Scalar, text: str) -> int:
    if isinstance(value, str):
        raise ExpressionError(f"expression {text!r}: expected a number, found the word {value!r}")
    return value  # pyright: ignore[reportReturnType]  (floats only come from float params, compared, not indexed)


def _bounded(value: int, text: str) -> int:
    if not INT64_MIN <= value <= INT64_MAX:
        raise ExpressionError(f"expression {text!r}: {value} overflows int64")
    return value
