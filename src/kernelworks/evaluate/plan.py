"""Which input families each case is run in: all of them where they say most, and no more pairs than a candidate's check
may cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from kernelworks.evaluate.families import FAMILIES
from kernelworks.task.model import Case, CaseRole, Task, TensorArgument, size_bytes

SMALL_CASE_BYTES = 64 << 20
"""A check or edge case above this size is run on the task's own draw alone."""
FULL_CASE_BYTES = 4 << 20
"""The largest case up to this size is run in every family, timed cases up to this size in some (``TIMED_FAMILIES``)."""
TIMED_FAMILIES = ("wide", "shifted", "specials")
"""Beside the task's own draw: a kernel may tell the timed shape from the others, and leave out there what the draw
never asks for. Larger timed cases are run on that draw alone."""
MOST_PAIRS = 40
"""Pairs of case and family for one candidate, timed cases on the task's own draw not counted; that draw of every case
is run in any event."""
_OTHER_CHECK = 3
_EDGE = 2
"""Families of each other check case and of each edge case, beside the task's own draw: in turn, so that several cases
cover them all."""


def families_by_case(task: Task) -> dict[str, tuple[str, ...]]:
    """The families of every case, by its name; the large case has none.

    Where no floating input has elements there is but one family: integers stay as they are drawn.
    """
    cases = [case for case in task.cases if case.role is not CaseRole.LARGE]
    found: dict[str, tuple[str, ...]] = {case.name: FAMILIES[:1] for case in cases}
    floating = [a for a in (*task.inputs, *task.weights) if isinstance(a, TensorArgument) and a.dtype.is_floating]

    def floats(case: Case) -> bool:
        return any(size_bytes(tensor, case) for tensor in floating)

    sizes = {case.name: sum(size_bytes(tensor, case) for tensor in task.tensors) for case in cases}
    small = [
        case
        for case in cases
        if case.role is not CaseRole.TIMED and sizes[case.name] <= SMALL_CASE_BYTES and floats(case)
    ]
    full = _fullest(small, sizes)
    if full is not None:
        found[full.name] = FAMILIES
    left = MOST_PAIRS - sum(len(found[case.name]) for case in cases if case.role is not CaseRole.TIMED)
    for case in cases:
        if case.role is CaseRole.TIMED and floats(case) and sizes[case.name] <= FULL_CASE_BYTES:
            found[case.name] += TIMED_FAMILIES[: max(0, left)]
            left -= len(found[case.name]) - 1
    turns = itertools.cycle(FAMILIES[1:])
    for case in sorted(small, key=lambda case: case.role is CaseRole.EDGE):
        if case is full:
            continue
        count = min(left, _OTHER_CHECK if case.role is CaseRole.CHECK else _EDGE)
        found[case.name] = (*FAMILIES[:1], *_next(turns, max(0, count)))
        left -= max(0, count)
    return found


def _fullest(small: list[Case], sizes: dict[str, int]) -> Case | None:
    """The largest case that is cheap in every family: a check case where there is one; else the smallest."""
    for role in (CaseRole.CHECK, CaseRole.EDGE):
        cheap = [case for case in small if case.role is role and sizes[case.name] <= FULL_CASE_BYTES]
        if cheap:
            return max(cheap, key=lambda case: sizes[case.name])
    return min(small, key=lambda case: sizes[case.name], default=None)


def _next(turns: Iterator[str], count: int) -> Iterator[str]:
    return itertools.islice(turns, count)
