from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.references import numpy_task, prepared, tensor

from kernelworks.errors import TaskError
from kernelworks.evaluate.bound import Bound
from kernelworks.evaluate.casestate import CaseState, compare, memory, poison, view
from kernelworks.evaluate.compare import (
    CHUNK_ELEMENTS,
    Figures,
    compare_exact,
    compare_floats,
    first_difference,
    reference_error,
)
from kernelworks.evaluate.numbers import decode, encode, plane, storage
from kernelworks.evaluate.prepare import DroppedFamilyError
from kernelworks.evaluate.records import CaseReport
from kernelworks.task.model import DType

FLOATING = [d for d in DType if d.is_floating]
EXACT = [d for d in DType if not d.is_floating]
BOUND = Bound(rms_limit=1e-6, max_floor=1e-5, max_relative=1e-5)


@pytest.mark.parametrize("dtype", FLOATING)
def test_values_survive_encoding_to_the_roundoff_of_the_dtype(dtype: DType) -> None:
    values = np.random.default_rng(0).standard_normal(1000) * 100
    back = decode(encode(values, dtype), dtype)
    assert np.abs(back / values - 1).max() <= dtype.unit_roundoff
    assert np.isinf(decode(encode(np.array([1e308 * 1.7, -np.inf]), dtype), dtype)).all() or dtype is DType.FLOAT64


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -(1 + 2.0**-8), 1 + 2.0**-8 + 2.0**-20])
    assert decode(encode(values, DType.BFLOAT16), DType.BFLOAT16).tolist() == [
        1.0,
        1.0,
        1 + 2.0**-6,
        -1.0,
        1 + 2.0**-7,
    ]


def figures(found: NDArray[np.float32], golden: NDArray[np.float64], poison_word: int = 0x7FC12345) -> Any:
    return compare_floats(found, golden, DType.FLOAT32, BOUND, poison_word)


@given(st.integers(1, 3 * CHUNK_ELEMENTS), st.data())
def test_one_wrong_element_is_found_wherever_it_stands(size: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, size - 1))
    golden = np.ones(size)
    found = golden.astype(np.float32)
    found[at] += 0.5
    seen = figures(found, golden)
    assert (seen.worst, seen.mismatches, seen.max_error) == (at, 1, 0.5)
    assert seen.rms_error == pytest.approx(0.5 / math.sqrt(size))


def test_large_elements_may_carry_large_errors() -> None:
    golden = np.array([1e6, 1.0])
    assert figures(np.array([1e6 + 5, 1.0], np.float32), golden).mismatches == 0
    assert figures(np.array([1e6, 6.0], np.float32), golden).mismatches == 1


def test_masks_must_be_equal() -> None:
    golden = np.array([np.nan, np.inf, -np.inf, 1.0, 2.0])
    same = figures(golden.astype(np.float32), golden)
    assert (same.mask_mismatches, same.unwritten, same.mismatches, same.finite) == (0, 0, 0, 2)
    other = figures(np.array([0.0, -np.inf, -np.inf, np.nan, np.inf], np.float32), golden)
    assert (other.mask_mismatches, other.first_mask_mismatch) == (4, 0)


def test_poison_is_told_from_a_computed_nan() -> None:
    word = 0x7FC12345
    found = np.array([0x7FC00000, word, 0x3F800000], np.uint32).view(np.float32)
    seen = figures(found, np.array([np.nan, np.nan, 1.0]), word)
    assert (seen.mask_mismatches, seen.unwritten, seen.first_unwritten) == (0, 1, 1)


def test_the_reference_is_measured_against_golden() -> None:
    golden = np.array([3.0, 4.0, np.nan])
    error, seen = reference_error(np.array([3.0, 4.5, np.nan], np.float32), golden, DType.FLOAT32)
    assert (error.rms, error.largest, error.golden_rms) == (pytest.approx(0.5 / math.sqrt(2)), 0.5, math.sqrt(12.5))
    assert seen.mask_mismatches == 0


@pytest.mark.parametrize("dtype", EXACT)
def test_exact_dtypes_must_be_equal_bit_for_bit(dtype: DType) -> None:
    golden = (np.arange(100) % 2).astype(storage(dtype))
    found = golden.copy()
    assert compare_exact(found, golden, dtype, 0xA5).mismatches == 0
    found[40] = not found[40]
    seen = compare_exact(found, golden, dtype, 0xA5)
    assert (seen.mismatches, seen.worst, seen.unwritten) == (1, 40, 0)


