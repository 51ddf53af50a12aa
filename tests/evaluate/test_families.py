from __future__ import annotations

import numpy as np
import pytest
from support.references import numpy_task, tensor

from kernelworks.evaluate.families import (
    FAMILIES,
    SIGNIFICANT_BITS,
    IntegerLevel,
    apply_family,
    draw,
    integer_levels,
    profile,
)
from kernelworks.evaluate.numbers import decode, encode, storage
from kernelworks.task.model import DType

RNG = np.random.default_rng(3)
NORMAL = RNG.standard_normal((64, 64)).astype(np.float32)


def made(
    family: str, raw: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    level = IntegerLevel(wide=4097, density=0.5, narrow=8)
    found = draw(family, raw, profile(raw, DType.FLOAT32), np.random.default_rng(1), level=level)
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


def test_integers_reach_thirteen_bits_in_one_tensor_alone() -> None:
    values = made("integers", NORMAL)
    assert (values == np.rint(values)).all()
    assert 4000 < np.abs(values).max() <= 4097
    assert 0.4 < np.count_nonzero(values) / values.size < 0.6
    level = IntegerLevel(wide=4097, density=0.1, narrow=8)
    rng = np.random.default_rng(1)
    narrow = draw("integers", NORMAL, profile(NORMAL, DType.FLOAT32), rng, level=level, main=False)
    assert set(np.unique(np.abs(narrow))) == set(range(9))


@pytest.mark.parametrize("dtype", list(SIGNIFICANT_BITS))
@pytest.mark.parametrize("length", [1, 100, 4096, 1_000_000])
def test_sums_of_integers_stay_below_the_first_that_a_type_lacks(dtype: DType, length: int) -> None:
    a, b = tensor("a", "n", dtype=dtype), tensor("b", "n", dtype=dtype)
    task = numpy_task(lambda a, b: a * b, [a, b], [tensor("y", "n", dtype=dtype)], {"n": 64}).task
    for level in integer_levels(task, length):
        magnitudes = [(top - 1) / np.log(top) if top > 1 else 1.0 for top in (level.wide, level.narrow)]
        terms = length * level.density * 0.5
        assert terms * magnitudes[0] * magnitudes[1] <= 2.0 ** SIGNIFICANT_BITS[dtype] / 8 * (1 + 1e-9)
        assert level.wide * level.narrow < 2.0 ** SIGNIFICANT_BITS[dtype]


def test_shifted_has_a_large_mean_and_a_small_spread() -> None:
    values = made("shifted", NORMAL)
    assert abs(values.mean() - 10_240) < 0.1
    assert abs(values.std() - 1) < 0.1


def test_sparse_is_mostly_zero_and_heavy_is_ruled_by_few() -> None:
    assert 0.03 < np.count_nonzero(made("sparse", NORMAL)) / NORMAL.size < 0.07
    heavy = np.sort(np.square(made("heavy", NORMAL)).reshape(-1))
    assert heavy[-heavy.size // 100 :].sum() > heavy[: -heavy.size // 100].sum() / 2


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64])
def test_denormals_are_subnormal_in_every_type(dtype: DType) -> None:
    raw = encode(RNG.standard_normal(4096), dtype)
    found = draw("denormal", raw, profile(raw, dtype), np.random.default_rng(1))
    exponents = {DType.FLOAT32: 0x7F800000, DType.FLOAT16: 0x7C00, DType.BFLOAT16: 0x7F80, DType.FLOAT64: 0x7FF << 52}
    words = found.view(np.dtype(f"u{dtype.itemsize_bytes}"))
    subnormal = (words & words.dtype.type(exponents[dtype])) == 0
    assert 0.3 < np.count_nonzero(subnormal) / words.size < 1
    assert np.count_nonzero(found.view(words.dtype) & words.dtype.type(3)) > 2000


def test_specials_stand_in_some_rows_of_one_input() -> None:
    inputs = [tensor("x", "m", "n"), tensor("y", "m", "n"), tensor("z", "n")]
    task = numpy_task(lambda x: x, inputs, [tensor("o", "m", "n")], {"m": 64, "n": 64})
    drawn = task.make_inputs(task.task.cases[0], 1)
    found = apply_family("specials", task.task, drawn, 5, signed=False)
    changed = [i for i, (a, b) in enumerate(zip(found, drawn, strict=True)) if a is not b]
    assert changed in ([0], [1])
    values = found[changed[0]]
    rows = np.flatnonzero(~np.isfinite(values).all(-1))
    assert rows.size == 16
    assert np.isnan(values).any()
    assert {np.inf, -np.inf} <= set(values[np.isinf(values)])
    finite = np.isfinite(values)
    assert np.array_equal(values[finite], drawn[changed[0]][finite])


def test_weights_stay_where_a_family_is_about_inputs() -> None:
    loaded = numpy_task(lambda x: x, [tensor("x", "n"), tensor("w", "n")], [tensor("y", "n")], {"n": 64})
    x, w = loaded.task.inputs
    task = loaded.task.model_copy(update={"inputs": (x,), "weights": (w.model_copy(update={"role": "weight"}),)})
    drawn = loaded.make_inputs(task.cases[0], 1)
    for family in ("shifted", "denormal", "specials"):
        found = apply_family(family, task, drawn, 1, signed=True)
        assert (found[0] is drawn[0], found[1] is drawn[1]) == (False, True)


def test_constant_is_one_value() -> None:
    values = made("constant", NORMAL)
    assert np.unique(values).size == 1
    assert 0.5 <= abs(values[0, 0]) <= 1.5


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_what_was_never_negative_stays_so(family: str) -> None:
    assert np.nanmin(made(family, np.abs(NORMAL) + np.float32(0.1))) > 0


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_a_weight_of_ones_changes_and_a_mask_does_not(family: str) -> None:
    ones = np.ones(4096, np.float32)
    assert not np.array_equal(made(family, ones), ones)
    mask = (NORMAL > 0).astype(np.float32)
    assert np.array_equal(made(family, mask), mask)
    hole = NORMAL.copy()
    hole[0, 0] = -np.inf
    assert np.array_equal(made(family, hole), hole)


@pytest.mark.parametrize("family", [f for f in FAMILIES[1:] if f != "specials"])
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
