"""Bytes that an operation must move at least, shown by perturbation: the basis of the physical floor.

For every input some cache lines are changed, one at a time, and the results compared bit for bit. The share of lines
whose change shows is the share that must be read (an embedding reads few rows of its table). Every byte of a result is
written. A line whose change happens not to show lowers the figure, so the floor that follows errs on the honest side.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator

import numpy as np

from kernelworks.errors import TaskError
from kernelworks.evaluate.casestate import CaseState, memory
from kernelworks.evaluate.families import profile
from kernelworks.evaluate.numbers import Raw, encode
from kernelworks.evaluate.records import NecessaryBytes
from kernelworks.evaluate.reference import Reference
from kernelworks.task.model import DType, TensorArgument

LINE_BYTES = 64
_LINES = 12
_LEAST_LINES = 3
_BUDGET_S = 3.0
_PART_BYTES = 1 << 20


def necessary_bytes(state: CaseState, reference: Reference) -> NecessaryBytes:
    """Bytes shown necessary: inputs by sampled lines, results in full.

    Costs at most 24 native runs of the reference per input, fewer once 3 s are over.
    """
    found = reference.native(state.drawn, state.case)
    written_bytes, read_bytes = sum(plane.nbytes for plane in found), 0
    base = _summary(found)
    del found  # a summary is enough to see a change: one set of results at a time
    deadline = time.monotonic() + _BUDGET_S
    rng = np.random.default_rng([state.seed, 0xB17E])
    for argument, raw in state.pristine().values():
        if raw.size:
            read_bytes += round(raw.nbytes * _share(state, reference, argument, raw, base, rng, deadline))
    return NecessaryBytes(read_bytes=read_bytes, written_bytes=written_bytes)


def _share(
    state: CaseState,
    reference: Reference,
    argument: TensorArgument,
    raw: Raw,
    base: list[int],
    rng: np.random.Generator,
    deadline: float,
) -> float:
    flat = raw.reshape(-1)
    width = max(1, LINE_BYTES // raw.dtype.itemsize)
    lines = -(-flat.size // width)
    chosen = rng.choice(lines, min(_LINES, lines), replace=False)
    shown = tried = 0
    for line in chosen:
        if tried >= _LEAST_LINES and time.monotonic() > deadline:
            break
        tried += 1
        part = flat[line * width : (line + 1) * width]
        kept = part.copy()
        try:
            shown += any(_shows(state, reference, part, kept, new, base) for new in _values(argument, raw, part, rng))
        finally:
            part[...] = kept
    return shown / tried


def _shows(state: CaseState, reference: Reference, part: Raw, kept: Raw, new: Raw, base: list[int]) -> bool:
    if np.array_equal(new, kept):
        return False
    part[...] = new
    try:
        found = reference.native(state.drawn, state.case)
    except TaskError:
        return True  # the reference refuses the value: it looked at it
    return _summary(found) != base


def _summary(planes: list[Raw]) -> list[int]:
    """A checksum of every mebibyte: two results that differ and agree in it lower the figure, no more."""
    parts = (memory(plane)[at : at + _PART_BYTES] for plane in planes for at in range(0, plane.nbytes, _PART_BYTES))
    return [zlib.crc32(part.data) for part in parts]


def _values(argument: TensorArgument, raw: Raw, part: Raw, rng: np.random.Generator) -> Iterator[Raw]:
    """Other values for a line: such that win a maximum, then a minimum; from elsewhere for structural tensors."""
    values = profile(raw, argument.dtype)
    if values.structural:
        flat = raw.reshape(-1)
        yield flat[rng.integers(0, flat.size, part.size)]
        yield flat[rng.integers(0, flat.size, part.size)]
        return
    size = part.size * (2 if argument.dtype is DType.COMPLEX64 else 1)
    for sign in (1.0, -1.0):
        yield encode(sign * rng.uniform(1e4, 2e4, size), argument.dtype).view(raw.dtype)
