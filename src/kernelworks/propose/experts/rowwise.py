"""ATen's reductions, normalisations and losses in the experts' algebra.

Each is expanded into sums, maxima, minima and products over axes with pointwise work around them; generation fuses
whatever stands together. Variances are computed in two passes (mean, then squared deviations), which keeps the
error of honest float32 arithmetic for data far from zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kernelworks.propose.experts.axes import ShapeError
from kernelworks.propose.experts.builder import Number, Tensor
from kernelworks.propose.experts.call import Call, Operator
from kernelworks.propose.experts.pointwise import bounded, power
from kernelworks.task.model import DType

_MEAN, _SUM = 1, 2


def _sum(call: Call) -> Tensor:
    x = call.cast(call.tensor(0), call.dtype)
    return call.reduce("sum", x, _axes(call, x), keepdim=bool(call.get(2, "keepdim", False)))


def _mean(call: Call) -> Tensor:
    x = call.cast(call.tensor(0), call.dtype)
    return call.mean(x, _axes(call, x), keepdim=bool(call.get(2, "keepdim", False)))


def _axes(call: Call, x: Tensor) -> tuple[int, ...]:
    return call.axes(x, call.get(1, "dim") if call.op.split(".")[2] != "default" else None)


def _extreme(kind: str) -> Operator:
    """``amax``: a list of dims may be empty and then means all."""

    def convert(call: Call) -> Tensor:
        x = call.tensor(0)
        return call.reduce(kind, x, call.axes(x, call.get(1, "dim")), keepdim=bool(call.get(2, "keepdim", False)))

    return convert


def _extreme_all(kind: str) -> Operator:
    def convert(call: Call) -> Tensor:
        x = call.tensor(0)
        return call.reduce(kind, x, range(len(x.shape)), keepdim=False)

    return convert


def _prod(call: Call) -> Tensor:
    x = call.cast(call.tensor(0), call.dtype)
    axes = _axes(call, x)
    return call.reduce("prod", x, axes, keepdim=bool(call.get(2, "keepdim", False)))


def _exp_shifted(call: Call, x: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    shifted = call.math("sub", x, call.reduce("max", x, axes))
    return shifted, call.math("exp", shifted)


def _softmax(call: Call) -> Tensor:
    x = call.cast(call.tensor(0), call.dtype)
    axes = call.axes(x, call.get(1, "dim"))
    _, raised = _exp_shifted(call, x, axes)
    return call.math("div", raised, call.reduce("sum", raised, axes))


def log_softmax_of(call: Call, x: Tensor, axes: Sequence[int]) -> Tensor:
    """x - max - log(sum(exp(x - max)))."""
    shifted, raised = _exp_shifted(call, x, axes)
    return call.math("sub", shifted, call.math("log", call.reduce("sum", raised, axes)))


def _log_softmax(call: Call) -> Tensor:
    x = call.cast(call.tensor(0), call.dtype)
    return log_softmax_of(call, x, call.axes(x, call.get(1, "dim")))


def _logsumexp(call: Call) -> Tensor:
    x = call.cast(call.tensor(0), call.dtype)
    axes = call.axes(x, call.get(1, "dim"))
    top = call.reduce("max", x, axes)
    # As torch: an infinite maximum must not turn into NaN by subtraction.
    top = call.builder.apply("finite_or_zero", top, dtype=top.dtype)
    total = call.reduce("sum", call.math("exp", call.math("sub", x, top)), axes)
    result = call.math("add", call.math("log", total), top)
    return result if call.get(2, "keepdim", False) else _squeeze(call, result, axes)


def _squeeze(call: Call, x: Tensor, axes: Sequence[int]) -> Tensor:
    return call.builder.reshape(x, [size for i, size in enumerate(x.shape) if i not in axes])


def moments(call: Call, x: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, deviations from it, and their sum of squares, with kept dimensions."""
    mean = call.exact_mean(x, axes)
    deviation = call.math("sub", x, mean)
    return mean, deviation, call.reduce("sum", call.math("mul", deviation, deviation), axes)