@given(st.integers(1, 2_000_000), st.data())
def test_the_first_changed_byte_is_found(size: int, data: st.DataObject) -> None:
    left = np.zeros(size, np.uint8)
    right = left.copy()
    assert first_difference(left, right) == -1
    at = sorted(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=3)))
    right[at] = 1
    assert first_difference(left, right) == at[0]


def double_it(x: NDArray[Any]) -> NDArray[Any]:
    return x + x


def doubling(dtype: DType, size: int = 100) -> CaseState:
    return prepared(
        numpy_task(double_it, [tensor("x", "n", dtype=dtype)], [tensor("y", "n", dtype=dtype)], {"n": size})
    )


def answered(state: CaseState, answer: NDArray[Any] | None, pattern: int = 0) -> CaseReport:
    poison(state, 0, pattern, np.random.default_rng(0))
    if answer is not None:
        view(state.lanes[0]["y"], state.task.outputs[0].dtype)[...] = answer
    return compare(state, 0)


def kinds(report: CaseReport) -> list[str]:
    return [problem.kind for problem in report.problems]


@pytest.mark.parametrize(
    "dtype", [DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.COMPLEX64, DType.INT8, DType.INT64, DType.UINT8]
)
def test_a_right_answer_passes_and_silence_does_not(dtype: DType) -> None:
    state = doubling(dtype)
    right = double_it(state.drawn[0])
    assert not answered(state, right).problems
    assert any("unwritten" in kinds(answered(state, None, pattern)) for pattern in (0, 1))
    wrong = right.copy()
    wrong[99] += right.dtype.type(1)
    report = answered(state, wrong)
    assert kinds(report) == ["values"]
    assert report.outputs[0].worst_index == (99,)
    state.close()


def test_integers_that_equal_the_fill_are_found_out_by_the_other_fill() -> None:
    golden = np.full(4, np.int32(-1515870811))  # bytes a5 a5 a5 a5
    task = numpy_task(
        lambda x: x, [tensor("x", "n", dtype=DType.INT32)], [tensor("y", "n", dtype=DType.INT32)], {"n": 4}
    )
    state = prepared(type(task)(task.task, task.function, fixed={"x": golden}))
    assert state.prepared().two_fills
    assert [kinds(answered(state, None, pattern)) for pattern in (0, 1)] == [[], ["unwritten"]]
    state.close()


def test_a_partly_written_output_names_the_first_gap() -> None:
    state = doubling(DType.FLOAT32)
    right = double_it(state.drawn[0])
    poison(state, 0, 0, np.random.default_rng(0))
    view(state.lanes[0]["y"], DType.FLOAT32)[:60] = right[:60]
    report = compare(state, 0)
    assert kinds(report) == ["unwritten"]
    assert "40 of 100 elements were not written, the first at (60,)" in report.problems[0].message
    state.close()


def test_a_nan_where_none_belongs() -> None:
    state = doubling(DType.FLOAT32)
    wrong = double_it(state.drawn[0])
    wrong[3] = np.nan
    assert kinds(answered(state, wrong)) == ["nan_mask"]
    state.close()


def test_a_changed_input_is_named_and_restored() -> None:
    state = doubling(DType.FLOAT32)
    right = double_it(state.drawn[0])
    poison(state, 0, 0, np.random.default_rng(0))
    view(state.lanes[0]["y"], DType.FLOAT32)[...] = right
    view(state.shared["x"], DType.FLOAT32)[17] = 0
    report = compare(state, 0)
    assert kinds(report) == ["input_changed"]
    assert report.problems[0].message == "x: an input was changed, first at (17,)"
    assert first_difference(state.shared["x"].data, memory(state.drawn[0])) == -1
    state.close()


def test_a_write_past_the_end_is_reported() -> None:
    state = doubling(DType.FLOAT32, 101)
    right = double_it(state.drawn[0])
    poison(state, 1, 0, np.random.default_rng(0))
    buffer = state.lanes[1]["y"]
    view(buffer, DType.FLOAT32)[...] = right
    with open(f"/proc/self/fd/{buffer.fd}", "r+b") as file:
        file.seek(buffer.layout.data_end)
        before = file.read(1)
        file.seek(buffer.layout.data_end)
        file.write(bytes([before[0] ^ 0xFF]))
    report = compare(state, 1)
    assert kinds(report) == ["out_of_bounds"]
    assert report.problems[0].evidence == {
        "access": "write",
        "side": "after",
        "distance_bytes": 0,
        "changed_bytes": 1,
    }
    assert not compare(state, 1).problems, "canaries are whole again"
    state.close()


