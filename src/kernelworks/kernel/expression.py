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
MAX_DEPTH = 100
"""Nesting that an expression may have; a plain sum of n terms is n deep."""


def _ceildiv(a: int, b: int) -> int:
    return -(-a // b)


def _next_pow2(a: int) -> int:
    if a < 0:
        raise ExpressionError(f"next_pow2: expected a number of at least 0, found {a}")
    return 1 << max(0, a - 1).bit_length()


def _log2(a: int) -> int:
    if a <= 0:
        raise ExpressionError(f"log2: expected a positive number, found {a}")
    return a.bit_length() - 1


FUNCTIONS: dict[str, tuple[Callable[..., int], int | None]] = {
    "min": (min, None),  # None: two or more
    "max": (max, None),
    "ceildiv": (_ceildiv, 2),
    "next_pow2": (_next_pow2, 1),
    "log2": (_log2, 1),
}
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: a // b,
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
            _check(self._tree, text, MAX_DEPTH)
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


def _check(node: ast.expr, text: str, depth: int) -> None:
    """Refuse what is not allowed, before anything is evaluated."""
    if depth == 0:
        raise ExpressionError(f"expression {text!r}: expected at most {MAX_DEPTH} levels of nesting")
    match node:
        case ast.Constant(value=value):
            if not isinstance(value, (int, float, bool, str)):
                raise ExpressionError(f"expression {text!r}: expected a number or word, found {value!r}")
        case ast.Name(id=name):
            if name in FUNCTIONS:
                raise ExpressionError(f"expression {text!r}: expected arguments after {name}, found none")
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not()):
            pass
        case ast.BinOp(op=op):
            if type(op) not in _BINARY:
                raise ExpressionError(f"expression {text!r}: expected one of + - * // %, found {type(op).__name__}")
        case ast.Compare(ops=ops):
            for op in ops:
                if type(op) not in _COMPARE:
                    raise ExpressionError(f"expression {text!r}: expected a comparison, found {type(op).__name__}")
        case ast.BoolOp() | ast.IfExp():
            pass
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            _check_call(name, len(args), text)
        case _:
            raise ExpressionError(f"expression {text!r}: {type(node).__name__} is not allowed")
    for operand in _operands(node):
        _check(operand, text, depth - 1)


def _operands(node: ast.expr) -> list[ast.expr]:
    """The expressions right below one."""
    if isinstance(node, ast.Call):
        return node.args
    return [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]


def _check_call(name: str, arguments: int, text: str) -> None:
    if name not in FUNCTIONS:
        raise ExpressionError(f"expression {text!r}: expected one of {sorted(FUNCTIONS)}, found {name!r}")
    arity = FUNCTIONS[name][1]
    if arguments != arity if arity is not None else arguments < 2:
        expected = arity if arity is not None else "two or more"
        raise ExpressionError(f"expression {text!r}: expected {expected} arguments of {name}, found {arguments}")


def _evaluate(node: ast.expr, names: Mapping[str, Scalar], text: str) -> Scalar:
    match node:
        case ast.Constant(value=value):
            return _scalar(value, text)
        case ast.Name(id=name):
            if name not in names:
                raise ExpressionError(f"expression {text!r}: unknown name {name!r}, known are {sorted(names)}")
            return _scalar(names[name], text)
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
    """An operand of arithmetic. Floats are compared and chosen between, never computed with."""
    if isinstance(value, (str, float)):
        kind = "word" if isinstance(value, str) else "float"
        raise ExpressionError(f"expression {text!r}: expected an integer, found the {kind} {value!r}")
    return int(value)


def _scalar(value: object, text: str) -> Scalar:
    """A constant or the value of a name; integers within int64."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _bounded(value, text)
    assert isinstance(value, (bool, float, str))
    return value


def _bounded(value: int, text: str) -> int:
    if not INT64_MIN <= value <= INT64_MAX:
        raise ExpressionError(f"expression {text!r}: {value} overflows int64")
    return value