def _inverse_deviation(call: Call, x: Tensor, squares: Tensor, axes: Sequence[int], eps: Number) -> Tensor:
    variance = call.math("div", squares, call.builder.count(x, axes, x.dtype))
    return call.math("div", 1.0, call.math("sqrt", call.math("add", variance, eps)))


def _affine(call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        x = call.math("mul", x, weight)
    return x if bias is None else call.math("add", x, bias)


def _trailing(x: Tensor, shape: Any) -> tuple[int, ...]:
    return tuple(range(len(x.shape) - len(shape), len(x.shape)))


def _normalised(call: Call, x: Tensor, axes: Sequence[int], eps: Number) -> tuple[Tensor, Tensor, Tensor]:
    mean, deviation, squares = moments(call, x, axes)
    scale = _inverse_deviation(call, x, squares, axes, eps)
    return call.math("mul", deviation, scale), mean, scale


def _layer_norm(call: Call) -> Tensor | tuple[Tensor, ...]:
    x = call.tensor(0)
    axes = _trailing(x, call.get(1, "normalized_shape"))
    normal, mean, scale = _normalised(call, x, axes, call.number(4, "eps", 1e-5))
    result = _affine(call, normal, call.maybe(2, "weight"), call.maybe(3, "bias"))
    return result if call.op.startswith("aten.layer_norm") else (result, mean, scale)


def _rms_norm(call: Call) -> Tensor:
    x = call.tensor(0)
    axes = _trailing(x, call.get(1, "normalized_shape"))
    eps = call.get(3, "eps")
    if eps is None:
        eps = 2.0**-52 if x.dtype is DType.FLOAT64 else 2.0**-23  # torch's, 16-bit types computed in float32
    mean = call.mean(call.math("mul", x, x), axes)
    scale = call.math("div", 1.0, call.math("sqrt", call.math("add", mean, eps)))
    return _affine(call, call.math("mul", x, scale), call.maybe(2, "weight"), None)


def _per_channel(call: Call, value: Tensor | None, rank: int) -> Tensor | None:
    if value is None:
        return None
    return call.builder.reshape(value, (value.shape[0], *(1 for _ in range(rank - 2))))


def _group_norm(call: Call) -> Tensor:
    x, groups = call.tensor(0), int(call.number(1, "num_groups", 1))
    batch, channels, *rest = x.shape
    if groups > channels or channels % groups:
        raise ShapeError("a group norm whose channels are no multiple of the groups")
    grouped = call.builder.reshape(x, (batch, groups, channels // groups, *rest))
    axes = tuple(range(2, len(grouped.shape)))
    normal, _, _ = _normalised(call, grouped, axes, call.number(4, "eps", 1e-5))
    normal = call.builder.reshape(normal, x.shape)
    rank = len(x.shape)
    return _affine(call, normal, _per_channel(call, call.maybe(2), rank), _per_channel(call, call.maybe(3), rank))


def _instance_norm(call: Call) -> Tensor:
    x, rank = call.tensor(0), len(call.tensor(0).shape)
    if not call.get(5, "use_input_stats", True):
        return _with_statistics(call, x, call.tensor(3), call.tensor(4), call.number(7, "eps", 1e-5))
    normal, _, _ = _normalised(call, x, tuple(range(2, rank)), call.number(7, "eps", 1e-5))
    return _affine(call, normal, _per_channel(call, call.maybe(1), rank), _per_channel(call, call.maybe(2), rank))


def _with_statistics(call: Call, x: Tensor, mean: Tensor, variance: Tensor, eps: Number) -> Tensor:
    rank = len(x.shape)
    centre, spread = _per_channel(call, mean, rank), _per_channel(call, variance, rank)
    assert centre is not None and spread is not None
    scale = call.math("div", 1.0, call.math("sqrt", call.math("add", spread, eps)))
    normal = call.math("mul", call.math("sub", x, centre), scale)
    return _affine(call, normal, _per_channel(call, call.maybe(1), rank), _per_channel(call, call.maybe(2), rank))


def _batch_norm(call: Call) -> Tensor:
    """Inference (running statistics) and training (the batch's own); result 0 alone."""
    x, rank = call.tensor(0), len(call.tensor(0).shape)
    without_statistics = call.op.endswith(".no_stats")
    eps = call.number(5 if without_statistics else 7, "eps", 1e-5)
    if not without_statistics and not call.get(5, "training", False):
        return _with_statistics(call, x, call.tensor(3), call.tensor(4), eps)
    normal, _, _ = _normalised(call, x, (0, *range(2, rank)), eps)
    return _affine(call, normal, _per_channel(call, call.maybe(1), rank), _per_channel(call, call.maybe(2), rank))


def _vector_norm(call: Call) -> Tensor:
    x = call.cast(call.tensor(0), call.dtype)
    axes = call.axes(x, call.get(2, "dim"))
    return norm_of(call, x, call.number(1, "ord", 2), axes, keepdim=bool(call.get(3, "keepdim", False)))


def _norm(call: Call) -> Tensor:
    x, order = call.cast(call.tensor(0), call.dtype), call.get(1, "p")
    dim = None if call.op.endswith(("ScalarOpt_dtype", "Scalar")) else call.get(2, "dim")
    return norm_of(call, x, 2 if order is None else order, call.axes(x, dim), keepdim=bool(call.get(3, "keepdim")))


def norm_of(call: Call, x: Tensor, order: Number, axes: Sequence[int], *, keepdim: bool) -> Tensor:
    """The vector norm of this order."""
    if order == 2:
        return call.math("sqrt", call.reduce("sum", call.math("mul", x, x), axes, keepdim=keepdim))
    size = call.math("abs", x)
    if order == 1:
        return call.reduce("sum", size, axes, keepdim=keepdim)
    if order in (math.inf, -math.inf):
        return call.reduce("max" if order > 0 else "min", size, axes, keepdim=keepdim)
    if order == 0:
        nonzero = call.where(call.compare("ne", x, 0.0), 1.0, 0.0, dtype=x.dtype)
        return call.reduce("sum", nonzero, axes, keepdim=keepdim)
    total = call.reduce("sum", power(call, size, order), axes, keepdim=keepdim)
    return call.math("pow", total, 1.0 / order)


def _variance(call: Call) -> tuple[Tensor, Tensor]:
    """Variance and mean; ``correction`` and the older ``unbiased``."""
    x, keepdim = call.tensor(0), bool(call.get(3, "keepdim", False))
    overload = call.op.split(".")[2]
    if overload == "default":
        axes, correction, keepdim = call.axes(x, None), int(bool(call.get(1, "unbiased", True))), False
    else:
        axes = call.axes(x, call.get(1, "dim"))
        unbiased = call.get(2, "unbiased", True) if overload == "dim" else call.kwargs.get("correction")
        correction = 1 if unbiased is None else unbiased
    mean, _, squares = moments(call, x, axes)
    freedom = call.math("sub", call.builder.count(x, axes, x.dtype), float(correction), dtype=x.dtype)
    variance = call.math("div", squares, bounded(call, freedom, 0.0, None) if correction else freedom)
    if keepdim:
        return variance, mean
    return _squeeze(call, variance, axes), _squeeze(call, mean, axes)


def _std(call: Call) -> Tensor:
    return call.math("sqrt", _variance(call)[0])


def _std_mean(call: Call) -> tuple[Tensor, Tensor]:
    variance, mean = _variance(call)
    return call.math("sqrt", variance), mean


def reduced_loss(call: Call, value: Tensor, reduction: Any) -> Tensor:
    """A loss by element, its mean or its sum (torch's numbers 0, 1, 2)."""
    if reduction == _MEAN:
        return call.mean(value, range(len(value.shape)), keepdim=False)
    return call.reduce("sum", value, range(len(value.shape)), keepdim=False) if reduction == _SUM else value


def _difference(call: Call) -> Tensor:
    return call.math("sub", call.tensor(0), call.tensor(1))


def _mse_loss(call: Call) -> Tensor:
    difference = _difference(call)
    return reduced_loss(call, call.math("mul", difference, difference), call.get(2, "reduction", _MEAN))


def _l1_loss(call: Call) -> Tensor:
    return reduced_loss(call, call.math("abs", _difference(call)), call.get(2, "reduction", _MEAN))


def _quadratic_then_linear(call: Call, bound: Number, scale: Number) -> Tensor:
    """``scale * z^2 / 2`` up to the bound, the tangent line beyond."""
    size = call.math("abs", _difference(call))
    square = call.math("mul", call.math("mul", size, size), 0.5 * scale)
    line = call.math("mul", call.math("sub", size, 0.5 * bound), scale * bound)
    return call.where(call.compare("lt", size, bound), square, line)


def _smooth_l1_loss(call: Call) -> Tensor:
    beta = call.number(3, "beta", 1.0)
    if beta == 0:
        return _l1_loss(call)
    return reduced_loss(call, _quadratic_then_linear(call, beta, 1.0 / beta), call.get(2, "reduction", _MEAN))


def _huber_loss(call: Call) -> Tensor:
    delta = call.number(3, "delta", 1.0)
    return reduced_loss(call, _quadratic_then_linear(call, delta, 1.0), call.get(2, "reduction", _MEAN))


def _kl_div(call: Call) -> Tensor:
    x, target = call.tensor(0), call.tensor(1)
    if call.get(3, "log_target", False):
        value = call.math("mul", call.math("exp", target), call.math("sub", target, x))
    else:
        # xlogy: zero where the target is zero, whatever the logarithm says.
        product = call.math("mul", target, call.math("log", target))
        entropy = call.where(call.compare("eq", target, 0.0), 0.0, product)
        value = call.math("sub", entropy, call.math("mul", target, x))
    return reduced_loss(call, value, call.get(2, "reduction", _MEAN))


def _bce_with_logits(call: Call) -> Tensor:
    x, target, weight, positive = call.tensor(0), call.tensor(1), call.maybe(2, "weight"), call.maybe(3, "pos_weight")
    if positive is not None:
        raise ShapeError("a pos_weight")
    tail = call.math("log1p", call.math("exp", call.math("neg", call.math("abs", x))))
    positive_part = call.where(call.compare("lt", x, 0.0), 0.0, x)
    value = call.math("add", call.math("sub", positive_part, call.math("mul", x, target)), tail)
    if weight is not None:
        value = call.math("mul", value, weight)
    return reduced_loss(call, value, call.get(4, "reduction", _MEAN))


def _distance(call: Call, left: Tensor, right: Tensor, order: Number, eps: Number) -> Tensor:
    difference = call.math("add", call.math("sub", left, right), eps)
    return norm_of(call, difference, order, (len(difference.shape) - 1,), keepdim=False)


def _triplet_margin_loss(call: Call) -> Tensor:
    anchor, positive, negative = call.tensor(0), call.tensor(1), call.tensor(2)
    order, eps = call.number(4, "p", 2.0), call.number(5, "eps", 1e-6)
    near, far = _distance(call, anchor, positive, order, eps), _distance(call, anchor, negative, order, eps)
    if call.get(6, "swap", False):
        other = _distance(call, positive, negative, order, eps)
        far = call.math("minimum", far, other)
    value = call.math("add", call.math("sub", near, far), call.number(3, "margin", 1.0))
    return reduced_loss(call, bounded(call, value, 0.0, None), call.get(7, "reduction", _MEAN))


def _pairwise_distance(call: Call) -> Tensor:
    distance = _distance(call, call.tensor(0), call.tensor(1), call.number(2, "p", 2), call.number(3, "eps", 1e-6))
    if call.get(4, "keepdim", False):
        return call.builder.reshape(distance, (*distance.shape, 1))
    return distance


def _cosine_similarity(call: Call) -> Tensor:
    x, y, eps = call.tensor(0), call.tensor(1), call.number(3, "eps", 1e-8)
    axes = call.axes(x, call.get(2, "dim", 1))

    def unit(value: Tensor) -> Tensor:
        return call.math("div", value, bounded(call, norm_of(call, value, 2, axes, keepdim=True), eps, None))

    return call.reduce("sum", call.math("mul", unit(x), unit(y)), axes, keepdim=False)


def _cross_entropy(call: Call) -> Tensor:
    """Class indices as targets, classes on the last axis of a matrix, no weights."""
    x, target = call.tensor(0), call.tensor(1)
    if len(x.shape) != 2 or target.dtype.is_floating or call.maybe(2, "weight") is not None:
        raise ShapeError("a cross entropy of more than rows of classes, or with probabilities or weights")
    if call.number(5, "label_smoothing", 0.0):
        raise ShapeError("a cross entropy with label smoothing")
    wanted = call.builder.reshape(target, (*target.shape, 1))
    chosen = call.compare("eq", call.builder.index(x, 1), wanted)
    # The classes' logarithms are summed with all but the wanted one masked: a gather without an indexed load.
    picked = call.reduce("sum", call.where(chosen, log_softmax_of(call, x, (1,)), 0.0), (1,), keepdim=False)
    ignored = call.compare("eq", target, int(call.number(4, "ignore_index", -100)))
    loss = call.where(ignored, 0.0, call.math("neg", picked))
    reduction = call.get(3, "reduction", _MEAN)
    if reduction != _MEAN:
        return reduced_loss(call, loss, reduction)
    counted = call.where(ignored, 0.0, 1.0, dtype=x.dtype)
    return call.math("div", reduced_loss(call, loss, _SUM), reduced_loss(call, counted, _SUM))


def _truth(kind: str) -> Operator:
    """``any`` and ``all`` as a maximum or minimum of zeros and ones."""

    def convert(call: Call) -> Tensor:
        x = call.compare("ne", call.tensor(0), 0)
        bits = call.cast(x, DType.INT32)
        axes = _axes(call, bits)
        keepdim = bool(call.get(2, "keepdim", False))
        return call.compare("ne", call.reduce(kind, bits, axes, keepdim=keepdim), 0)

    return convert


def _view(call: Call) -> Tensor:
    return call.builder.reshape(call.tensor(0), call.values[0].shape)


def _expand(call: Call) -> Tensor:
    return call.builder.expand(call.tensor(0), call.values[0].shape)


def _broadcast_tensors(call: Call) -> tuple[Tensor, ...]:
    listed = call.get(0, "tensors")
    return tuple(call.builder.expand(t, v.shape) for t, v in zip(listed, call.values, strict=True))


ROWWISE: dict[str, Operator] = {
    "aten.sum": _sum,
    "aten.mean": _mean,
    "aten.prod": _prod,
    "aten.amax": _extreme("max"),
    "aten.amin": _extreme("min"),
    "aten.max.dim": _extreme("max"),
    "aten.min.dim": _extreme("min"),
    "aten.max.default": _extreme_all("max"),
    "aten.min.default": _extreme_all("min"),
    "aten.any": _truth("max"),
    "aten.all": _truth("min"),
    "aten.softmax": _softmax,
    "aten._softmax": _softmax,
    "aten.log_softmax": _log_softmax,
    "aten._log_softmax": _log_softmax,
    "aten.logsumexp": _logsumexp,
    "aten.layer_norm": _layer_norm,
    "aten.native_layer_norm": _layer_norm,
    "aten.rms_norm": _rms_norm,
    "aten.group_norm": _group_norm,
    "aten.instance_norm": _instance_norm,
    "aten.batch_norm": _batch_norm,
    "aten._native_batch_norm_legit_functional": _batch_norm,
    "aten._native_batch_norm_legit.no_stats": _batch_norm,
    "aten.linalg_vector_norm": _vector_norm,
    "aten.norm": _norm,
    "aten.var": lambda call: _variance(call)[0],
    "aten.var_mean": _variance,
    "aten.std": _std,
    "aten.std_mean": _std_mean,
    "aten.mse_loss": _mse_loss,
    "aten.l1_loss": _l1_loss,
    "aten.smooth_l1_loss": _smooth_l1_loss,
    "aten.huber_loss": _huber_loss,
    "aten.kl_div": _kl_div,
    "aten.binary_cross_entropy_with_logits": _bce_with_logits,
    "aten.triplet_margin_loss": _triplet_margin_loss,
    "aten.pairwise_distance": _pairwise_distance,
    "aten.cosine_similarity": _cosine_similarity,
    "aten.cross_entropy_loss": _cross_entropy,
    "aten.view": _view,
    "aten.expand": _expand,
    "aten.broadcast_tensors": _broadcast_tensors,
}
