from __future__ import annotations

import pytest

from kernelworks.evaluate.load import Load
from kernelworks.evaluate.process import TimedCalls
from kernelworks.evaluate.remarks import (
    clock_finding,
    load_findings,
    memory_finding,
    opponent_drift,
    rank_deviation,
    remarks,
    void_finding,
)
from kernelworks.evaluate.sides import Ledger, Overhead
from kernelworks.kernel.verdict import Comparison, Decision

Block = tuple[float, float, float, float]
OVERHEAD = Overhead(calls=8, round_trip_ns=16_000, step_ns=4_000, idle_cpu_ns=0)


def compared(time_ms: float, blocks: list[Block]) -> Comparison:
    return Comparison(
        opponent="eager",
        policy="kernel",
        case="main",
        time_ms=time_ms,
        opponent_time_ms=1.0,
        ratio=1.0,
        ratio_low=1.0,
        ratio_high=1.0,
        decision=Decision.UNDECIDED,
        blocks=len(blocks),
        cache="cold",
        calls=8,
        samples_ms=tuple(blocks),
    )


STEADY: list[Block] = [(1.0, 1.0, 1.0, 1.0)] * 12


def test_calls_that_take_long_and_steadily_need_no_word() -> None:
    assert remarks(compared(1.0, STEADY), OVERHEAD) == []


def test_a_short_call_is_told_what_launching_it_costs() -> None:
    (found,) = remarks(compared(0.019, STEADY), OVERHEAD)
    assert found.kind == "launch_overhead"
    assert found.evidence == {"time_ms": 0.019, "host_ms": 0.002, "calls": 8}
    assert remarks(compared(0.021, STEADY), OVERHEAD) == []


def test_the_opponent_tells_whether_the_machine_changed() -> None:
    slower: list[Block] = [(1.0, 1.0, 1.0 + block / 40, 1.0 + block / 40) for block in range(12)]
    assert opponent_drift(slower) == pytest.approx((1 + 9.5 / 40) / (1 + 1.5 / 40) - 1)
    (found,) = remarks(compared(1.0, slower), OVERHEAD)
    assert found.kind == "drift" and "+19% longer" in found.message
    mine: list[Block] = [(1.0 + block, 1.0 + block, 1.0, 1.0) for block in range(12)]
    assert remarks(compared(1.0, mine), OVERHEAD) == []


def test_a_time_below_the_step_of_the_clock_is_void() -> None:
    found = void_finding(compared(0.0005, STEADY), OVERHEAD)
    assert found is not None and found.kind == "below_clock" and "case main is void" in found.message
    assert void_finding(compared(0.0006, STEADY), OVERHEAD) is None


def test_the_contradiction_comes_with_its_numbers() -> None:
    ledger = Ledger()
    for _ in range(24):
        ledger.add(TimedCalls(0, 2_000_000, 3_900_000, 1_000_000, 0), 1)
    found = clock_finding(ledger, OVERHEAD, 2, "main, normal inputs")
    assert found is not None and found.kind == "clock"
    assert found.evidence["idle_cpu_ms"] == 24 and found.evidence["elapsed_ms"] == 48 and found.evidence["calls"] == 24
    assert found.evidence["hidden_ms"] == pytest.approx(24 - 24 * 0.01)
    assert "24 ms of it after it had answered (case main, normal inputs)" in found.message
    honest = Ledger()
    honest.add(TimedCalls(0, 2_000_000, 3_900_000, 8_000, 0), 1)
    assert clock_finding(honest, OVERHEAD, 2, "main") is None


def test_ranks_tell_more_than_quartiles() -> None:
    assert rank_deviation([2.0] * 6, [1.0] * 18) == pytest.approx(3.6)
    assert rank_deviation([1.0] * 6, [1.0] * 18) == 0.0
    seen = [1e6 + i for i in range(18)]
    kept = memory_finding(Ledger(fresh_ns=[2e6] * 6, seen_ns=seen), OVERHEAD, "main")
    assert kept is not None and kept.kind == "memory"
    assert memory_finding(Ledger(fresh_ns=[1.3e6] * 6, seen_ns=seen), OVERHEAD, "main") is None
    disturbed = [1e6, 3e6] * 9  # half of the calls lost their turn: the quartile of a few others may fall anywhere
    assert memory_finding(Ledger(fresh_ns=[1e6, 3e6, 3e6, 3e6, 3e6, 1e6], seen_ns=disturbed), OVERHEAD, "main") is None


def test_other_work_is_told_from_the_limit_on() -> None:
    assert load_findings(Load(foreign_cores=0.2, steal_cores=0.0), 0.2) == ()
    busy, taken = load_findings(Load(foreign_cores=0.63, steal_cores=0.25), 0.2)
    assert (busy.kind, taken.kind) == ("foreign_load", "steal")
    assert "0.63 cores" in busy.message and busy.evidence == {"cores": 0.63}
    assert "0.25 cores" in taken.message
    assert load_findings(Load(foreign_cores=0.63, steal_cores=0.0), 1.0) == ()
    (hot,) = load_findings(Load(0.0, 0.0, throttles=3), 0.2)
    assert hot.kind == "throttled" and hot.evidence == {"times": 3}
