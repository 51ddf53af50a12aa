"""Counts what a traced reference does: bytes of the fused ideal, and operations per ATen operator.

What counts how much
    Matrix products, convolutions and attention are counted exactly, two operations (a product and a sum) a term; taps
    that fall on padding and pairs that a causal mask hides count nothing.
    A reduction counts one operation an element that it reads, times what it does to each (a norm squares, too).
    A pointwise operator counts one an element. Transcendental functions count what the leanest known polynomial for
    float32 takes, in fused multiply-adds of two operations each: fewer than any library spends, so that the sum stays
    a lower bound (``TRANSCENDENTAL``).
    Movements (views, slices, gathers, concatenation, casts, selection) count nothing.
    What does not depend on any input could be computed once and counts nothing.
    Operators that are not known are named and count nothing.

    Complex numbers count four real products and sums a term of a product, and two operations elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from kernelworks.kernel.roofline import Arithmetic, Work
from kernelworks.task.graph import Graph, Node, Value
from kernelworks.task.model import DType

_ARITHMETIC: dict[DType, Arithmetic] = {
    DType.FLOAT32: "float32",
    DType.COMPLEX64: "float32",
    DType.FLOAT64: "float64",
    DType.FLOAT16: "half",
    DType.BFLOAT16: "half",
}

MOVEMENTS = frozenset(
    "view permute expand to clone copy cat stack split split_with_sizes chunk unbind slice select narrow index"
    " index_select gather embedding take take_along_dim diagonal diag diag_embed flip roll rot90 repeat"
    " repeat_interleave tile unfold im2col pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d"
    " replication_pad2d tril triu where masked_fill masked_select one_hot scatter slice_scatter select_scatter"
    " index_put index_copy pixel_shuffle pixel_unshuffle channel_shuffle upsample_nearest1d upsample_nearest2d"
    " upsample_nearest3d zeros ones full empty zeros_like ones_like full_like empty_like new_zeros new_ones new_full"
    " new_empty arange eye linspace scalar_tensor fill real imag view_as_real view_as_complex as_strided"
    " broadcast_to movedim swapaxes meshgrid getitem dropout native_dropout channel_shuffle".split()
)
POINTWISE = {
    **dict.fromkeys(
        "add sub mul div neg abs sign sgn maximum minimum fmax fmin clamp clamp_min clamp_max relu threshold reciprocal"
        " sqrt rsqrt floor ceil round trunc frac eq ne lt le gt ge isnan isinf isfinite logical_and logical_or"
        " logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor bitwise_left_shift"
        " outer bitwise_right_shift remainder fmod floor_divide leaky_relu prelu copysign heaviside rsub signbit conj"
        " conj_physical".split(),
        1,
    ),
    **dict.fromkeys("relu6 hardtanh square addcmul addcdiv lerp hardsigmoid softsign hardshrink softshrink".split(), 2),
    "square": 1,
    "hardswish": 3,
    "hypot": 3,
}
"""Operations an element of the result. Roots and quotients are one instruction, if a slow one."""
TRANSCENDENTAL = {
    **dict.fromkeys("exp exp2 expm1 log log2 log10 log1p sin cos sinh cosh asin acos atan tan atan2".split(), 10),
    **dict.fromkeys("sigmoid tanh erf erfc erfinv elu celu selu asinh acosh atanh".split(), 12),
    **dict.fromkeys("silu gelu xlogy".split(), 13),
    **dict.fromkeys("mish softplus log_sigmoid logaddexp logit lgamma digamma".split(), 16),
    "pow": 16,
}
"""Operations an element: five fused multiply-adds for an exponential or a logarithm, one or two more operations for
what is built from one."""
REDUCTIONS = {
    **dict.fromkeys(
        "sum mean prod amax amin max min argmax argmin any all count_nonzero cumsum cumprod cummax cummin nansum"
        " median aminmax".split(),
        1,
    ),
    **dict.fromkeys("norm linalg_vector_norm".split(), 2),
    **dict.fromkeys("var std var_mean std_mean mse_loss l1_loss kl_div pairwise_distance".split(), 3),
    **dict.fromkeys("smooth_l1_loss huber_loss hinge_embedding_loss margin_ranking_loss".split(), 3),
    **dict.fromkeys("cosine_similarity cosine_embedding_loss triplet_margin_loss".split(), 6),
    **dict.fromkeys("logsumexp logcumsumexp".split(), 12),
    **dict.fromkeys("softmax _softmax log_softmax _log_softmax cross_entropy_loss".split(), 13),
    "binary_cross_entropy": 22,
    "binary_cross_entropy_with_logits": 14,
}
"""Operations an element of the first operand."""
NORMALISATIONS = {
    **dict.fromkeys("layer_norm native_layer_norm group_norm native_group_norm instance_norm".split(), 5),
    **dict.fromkeys("rms_norm".split(), 3),
    **dict.fromkeys("batch_norm native_batch_norm _native_batch_norm_legit_no_training".split(), 2),
    **dict.fromkeys("_native_batch_norm_legit _native_batch_norm_legit_functional".split(), 5),
}
"""Operations an element: a sum and a sum of squares (3), a scale and a shift (2)."""
_GATHERS = frozenset("embedding index_select gather index take take_along_dim slice select narrow".split())
"""Movements that read a part of their first operand."""


def count_work(graph: Graph) -> Work:
    """Bytes and operations of a traced reference for the sizes with which it was traced."""
    counter = _Counter(graph)
    counter.count()
    return Work(
        read_bytes=counter.read_bytes(),
        written_bytes=counter.written_bytes(),
        products=counter.products,
        others=counter.others,
        uncounted=tuple(sorted(counter.uncounted)),
    )


def operator_name(node: Node) -> str:
    """``mul`` of ``aten.mul.Tensor``, without the underscore of in-place forms."""
    parts = node.op.split(".")
    return (parts[1] if len(parts) > 1 else node.op).rstrip("_")


def references(*values: Any) -> Iterator[tuple[str, int]]:
    """(node, index) of every tensor that these encoded arguments use, in order."""
    for value in values:
        if isinstance(value, dict):
            mapping = cast("dict[str, Any]", value)
            if isinstance(mapping.get("ref"), str):
                yield mapping["ref"], int(mapping.get("index", 0))
            else:
                yield from references(*mapping.values())
        elif isinstance(value, list | tuple):
            yield from references(*value)


class _Counter:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = {node.name: node for node in graph.nodes}
        self.products: dict[Arithmetic, int] = {}
        self.others: dict[Arithmetic, int] = {}
        self.uncounted: set[str] = set()

    def count(self) -> None:
        depends: set[str] = set()
        for node in self.graph.nodes:
            used = list(references(node.args, node.kwargs))
            if node.kind == "placeholder" or any(name in depends for name, _ in used):
                depends.add(node.name)
                if node.kind == "call" and node.values:
                    self._call(node, [self._value(name, index) for name, index in used])

    def read_bytes(self) -> int:
        """Each argument once, or the part of it that gathers alone look at."""
        return sum(self._read(node) for node in self.graph.nodes if node.kind == "placeholder" and node.values[0].shape)

    def written_bytes(self) -> int:
        return sum(_bytes(self._value(ref.ref, ref.index)) for ref in self.graph.outputs)

    def _read(self, node: Node) -> int:
        whole = _bytes(node.values[0])
        if any(ref.ref == node.name for ref in self.graph.outputs):
            return whole
        total = 0
        for user in self.graph.nodes:
            used = [name for name, _ in references(user.args, user.kwargs)]
            if node.name in used:
                part = operator_name(user) in _GATHERS and used[0] == node.name and used.count(node.name) == 1
                total += sum(_bytes(value) for value in user.values) if part else whole
        return min(whole, total)

    def _value(self, name: str, index: int) -> Value:
        values = self.nodes[name].values
        return values[index] if index < len(values) else values[0]

    def _call(self, node: Node, operands: Sequence[Value]) -> None:
        name = operator_name(node)
        if name in MOVEMENTS or not operands:
            return
        dtype = operands[0].dtype
        kind = _ARITHMETIC.get(dtype, "integer")
        terms = _PRODUCTS.get(name)
        products = terms(node, operands) if terms is not None else None
        others = _others(name, node, operands)
        if products is None and others is None:
            self.uncounted.add(node.op)
            return
        complex_ = dtype is DType.COMPLEX64
        if products:
            self.products[kind] = self.products.get(kind, 0) + products * (8 if complex_ else 2)
        if others:
            self.others[kind] = self.others.get(kind, 0) + others * (2 if complex_ else 1)


def _others(name: str, node: Node, operands: Sequence[Value]) -> int | None:
    """Operations beside products; None for an operator that is not known."""
    made, first = _elements(node.values[0]), _elements(operands[0])
    if name == "pow":
        return made * _power(node)
    if name in ("max", "min", "maximum", "minimum") and len(operands) == 2:
        return made
    if name in TRANSCENDENTAL:
        return made * TRANSCENDENTAL[name]
    if name in POINTWISE:
        return made * POINTWISE[name]
    if name in REDUCTIONS:
        return first * REDUCTIONS[name]
    if name in NORMALISATIONS:
        return first * NORMALISATIONS[name]
    if name == "scaled_dot_product_attention":
        return 13 * _pairs(node, operands)
    if name in ("addmm", "addmv", "addbmm", "baddbmm"):
        return made
    if name in ("linear", *_CONVOLUTIONS):
        return made if len(operands) > 2 else 0
    if name in ("nll_loss", "nll_loss2d", "scatter_add", "index_add"):
        return _elements(operands[-1])
    if name in _WINDOWS:
        return made * math.prod(_window(node, _WINDOWS[name]))
    if name.startswith("adaptive_") and "pool" in name:
        return first
    if name in ("upsample_linear1d", "upsample_bilinear2d"):
        return made * (3 if name.endswith("1d") else 9)
    return None


def _power(node: Node) -> int:
    """Of ``pow`` with a small whole exponent: multiplications; with a half, a root; else logarithm and exponential."""
    exponent = node.args[1] if len(node.args) > 1 else None
    if isinstance(exponent, int | float) and abs(exponent) <= 8:
        if float(exponent).is_integer():
            return max(0, int(abs(exponent)).bit_length() - 1) + (exponent < 0)
        if float(exponent * 2).is_integer():
            return 1
    return TRANSCENDENTAL["pow"]


Terms = Callable[[Node, Sequence[Value]], int | None]
"""Terms (a product and a sum each) of an operator on operands; None where the form is not known."""


def _matrix_terms(node: Node, operands: Sequence[Value]) -> int:
    return _elements(node.values[0]) * (operands[0].shape[-1] if operands[0].shape else 1)


def _added_terms(node: Node, operands: Sequence[Value]) -> int:
    factor = operands[1].shape
    batch = factor[0] if operator_name(node) == "addbmm" else 1
    return _elements(node.values[0]) * factor[-1] * batch


def _tensordot_terms(node: Node, operands: Sequence[Value]) -> int | None:
    axes = node.args[2] if len(node.args) > 2 else None
    if not isinstance(axes, list | tuple):
        return None
    return _elements(node.values[0]) * math.prod(operands[0].shape[axis] for axis in _whole(cast("list[Any]", axes)))


def _bilinear_terms(node: Node, operands: Sequence[Value]) -> int:
    return _elements(node.values[0]) * operands[0].shape[-1] * operands[1].shape[-1]


def _einsum_terms(node: Node, operands: Sequence[Value]) -> int | None:
    """Of one or two operands: the product of all sizes. More operands leave the order, and so the count, open."""
    equation = str(node.args[0]).replace(" ", "")
    if "." in equation or len(operands) > 2:
        return None
    sizes: dict[str, int] = {}
    for letters, operand in zip(equation.split("->")[0].split(","), operands, strict=True):
        sizes |= dict(zip(letters, operand.shape, strict=True))
    return math.prod(sizes.values())


def _attention_terms(node: Node, operands: Sequence[Value]) -> int:
    return _pairs(node, operands) * (operands[0].shape[-1] + operands[2].shape[-1])


def _pairs(node: Node, operands: Sequence[Value]) -> int:
    """Pairs of a query and a key that are not hidden."""
    queries, keys = operands[0].shape[-2], operands[1].shape[-2]
    causal = len(node.args) > 5 and node.args[5] is True
    seen = sum(min(row + 1, keys) for row in range(queries)) if causal else queries * keys
    return math.prod(operands[0].shape[:-2]) * seen


def _convolution_terms(node: Node, operands: Sequence[Value]) -> int | None:
    name = operator_name(node)
    source, weight = operands[0].shape, operands[1].shape
    rank = len(weight) - 2
    if len(source) != rank + 2:  # without a batch
        source = (1, *source)
    if name == "convolution":
        stride, padding, dilation, transposed, groups = node.args[3], node.args[4], node.args[5], *node.args[6:9:2]
    elif "transpose" in name:
        stride, padding, groups, dilation, transposed = node.args[3], node.args[4], node.args[6], node.args[7], True
    else:
        stride, padding, dilation, groups, transposed = (*node.args[3:7], False)
    if isinstance(padding, str):
        same = padding == "same"
        spread = _per_axis(dilation, rank)
        padding = [d * (k - 1) // 2 if same else 0 for d, k in zip(spread, weight[2:], strict=True)]
    result = node.values[0].shape[-rank:]
    inner, outer = (result, source[2:]) if transposed else (source[2:], result)
    places = [_per_axis(value, rank) for value in (stride, padding, dilation)]
    taps = math.prod(
        _taps(outer[k], inner[k], weight[2 + k], places[0][k], places[1][k], places[2][k]) for k in range(rank)
    )
    if not isinstance(groups, int):
        return None
    # Each channel of a group meets each of the other side's channels in it: the weight's first two axes.
    return source[0] * taps * weight[0] * weight[1]


def _taps(positions: int, size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Pairs of a position of the strided side and a tap that fall on the other side, along one axis."""
    total = 0
    for tap in range(kernel):
        shift = tap * dilation - padding  # the place is position * stride + shift
        first = max(0, -(shift // stride))
        last = min(positions - 1, (size - 1 - shift) // stride)
        total += max(0, last - first + 1)
    return total


_CONVOLUTIONS = (
    *(f"conv{rank}d" for rank in (1, 2, 3)),
    *(f"conv_transpose{rank}d" for rank in (1, 2, 3)),
    "convolution",
)
_PRODUCTS: dict[str, Terms] = {
    **dict.fromkeys("mm bmm matmul linear mv dot vdot inner".split(), _matrix_terms),
    **dict.fromkeys("addmm addmv addbmm baddbmm".split(), _added_terms),
    **dict.fromkeys(_CONVOLUTIONS, _convolution_terms),
    "einsum": _einsum_terms,
    "tensordot": _tensordot_terms,
    "bilinear": _bilinear_terms,
    "scaled_dot_product_attention": _attention_terms,
}
_WINDOWS = {
    f"{kind}_pool{rank}d{suffix}": rank
    for kind in ("avg", "max")
    for rank in (1, 2, 3)
    for suffix in ("", "_with_indices")
}


def _window(node: Node, rank: int) -> list[int]:
    return _per_axis(node.args[1] if len(node.args) > 1 else 1, rank)


def _per_axis(value: Any, rank: int) -> list[int]:
    found = _whole(cast("list[Any]", value) if isinstance(value, list | tuple) else [value])
    return found if len(found) == rank else found[:1] * rank


def _whole(values: Sequence[Any]) -> list[int]:
    return [value for value in values if isinstance(value, int)] or [1]


def _elements(value: Value) -> int:
    return math.prod(value.shape)


def _bytes(value: Value) -> int:
    return _elements(value) * value.dtype.itemsize_bytes
