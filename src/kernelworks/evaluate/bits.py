"""Bits of answers: whether two runs on the same inputs gave the same ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelworks.evaluate.casestate import CaseState
from kernelworks.evaluate.compare import CHUNK_ELEMENTS
from kernelworks.evaluate.numbers import Raw, decode, words_of
from kernelworks.task.model import DType

_MULTIPLIERS: NDArray[np.uint64] = np.random.default_rng(0xB175).integers(
    1, 1 << 63, CHUNK_ELEMENTS, dtype=np.uint64
) | np.uint64(1)
"""Odd ones: the weighted sum modulo 2^64 changes with every single word. Against accidents, not against an enemy."""
_STEP = 0x9E3779B97F4A7C15
_MODULUS = 1 << 64


def fingerprint(state: CaseState, lane: int) -> str:
    """The bits of a lane's results as 16 hexadecimal digits; every NaN counts as the same."""
    total = 0
    for golden in state.golden:
        dtype = golden.argument.dtype
        plane = state.result(lane, golden)
        for start in range(0, plane.size, CHUNK_ELEMENTS):
            words = _canonical(plane[start : start + CHUNK_ELEMENTS], dtype).astype(np.uint64)
            weighted = int((words * _MULTIPLIERS[: words.size]).sum(dtype=np.uint64))
            total = (total * _STEP + weighted) % _MODULUS
    return f"{total:016x}"


def differing(state: CaseState) -> dict[str, int]:
    """By result, how many elements have other bits in lane 1 than in lane 0; every NaN counts as the same."""
    found: dict[str, int] = {}
    for golden in state.golden:
        dtype = golden.argument.dtype
        left, right = state.result(0, golden), state.result(1, golden)
        count = 0
        for start in range(0, left.size, CHUNK_ELEMENTS):
            one, other = left[start : start + CHUNK_ELEMENTS], right[start : start + CHUNK_ELEMENTS]
            if not np.array_equal(words_of(one, dtype), words_of(other, dtype)):
                count += int(np.count_nonzero(_canonical(one, dtype) != _canonical(other, dtype)))
        if count:
            found[golden.argument.name] = count
    return found


def _canonical(chunk: Raw, dtype: DType) -> NDArray[np.unsignedinteger[Any]]:
    """Words of a chunk, all NaN made equal."""
    words = words_of(chunk, dtype)
    if not dtype.is_floating:
        return words
    nan = np.isnan(decode(chunk, dtype) if dtype is DType.BFLOAT16 else chunk)
    return np.where(nan, np.iinfo(words.dtype).max, words) if nan.any() else words
