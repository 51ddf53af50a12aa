from __future__ import annotations

import math
from pathlib import Path
from statistics import median

import pytest
from support.clock import AT_WORK, settle_kernel
from support.evaluations import MIXED_RIGHT, RIGHT, SLOW, bench_on, kernel, mixed_kernel, write_task

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.duel import Duel, RivalFailedError, Tied, combine, decide, total_ms
from kernelworks.evaluate.endings import EndedEvaluation
from kernelworks.evaluate.evaluation import Evaluation
from kernelworks.evaluate.opponent import Opponent
from kernelworks.evaluate.remarks import recall_finding
from kernelworks.evaluate.sides import Overhead, Recall
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Comparison, Decision, Status
from kernelworks.targets.base import Artefact


def compared(case: str, opponent_time_ms: float, ratio: float, low: float, high: float) -> Comparison:
    return Comparison(
        opponent="reference",
        policy="kernel",
        case=case,
        time_ms=opponent_time_ms / ratio,
        opponent_time_ms=opponent_time_ms,
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        decision=decide(low, high),
        blocks=12,
        cache="cold",
    )


def test_ratios_combine_by_their_geometric_mean() -> None:
    found = combine([compared("a", 8.0, 4.0, 3.0, 5.0), compared("b", 1.0, 0.25, 0.2, 0.3)], "geomean")
    assert found.interval.value == pytest.approx(1.0)
    assert found.interval.low == pytest.approx(math.sqrt(0.6))
    assert found.interval.high == pytest.approx(math.sqrt(1.5))
    assert found.decision is Decision.UNDECIDED
    assert found.time_ms == pytest.approx(math.sqrt(2.0 * 4.0))
    assert found.opponent_time_ms == pytest.approx(math.sqrt(8.0))


def test_totals_weigh_cases_by_their_time() -> None:
    found = combine([compared("a", 8.0, 4.0, 3.2, 5.0), compared("b", 1.0, 0.25, 0.2, 0.5)], "total")
    assert found.interval.value == pytest.approx(9.0 / (2.0 + 4.0))
    assert found.interval.low == pytest.approx(9.0 / (2.5 + 5.0))
    assert found.interval.high == pytest.approx(9.0 / (1.6 + 2.0))
    assert found.decision is Decision.FASTER
    assert (found.time_ms, found.opponent_time_ms) == (6.0, 9.0)


def test_one_case_is_itself() -> None:
    for aggregate in ("geomean", "total"):
        found = combine([compared("a", 8.0, 4.0, 3.0, 5.0)], aggregate)
        assert found.interval.value == pytest.approx(4.0)
        assert (found.interval.low, found.interval.high) == (pytest.approx(3.0), pytest.approx(5.0))
        assert found.decision is Decision.FASTER


def test_decisions_need_more_than_the_margin() -> None:
    bounds = {(1.011, 2.0): "faster", (0.5, 0.989): "slower", (1.005, 1.5): "undecided", (0.5, 0.995): "undecided"}
    assert {pair: decide(*pair).value for pair in bounds} == bounds
    assert total_ms([1.0, 4.0], "geomean") == pytest.approx(2.0)
    assert total_ms([1.0, 4.0], "total") == 5.0


def test_through_an_incumbent_bounds_multiply(horner_bench: Bench) -> None:
    incumbent = Opponent(kernel=kernel(RIGHT), speedup=3.0, speedup_low=2.0, speedup_high=4.0)
    tied = Tied.through(incumbent, [compared("main", 1.0, 0.5, 0.45, 0.6)], horner_bench)
    assert (tied.speedup.value, tied.speedup.low, tied.speedup.high) == (
        pytest.approx(1.5),
        pytest.approx(0.9),
        pytest.approx(2.4),
    )
    assert tied.decision is Decision.UNDECIDED
    assert tied.baselines == ()
    assert tied.time_ms == pytest.approx(2.0)
    assert tied.roofline == pytest.approx(horner_bench.bound_ms(horner_bench.timed[0]) / 2.0)


def test_cases_that_count_by_their_total(mixed_bench: Bench) -> None:
    verdict = Evaluation(mixed_bench, mixed_kernel(MIXED_RIGHT)).run(None)
    assert verdict.status is Status.CORRECT, verdict.findings
    assert [c.case for c in verdict.comparisons] == ["wide", "tall"]
    both = combine(verdict.comparisons, "total")
    (baseline,) = verdict.baselines
    assert verdict.speedup == baseline.speedup == both.interval.value
    assert verdict.time_ms is not None
    assert verdict.time_ms == sum(c.time_ms for c in verdict.comparisons)
    assert baseline.time_ms == sum(c.opponent_time_ms for c in verdict.comparisons)
    bound_ms = sum(mixed_bench.bound_ms(case) for case in mixed_bench.timed)
    assert verdict.roofline == pytest.approx(bound_ms / verdict.time_ms)
    assert verdict.speedup_low is not None and verdict.speedup_high is not None
    assert verdict.decision is decide(verdict.speedup_low, verdict.speedup_high)


def test_in_place_answers_are_checked_on_the_clock(mixed_bench: Bench) -> None:
    lazy = "static int calls; if (rows * cols == 180000 && ++calls > 20) return 0;" + MIXED_RIGHT
    verdict = Evaluation(mixed_bench, mixed_kernel(lazy)).run(None)
    assert verdict.status is Status.DISHONEST, verdict.findings


def library(bench: Bench, candidate: Kernel) -> Path:
    built = bench.target.build(bench.task, candidate)
    assert isinstance(built, Artefact), built
    return built.path


