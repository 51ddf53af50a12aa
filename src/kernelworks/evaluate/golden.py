"""Right answers of a case and family: golden values, errors of the reference, and how far honest ones may lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernelworks.errors import TaskError
from kernelworks.evaluate.bound import ReferenceError, derive_bound, growth, moved_amount, results
from kernelworks.evaluate.casestate import Golden
from kernelworks.evaluate.compare import CHUNK_ELEMENTS, compare_exact, movement, reference_error
from kernelworks.evaluate.families import AS_DRAWN, SIGNIFICANT_BITS, IntegerLevel, apply_family, integer_levels
from kernelworks.evaluate.numbers import Doubles, Raw, decode, encode, plane
from kernelworks.evaluate.reference import Reference
from kernelworks.evaluate.selection import Selection, compare_selected, origin_of
from kernelworks.task.graph import Graph
from kernelworks.task.model import Case, DType, Task, TensorArgument, size_bytes

MOVED_BYTES = 256 << 20
"""Up to this size of all tensors the golden answer is computed once more, for moved inputs."""
SMALLEST_SPLIT = 2.0**-133
"""By which subnormal inputs move, the smallest bfloat16: what lies below is lost to schemes that split numbers."""
_FEW_ELEMENTS = 16
_FEW_DRAWS = 4
"""Times that inputs are moved where an output has few elements: one answer alone may happen to stay."""
_MOST_NON_FINITE = 0.5
_SUMS_AND_PRODUCTS = frozenset(
    "add sub mul sum prod neg abs square relu cumsum cumprod matmul mm bmm mv dot vdot outer linear addmm addbmm"
    " baddbmm addmv addr einsum tensordot maximum minimum amax amin max min clamp clamp_min clamp_max where masked_fill"
    " view permute expand to slice select split split_with_sizes chunk unbind cat stack index_select index gather take"
    " embedding flip roll constant_pad_nd pad tril triu diagonal repeat full zeros ones full_like zeros_like ones_like"
    " arange eq ne lt le gt ge logical_and logical_or logical_not".split()
)
"""Operators that give integers for integers, in which every honest order of evaluation is one of exact steps.
Convolutions are left out: fast ones (Winograd, Fourier) divide on their way."""


class DroppedFamilyError(Exception):
    """An input family that cannot judge this task; the message says why."""


def golden_case(
    reference: Reference, case: Case, seed: int, family: str, lengths: Sequence[int]
) -> tuple[list[Any], list[Golden]]:
    """Inputs (raw arrays and scalars) and right answers of a case, without buffers.

    Args:
        reference: the task's.
        case: one of its cases.
        seed: of the draw and of the family's values.
        family: one of ``families.FAMILIES``.
        lengths: reduction length of each result.

    Raises:
        DroppedFamilyError: the family cannot judge this task.
        TaskError: the task cannot be drawn or run on its own draw.
    """
    drawn = reference.draw(case, seed)
    maker = _Maker(reference, case, lengths)
    if family == "normal":
        made, golden = drawn, maker.answers(drawn, family)
    elif family == "integers":
        made, golden = _integers(maker, drawn, seed)
    else:
        made, golden = _of_family(maker, family, drawn, seed)
    maker.move(made, golden, family)
    if family == "specials":
        maker.mark_beside_infinities(drawn, made, golden)
    return made, golden


def _of_family(
    maker: _Maker, family: str, drawn: Sequence[Any], seed: int, level: IntegerLevel | None = None
) -> tuple[list[Any], list[Golden]]:
    """Values of both signs, or of the draw's own where the reference is then not finite throughout."""
    task = maker.task
    if family not in AS_DRAWN:
        made = apply_family(family, task, drawn, seed, signed=True, level=level)
        _refuse_unchanged(made, drawn)
        try:
            golden = maker.answers(made, family)
        except (TaskError, DroppedFamilyError):
            golden = []
        if golden and all(_finite(entry) for entry in golden):
            return made, golden
    made = apply_family(family, task, drawn, seed, signed=False, level=level)
    _refuse_unchanged(made, drawn)
    try:
        return made, maker.answers(made, family)
    except TaskError as error:
        raise DroppedFamilyError(f"the reference raises on it: {error.message}") from error


