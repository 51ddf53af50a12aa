"""The clock's statistics: blocks A B B A, looks at fixed counts, exact interval of the median ratio.

Looking after every block and stopping "when the interval decides" decides 30-66% of comparisons of a kernel with its
own copy. Here the error is spent over four looks that are fixed beforehand (group-sequential testing, Pocock 1977,
Biometrika 64, section 2; the split over looks is ours), and the interval is the exact order-statistic interval of the
median (e.g. Conover 1999, Practical Nonparametric Statistics, section 3.2), which assumes nothing about the shape of
the noise.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from kernelworks.kernel.verdict import Decision

LOOKS: tuple[tuple[int, float], ...] = ((12, 0.004), (24, 0.008), (48, 0.012), (96, 0.016))
"""Blocks after which the interval is looked at, and the error allowed at that look."""
LIMIT_S = 4.0
"""Each look has twice the blocks of the one before; a comparison that would then take longer than this ends."""
MARGIN = 0.01
"""Differences within 1% are of no interest: decided only beyond it, undecided at once when wholly within."""

WARM_SETTLED = 0.05
WARM_LIMIT_S = 1.0
"""Bounds the warm-up of one side, a round of two calls apart."""


@dataclass(frozen=True)
class Interval:
    """Median and its exact interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Call:
    """One timed call: wall time and minor page faults (means, where several stand behind one figure)."""

    elapsed_ms: float
    page_faults: float


class Side(Protocol):
    """One of two opponents: runs one call on the given lane of buffers and says how long it took."""

    def time(self, lane: int) -> Call:
        """One call. Raises what the side's process raises when it ends."""
        ...


@dataclass(frozen=True)
class Block:
    """Four calls: two of each side, in the order A B B A (``candidate_first``) or B A A B."""

    candidate: tuple[Call, Call]
    opponent: tuple[Call, Call]
    candidate_first: bool

    @property
    def ratio(self) -> float:
        """Opponent's time over candidate's time: above 1, the candidate is faster."""
        return _total_ms(self.opponent) / _total_ms(self.candidate)


@dataclass(frozen=True)
class Outcome:
    """All blocks of a comparison, the interval at the last look, and the decision."""

    blocks: tuple[Block, ...]
    interval: Interval
    decision: Decision

    def time_ms(self) -> float:
        """Median time of the candidate's calls."""
        return statistics.median(c.elapsed_ms for b in self.blocks for c in b.candidate)

    def opponent_time_ms(self) -> float:
        """Median time of the opponent's calls."""
        return statistics.median(c.elapsed_ms for b in self.blocks for c in b.opponent)


def _total_ms(calls: tuple[Call, Call]) -> float:
    return calls[0].elapsed_ms + calls[1].elapsed_ms


@lru_cache(maxsize=256)
def order_statistic_rank(count: int, alpha: float) -> int:
    """Largest k (1-based) such that [x_(k), x_(count+1-k)] covers the median with probability at least 1 - alpha.

    0 if there are too few values for this alpha.
    """
    tail = 0.0
    for k in range(count // 2 + 1):
        tail += math.comb(count, k) / 2.0**count
        if 2 * tail > alpha:
            return k
    return count // 2


def median_interval(values: Sequence[float], alpha: float) -> Interval:
    """The median of the values and its exact interval at confidence 1 - alpha; unbounded if there are too few."""
    ordered = sorted(values)
    rank = order_statistic_rank(len(ordered), alpha)
    if rank == 0:
        return Interval(statistics.median(ordered), 0.0, math.inf)
    return Interval(statistics.median(ordered), ordered[rank - 1], ordered[-rank])


def look(ratios: Sequence[float]) -> tuple[Interval, Decision | None]:
    """The interval after ``len(ratios)`` blocks and, if this is a look that decides, the decision.

    Raises:
        ValueError: no look is planned after this number of blocks.
    """
    alphas = dict(LOOKS)
    if len(ratios) not in alphas:
        raise ValueError(f"looks: expected one of {sorted(alphas)} blocks, found {len(ratios)}")
    interval = median_interval(ratios, alphas[len(ratios)])
    if interval.low > 1 + MARGIN:
        return interval, Decision.FASTER
    if interval.high < 1 - MARGIN:
        return interval, Decision.SLOWER
    within = interval.low >= 1 - MARGIN and interval.high <= 1 + MARGIN
    if within or len(ratios) == LOOKS[-1][0]:
        return interval, Decision.UNDECIDED
    return interval, None


def warm_up(side: Side, clock_s: Callable[[], float] = time.monotonic, *, warmed: bool = False) -> float:
    """Call a side until its times settle, at most for ``WARM_LIMIT_S``; the least time of the last round, in ms.

    A side that was ``warmed`` before gets one round.

    Settled: a round is no faster than the one before it by more than ``WARM_SETTLED``. A fixed number of calls would
    leave what still grows faster (page tables, thread pools, clock rates) to the timed ones.
    """
    begun_s = clock_s()
    last_ms = math.inf
    while True:
        found_ms = min(side.time(0).elapsed_ms, side.time(1).elapsed_ms)
        if warmed or found_ms >= (1 - WARM_SETTLED) * last_ms or clock_s() - begun_s > WARM_LIMIT_S:
            return found_ms
        last_ms = found_ms


def compare_sides(
    candidate: Side, opponent: Side, rng: random.Random, clock_s: Callable[[], float] = time.monotonic
) -> Outcome:
    """Time two sides against each other until a look decides.

    Order (A B B A or B A A B) and lanes of buffers are drawn at random per block: separate output buffers alone can
    shift a ratio by 1%. A comparison that could not reach its next look within ``LIMIT_S`` ends undecided: this looks
    at the clock, not at the ratios, so it adds no false decision.
    """
    begun_s = clock_s()
    looks = {count for count, _ in LOOKS}
    blocks: list[Block] = []
    while True:
        candidate_first = rng.random() < 0.5
        lane = rng.randrange(2)
        blocks.append(_run_block(candidate, opponent, lane, candidate_first))
        if len(blocks) in looks:
            interval, decision = look([b.ratio for b in blocks])
            if decision is None and 2 * (clock_s() - begun_s) > LIMIT_S:
                decision = Decision.UNDECIDED
            if decision is not None:
                return Outcome(tuple(blocks), interval, decision)


def _run_block(candidate: Side, opponent: Side, lane: int, candidate_first: bool) -> Block:
    first, second = (candidate, opponent) if candidate_first else (opponent, candidate)
    first_lane, second_lane = (lane, 1 - lane) if candidate_first else (1 - lane, lane)
    a1 = first.time(first_lane)
    b1, b2 = second.time(second_lane), second.time(second_lane)
    a2 = first.time(first_lane)
    if candidate_first:
        return Block((a1, a2), (b1, b2), True)
    return Block((b1, b2), (a1, a2), False)