def test_what_was_measured_is_kept_call_by_call(horner_bench: Bench) -> None:
    fast, slow = library(horner_bench, kernel(RIGHT)), library(horner_bench, kernel(SLOW))
    with horner_bench.pool.start(fast) as candidate, horner_bench.pool.start(slow) as rival:
        (found,) = Duel(horner_bench, candidate).against_kernel("slow", rival)
    assert (found.opponent, found.case, found.decision) == ("slow", "main", Decision.FASTER)
    assert found.time_ms == median(ms for block in found.samples_ms for ms in block[:2])
    assert found.opponent_time_ms == median(ms for block in found.samples_ms for ms in block[2:])
    assert found.ratio == pytest.approx(median((c + d) / (a + b) for a, b, c, d in found.samples_ms))
    assert found.ratio_low <= found.ratio <= found.ratio_high
    assert found.ratio_low > 10
    assert found.page_faults >= 0 and found.opponent_page_faults >= 0


CRASHES_LATER = "static int calls; if (++calls > 5) __builtin_trap();" + RIGHT


def test_a_rival_that_fails_is_told_from_the_candidate(horner_bench: Bench) -> None:
    good, bad = library(horner_bench, kernel(RIGHT)), library(horner_bench, kernel(CRASHES_LATER))
    with horner_bench.pool.start(good) as candidate, horner_bench.pool.start(bad) as rival:
        with pytest.raises(RivalFailedError, match="SIG"):
            Duel(horner_bench, candidate).against_kernel("bad", rival)
        candidate.end()
        with pytest.raises(EndedEvaluation):
            Duel(horner_bench, candidate)
    with (
        horner_bench.pool.start(bad) as candidate,
        horner_bench.pool.start(good) as rival,
        pytest.raises(EndedEvaluation) as caught,
    ):
        Duel(horner_bench, candidate).against_kernel("good", rival)
    assert caught.value.status is Status.CRASHED
    assert "case main, normal inputs, during time" in caught.value.findings[0].message


def test_honest_threads_contradict_no_clock_and_a_slower_copy_is_found(module_home: Path, tmp_path: Path) -> None:
    """The short form of ``proofs/test_clock.py``."""
    with bench_on(write_task(tmp_path, AT_WORK.replace("rows=1024", "rows=512"))) as bench:
        same, slower = (bench.target.build(bench.task, settle_kernel(more)) for more in (0, 300))
        assert isinstance(same, Artefact) and isinstance(slower, Artefact)
        for candidate, decision in ((same, None), (slower, Decision.SLOWER)):
            with bench.pool.start(candidate.path) as mine, bench.pool.start(same.path) as theirs:
                duel = Duel(bench, mine)
                (found,) = duel.against_kernel("rival", theirs)
            assert duel.doubts == [] and duel.voids == []
            assert found.calls == 1 and duel.host_ms > 0
            assert decision in (None, found.decision)


STEADY_NS = [1e6 + 1e3 * k for k in range(8)]
NO_OVERHEAD = Overhead(calls=1, round_trip_ns=0, step_ns=0, idle_cpu_ns=0)


def times(factor: float) -> list[float]:
    return [factor * ns for ns in STEADY_NS]


@pytest.mark.parametrize(
    ("new_ns", "seen_ns", "told"),
    [
        (times(1.2), STEADY_NS, True),
        (times(1.1), STEADY_NS, False),
        ([*times(1.3)[:5], *times(0.9)[5:]], STEADY_NS, False),
        (times(1.5), times(1.5), False),
    ],
    ids=["slower", "a little", "ranks mixed", "both"],
)
def test_a_recall_needs_a_factor_and_ranks(new_ns: list[float], seen_ns: list[float], told: bool) -> None:
    found = recall_finding(Recall(new_ns, seen_ns), NO_OVERHEAD, "main")
    assert (found is not None) == told
    if found is not None:
        assert found.kind == "memory" and "(case main)" in found.message


REMEMBERS = """
  if (n == 65536) {
    static const float* whose[16];
    static float all[16][2][65536];
    int at = 0;
    while (whose[at] != 0 && whose[at] != x) at++;
    whose[at] = x;
    auto& kept = all[at];
    for (int64_t i = 0; i < n; i += 64) {
      if (memcmp(kept[0] + i, x + i, 256) != 0) {
        for (int64_t j = i; j < i + 64; j++) {
          volatile float v = x[j];
          for (int k = 0; k < 12; k++) v = v * x[j] + 1.0f;
          kept[1][j] = v;
        }
        memcpy(kept[0] + i, x + i, 256);
      }
      memcpy(y + i, kept[1] + i, 256);
    }
    return 0;
  }
"""


def test_a_winner_alone_is_asked_for_new_inputs(horner_bench: Bench) -> None:
    keeps = library(horner_bench, kernel(REMEMBERS + RIGHT, head="#include <string.h>"))
    slow = library(horner_bench, kernel(SLOW))
    with horner_bench.pool.start(keeps) as candidate, horner_bench.pool.start(slow) as rival:
        duel = Duel(horner_bench, candidate)
        (found,) = duel.against_kernel("slow", rival)
        assert found.decision is Decision.FASTER
        assert "memory" in [doubt.kind for doubt in duel.doubts]
    with horner_bench.pool.start(slow) as candidate, horner_bench.pool.start(keeps) as rival:
        duel = Duel(horner_bench, candidate)
        (found,) = duel.against_kernel("keeps", rival)
        assert found.decision is Decision.SLOWER
        assert duel.doubts == []
