"""ATen's pointwise operators in the experts' algebra, with torch's behaviour for NaN and infinities.

Keys are ``namespace.name`` or, where overloads differ in meaning, the full overload. Choices are written so that a
NaN falls into the branch that returns it (``x < 0 ? 0 : x``), as torch does.
"""

from __future__ import annotations

import math

from kernelworks.propose.experts.axes import ShapeError
from kernelworks.propose.experts.builder import Number, Tensor
from kernelworks.propose.experts.call import Call, Operator
from kernelworks.task.model import DType

_UNARY = (
    "neg abs sqrt exp exp2 expm1 log log1p log2 log10 sin cos tan asin acos atan sinh cosh tanh erf floor ceil round"
    " trunc erfc"
).split()
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805


def _unary(op: str) -> Operator:
    return lambda call: call.math(op, call.tensor(0), dtype=call.dtype)


def _binary(op: str) -> Operator:
    return lambda call: call.math(op, call.tensor(0), call.tensor(1), dtype=call.dtype)


def _comparison(op: str) -> Operator:
    return lambda call: call.compare(op, call.tensor(0), call.tensor(1))


def _logical(op: str) -> Operator:
    return lambda call: call.math(op, call.tensor(0), call.tensor(1), dtype=DType.BOOL)


def _scaled(call: Call, value: Tensor, factor: Number) -> Tensor:
    return value if factor == 1 else call.math("mul", value, factor, dtype=call.dtype)


def _add(call: Call) -> Tensor:
    return call.math("add", call.tensor(0), _scaled(call, call.tensor(1), call.number(2, "alpha", 1)), dtype=call.dtype)


def _sub(call: Call) -> Tensor:
    return call.math("sub", call.tensor(0), _scaled(call, call.tensor(1), call.number(2, "alpha", 1)), dtype=call.dtype)


def _divisor(call: Call) -> Tensor:
    """The divisor; a number that is the size of what was just summed up (``x.sum(0) / len(x)``) follows that size.

    A trace holds sizes as plain numbers, so this is the only place where one can be told from a constant.
    """
    number = call.get(1, "other")
    if isinstance(number, int) and number > 1:
        counted = call.builder.count_of_reduced(call.tensor(0), number, call.dtype)
        if counted is not None:
            return counted
    return call.tensor(1)


def _div(call: Call) -> Tensor:
    mode = call.get(2, "rounding_mode")
    if mode is None:
        return call.math("div", call.tensor(0), _divisor(call), dtype=call.dtype)
    if not call.dtype.is_floating:
        raise ShapeError("an integer division")
    quotient = call.math("div", call.tensor(0), call.tensor(1), dtype=call.dtype)
    return call.math("floor" if mode == "floor" else "trunc", quotient)


def _reciprocal(call: Call) -> Tensor:
    return call.math("div", 1.0, call.tensor(0), dtype=call.dtype)


def _rsqrt(call: Call) -> Tensor:
    return call.math("div", 1.0, call.math("sqrt", call.tensor(0), dtype=call.dtype))


