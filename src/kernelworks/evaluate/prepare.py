"""Makes a case ready in the judge: draw, golden values, errors of the reference, buffers; or says why it cannot."""

from __future__ import annotations

from collections.abc import Sequence

from kernelworks.evaluate.bound import ReferenceError
from kernelworks.evaluate.casestate import CaseState, share
from kernelworks.evaluate.golden import DroppedFamilyError, golden_case
from kernelworks.evaluate.records import LANES
from kernelworks.evaluate.reference import Reference
from kernelworks.evaluate.strided import images_of
from kernelworks.task.model import Case

__all__ = ["DroppedFamilyError", "golden_case", "prepare_case"]


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
    images = images_of(task, case, drawn)
    shared, lanes = share(task, case, drawn, images)
    poison: list[dict[str, int]] = [{} for _ in range(LANES)]
    key = f"{case.name}/{family}/{seed}"
    return CaseState(key, task, case, family, seed, drawn, golden, shared, lanes, poison, images)