def _refuse_unchanged(made: Sequence[Any], drawn: Sequence[Any]) -> None:
    if all(a is b for a, b in zip(made, drawn, strict=True)):
        raise DroppedFamilyError("no floating input that could be changed")


def _integers(maker: _Maker, drawn: Sequence[Any], seed: int) -> tuple[list[Any], list[Golden]]:
    """The most telling integers on which some output is exact; where none ever is, the ordinary bound has to do."""
    found: tuple[list[Any], list[Golden]] | None = None
    reason: DroppedFamilyError | None = None
    for level in integer_levels(maker.task, max(maker.lengths, default=1)):
        try:
            made, golden = _of_family(maker, "integers", drawn, seed, level)
        except DroppedFamilyError as dropped:  # a power of them overflows, say
            reason = dropped
            continue
        found = found or (made, golden)
        if not any(_integral(entry) for entry in golden):
            break  # no sum or product: it will not be one of smaller integers either
        maker.mark_exact(made, golden)
        if any(entry.exact for entry in golden):
            return made, golden
    if found is None:
        raise reason or DroppedFamilyError("no integers")
    return found


def _finite(entry: Golden) -> bool:
    steps = range(0, entry.values.size, CHUNK_ELEMENTS)
    return all(bool(np.isfinite(entry.values[at : at + CHUNK_ELEMENTS]).all()) for at in steps)


def _integral(entry: Golden) -> bool:
    if not entry.argument.dtype.is_floating:
        return False
    parts = (entry.values[at : at + CHUNK_ELEMENTS] for at in range(0, entry.values.size, CHUNK_ELEMENTS))
    return all(bool((np.rint(part) == part).all()) for part in parts)


