"""Fitness of a verdict, and who won a challenge.

====================================  ==========================================================================
verdict                               fitness
====================================  ==========================================================================
correct and timed                     ln(lower bound of the speed-up over the anchor), clamped to [-10, 10]
correct, not timed                    -20
wrong                                 -100
dishonest                             -200
timed_out                             -300
crashed                               -400
build_error                           -500
invalid                               -600
does_not_fit, setup_error,            -700, -800, -900: nothing was learned of the kernel
unsupported
====================================  ==========================================================================

0 is the anchor's own time, 0.69 twice as fast, -0.69 half as fast. The clamp is a factor of 22,026 either way: no
honest kernel gets there, and a bounded range keeps the archive's QD score from falling when a slow cell is filled.
"""

from __future__ import annotations

import math
from typing import Literal

from kernelworks.kernel.verdict import Comparison, Decision, Status, Verdict

FITNESS_FLOOR = -10.0
"""Lowest fitness of a correct and timed kernel."""
FITNESS_CEILING = 10.0
"""Highest fitness."""
UNTIMED = -20.0
RUNG = 100.0
"""Distance between two statuses on the ladder."""
MARGIN = 0.01
"""Differences within 1% are of no interest (docs/verification.md)."""

_LADDER = tuple(Status)


def fitness_of(verdict: Verdict) -> float:
    """Fitness by the table above; always finite."""
    if verdict.status is not Status.CORRECT:
        return -RUNG * (_LADDER.index(Status.CORRECT) - _LADDER.index(verdict.status))
    if verdict.speedup_low is None:
        return UNTIMED
    return min(max(math.log(verdict.speedup_low), FITNESS_FLOOR), FITNESS_CEILING)


def challenge_against(
    verdict: Verdict, opponent: str, aggregate: Literal["geomean", "total"] = "geomean"
) -> Decision | None:
    """Outcome of the timings against ``opponent`` (a kernel's id), policy ``kernel``; None if there were none.

    One case gives its decision. Of several, the bounds of the ratios are combined (geometric mean, or the ratio of
    total times) and decided by the same margin. Combined bounds hold jointly, so this is conservative.
    """
    duels = [c for c in verdict.comparisons if c.opponent == opponent and c.policy == "kernel"]
    if not duels:
        return None
    if len(duels) == 1:
        return duels[0].decision
    if _combined(duels, [d.ratio_low for d in duels], aggregate) > 1 + MARGIN:
        return Decision.FASTER
    if _combined(duels, [d.ratio_high for d in duels], aggregate) < 1 - MARGIN:
        return Decision.SLOWER
    return Decision.UNDECIDED


def _combined(duels: list[Comparison], ratios: list[float], aggregate: Literal["geomean", "total"]) -> float:
    if min(ratios) <= 0:
        return 0.0
    if aggregate == "geomean":
        return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    theirs = [d.opponent_time_ms for d in duels]
    return math.fsum(theirs) / math.fsum(t / r for t, r in zip(theirs, ratios, strict=True))