def test_inputs_changed_in_place_are_results() -> None:
    def accumulate(x: NDArray[Any], y: NDArray[Any]) -> None:
        y += x

    inputs = [tensor("x", "n"), tensor("y", "n")]
    state = prepared(numpy_task(accumulate, inputs, [], {"n": 50}, mutates=("y",)))
    x, y = state.drawn
    assert set(state.shared) == {"x"}
    poison(state, 0, 0, np.random.default_rng(0))
    assert np.array_equal(view(state.lanes[0]["y"], DType.FLOAT32), y)
    assert kinds(compare(state, 0)) == ["values"]
    view(state.lanes[0]["y"], DType.FLOAT32)[...] = x + y
    assert not compare(state, 0).problems
    poison(state, 0, 0, np.random.default_rng(0))
    assert np.array_equal(view(state.lanes[0]["y"], DType.FLOAT32), y), "restored for the next run"
    state.close()


def test_errors_are_pooled_over_seeds_of_a_family() -> None:
    state = doubling(DType.FLOAT32)
    entry = state.golden[0]
    assert entry.own is not None
    narrow = entry.bound(state.task, "normal").rms_limit
    entry.pool.append(type(entry.own)(rms=1.0, largest=4.0, golden_rms=2.0))
    assert entry.bound(state.task, "normal").rms_limit == pytest.approx(2 / math.sqrt(2)) != narrow
    state.close()


def overflowing(x: NDArray[Any]) -> NDArray[Any]:
    return np.exp(x + x + x)


def centred(x: NDArray[Any]) -> NDArray[Any]:
    return x - x.mean(-1, keepdims=True)


def root_of_centred(x: NDArray[Any]) -> NDArray[Any]:
    return np.sqrt(centred(x))


def above_mean(x: NDArray[Any]) -> NDArray[Any]:
    return x >= x.mean(-1, keepdims=True)


def not_finite(x: NDArray[Any]) -> NDArray[Any]:
    return np.sqrt(-1 - x * x)


