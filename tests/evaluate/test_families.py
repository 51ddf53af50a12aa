from __future__ import annotations

import numpy as np
import pytest
from support.references import numpy_task, tensor

from kernelworks.evaluate.families import FAMILIES, apply_family, draw, profile
from kernelworks.evaluate.numbers import decode, encode, storage
from kernelworks.task.model import DType

RNG = np.random.default_rng(3)
NORMAL = RNG.standard_normal((64, 64)).astype(np.float32)


def made(
    family: str, raw: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    found = draw(family, raw, profile(raw, DType.FLOAT32), np.random.default_rng(1))
    assert found.shape == raw.shape
    assert found.dtype == raw.dtype
    return found.astype(np.float64)


def test_wide_reaches_far_and_low_in_full_mantissas() -> None:
    values = made("wide", NORMAL)
    assert np.abs(values).max() > 90
    assert np.abs(values).min() < 1e-3
    assert np.count_nonzero(values < 0) > 1000
    mantissas = values.astype(np.float32).view(np.uint32) & 0xFFF
    assert np.count_nonzero(mantissas) > 4000


def test_integers_are_small_and_tied() -> None:
    assert set(np.unique(made("integers", NORMAL))) == set(range(-4, 5))


def test_constant_is_one_value() -> None:
    values = made("constant", NORMAL)
    assert np.unique(values).size == 1
    assert 0.5 <= abs(values[0, 0]) <= 1.5


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_what_was_never_negative_stays_so(family: str) -> None:
    assert made(family, np.abs(NORMAL) + np.float32(0.1)).min() > 0


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_a_weight_of_ones_changes_and_a_mask_does_not(family: str) -> None:
    ones = np.ones(4096, np.float32)
    assert not np.array_equal(made(family, ones), ones)
    mask = (NORMAL > 0).astype(np.float32)
    assert np.array_equal(made(family, mask), mask)
    hole = NORMAL.copy()
    hole[0, 0] = -np.inf
    assert np.array_equal(made(family, hole), hole)


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_triangles_and_symmetry_are_kept(family: str) -> None:
    upper = np.triu(NORMAL)
    assert not made(family, upper)[np.tril_indices(64, -1)].any()
    symmetric = NORMAL + NORMAL.T
    values = made(family, symmetric)
    assert np.array_equal(values, values.T)
    assert not np.array_equal(values, symmetric)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_narrow_dtypes_get_a_narrow_range(dtype: DType) -> None:
    raw = encode(RNG.standard_normal(10_000), dtype)
    values = decode(draw("wide", raw, profile(raw, dtype), np.random.default_rng(1)), dtype)
    assert 14 < np.abs(values).max() <= 16


def test_integers_and_scalars_keep_their_values() -> None:
    inputs = [tensor("x", "n"), tensor("index", "n", dtype=DType.INT64)]
    task = numpy_task(lambda x, index: x[index], inputs, [tensor("y", "n")], {"n": 64}, low=0, high=64)
    drawn = task.make_inputs(task.task.cases[0], 1)
    assert drawn[1].dtype == storage(DType.INT64)
    x, index = apply_family("wide", task.task, drawn, 1, signed=False)
    assert index is drawn[1]
    assert not np.array_equal(x, drawn[0])
    again = apply_family("wide", task.task, drawn, 1, signed=False)[0]
    assert np.array_equal(x, again), "the same seed gives the same values"
    assert not np.array_equal(x, apply_family("wide", task.task, drawn, 2, signed=False)[0])
