from __future__ import annotations

from functools import partial

import pytest

from kernelworks.kernel.hardware import Bandwidth, Hardware, Peak
from kernelworks.kernel.roofline import Work, arithmetic_ms, case_bound

KIB, MIB = 1 << 10, 1 << 20


def level(name: str, gbs: float) -> Bandwidth:
    return Bandwidth(level=name, working_set_bytes=MIB, read_gbs=gbs / 2, copy_gbs=gbs / 4, triad_gbs=gbs)


DEVICE = Hardware(
    name="made up",
    kind="cpu",
    cores=2,
    simd_bits=512,
    l1_bytes=32 * KIB,
    l2_bytes=MIB,
    l3_bytes=32 * MIB,
    bandwidths=(level("memory", 10), level("l3", 100), level("l1", 500)),
    peaks=(
        Peak(kind="float32", fused_gops=100, mixed_gops=150),
        Peak(kind="half", fused_gops=400, mixed_gops=400),
        Peak(kind="integer", fused_gops=1000, mixed_gops=1000),
    ),
)
at = partial(case_bound, "main", DEVICE)


def test_memory_binds_where_little_is_computed() -> None:
    work = Work(read_bytes=40 * 10**6, written_bytes=20 * 10**6, others={"float32": 15 * 10**6})
    found = at(work, bytes_shown=60 * 10**6, working_set_bytes=60 * MIB)
    assert (found.binds, found.level, found.operations) == ("memory", "memory", 15 * 10**6)
    assert found.bound_ms == found.memory_ms == found.floor_ms == pytest.approx(6.0)
    assert found.arithmetic_ms == pytest.approx(0.1)
    assert found.peak_gops == pytest.approx(150)


def test_arithmetic_binds_where_much_is_computed() -> None:
    work = Work(read_bytes=10**6, written_bytes=10**6, products={"float32": 10**9}, others={"float32": 10**8})
    found = at(work, bytes_shown=2 * 10**6, working_set_bytes=60 * MIB)
    assert (found.binds, found.bound_ms) == ("arithmetic", found.arithmetic_ms)
    assert found.arithmetic_ms == pytest.approx(10.0)
    assert found.floor_ms == pytest.approx(0.2), "operations never raise the floor"


def test_products_run_at_the_fused_rate_and_all_together_at_the_mixed_one() -> None:
    def ms(products: int, others: int) -> float:
        work = Work(read_bytes=0, written_bytes=0, products={"float32": products}, others={"float32": others})
        return arithmetic_ms(work, DEVICE)

    assert ms(10**9, 0) == pytest.approx(10.0)
    assert ms(10**9, 5 * 10**8) == pytest.approx(10.0), "sums run beside the products"
    assert ms(10**9, 2 * 10**9) == pytest.approx(20.0)


def test_kinds_of_arithmetic_share_the_floating_units_and_integers_have_their_own() -> None:
    work = Work(read_bytes=0, written_bytes=0, others={"float32": 150 * 10**6, "half": 400 * 10**6})
    assert arithmetic_ms(work, DEVICE) == pytest.approx(2.0)
    work = Work(read_bytes=0, written_bytes=0, others={"float32": 150 * 10**6, "integer": 500 * 10**6})
    assert arithmetic_ms(work, DEVICE) == pytest.approx(1.0)


def test_relaxed_precision_admits_the_narrow_rate_and_an_unknown_peak_nothing() -> None:
    work = Work(read_bytes=0, written_bytes=0, products={"float32": 10**9})
    assert arithmetic_ms(work, DEVICE, narrow=True) == pytest.approx(2.5)
    assert arithmetic_ms(Work(read_bytes=0, written_bytes=0, products={"float64": 10**9}), DEVICE) == 0.0


def test_the_lesser_count_of_bytes_is_the_bound_and_the_shown_ones_are_the_floor() -> None:
    gathered = Work(read_bytes=10**6, written_bytes=10**6)
    found = at(gathered, bytes_shown=5 * 10**6, working_set_bytes=60 * MIB)
    assert (found.bytes_moved, found.bytes_shown) == (2 * 10**6, 5 * 10**6)
    assert found.floor_ms == pytest.approx(0.5)
    triangular = Work(read_bytes=8 * 10**6, written_bytes=0)
    assert at(triangular, bytes_shown=4 * 10**6, working_set_bytes=60 * MIB).bytes_moved == 4 * 10**6


def test_without_a_graph_the_shown_bytes_are_all_that_is_known() -> None:
    found = at(None, bytes_shown=10**7, working_set_bytes=60 * MIB, untraced="a NumPy task")
    assert (found.bound_ms, found.operations, found.peak_gops, found.untraced) == (1.0, None, None, "a NumPy task")


@pytest.mark.parametrize(
    ("working_set_bytes", "name"),
    [
        (40 * KIB, "l1"),
        (65 * KIB, "l1"),  # l2 was not measured: the next faster level answers
        (2 * MIB + 65 * KIB, "l3"),
        (33 * MIB, "l3"),  # more than half of L3, and still whole in it
        (34 * MIB + 65 * KIB, "memory"),
    ],
)
def test_a_working_set_lies_in_the_level_that_holds_it_whole(working_set_bytes: int, name: str) -> None:
    assert at(None, bytes_shown=1, working_set_bytes=working_set_bytes).level == name


def test_cold_inputs_come_from_memory_save_what_the_other_caches_keep() -> None:
    kept_bytes = 2 * (MIB + 32 * KIB)
    found = at(None, bytes_shown=12 * MIB, working_set_bytes=12 * MIB, cold_bytes=8 * MIB)
    assert found.level == "l3"
    assert found.floor_ms == pytest.approx(12 * MIB / 100e6)
    assert found.memory_ms == pytest.approx((8 * MIB - kept_bytes) / 10e6)
    two = DEVICE.model_copy(update={"l3_count": 2})  # one of them is out of the sweep's reach
    assert case_bound("main", two, None, bytes_shown=12 * MIB, working_set_bytes=12 * MIB, cold_bytes=8 * MIB) == (
        found.model_copy(update={"memory_ms": found.floor_ms, "bound_ms": found.floor_ms})
    )


def test_uncounted_operators_are_named() -> None:
    work = Work(read_bytes=1, written_bytes=1, uncounted=("aten.sort.default",))
    assert at(work, bytes_shown=2, working_set_bytes=2).uncounted == ("aten.sort.default",)
