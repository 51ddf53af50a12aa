from __future__ import annotations

from typing import Literal

import pytest
from support.samples import correct_verdict

from kernelworks.kernel.roofline import CaseBound
from kernelworks.kernel.verdict import Status
from kernelworks.report import tables


def test_baseline_rows_pair_the_policies() -> None:
    rows = tables.baseline_rows(correct_verdict("ab", 4.0, final=True))
    assert [row.name for row in rows] == ["eager", "compile"]
    assert rows[0].title == "torch eager"
    assert rows[0].kernel == tables.PolicyCell(time="12.0 ms", speedup="4.00x", interval="[3.94, 4.06]")
    assert rows[1].as_called is not None
    assert rows[1].as_called.time == "10.5 ms"


def test_a_policy_that_was_not_measured_stays_empty() -> None:
    verdict = correct_verdict("ab", 4.0, final=True)
    only_kernel = tuple(b for b in verdict.baselines if b.policy == "kernel")
    rows = tables.baseline_rows(verdict.model_copy(update={"baselines": only_kernel}))
    assert all(row.as_called is None and row.kernel is not None for row in rows)


def test_failures_are_counted_in_the_order_of_the_ladder() -> None:
    statuses = [Status.WRONG, Status.CORRECT, Status.INVALID, Status.WRONG]
    assert tables.failure_rows(statuses) == (("invalid", 1), ("wrong", 2))


def bound(binds: Literal["memory", "arithmetic"], arithmetic_ms: float = 0.0, **changes: object) -> CaseBound:
    facts: dict[str, object] = {
        "case": "main",
        "binds": binds,
        "bound_ms": 2.0,
        "memory_ms": 2.0 if binds == "memory" else 0.5,
        "arithmetic_ms": arithmetic_ms,
        "floor_ms": 2.0,
        "bytes_moved": 1,
        "bytes_shown": 1,
        "level": "memory",
        "bandwidth_gbs": 1.0,
    }
    return CaseBound.model_validate(facts | changes)


def test_the_bound_is_stated_as_share_and_time_with_the_side_that_binds() -> None:
    verdict = correct_verdict("ab", 4.0).model_copy(update={"roofline": 0.8, "time_ms": 2.5})

    def said(*bounds: CaseBound) -> str:
        return tables.bound_sentence(verdict.model_copy(update={"roofline_detail": bounds}))

    assert said() == "80% of the memory bound (2.00 ms)"
    assert said(bound("memory")) == "80% of the memory bound (2.00 ms for the bytes that must move)"
    assert said(bound("memory", 1.0)) == (
        "80% of the memory bound (2.00 ms for the bytes that must move; the operations take 1.00 ms)"
    )
    assert said(bound("arithmetic", 2.0, uncounted=("aten.sort.default",))) == (
        "80% of the arithmetic bound (2.00 ms for the operations of the reference; the bytes that must move take"
        " 0.50 ms; not counted: aten.sort.default)"
    )
    assert said(bound("memory"), bound("arithmetic", 2.0)).startswith("80% of the roofline, memory in some cases")
    assert tables.bound_sentence(verdict.model_copy(update={"roofline": None})) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (tables.milliseconds(None), "-"),
        (tables.milliseconds(0.0421), "42.1 µs"),
        (tables.milliseconds(2.514), "2.51 ms"),
        (tables.milliseconds(47.06), "47.1 ms"),
        (tables.milliseconds(2514.0), "2.51 s"),
        (tables.times(None), "-"),
        (tables.times(123.4), "123x"),
        (tables.interval(1.0, 1.239), "[1.00, 1.24]"),
        (tables.interval(None, 2.0), ""),
        (tables.duration(12.4), "12 s"),
        (tables.duration(185), "3 min 05 s"),
        (tables.duration(3725), "1 h 02 min"),
        (tables.size(512), "512 B"),
        (tables.size(24 * 1024**3), "24 GiB"),
        (tables.size(3 * 1024**4), "3 TiB"),
    ],
)
def test_quantities_are_short(text: str, expected: str) -> None:
    assert text == expected
