"""What the timings say about themselves: contradictions, drift, overhead, load, as findings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from kernelworks.evaluate.load import Load
from kernelworks.evaluate.sides import Ledger, Overhead, Recall
from kernelworks.kernel.verdict import Comparison, Finding

DRIFT_LIMIT = 0.1
"""Between the opponent's first third of calls and its last: more says that the machine changed meanwhile."""
OVERHEAD_LIMIT = 0.1
"""Of a call's time: above it a caller waits for the launch rather than for the kernel."""
MEMORY_FACTOR, MEMORY_SLACK_STEPS, LEAST_MEMORY_CALLS = 1.4, 4.0, 5
"""Calls on fresh inputs may take so many times what calls on seen ones take, and so many steps of the clock more; fewer
calls of a kind say nothing."""
MEMORY_DEVIATIONS = 3.0
"""By which their ranks must differ besides (one-sided, 1 in 700): on a busy machine quartiles alone may."""
RECALL_FACTOR = 1.15
"""Of the medians, where inputs are new throughout. Honest kernels may differ a little with the values (a branch on
data), and by chance in their ranks: a doubt needs both."""
LOAD_LIMIT_CORES = 0.2
"""Above this, the hypervisor's share is a finding; the limit for other work is a setting."""


def clock_finding(ledger: Ledger, overhead: Overhead, threads: int, case: str) -> Finding | None:
    """A finding where a candidate computed more than fits into its time on the clock.

    Wall time alone would accuse the honest on a busy machine; processor time is what Linux gave the process, and what
    it used after it had answered cannot have been another's.
    """
    hidden_ms = ledger.hidden_ms(overhead, threads)
    if hidden_ms == 0.0:
        return None
    elapsed_ms, idle_ms = ledger.elapsed_ns / 1e6, ledger.idle_cpu_ns / 1e6
    message = (
        f"{ledger.calls} calls: {elapsed_ms:.4g} ms passed until their answers, and its process used {hidden_ms:.4g} ms"
        f" of processor time beyond what {threads} threads can use in that time and honest waiting takes;"
        f" {idle_ms:.4g} ms of it after it had answered (case {case})"
    )
    evidence = {
        "calls": ledger.calls,
        "elapsed_ms": elapsed_ms,
        "cpu_ms": ledger.cpu_ns / 1e6,
        "idle_cpu_ms": idle_ms,
        "hidden_ms": hidden_ms,
        "threads": threads,
        "case": case,
    }
    return Finding(kind="clock", message=message, evidence=evidence)


def memory_finding(ledger: Ledger, overhead: Overhead, case: str) -> Finding | None:
    """A finding where a candidate is faster on inputs that it has seen before: it keeps answers.

    The lower quartiles of both kinds of call are held against each other, so that neither a first call nor another
    program's turn tells.
    """
    if not _keeps(ledger.fresh_ns, ledger.seen_ns, overhead):
        return None
    fresh_ns, seen_ns = _lower_quartile(ledger.fresh_ns), _lower_quartile(ledger.seen_ns)
    message = (
        f"calls on inputs that stood never before take {fresh_ns / 1e6:.4g} ms, on inputs that it has seen"
        f" {seen_ns / 1e6:.4g} ms: it keeps answers (case {case})"
    )
    evidence = {"fresh_ms": fresh_ns / 1e6, "seen_ms": seen_ns / 1e6, "case": case}
    return Finding(kind="memory", message=message, evidence=evidence)


def recall_finding(recall: Recall, overhead: Overhead, case: str) -> Finding | None:
    """A finding where a candidate is slower on inputs that are new throughout: it keeps answers, or parts of them.

    They are held against the recurring inputs in turn with them, by medians and ranks; not against those of the
    comparison before, since what surrounds the calls is another.
    """
    new_ns, seen_ns = statistics.median(recall.new_ns), statistics.median(recall.seen_ns)
    slower = new_ns > RECALL_FACTOR * seen_ns + MEMORY_SLACK_STEPS * overhead.step_ns
    deviation = rank_deviation(recall.new_ns, recall.seen_ns)
    if not slower or deviation < MEMORY_DEVIATIONS:
        return None
    message = (
        f"calls on inputs that are new throughout take {new_ns / 1e6:.4g} ms, on inputs that it has seen"
        f" {seen_ns / 1e6:.4g} ms (medians): it keeps answers (case {case})"
    )
    evidence = {"new_ms": new_ns / 1e6, "seen_ms": seen_ns / 1e6, "deviations": deviation, "case": case}
    return Finding(kind="memory", message=message, evidence=evidence)


