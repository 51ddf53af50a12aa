"""Makes a case ready in the judge: draw, golden values, errors of the reference, buffers; or says why it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernelworks.errors import TaskError
from kernelworks.evaluate.bound import ReferenceError, derive_bound, results
from kernelworks.evaluate.casestate import CaseState, Golden, share
from kernelworks.evaluate.compare import CHUNK_ELEMENTS, compare_floats, reference_error
from kernelworks.evaluate.families import TIED_FAMILIES, apply_family
from kernelworks.evaluate.numbers import Raw, decode, encode, plane
from kernelworks.evaluate.records import LANES
from kernelworks.evaluate.reference import Reference
from kernelworks.task.model import Case, TensorArgument

_MOST_NON_FINITE = 0.5
_ROUNDING_FACTOR = 4.0


class DroppedFamilyError(Exception):
    """An input family that cannot judge this task; the message says why."""


def prepare_case(
    reference: Reference,
    case: Case,
    seed: int,
    family: str,
    lengths: Sequence[int],
    pools: Sequence[list[ReferenceError]],
) -> CaseState:
    """Draw, compute golden values and make the buffers.

    Args:
        reference: the task's.
        case: one of its cases.
        seed: of the draw and of the family's values.
        family: one of ``families.FAMILIES``.
        lengths: reduction length of each result.
        pools: per result, where the reference's error joins those of other seeds.

    Raises:
        DroppedFamilyError: the family cannot judge this task.
        TaskError: the task cannot be drawn or run on its own draw.
    """
    task = reference.task
    drawn, golden = golden_case(reference, case, seed, family, lengths)
    for entry, pool in zip(golden, pools, strict=True):
        if entry.own is not None:
            pool.append(entry.own)
            entry.pool = pool
    shared, lanes = share(task, case, drawn)
    poison: list[dict[str, int]] = [{} for _ in range(LANES)]
    return CaseState(f"{case.name}/{family}/{seed}", task, case, family, seed, drawn, golden, shared, lanes, poison)


def golden_case(
    reference: Reference, case: Case, seed: int, family: str, lengths: Sequence[int]
) -> tuple[list[Any], list[Golden]]:
    """Inputs (raw arrays and scalars) and right answers of a case, without buffers; errors as ``prepare_case``."""
    task = reference.task
    drawn = reference.draw(case, seed)
    if family == "normal":
        return drawn, _answers(reference, case, drawn, lengths)
    if family in TIED_FAMILIES and any(not a.dtype.is_floating for a in results(task)):
        raise DroppedFamilyError("equal values leave an output of integers undetermined")
    made = apply_family(family, task, drawn, seed, signed=True)
    try:
        golden = _answers(reference, case, made, lengths)
    except (TaskError, DroppedFamilyError):
        golden = []
    if not golden or not all(_finite(entry) for entry in golden):
        made = apply_family(family, task, drawn, seed, signed=False)
        try:
            golden = _answers(reference, case, made, lengths)
        except TaskError as error:
            raise DroppedFamilyError(f"the reference raises on it: {error.message}") from error
    if family == "constant":
        _refuse_ill_conditioned(reference, case, made, golden)
    return made, golden


def _answers(reference: Reference, case: Case, drawn: Sequence[Any], lengths: Sequence[int]) -> list[Golden]:
    golden = reference.double(drawn, case)
    native = reference.native(drawn, case)
    found: list[Golden] = []
    for argument, right, rounded, length in zip(results(reference.task), golden, native, lengths, strict=True):
        own = _judge_reference(argument, rounded, right)
        found.append(Golden(argument, right, length, own, [] if own is None else [own]))
    return found


def _finite(entry: Golden) -> bool:
    steps = range(0, entry.values.size, CHUNK_ELEMENTS)
    return all(bool(np.isfinite(entry.values[at : at + CHUNK_ELEMENTS]).all()) for at in steps)


def _judge_reference(argument: TensorArgument, native: Raw, golden: Raw) -> ReferenceError | None:
    """Errors of the native reference; None for exact dtypes."""
    name = argument.name
    if not argument.dtype.is_floating:
        if not np.array_equal(native, golden):
            raise DroppedFamilyError(f"{name}: float64 and native reference differ in an output of integers")
        return None
    own, figures = reference_error(native, golden, argument.dtype)
    if figures.mask_mismatches:
        raise DroppedFamilyError(
            f"{name}: float64 and {argument.dtype} disagree about what is finite in {figures.mask_mismatches} elements"
        )
    if figures.finite < _MOST_NON_FINITE * golden.size:
        raise DroppedFamilyError(f"{name}: only {figures.finite} of {golden.size} elements are finite")
    return own


def _refuse_ill_conditioned(reference: Reference, case: Case, drawn: Sequence[Any], found: Sequence[Golden]) -> None:
    """Drop a case whose answer hangs on the rounding of its inputs alone (x minus its mean, where all x are equal).

    Every floating input moves to a neighbouring number; an answer that moves by several limits has no right value that
    honest arithmetic could meet.
    """
    task = reference.task
    rng = np.random.default_rng(0)
    moved: list[Any] = []
    for argument, value in zip((*task.inputs, *task.weights), drawn, strict=True):
        if isinstance(argument, TensorArgument) and argument.dtype.is_floating:
            values = decode(plane(value, argument.dtype), argument.dtype)
            factors = 1 + 2 * argument.dtype.unit_roundoff * rng.choice([-1.0, 1.0], values.size)
            value = encode(values * factors, argument.dtype).view(value.dtype).reshape(value.shape)
        moved.append(value)
    for entry, answer in zip(found, reference.double(moved, case), strict=True):
        if entry.own is None:
            continue
        bound = derive_bound(entry.argument, task, entry.length, entry.own, entry.own, "constant")
        dtype = entry.argument.dtype
        rounded = encode(answer, dtype)
        figures = compare_floats(rounded, entry.values, dtype, bound, poison=-1)
        if figures.rms_error > _ROUNDING_FACTOR * bound.rms_limit or figures.mask_mismatches:
            raise DroppedFamilyError(f"{entry.argument.name}: the answer hangs on the rounding of equal inputs")
