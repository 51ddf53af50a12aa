"""C++ text of single values: types, literals, operations. One ``Style`` for vectors, one for numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelworks.propose.experts.ir import Node, compute_dtype
from kernelworks.task.model import DType
from kernelworks.task.prototype import C_TYPES

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_LOGIC = {"and": "&", "or": "|", "xor": "^"}
LIBM_UNARY = frozenset(
    "exp exp2 expm1 log log1p log2 log10 sin cos tan asin acos atan sinh cosh tanh erf erfc sqrt floor ceil round"
    " trunc".split()
)
LIBM_BINARY = frozenset({"pow", "atan2"})
HELPERS = frozenset({"maximum", "minimum"})
POINTWISE = (
    frozenset(_INFIX) | frozenset(_COMPARE) | frozenset(_LOGIC) | LIBM_UNARY | LIBM_BINARY | HELPERS
    | {"neg", "abs", "where", "not", "cast", "finite_or_zero"}
)  # fmt: skip
"""Every pointwise operation of the experts' representation."""

_UNSIGNED = {
    DType.INT8: "uint8_t",
    DType.UINT8: "uint8_t",
    DType.INT16: "uint16_t",
    DType.INT32: "uint32_t",
    DType.INT64: "uint64_t",
}
_LOWEST = {
    DType.INT8: "INT8_MIN",
    DType.INT16: "INT16_MIN",
    DType.INT32: "INT32_MIN",
    DType.INT64: "INT64_MIN",
    DType.UINT8: "0",
    DType.BOOL: "false",
}
_HIGHEST = {
    DType.INT8: "INT8_MAX",
    DType.INT16: "INT16_MAX",
    DType.INT32: "INT32_MAX",
    DType.INT64: "INT64_MAX",
    DType.UINT8: "UINT8_MAX",
    DType.BOOL: "true",
}


def c_type(dtype: DType) -> str:
    """The type in which one value of this dtype is computed."""
    return "bool" if dtype is DType.BOOL else C_TYPES[compute_dtype(dtype)]


def libm_name(op: str, dtype: DType) -> str:
    """The compiler's builtin for a function of libm; no header is needed."""
    name = "rint" if op == "round" else op
    return f"__builtin_{name}" + ("f" if dtype is DType.FLOAT32 else "")


def literal(value: float | bool, dtype: DType) -> str:
    """A number as C++ text, exact for its type."""
    kind = compute_dtype(dtype)
    if kind is DType.BOOL:
        return "true" if value else "false"
    if not kind.is_floating:
        return f"INT64_C({int(value)})" if kind is DType.INT64 else str(int(value))
    single = kind is DType.FLOAT32
    number = float(value)
    if math.isnan(number):
        return '__builtin_nanf("")' if single else '__builtin_nan("")'
    if math.isinf(number) or (single and abs(number) > 3.4028235677973366e38):
        return ("-" if number < 0 else "") + ("__builtin_inff()" if single else "__builtin_inf()")
    text = _shortest_single(number) if single else repr(number)
    if "e" not in text and "." not in text:
        text += ".0"
    return text + ("f" if single else "")


def neutral(kind: str, dtype: DType) -> str:
    """The value that changes no result of a reduction."""
    if kind in ("sum", "prod"):
        return literal(0 if kind == "sum" else 1, dtype)
    floating = compute_dtype(dtype).is_floating
    if floating:
        return literal(-math.inf if kind == "max" else math.inf, dtype)
    return (_LOWEST if kind == "max" else _HIGHEST)[dtype]


def combined(kind: str, left: str, right: str) -> str:
    """Two partial results of a reduction as one."""
    match kind:
        case "sum":
            return f"{left} + {right}"
        case "prod":
            return f"{left} * {right}"
        case "max":
            return f"maximum({left}, {right})"
        case _:
            return f"minimum({left}, {right})"


def operation(node: Node, args: Sequence[str], types: Sequence[DType]) -> str:
    """A pointwise operation. ``types`` are those of the operands. Same text for vectors and numbers."""
    op, dtype = node.op, compute_dtype(node.dtype)
    if op in _INFIX:
        if dtype in _UNSIGNED and op != "div":
            # Signed overflow is undefined in C++ and wraps in torch.
            unsigned = _UNSIGNED[dtype]
            left, right = (f"static_cast<{unsigned}>({a})" for a in args)
            return f"static_cast<{c_type(dtype)}>({left} {_INFIX[op]} {right})"
        return f"{args[0]} {_INFIX[op]} {args[1]}"
    if op in _COMPARE:
        return f"{args[0]} {_COMPARE[op]} {args[1]}"
    if op in _LOGIC:
        return f"{args[0]} {_LOGIC[op]} {args[1]}"
    match op:
        case "not":
            return f"!{args[0]}"
        case "neg":
            return f"-{args[0]}"
        case "where":
            return f"select({args[0]}, {args[1]}, {args[2]})"
        case _:
            if not dtype.is_floating and op in ("floor", "ceil", "round", "trunc"):
                return args[0]
            return f"{op}({', '.join(args)})" if op in HELPERS else f"{op}_of({', '.join(args)})"


def _shortest_single(number: float) -> str:
    import numpy as np

    return str(np.float32(number))