def sigmoid_of(call: Call, x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return call.math("div", 1.0, call.math("add", 1.0, call.math("exp", call.math("neg", x))))


def _sigmoid(call: Call) -> Tensor:
    return sigmoid_of(call, call.cast(call.tensor(0), call.dtype))


def _silu(call: Call) -> Tensor:
    x = call.tensor(0)
    return call.math("div", x, call.math("add", 1.0, call.math("exp", call.math("neg", x))))


def _relu(call: Call) -> Tensor:
    x = call.tensor(0)
    return call.where(call.compare("lt", x, 0), 0, x)


def bounded(call: Call, x: Tensor, low: Tensor | Number | None, high: Tensor | Number | None) -> Tensor:
    """x between two bounds; NaN stays NaN."""
    if low is not None:
        x = call.where(call.compare("lt", x, low), low, x, dtype=call.dtype)
    if high is not None:
        x = call.where(call.compare("gt", x, high), high, x, dtype=call.dtype)
    return x


def _clamp(call: Call) -> Tensor:
    bounds = (call.maybe(1, "min"), call.maybe(2, "max"))
    return bounded(call, call.cast(call.tensor(0), call.dtype), *bounds)


def _clamp_min(call: Call) -> Tensor:
    return bounded(call, call.cast(call.tensor(0), call.dtype), call.tensor(1, "min"), None)


def _clamp_max(call: Call) -> Tensor:
    return bounded(call, call.cast(call.tensor(0), call.dtype), None, call.tensor(1, "max"))


def _hardtanh(call: Call) -> Tensor:
    return bounded(call, call.tensor(0), call.number(1, "min_val", -1.0), call.number(2, "max_val", 1.0))


def _relu6(call: Call) -> Tensor:
    return bounded(call, call.tensor(0), 0.0, 6.0)


def _hard_gate(call: Call) -> Tensor:
    return call.math("div", bounded(call, call.math("add", call.tensor(0), 3.0), 0.0, 6.0), 6.0)


def _hardswish(call: Call) -> Tensor:
    gate = bounded(call, call.math("add", call.tensor(0), 3.0), 0.0, 6.0)
    return call.math("div", call.math("mul", call.tensor(0), gate), 6.0)


def _leaky_relu(call: Call) -> Tensor:
    x = call.tensor(0)
    return call.where(
        call.compare("gt", x, 0), x, call.math("mul", x, call.number(1, "negative_slope", 0.01)), dtype=call.dtype
    )


def _prelu(call: Call) -> Tensor:
    x, weight = call.tensor(0), call.tensor(1)
    if len(weight.shape) == 1 and weight.shape[0] > 1 and len(x.shape) > 2:
        weight = call.builder.reshape(weight, (weight.shape[0], *(1 for _ in x.shape[2:])))
    return call.where(call.compare("gt", x, 0), x, call.math("mul", x, weight))


def _elu_of(call: Call, alpha: Number, scale: Number, input_scale: Number) -> Tensor:
    x = call.tensor(0)
    negative = call.math("mul", call.math("expm1", _scaled(call, x, input_scale)), alpha * scale)
    return call.where(call.compare("le", x, 0), negative, _scaled(call, x, scale))


def _elu(call: Call) -> Tensor:
    return _elu_of(call, call.number(1, "alpha", 1.0), call.number(2, "scale", 1.0), call.number(3, "input_scale", 1.0))


def _selu(call: Call) -> Tensor:
    return _elu_of(call, _SELU_ALPHA, _SELU_SCALE, 1.0)


def _celu(call: Call) -> Tensor:
    alpha = call.number(1, "alpha", 1.0)
    return _elu_of(call, alpha, 1.0, 1.0 / alpha)


def _gelu(call: Call) -> Tensor:
    x = call.tensor(0)
    half = call.math("mul", x, 0.5)
    if call.get(1, "approximate", "none") == "tanh":
        cube = call.math("mul", call.math("mul", x, x), x)
        inner = call.math("mul", call.math("add", x, call.math("mul", cube, 0.044715)), math.sqrt(2.0 / math.pi))
        return call.math("mul", half, call.math("add", 1.0, call.math("tanh", inner)))
    erf = call.math("erf", call.math("mul", x, math.sqrt(0.5)))
    return call.math("mul", half, call.math("add", 1.0, erf))


def softplus_of(call: Call, x: Tensor, beta: Number = 1.0, threshold: Number = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta, and x itself beyond the threshold."""
    scaled = _scaled(call, x, beta)
    soft = call.math("log1p", call.math("exp", scaled))
    if beta != 1:
        soft = call.math("div", soft, beta)
    return call.where(call.compare("gt", scaled, threshold), x, soft)


def _softplus(call: Call) -> Tensor:
    return softplus_of(call, call.tensor(0), call.number(1, "beta", 1.0), call.number(2, "threshold", 20.0))


def _softsign(call: Call) -> Tensor:
    x = call.tensor(0)
    return call.math("div", x, call.math("add", 1.0, call.math("abs", x)))


def _mish(call: Call) -> Tensor:
    x = call.tensor(0)
    return call.math("mul", x, call.math("tanh", softplus_of(call, x)))


def _log_sigmoid(call: Call) -> Tensor:
    x = call.tensor(0)
    tail = call.math("log1p", call.math("exp", call.math("neg", call.math("abs", x))))
    return call.math("sub", call.where(call.compare("gt", x, 0), 0.0, x), tail)


def _threshold(call: Call) -> Tensor:
    x = call.tensor(0)
    return call.where(call.compare("le", x, call.number(1, "threshold", 0)), call.number(2, "value", 0), x)


def _hardshrink(call: Call) -> Tensor:
    x, bound = call.tensor(0), call.number(1, "lambd", 0.5)
    return call.where(call.compare("le", call.math("abs", x), bound), 0, x)


def _softshrink(call: Call) -> Tensor:
    x, bound = call.tensor(0), call.number(1, "lambd", 0.5)
    low = call.where(call.compare("lt", x, -bound), call.math("add", x, bound), call.math("mul", x, 0.0))
    return call.where(call.compare("gt", x, bound), call.math("sub", x, bound), low)


def power(call: Call, x: Tensor, exponent: Number) -> Tensor:
    """x to a constant power, by products where that is exact enough."""
    if exponent == 2:
        return call.math("mul", x, x)
    if exponent == 3:
        return call.math("mul", call.math("mul", x, x), x)
    if exponent == 1:
        return x
    if call.dtype.is_floating:
        if exponent == 0.5:
            return call.math("sqrt", x)
        if exponent == -0.5:
            return call.math("div", 1.0, call.math("sqrt", x))
        if exponent == -1:
            return call.math("div", 1.0, x)
        if exponent == -2:
            return call.math("div", 1.0, call.math("mul", x, x))
        return call.math("pow", x, float(exponent))
    raise ShapeError(f"an integer power of {exponent}")


def _pow_scalar(call: Call) -> Tensor:
    return power(call, call.cast(call.tensor(0), call.dtype), call.number(1, "exponent", 1))


def _pow(call: Call) -> Tensor:
    if not call.dtype.is_floating:
        raise ShapeError("an integer power")
    return call.math("pow", call.tensor(0), call.tensor(1), dtype=call.dtype)


def _where(call: Call) -> Tensor:
    return call.where(call.tensor(0), call.tensor(1), call.tensor(2), dtype=call.dtype)


def _masked_fill(call: Call) -> Tensor:
    return call.where(call.tensor(1), call.tensor(2), call.tensor(0), dtype=call.dtype)


def _sign(call: Call) -> Tensor:
    x = call.tensor(0)
    positive = call.where(call.compare("gt", x, 0), 1, 0, dtype=call.dtype)
    return call.where(call.compare("lt", x, 0), -1, positive, dtype=call.dtype)


def _lerp(call: Call) -> Tensor:
    start, end, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    return call.math("add", start, call.math("mul", weight, call.math("sub", end, start)))


def _addcmul(call: Call) -> Tensor:
    product = call.math("mul", call.tensor(1), call.tensor(2), dtype=call.dtype)
    return call.math("add", call.tensor(0), _scaled(call, product, call.number(3, "value", 1)))


def _addcdiv(call: Call) -> Tensor:
    quotient = call.math("div", call.tensor(1), call.tensor(2), dtype=call.dtype)
    return call.math("add", call.tensor(0), _scaled(call, quotient, call.number(3, "value", 1)))


def _not(call: Call) -> Tensor:
    return call.math("not", call.tensor(0), dtype=DType.BOOL)


def _bitwise(op: str) -> Operator:
    def convert(call: Call) -> Tensor:
        if call.dtype is not DType.BOOL:
            raise ShapeError("a bitwise operation on integers")
        return call.math(op, *(call.tensor(i) for i in range(1 if op == "not" else 2)), dtype=DType.BOOL)

    return convert


def _isnan(call: Call) -> Tensor:
    return call.compare("ne", call.tensor(0), call.tensor(0))


def _isinf(call: Call) -> Tensor:
    return call.compare("eq", call.math("abs", call.tensor(0)), math.inf)


def _cast(call: Call) -> Tensor:
    return call.cast(call.tensor(0), call.dtype)


def _filled(value: Number) -> Operator:
    return lambda call: call.builder.const(value, call.dtype, call.values[0].shape)


def _full(call: Call) -> Tensor:
    return call.builder.const(call.number(1, "fill_value", 0), call.dtype, call.values[0].shape)


POINTWISE: dict[str, Operator] = {
    **{f"aten.{op}": _unary(op) for op in _UNARY},
    **{f"aten.{op}": _comparison(op) for op in _COMPARISONS},
    **{f"aten.{op}": _binary(op) for op in ("mul", "maximum", "minimum", "atan2")},
    **{f"aten.logical_{op}": _logical(op) for op in ("and", "or", "xor")},
    **{f"aten.bitwise_{op}": _bitwise(op) for op in ("and", "or", "xor", "not")},
    **{f"aten.__{op}__": _bitwise(op) for op in ("and", "or", "xor")},
    "aten.max.other": _binary("maximum"),
    "aten.min.other": _binary("minimum"),
    "aten.add": _add,
    "aten.sub": _sub,
    "aten.div": _div,
    "aten.reciprocal": _reciprocal,
    "aten.rsqrt": _rsqrt,
    "aten.square": lambda call: power(call, call.tensor(0), 2),
    "aten.sigmoid": _sigmoid,
    "aten.silu": _silu,
    "aten.relu": _relu,
    "aten.relu6": _relu6,
    "aten.clamp": _clamp,
    "aten.clamp_min": _clamp_min,
    "aten.clamp_max": _clamp_max,
    "aten.hardtanh": _hardtanh,
    "aten.hardsigmoid": _hard_gate,
    "aten.hardswish": _hardswish,
    "aten.leaky_relu": _leaky_relu,
    "aten.prelu": _prelu,
    "aten.elu": _elu,
    "aten.selu": _selu,
    "aten.celu": _celu,
    "aten.gelu": _gelu,
    "aten.softplus": _softplus,
    "aten.softsign": _softsign,
    "aten.mish": _mish,
    "aten.log_sigmoid": _log_sigmoid,
    "aten.threshold": _threshold,
    "aten.hardshrink": _hardshrink,
    "aten.softshrink": _softshrink,
    "aten.pow.Tensor_Scalar": _pow_scalar,
    "aten.pow.Tensor_Tensor": _pow,
    "aten.pow.Scalar": _pow,
    "aten.where": _where,
    "aten.masked_fill": _masked_fill,
    "aten.sign": _sign,
    "aten.lerp": _lerp,
    "aten.addcmul": _addcmul,
    "aten.addcdiv": _addcdiv,
    "aten.logical_not": _not,
    "aten.isnan": _isnan,
    "aten.isinf": _isinf,
    "aten.to": _cast,
    "aten.zeros_like": _filled(0),
    "aten.ones_like": _filled(1),
    "aten.zeros": _filled(0),
    "aten.ones": _filled(1),
    "aten.new_zeros": _filled(0),
    "aten.new_ones": _filled(1),
    "aten.new_full": lambda call: call.builder.const(call.number(2, "fill_value", 0), call.dtype, call.values[0].shape),
    "aten.full_like": _full,
    "aten.full": _full,
    "aten.scalar_tensor": _cast,
}
