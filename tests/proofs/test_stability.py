"""Resident size after 100 and after 1,000 evaluations in one session."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.evaluations import HORNER, bench_on, write_task
from support.stability import Held, evaluate_many


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_a_thousand_evaluations_hold_no_more_than_a_hundred(tmp_path: Path) -> None:
    with bench_on(write_task(tmp_path, HORNER)) as bench:
        evaluate_many(bench, 100)
        first = Held.now(bench)
        evaluate_many(bench, 900)
        last = Held.now(bench)
    assert last.usage == first.usage
    assert last.descriptors == first.descriptors
    assert abs(last.judge_bytes - first.judge_bytes) < 0.05 * first.judge_bytes
    assert abs(last.harness_bytes - first.harness_bytes) < 0.05 * first.harness_bytes
