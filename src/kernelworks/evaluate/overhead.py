"""What a ring of the doorbell takes when nothing is called: measured in a process of the harness's own.

It runs the candidates' program with a ``launch`` that does nothing, on the arguments and with the eviction of caches of
the case in question. The median of the quietest batch is subtracted from every timed call of a candidate.
"""

from __future__ import annotations

import statistics

from kernelworks.evaluate.doorbell import Sweep, doorbell_shim
from kernelworks.evaluate.process import CandidatePool, TimedCalls
from kernelworks.evaluate.sides import BoundCase, Overhead

BATCHES, RINGS = 3, 15
"""The batch with the least spread counts: other work widens it, and only that would make a short kernel's time void."""
FIRST_RINGS = 5
"""Before them, not counted."""


def measure_overhead(
    pool: CandidatePool, case: BoundCase, calls: int, sweep: Sweep | None, timeout_s: float
) -> Overhead:
    """Ring a process that does nothing.

    Args:
        pool: where candidates' processes come from.
        case: whose arguments are handed over.
        calls: behind each ring.
        sweep: run before each ring.
        timeout_s: limit of a ring.
    """
    with pool.start(doorbell_shim()) as nothing:
        case.bind(nothing)
        keys = [case.lane_key(0)] * calls

        def ring() -> TimedCalls:
            if sweep is not None:
                sweep()
            return nothing.time(keys, False, timeout_s)

        for _ in range(FIRST_RINGS):
            ring()
        batches = [_overhead([ring() for _ in range(RINGS)], calls) for _ in range(BATCHES)]
    return min(batches, key=lambda batch: batch.step_ns)


def _overhead(rings: list[TimedCalls], calls: int) -> Overhead:
    low, middle, high = statistics.quantiles([ring.elapsed_ns for ring in rings], n=4)
    return Overhead(calls, middle, high - low, statistics.median(ring.idle_cpu_ns for ring in rings))