class _Maker:
    """Answers of one case."""

    def __init__(self, reference: Reference, case: Case, lengths: Sequence[int]) -> None:
        self.reference = reference
        self.task: Task = reference.task
        self.case = case
        self.lengths = lengths

    def answers(self, drawn: Sequence[Any], family: str) -> list[Golden]:
        """Golden values with the errors of the native reference."""
        golden = self.reference.double(drawn, self.case)
        native = self.reference.native(drawn, self.case)
        found: list[Golden] = []
        for index, (argument, right, rounded) in enumerate(zip(results(self.task), golden, native, strict=True)):
            entry = Golden(argument, right, self.lengths[index], None)
            if argument.dtype.is_floating:
                entry.own = _judge_reference(argument, rounded, right, family)
                entry.pool = [entry.own]
            else:
                length = self.lengths[index]
                entry.selection = selection_of(self.reference, self.case, drawn, index, length, family)
                _judge_exact(entry, rounded)
            found.append(entry)
        return found

    def mark_exact(self, drawn: Sequence[Any], golden: Sequence[Golden]) -> None:
        """Mark the outputs in which no honest order of summation rounds: the reference itself is exact there, all
        numbers are integers, and so is the sum of the magnitudes of all terms, below the first that the type lacks."""
        task = self.task
        graph = self.reference.graph(self.case)[0]
        if task.precision != "strict" or task.tolerance.relative_rms is not None or not _sums_and_products(graph):
            return
        positive = [np.abs(v) if _real(a, v) else v for a, v in zip((*task.inputs, *task.weights), drawn, strict=True)]
        positive = [
            encode(np.abs(decode(v, a.dtype)), a.dtype).reshape(v.shape)
            if isinstance(a, TensorArgument) and a.dtype is DType.BFLOAT16
            else v
            for a, v in zip((*task.inputs, *task.weights), positive, strict=True)
        ]
        try:
            magnitudes = self.reference.double(positive, self.case)
        except TaskError:
            return
        for entry, magnitude in zip(golden, magnitudes, strict=True):
            if entry.own is None or entry.own.rms > 0 or not _integral(entry):
                continue
            largest = float(np.abs(magnitude).max(initial=0.0))
            entry.exact = largest < 2.0 ** SIGNIFICANT_BITS[entry.argument.dtype]

    def mark_beside_infinities(self, drawn: Sequence[Any], made: Sequence[Any], golden: Sequence[Golden]) -> None:
        """Mark the elements of floating results that differ, in any bit, from the answer to inputs that hold the values
        of the draw in place of the infinities (NaN stays).

        There ``x * rsqrt(inf) = 0`` may be NaN in honest arithmetic: compensated sums form ``inf - inf``, and a Newton
        step for a root forms ``inf * 0``.
        """
        arguments = (*self.task.inputs, *self.task.weights)
        ordinary = [
            _without_infinities(value, was, argument.dtype)
            if isinstance(argument, TensorArgument) and value is not was
            else value
            for argument, was, value in zip(arguments, drawn, made, strict=True)
        ]
        try:
            answers = self.reference.double(ordinary, self.case)
        except TaskError:  # nothing is known then, and nothing let be
            return
        for entry, answer in zip(golden, answers, strict=True):
            if entry.own is not None:
                values: Doubles = entry.values
                changed = (values != answer) & ~(np.isnan(values) & np.isnan(answer))
                entry.beside_infinity = np.packbits(changed)

    def move(self, drawn: Sequence[Any], golden: Sequence[Golden], family: str) -> None:
        """Measure how far the answers move when the inputs do, by the roundings of honest arithmetic.

        Half of the movement is common to a tensor and half is each element's own: what is common shows in sums that
        cancel against something else, what is each element's own in differences from a mean.

        Raises:
            DroppedFamilyError: an exact answer changes, or whether an element is finite does.
        """
        task = self.task
        judged = [entry for entry in golden if not entry.exact and entry.selection is None]
        total_bytes = sum(size_bytes(tensor, self.case) for tensor in task.tensors)
        if not judged or task.tolerance.relative_rms is not None or total_bytes > MOVED_BYTES:
            return
        if family == "normal" and all(entry.own is None for entry in judged):
            return
        amount = self._amount(judged, family)
        few = min(entry.values.size for entry in judged) < _FEW_ELEMENTS
        rng = np.random.default_rng(0x30B5)
        answers: list[list[Raw]] = []
        for _ in range(_FEW_DRAWS if few else 1):
            try:
                answers.append(self.reference.double(self._moved(drawn, amount, family, rng), self.case))
            except TaskError:  # values that depend on each other (a sum of one, say) cannot be moved about
                return
        for index, entry in enumerate(golden):
            if entry.exact or entry.selection is not None:
                continue
            name, dtype = entry.argument.name, entry.argument.dtype
            moved = [answer[index] for answer in answers]
            if not dtype.is_floating:
                if family != "normal" and any(not np.array_equal(entry.values, values) for values in moved):
                    raise DroppedFamilyError(f"{name}: the answer hangs on the rounding of the inputs")
                continue
            entry.moved, mask_mismatches = movement(entry.values, moved, dtype, amount)
            if mask_mismatches and family not in ("normal", "specials"):
                raise DroppedFamilyError(f"{name}: what is finite hangs on the rounding of the inputs")

    def _amount(self, judged: Sequence[Golden], family: str) -> float:
        """As large as the bound needs it, and large enough to be a movement in every input's type."""
        task = self.task
        amounts = [moved_amount(e.argument.dtype, task, e.length, family) for e in judged if e.own is not None]
        amounts += [DType.FLOAT32.unit_roundoff * growth(e.length, family) for e in judged if e.own is None]
        tensors = [a for a in (*task.inputs, *task.weights) if isinstance(a, TensorArgument)]
        return max(*amounts, *(2 * a.dtype.unit_roundoff for a in tensors), 0.0)

    def _moved(self, drawn: Sequence[Any], amount: float, family: str, rng: np.random.Generator) -> list[Any]:
        moved: list[Any] = []
        for argument, value in zip((*self.task.inputs, *self.task.weights), drawn, strict=True):
            if not isinstance(argument, TensorArgument) or not argument.dtype.is_floating:
                moved.append(value)
                continue
            flat = plane(value, argument.dtype)
            made = np.empty(flat.shape, flat.dtype)
            sign = float(rng.choice([-1.0, 1.0]))
            step = SMALLEST_SPLIT if family == "denormal" and argument.dtype is DType.FLOAT32 else 0.0
            for start in range(0, flat.size, CHUNK_ELEMENTS):
                part = flat[start : start + CHUNK_ELEMENTS]
                factors = 1 + sign * 2 * amount * rng.integers(0, 2, part.size)
                values: Doubles = np.multiply(decode(part, argument.dtype), factors, dtype=np.float64)
                if step:
                    values += step * rng.integers(-1, 2, part.size)
                made[start : start + CHUNK_ELEMENTS] = encode(values, argument.dtype)
            moved.append(made.view(value.dtype).reshape(value.shape))
        return moved