def _keeps(fresh_ns: Sequence[float], seen_ns: Sequence[float], overhead: Overhead) -> bool:
    """Whether calls on fresh inputs take clearly longer, by the lower quartile and by ranks."""
    if min(len(fresh_ns), len(seen_ns)) < LEAST_MEMORY_CALLS:
        return False
    slack_ns = MEMORY_SLACK_STEPS * overhead.step_ns
    if _lower_quartile(fresh_ns) <= MEMORY_FACTOR * _lower_quartile(seen_ns) + slack_ns:
        return False
    return rank_deviation(fresh_ns, seen_ns) >= MEMORY_DEVIATIONS


def _lower_quartile(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=4)[0]


def rank_deviation(longer: Sequence[float], shorter: Sequence[float]) -> float:
    """Standard deviations by which the first sample's ranks exceed what chance gives (Mann and Whitney 1947, Ann. Math.
    Stat. 18, section 3; normal approximation)."""
    m, n = len(longer), len(shorter)
    wins = sum((a > b) + 0.5 * (a == b) for a in longer for b in shorter)
    return (wins - m * n / 2) / math.sqrt(m * n * (m + n + 1) / 12)


def remarks(comparison: Comparison, overhead: Overhead) -> list[Finding]:
    """What limits the figures of one comparison."""
    found: list[Finding] = []
    where = f"case {comparison.case}, against {comparison.opponent}"
    share = overhead.host_ms / comparison.time_ms
    if share > OVERHEAD_LIMIT:
        message = (
            f"a call takes {comparison.time_ms * 1e3:.3g} us, and {overhead.host_ms * 1e3:.3g} us pass outside the"
            f" kernel ({comparison.calls} calls a ring; subtracted): launching it costs a caller much of its gain"
            f" ({where})"
        )
        evidence = {"time_ms": comparison.time_ms, "host_ms": overhead.host_ms, "calls": comparison.calls}
        found.append(Finding(kind="launch_overhead", message=message, evidence=evidence))
    drift = opponent_drift(comparison.samples_ms)
    if abs(drift) > DRIFT_LIMIT:
        message = f"the opponent's calls became {drift:+.0%} longer from the first third to the last ({where})"
        found.append(Finding(kind="drift", message=message, evidence={"drift": drift}))
    return found


def opponent_drift(samples_ms: Sequence[tuple[float, float, float, float]]) -> float:
    """Median of the opponent's last third of calls over that of the first, less 1."""
    calls = [ms for block in samples_ms for ms in block[2:]]
    third = max(1, len(calls) // 3)
    return statistics.median(calls[-third:]) / statistics.median(calls[:third]) - 1


def void_finding(comparison: Comparison, overhead: Overhead) -> Finding | None:
    """A finding where a kernel's time cannot be told from nothing: no figure may rest on it."""
    step_ms = overhead.step_ns / overhead.calls / 1e6
    if comparison.time_ms > step_ms:
        return None
    message = (
        f"case {comparison.case} is void: its calls take no longer than the step of the clock"
        f" ({step_ms * 1e3:.3g} us at {overhead.calls} calls a ring), so no speed-up is stated"
    )
    return Finding(kind="below_clock", message=message, evidence={"case": comparison.case, "step_ms": step_ms})


def load_findings(load: Load, limit_cores: float) -> tuple[Finding, ...]:
    """A finding where something else disturbed the timings."""
    found: list[Finding] = []
    for kind, cores, limit, who in (
        ("foreign_load", load.foreign_cores, limit_cores, "other programs used"),
        ("steal", load.steal_cores, LOAD_LIMIT_CORES, "the host of this virtual machine took"),
    ):
        if cores > limit:
            message = f"{who} {cores:.2f} cores during the timings, which widens their intervals"
            found.append(Finding(kind=kind, message=message, evidence={"cores": cores}))
    if load.throttles:
        message = f"the processors lowered their clocks for their heat during the timings ({load.throttles} times)"
        found.append(Finding(kind="throttled", message=message, evidence={"times": load.throttles}))
    return tuple(found)
