"""Shares of a call's time."""

from __future__ import annotations

import pytest

from kernelworks.evaluate.module_process import Work
from kernelworks.evaluate.module_proof import GLUE_NS, shares_of
from kernelworks.evaluate.remarks import memory_finding
from kernelworks.evaluate.sides import Ledger, Overhead


def work(total_ns: int, torch_ns: int, own_ns: int, own_calls: int = 1) -> Work:
    return Work(
        total_ns=total_ns,
        torch_ns=torch_ns,
        own_ns=own_ns,
        own_calls=own_calls,
        plain_calls=own_calls,
        operators=(),
        operator_calls=0,
        dispatched=0,
    )


def test_glue_is_not_held_against_a_kernel() -> None:
    shares = shares_of([work(1_000_000 + GLUE_NS, 0, 1_000_000)])
    assert (shares.own, shares.torch, shares.other_ns) == (1.0, 0.0, 0)


def test_what_is_neither_torchs_nor_its_own_counts_as_nobodys() -> None:
    shares = shares_of([work(10_000_000 + 10 * GLUE_NS, 0, 1_000_000)])
    assert shares.own < 0.1
    assert shares.other_ns > 9_000_000


def test_the_call_that_was_least_disturbed_counts() -> None:
    shares = shares_of([work(90_000_000, 1_000_000, 80_000_000), work(2_000_000, 1_000_000, 1_000_000)])
    assert shares.own == pytest.approx(0.5)


def test_a_kernel_too_fast_to_be_seen_is_its_own_work_if_nobody_else_works() -> None:
    assert shares_of([work(1000, 0, 0)]).own == 1.0
    assert shares_of([work(1000, 0, 0, own_calls=0)]).own == 0.0


def ledger(fresh_ms: list[float], seen_ms: list[float]) -> Ledger:
    return Ledger(fresh_ns=[ms * 1e6 for ms in fresh_ms], seen_ns=[ms * 1e6 for ms in seen_ms])


OVERHEAD = Overhead(calls=1, round_trip_ns=10_000, step_ns=2_000, idle_cpu_ns=5_000)


def test_answers_that_are_kept_show_in_the_times() -> None:
    found = memory_finding(ledger([1.0, 1.1, 1.0, 1.2, 1.0] * 4, [0.3, 1.1, 0.3, 0.3, 0.4] * 4), OVERHEAD, "main")
    assert found is not None and "it keeps answers" in found.message


@pytest.mark.parametrize(
    ("fresh_ms", "seen_ms"),
    [
        ([1.0, 1.1, 1.0, 1.2, 1.0] * 2, [1.0, 0.9, 1.0, 1.1, 1.0] * 2),
        ([1.0, 9.0, 1.0, 1.2, 7.0] * 2, [1.0] * 10),
        ([1.0] * 4, [0.1] * 20),
        ([0.011] * 10, [0.005] * 10),
    ],
    ids=["equal", "disturbed", "few", "within steps of the clock"],
)
def test_honest_times_do_not(fresh_ms: list[float], seen_ms: list[float]) -> None:
    assert memory_finding(ledger(fresh_ms, seen_ms), OVERHEAD, "main") is None
