"""How far an answer may lie from the float64 one: the error bound per output.

RMS error at most ``max(2 e_ref, c u (4 + sqrt(L)/2) rms(golden), c m)``:

- ``e_ref`` is the RMS error of the reference itself in its native precision, pooled over seeds (factor 3 for 16-bit
  types). "Twice the reference's error" alone refuses honest kernels: a sequential sum of 4,096 terms shows 9 to 17
  times the error of a pairwise one.
- ``u`` is the unit roundoff of the output, ``L`` the length of the longest reduction behind it. The rounding errors of
  a sum of ``L`` terms grow like a random walk, hence the root (Higham 2002, Accuracy and Stability of Numerical
  Algorithms, section 2.8); where every term is equal, or one of a few values, they repeat and point the same way, hence
  ``L/2`` for the constant, the integer and the sparse family (section 4.2).
- ``m`` is how far the golden answer moves when every input moves by those roundings, ``u (4 + sqrt(L)/2)`` of itself:
  mixed forward-backward stability (Higham 2002, section 1.5), the most that can be asked of an operation that
  amplifies what it is given. A mean of 4,096 values around 1e4 in plain float32 is wrong by some 1e-2 and so are the
  deviations from it, however the kernel goes on; a sum of values of both signs may be close to zero while its rounding
  errors are not. Where an operation amplifies nothing, ``m`` is below the second term. 16-bit types count as summed in
  float32. In the denormal family inputs move by 2^-133 too, the smallest bfloat16: accurate schemes that split numbers
  lose what is below. A kernel that flushes loses 2^-126.
- ``c = 1 + 2 / sqrt(n)`` for ``n`` independent errors: these terms are standard deviations, and the error of a single
  number (a loss) is more than twice its standard deviation in one of twenty honest runs. The elements of an output
  count, but ``L`` of them as one, since a row may share the error of its mean.

The largest error is capped likewise: element ``i`` may be wrong by ``max(3 m_ref, 8 r max(|golden_i|, rms(golden)), 3
m_max)``, ``m_ref`` the reference's own largest error, ``r`` the relative RMS limit and ``m_max`` the farthest that an
element moves. Eight standard deviations are never seen in 2^31 honest roundings; ``|golden_i|`` admits that the large
elements of a long-tailed output carry large errors.

Sums and products of small integers are exact in every order: there the limit is zero (``EXACT``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from kernelworks.task.graph import Graph, Node, Ref
from kernelworks.task.model import Case, DType, Task, TensorArgument, concrete_shape

ZERO_FLOOR = 1e-20
"""Absolute limit where the golden output is zero throughout."""
BIASED = ("constant", "integers", "sparse", "heavy")
"""Families of few distinct values, or of few that rule a sum, whose rounding errors do not average out."""
EXTREME_FACTOR = 8.0
_MOVED_FACTOR = 3.0
_SMALLEST = {
    DType.FLOAT32: 2.0**-149,
    DType.COMPLEX64: 2.0**-149,
    DType.FLOAT64: 2.0**-1074,
    DType.FLOAT16: 2.0**-24,
    DType.BFLOAT16: 2.0**-133,
}
"""Smallest subnormal number: what lies between two of them is rounded, whatever its size."""
RELAXED_ROUNDOFF = 2.0**-11
"""Roundoff granted to float32 outputs under ``precision: relaxed``: the 11 significant bits of tf32 and float16."""


@dataclass(frozen=True)
class Bound:
    """Limits for one output, absolute."""

    rms_limit: float
    max_floor: float
    """Every element may be wrong by this much ..."""
    max_relative: float
    """... or by this times the magnitude of its golden value, whichever is larger."""


@dataclass(frozen=True)
class ReferenceError:
    """Errors of the native reference against float64, and the size of the golden output, over finite elements."""

    rms: float
    largest: float
    golden_rms: float


@dataclass(frozen=True)
class Moved:
    """How far the golden answer moves when its inputs do: by ``amount`` of themselves (see ``prepare``)."""

    rms: float
    largest: float
    amount: float


EXACT = Bound(rms_limit=0.0, max_floor=0.0, max_relative=0.0)
"""Where every order of summation gives the same numbers."""


def pooled(errors: Sequence[ReferenceError]) -> ReferenceError:
    """Errors of several seeds as one: root mean square, and the largest."""
    return ReferenceError(
        rms=math.sqrt(sum(e.rms**2 for e in errors) / len(errors)),
        largest=max(e.largest for e in errors),
        golden_rms=math.sqrt(sum(e.golden_rms**2 for e in errors) / len(errors)),
    )


def derive_bound(
    argument: TensorArgument,
    task: Task,
    reduction_length: int,
    own: ReferenceError,
    pool: ReferenceError,
    family: str,
    *,
    moved: Moved | None = None,
    elements: int | None = None,
) -> Bound:
    """The bound for one floating output.

    Args:
        argument: the output (or mutated input).
        task: gives the tolerance and the precision.
        reduction_length: L of ``reduction_lengths``.
        own: errors of the reference on these very inputs.
        pool: errors of the reference pooled over seeds.
        family: the input family; those of ``BIASED`` get L/2.
        moved: what moved inputs do to the answer; None where that was not measured.
        elements: of the output; None counts as many.
    """
    if task.tolerance.relative_rms is not None:
        relative = task.tolerance.relative_rms
        rms_limit = relative * own.golden_rms
        farthest = 0.0
    else:
        few = 1.0 if not elements else 1 + 2 / math.sqrt(_independent(elements, reduction_length))
        relative = few * _roundoff(argument.dtype, task.precision) * growth(reduction_length, family)
        factor = 3.0 if argument.dtype.itemsize_bytes == 2 else 2.0
        smallest = _SMALLEST[argument.dtype] if own.golden_rms > 0 else 0.0
        rms_limit = max(factor * pool.rms, relative * own.golden_rms, smallest)
        farthest = 0.0
        if moved is not None:
            scale = few * moved_amount(argument.dtype, task, reduction_length, family) / moved.amount
            rms_limit = max(rms_limit, scale * moved.rms)
            farthest = _MOVED_FACTOR * scale * moved.largest
    if own.golden_rms == 0:
        rms_limit = max(rms_limit, ZERO_FLOOR)
    floor = max(rms_limit, 3 * pool.largest, EXTREME_FACTOR * relative * own.golden_rms, farthest)
    return Bound(rms_limit=rms_limit, max_floor=floor, max_relative=EXTREME_FACTOR * relative)


def _independent(elements: int, reduction_length: int) -> int:
    """Errors that have nothing in common, at least: rows, where an element for each of their terms is put out."""
    return elements if elements < reduction_length else max(1, elements // reduction_length)


def growth(reduction_length: int, family: str) -> float:
    """Unit roundoffs that a result of a reduction may be wrong by."""
    return 4 + (reduction_length / 2 if family in BIASED else math.sqrt(reduction_length) / 2)


def moved_amount(dtype: DType, task: Task, reduction_length: int, family: str) -> float:
    """By which share of themselves inputs move in the third term of the bound; sums of 16-bit types are in float32."""
    summed_in = DType.FLOAT32 if dtype.itemsize_bytes == 2 else dtype
    return _roundoff(summed_in, task.precision) * growth(reduction_length, family)


def _roundoff(dtype: DType, precision: str) -> float:
    wide = dtype in (DType.FLOAT32, DType.COMPLEX64)
    return RELAXED_ROUNDOFF if precision == "relaxed" and wide else dtype.unit_roundoff


def results(task: Task) -> tuple[TensorArgument, ...]:
    """What a kernel answers with: the outputs, then the inputs that it changes in place, as ``mutates`` lists them."""
    named = {a.name: a for a in (*task.inputs, *task.weights) if isinstance(a, TensorArgument)}
    return (*task.outputs, *(named[name] for name in task.mutates))


def reduction_lengths(task: Task, case: Case, graph: Graph | None) -> tuple[int, ...]:
    """L of each result: the longest reduction among its ancestors in the traced graph.

    Without a graph (NumPy, or an operation that cannot be traced) shapes decide: the largest of the elements of an
    input per element of the output, and the length of an input's last axis (row-wise operations and matrix products).
    In-place results take the longest reduction of the whole graph.
    """
    answers = results(task)
    if graph is None:
        return tuple(_length_from_shapes(task, case, answer) for answer in answers)
    nodes = {node.name: node for node in graph.nodes}
    own = {node.name: _node_length(node, nodes) for node in graph.nodes}
    longest: dict[str, int] = {}
    for node in graph.nodes:  # in execution order: ancestors come first
        behind = [longest.get(ref, 1) for ref in _refs(node.args, node.kwargs)]
        longest[node.name] = max([own[node.name], *behind])
    overall = max(longest.values(), default=1)
    found = [longest.get(ref.ref, overall) for ref in graph.outputs]
    return tuple(found[i] if i < len(task.outputs) and i < len(found) else overall for i in range(len(answers)))


def _length_from_shapes(task: Task, case: Case, answer: TensorArgument) -> int:
    elements = max(1, math.prod(concrete_shape(answer, case)))
    length = 1
    for argument in (*task.inputs, *task.weights):
        if isinstance(argument, TensorArgument):
            shape = concrete_shape(argument, case)
            length = max(length, math.prod(shape) // elements, shape[-1] if shape else 1)
    return length


_MATRIX_PRODUCTS = frozenset("mm bmm matmul addmm addbmm baddbmm linear mv addmv dot vdot inner".split())
_CONTRACTIONS = frozenset("einsum tensordot bilinear".split())
_CONVOLUTIONS = frozenset(
    "convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d _convolution".split()
)
_ALONG_AXIS = frozenset("softmax _softmax log_softmax _log_softmax cumsum cumprod logcumsumexp cummax cummin".split())
_TRAILING = frozenset("layer_norm native_layer_norm rms_norm".split())
_PER_CHANNEL = frozenset(
    "batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional".split()
)
_PER_INSTANCE = frozenset("instance_norm".split())
_WINDOWS = frozenset(
    "avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_pool2d_with_indices"
    " max_pool3d_with_indices".split()
)
_MOVEMENTS = frozenset(
    "view reshape _unsafe_view slice select narrow index index_select gather embedding split split_with_sizes chunk"
    " unbind take diagonal expand permute transpose t cat stack clone getitem".split()
)


def _node_length(node: Node, nodes: dict[str, Node]) -> int:
    """Terms that one element of this node's result is reduced from; 1 for pointwise operations and movements."""
    refs = list(_refs(node.args, node.kwargs))
    shapes = [nodes[ref].values[0].shape for ref in refs if ref in nodes and nodes[ref].values]
    if node.kind != "call" or not shapes or not node.values:
        return 1
    name = node.op.split(".")[1].rstrip("_") if "." in node.op else node.op
    elements = max(1, math.prod(node.values[0].shape))
    return max(1, _length_of(name, node, shapes, elements))


