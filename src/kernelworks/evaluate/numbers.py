"""How elements of a dtype lie in memory, and their values: the judge's arithmetic needs NumPy alone.

A *raw* array holds the elements as they are stored: the NumPy dtype of the same name, ``uint16`` for bfloat16 (which
NumPy lacks). Comparison works on *planes*: flat arrays of real numbers, a complex number being two neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelworks.task.model import DType

Raw = NDArray[Any]
"""Elements as stored."""
Doubles = NDArray[np.float64]

_STORAGE: dict[DType, type[np.generic]] = {
    DType.FLOAT32: np.float32,
    DType.FLOAT64: np.float64,
    DType.FLOAT16: np.float16,
    DType.BFLOAT16: np.uint16,
    DType.INT8: np.int8,
    DType.INT16: np.int16,
    DType.INT32: np.int32,
    DType.INT64: np.int64,
    DType.UINT8: np.uint8,
    DType.BOOL: np.bool_,
    DType.COMPLEX64: np.complex64,
}
_QUIET_NAN: dict[DType, tuple[type[np.unsignedinteger[Any]], int, int]] = {
    DType.FLOAT32: (np.uint32, 0x7FC00000, 22),
    DType.FLOAT64: (np.uint64, 0x7FF8000000000000, 51),
    DType.FLOAT16: (np.uint16, 0x7E00, 9),
    DType.BFLOAT16: (np.uint16, 0x7FC0, 6),
    DType.COMPLEX64: (np.uint32, 0x7FC00000, 22),
}
"""Word that holds a real number, a quiet NaN, and the bits of payload below its quiet bit."""
FILL_BYTES = (0xA5, 0x5A)
"""Fill patterns of integer and bool outputs: no single pattern is wrong for every answer, two are."""


def storage(dtype: DType) -> np.dtype[Any]:
    """NumPy dtype of the raw elements."""
    return np.dtype(_STORAGE[dtype])


def plane(raw: Raw, dtype: DType) -> Raw:
    """A contiguous raw array as a flat view of real numbers."""
    flat = raw.reshape(-1)
    return flat.view(np.float32) if dtype is DType.COMPLEX64 else flat


def bits(raw: Raw, dtype: DType) -> NDArray[np.unsignedinteger[Any]]:
    """A raw plane of a floating dtype as words, a view."""
    return raw.view(_QUIET_NAN[dtype][0])


def decode(raw: Raw, dtype: DType) -> Raw:
    """Values of a raw plane: float64 for floating dtypes, unchanged integers and bools otherwise."""
    if dtype is DType.BFLOAT16:
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return raw.astype(np.float64) if dtype.is_floating else raw


def encode(values: Doubles, dtype: DType) -> Raw:
    """Raw plane of these values, rounded to nearest; beyond the range they become infinite."""
    with np.errstate(over="ignore"):
        if dtype is not DType.BFLOAT16:
            return values.astype(np.float32 if dtype is DType.COMPLEX64 else storage(dtype))
        words = values.astype(np.float32).view(np.uint32)
    lowest_kept = (words >> np.uint32(16)) & np.uint32(1)
    rounded = ((words + (np.uint32(0x7FFF) + lowest_kept)) >> np.uint32(16)).astype(np.uint16)
    rounded[np.isnan(values)] = 0x7FC0
    return rounded


def poison_word(dtype: DType, pattern: int, rng: np.random.Generator) -> int:
    """A word with which an output is filled before a run.

    Floating dtypes: a quiet NaN with a random payload, so that an element that was never written is told from a NaN
    that the kernel computed. Others: the byte ``FILL_BYTES[pattern % 2]`` repeated.
    """
    if dtype in _QUIET_NAN:
        _, nan, payload_bits = _QUIET_NAN[dtype]
        return nan | int(rng.integers(1, 1 << payload_bits))
    return int.from_bytes(bytes([FILL_BYTES[pattern % 2]]) * dtype.itemsize_bytes, "little")


def words_of(raw: Raw, dtype: DType) -> NDArray[np.unsignedinteger[Any]]:
    """A raw plane of any dtype as unsigned words of an element's (for complex: a real number's) size, a view."""
    if dtype in _QUIET_NAN:
        return bits(raw, dtype)
    return raw.view(np.dtype(f"u{raw.dtype.itemsize}"))