def _without_infinities(made: Raw, drawn: Raw, dtype: DType) -> Raw:
    """``made`` with the values of ``drawn`` where it is infinite."""
    flat = plane(made, dtype)
    kept = np.where(np.isinf(decode(flat, dtype)), plane(drawn, dtype), flat)
    return kept.view(made.dtype).reshape(made.shape)


def selection_of(
    reference: Reference, case: Case, drawn: Sequence[Any], index: int, length: int, family: str
) -> Selection | None:
    """The values that result ``index`` points into; None where it is no index, or one that must be equal.

    Values of an input are a view of ``drawn``.
    """
    graph = reference.graph(case)[0]
    origin = origin_of(graph, graph.outputs[index]) if graph is not None and index < len(graph.outputs) else None
    if graph is None or origin is None:
        return None
    node = graph.node(origin.operand.ref)
    dtype = node.values[origin.operand.index].dtype
    if node.kind == "placeholder":
        names = [a.name for a in (*reference.task.inputs, *reference.task.weights)]
        return Selection(origin, drawn[names.index(node.argument)].reshape(-1), dtype)
    try:
        (double,) = reference.tensors(drawn, case, [origin.operand], double=True)
        (native,) = reference.tensors(drawn, case, [origin.operand], double=False)
    except TaskError:
        return None
    if not dtype.is_floating:
        return Selection(origin, native, dtype)
    own, figures = reference_error(native, double, dtype)
    if figures.mask_mismatches:
        return None
    argument = TensorArgument(name=node.name, dtype=dtype, shape=(), role="output")
    bound = derive_bound(argument, reference.task, length, own, own, family)
    return Selection(origin, double, DType.FLOAT64, bound.max_floor, bound.max_relative)


def _real(argument: Any, value: Any) -> bool:
    return isinstance(argument, TensorArgument) and argument.dtype.is_floating and value.dtype.kind == "f"


def _sums_and_products(graph: Graph | None) -> bool:
    """Whether a traced reference is made of nothing else; a NumPy one is judged by its numbers alone."""
    if graph is None:
        return True
    names = [node.op.split(".") for node in graph.nodes if node.kind == "call"]
    return all(parts[0] == "aten" and parts[1] in _SUMS_AND_PRODUCTS for parts in names)


def _judge_reference(argument: TensorArgument, native: Raw, golden: Raw, family: str) -> ReferenceError:
    """Errors of the native reference in a floating output."""
    name = argument.name
    own, figures = reference_error(native, golden, argument.dtype)
    if figures.mask_mismatches:
        raise DroppedFamilyError(
            f"{name}: float64 and {argument.dtype} disagree about what is finite in {figures.mask_mismatches} elements"
        )
    if figures.finite < _MOST_NON_FINITE * golden.size and family != "specials":
        raise DroppedFamilyError(f"{name}: only {figures.finite} of {golden.size} elements are finite")
    return own


def _judge_exact(entry: Golden, native: Raw) -> None:
    """An exact output in which the native reference itself is right."""
    dtype, name = entry.argument.dtype, entry.argument.name
    if entry.selection is None:
        wrong = compare_exact(native, entry.values, dtype, poison=-1).mismatches
    else:
        wrong = compare_selected(native, entry.values, dtype, -1, entry.selection).mismatches
    if wrong:
        raise DroppedFamilyError(f"{name}: float64 and native reference differ in an output of integers")
