"""Thirty evaluations leave nothing behind, and the reference is not run again for any of them."""

from __future__ import annotations

from pathlib import Path

from support.evaluations import HORNER, bench_on, write_task
from support.stability import Held, evaluate_many

WARM_UP = 10


def test_thirty_evaluations_hold_no_more_than_ten(module_home: Path, tmp_path: Path) -> None:
    with bench_on(write_task(tmp_path, HORNER)) as bench:
        evaluate_many(bench, WARM_UP)
        first = Held.now(bench)
        evaluate_many(bench, 30 - WARM_UP)
        last = Held.now(bench)
    assert last.usage == first.usage, "inputs and golden values are made once"
    assert last.descriptors == first.descriptors
    assert all(b - a <= 4 for a, b in zip(first.maps, last.maps, strict=True))
    assert last.judge_bytes <= 1.05 * first.judge_bytes
    assert last.harness_bytes <= 1.05 * first.harness_bytes