@pytest.mark.parametrize(
    ("function", "family", "reason"),
    [
        (overflowing, "wide", "disagree about what is finite"),
        (root_of_centred, "constant", "what is finite hangs on the rounding"),
        (above_mean, "constant", "the answer hangs on the rounding"),
        (not_finite, "wide", "elements are finite"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_families_that_cannot_judge_are_dropped(function: Any, family: str, reason: str) -> None:
    dtype = DType.BOOL if function is above_mean else DType.FLOAT32
    task = numpy_task(function, [tensor("x", "m", "n")], [tensor("y", "m", "n", dtype=dtype)], {"m": 8, "n": 64})
    with pytest.raises(DroppedFamilyError, match=reason):
        prepared(task, family)


def test_a_family_that_changes_nothing_is_dropped() -> None:
    i = tensor("x", "n", dtype=DType.INT32)
    task = numpy_task(lambda x: x + x, [i], [tensor("y", "n", dtype=DType.INT32)], {"n": 64})
    with pytest.raises(DroppedFamilyError, match="no floating input"):
        prepared(task, "wide")


def test_ties_drop_families_for_indices_of_which_there_is_no_trace() -> None:
    output = tensor("y", "m", dtype=DType.INT64)
    task = numpy_task(lambda x: x.argmax(-1), [tensor("x", "m", "n")], [output], {"m": 8, "n": 64})
    prepared(task, "wide").close()
    with pytest.raises(DroppedFamilyError, match="hangs on the rounding"):
        prepared(task, "constant")


def test_a_reference_that_raises_is_the_tasks_fault_on_its_own_draw_alone() -> None:
    def positive(x: NDArray[Any]) -> NDArray[Any]:
        if np.abs(x).max() > 20:
            raise ValueError("too large")
        return x + 1

    task = numpy_task(positive, [tensor("x", "n")], [tensor("y", "n")], {"n": 64})
    prepared(task).close()
    with pytest.raises(DroppedFamilyError, match="raised ValueError: too large"):
        prepared(task, "wide")

    def never(x: NDArray[Any]) -> NDArray[Any]:
        raise ValueError("no")

    with pytest.raises(TaskError, match="the reference of task never raised ValueError: no"):
        prepared(numpy_task(never, [tensor("x", "n")], [tensor("y", "n")], {"n": 64}))


def test_results_of_another_shape_are_refused() -> None:
    task = numpy_task(lambda x: x[:-1], [tensor("x", "n")], [tensor("y", "n")], {"n": 64})
    with pytest.raises(TaskError, match=r"output y.*expected .*\[64\].*found .*\[63\]"):
        prepared(task)


def test_a_plane_of_complex_numbers_is_real() -> None:
    values = np.array([[1 + 2j, 3 + 4j]], np.complex64)
    assert plane(values, DType.COMPLEX64).tolist() == [1, 2, 3, 4]


def test_compensated_sums_make_nan_of_an_infinity() -> None:
    golden = np.array([np.inf, -np.inf, np.nan, 1.0])
    found = np.array([np.nan, np.nan, np.nan, 1.0], np.float32)
    assert figures(found, golden).mask_mismatches == 2
    lenient = compare_floats(found, golden, DType.FLOAT32, BOUND, 0x7FC12345, nan_for_infinity=True)
    assert lenient.mask_mismatches == 0
    swapped = np.array([-np.inf, 0.0, np.inf, np.nan], np.float32)
    seen = compare_floats(swapped, golden, DType.FLOAT32, BOUND, 0x7FC12345, nan_for_infinity=True)
    assert seen.mask_mismatches == 4


def test_nan_is_let_be_where_it_is_allowed_and_nowhere_else() -> None:
    size = CHUNK_ELEMENTS + 13
    golden = np.ones(size)
    allowed = np.zeros(size, np.bool_)
    allowed[[5, CHUNK_ELEMENTS + 9, CHUNK_ELEMENTS + 10, CHUNK_ELEMENTS + 11, size - 1]] = True
    golden[CHUNK_ELEMENTS + 11] = np.nan
    found = golden.astype(np.float32)
    found[[5, CHUNK_ELEMENTS + 9, size - 1]] = np.nan

    def seen() -> Figures:
        return compare_floats(found, golden, DType.FLOAT32, BOUND, 0x7FC12345, nan_allowed=np.packbits(allowed))

    assert (seen().let_be, seen().first_let_be, seen().mask_mismatches, seen().mismatches) == (3, 5, 0, 0)
    assert seen().finite == size - 4
    found[CHUNK_ELEMENTS + 8] = np.nan  # not allowed
    found[CHUNK_ELEMENTS + 10] = np.inf  # which is no NaN
    found[CHUNK_ELEMENTS + 11] = 0.0  # where NaN is right
    assert (seen().let_be, seen().mask_mismatches, seen().first_mask_mismatch) == (3, 3, CHUNK_ELEMENTS + 8)
    found.view(np.uint32)[5] = 0x7FC12345
    assert (seen().let_be, seen().unwritten) == (2, 1)


def test_errors_of_subnormal_numbers_do_not_vanish_when_squared() -> None:
    golden = np.full(64, 2.0**-1060)
    error, _ = reference_error(np.zeros(64), golden, DType.FLOAT64)
    assert error.rms == error.golden_rms == 2.0**-1060
    state = doubling(DType.FLOAT64)
    state.close()
    loaded = numpy_task(
        double_it, [tensor("x", "n", dtype=DType.FLOAT64)], [tensor("y", "n", dtype=DType.FLOAT64)], {"n": 256}
    )
    state = prepared(loaded, "denormal")
    right = double_it(state.drawn[0])
    assert not answered(state, right).problems
    assert kinds(answered(state, np.where(np.abs(right) < 2.0**-1022, 0, right))) == ["values"]
    state.close()


def product(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    return x @ y


def mean(x: NDArray[Any]) -> NDArray[Any]:
    return x.mean(-1)


@pytest.mark.parametrize("tolerance", [None, 0.1])
def test_sums_and_products_of_integers_are_exact_unless_the_task_says_otherwise(tolerance: float | None) -> None:
    inputs = [tensor("x", "m", "k"), tensor("y", "k", "n")]
    sizes = {"m": 8, "k": 4096, "n": 8}
    state = prepared(numpy_task(product, inputs, [tensor("z", "m", "n")], sizes, tolerance=tolerance), "integers")
    assert state.golden[0].exact == (tolerance is None)
    assert np.abs(state.golden[0].values).max() > 1000
    poison(state, 0, 0, np.random.default_rng(0))
    answer = state.golden[0].values.astype(np.float32)
    answer[3] = np.nextafter(answer[3], np.float32(np.inf))
    view(state.lanes[0]["z"], DType.FLOAT32)[...] = answer
    assert bool(compare(state, 0).problems) == (tolerance is None)
    state.close()


def test_what_divides_is_not_exact_on_integers() -> None:
    state = prepared(numpy_task(mean, [tensor("x", "m", "n")], [tensor("y", "m")], {"m": 8, "n": 100}), "integers")
    assert not state.golden[0].exact
    state.close()