def _length_of(name: str, node: Node, shapes: list[tuple[int, ...]], elements: int) -> int:
    first = shapes[0]
    if name in _MOVEMENTS:
        return 1
    if name in _MATRIX_PRODUCTS:
        factor = shapes[1] if name.startswith(("add", "badd")) and len(shapes) > 1 else first
        return factor[-1] if factor else 1
    if name in _CONTRACTIONS:
        return math.isqrt(math.prod(first) * math.prod(shapes[-1]) // elements)
    if name in _CONVOLUTIONS and len(shapes) > 1:
        weight = shapes[1]
        transposed = "transpose" in name or (len(node.args) > 6 and node.args[6] is True)
        return math.prod(weight) // max(1, weight[1] if transposed else weight[0])
    if name == "scaled_dot_product_attention" and len(shapes) > 1:
        return max(shapes[1][-2:])
    if name in _ALONG_AXIS:
        axis = node.args[1] if len(node.args) > 1 else None
        return first[axis] if isinstance(axis, int) and first else max(first, default=1)
    if name in _TRAILING:
        normalised = node.args[1] if len(node.args) > 1 else None
        return math.prod(_ints(normalised)) if isinstance(normalised, list | tuple) else first[-1]
    if name in _PER_CHANNEL and len(first) > 1:
        return math.prod(first) // max(1, first[1])
    if name in _PER_INSTANCE and len(first) > 1:
        return math.prod(first[2:])
    if name == "group_norm" and first:
        groups = node.args[1] if len(node.args) > 1 else 1
        return math.prod(first) // max(1, first[0] * (groups if isinstance(groups, int) else 1))
    if name in _WINDOWS and len(node.args) > 1:
        window = _ints(node.args[1])
        spatial = int(name.split("pool")[1][0])
        return math.prod(window) if len(window) > 1 else window[0] ** spatial
    return max(math.prod(shape) for shape in shapes) // elements


def _ints(value: Any) -> list[int]:
    items: list[Any] = list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [value]
    return [item for item in items if isinstance(item, int)] or [1]


def _refs(*values: Any) -> Iterator[str]:
    """Names of the nodes that these arguments use, in order."""
    for value in values:
        if isinstance(value, Ref):
            yield value.ref
        elif isinstance(value, dict):
            mapping = cast("dict[str, Any]", value)
            if isinstance(mapping.get("ref"), str):
                yield mapping["ref"]
            else:
                yield from _refs(*mapping.values())
        elif isinstance(value, list | tuple):
            yield from _refs(*value)
