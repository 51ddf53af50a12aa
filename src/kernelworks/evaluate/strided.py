"""Inputs that are not dense: where a task has ``layout: strided``, its inputs come transposed and with gaps.

The gaps between elements hold NaN (random bits in exact types) and belong to nobody: what a kernel writes there is
found, what it reads there spoils its answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelworks.evaluate.numbers import Raw, plane, poison_word, storage, words_of
from kernelworks.task.model import Case, CaseRole, DType, Task, TensorArgument, concrete_shape

_DENSE_ROLES = (CaseRole.TIMED, CaseRole.LARGE)
_MOST_PADDING = 5


@dataclass(frozen=True)
class Image:
    """An input as it lies in memory."""

    strides: tuple[int, ...]
    """Per axis, in elements."""
    flat: Raw
    """From the first element to the last, gaps included."""

    def owner(self, shape: tuple[int, ...], element: int) -> tuple[int, ...] | None:
        """The index of the element that lives at a flat position; None for a gap."""
        owners = np.full(self.flat.size, -1, np.int64)
        _strided(owners, shape, self.strides)[...] = np.arange(math.prod(shape)).reshape(shape)
        found = int(owners[element])
        return None if found < 0 else tuple(int(i) for i in np.unravel_index(found, shape))


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense row-major tensor, in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def images_of(task: Task, case: Case, drawn: Sequence[Any]) -> dict[str, Image]:
    """How the inputs of a case lie in memory, those that are not dense; layouts are drawn anew each time.

    Timed cases, the large one and inputs that the task changes in place stay dense.
    """
    if task.layout == "contiguous" or case.role in _DENSE_ROLES:
        return {}
    rng = np.random.default_rng()
    found: dict[str, Image] = {}
    for argument, raw in zip((*task.inputs, *task.weights), drawn, strict=True):
        if isinstance(argument, TensorArgument) and argument.shape and argument.name not in task.mutates:
            strides = _draw_strides(concrete_shape(argument, case), rng)
            if strides != dense_strides(raw.shape):
                found[argument.name] = lay_out(raw, argument.dtype, strides, rng)
    return found


def lay_out(raw: Raw, dtype: DType, strides: tuple[int, ...], rng: np.random.Generator) -> Image:
    """A dense tensor, spread out in memory."""
    extent = 0 if raw.size == 0 else 1 + sum((n - 1) * s for n, s in zip(raw.shape, strides, strict=True))
    flat = np.empty(extent, storage(dtype))
    if dtype.is_floating:
        words_of(plane(flat, dtype), dtype).fill(poison_word(dtype, 0, rng))
    else:
        flat.view(np.uint8)[...] = rng.integers(0, 2 if dtype is DType.BOOL else 256, flat.nbytes, np.uint8)
    if extent:
        _strided(flat, raw.shape, strides)[...] = raw
    return Image(strides, flat)


def _draw_strides(shape: Sequence[int], rng: np.random.Generator) -> tuple[int, ...]:
    """Dense, transposed (axes in reverse order), or a slice of a larger tensor: padded rows, every other column."""
    kind = rng.integers(0, 3)
    if kind == 0 or len(shape) == 0:
        return dense_strides(shape)
    if kind == 1 and len(shape) > 1:
        return tuple(reversed(dense_strides(shape[::-1])))
    step = int(rng.integers(1, 3)) if len(shape) > 1 else 2
    row = shape[-1] * step + int(rng.integers(1, _MOST_PADDING + 1))
    return (*(row * s for s in dense_strides(shape[:-1])), step)


def _strided(flat: NDArray[Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[Any]:
    return np.lib.stride_tricks.as_strided(flat, shape, [s * flat.itemsize for s in strides])
