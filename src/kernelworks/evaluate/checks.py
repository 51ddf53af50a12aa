"""Is it right, and is it honest: one candidate on every check and edge case, then on the timed ones."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kernelworks.evaluate.endings import EndedEvaluation, clock_finding, ending_of, problem_finding
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.process import Candidate, CandidateError, TimedCalls
from kernelworks.evaluate.sides import BoundCase, CallError, ClockError, FailedCallError
from kernelworks.kernel.verdict import Finding, Status

FILLS = (0, 1)
"""Fill patterns of integer outputs: two runs, so that a value that happens to stand there is no answer."""
BATCH_MS = 80.0
"""Length of the batches by which a candidate's clock is held against the harness's ..."""
SINGLE_CALLS = 3
"""By which the length of a call is estimated."""
LEAST_CALLS, MOST_CALLS = 2, 500
"""... within these numbers of calls."""
IN_PLACE_CALLS = 8
"""At most so many where calls change their inputs: further ones would work on values far from any input."""
BATCH_TRIES = 5
"""Batches of which one must agree: another program's turn on the processor lengthens one, not all."""
BATCH_SLACK_MS = 2.0
CALL_SLACK_MS = 0.01
"""Around each call: two readings of the clock, the foreign function interface."""
OWN_SLACK_SHARE = 0.05
"""By which a batch may be longer than what its own calls are said to have taken."""
CLAIM_SLACK_SHARE = 0.5
"""By which a batch may be longer than what was claimed earlier: clock rates and foreign load change meanwhile."""
CPU_SLACK_MS = 20.0
"""Two ticks, in which the kernel counts CPU time."""


@contextmanager
def candidate_faults(case: str) -> Generator[None]:
    """Turn what a candidate does wrong into the end of its evaluation."""
    try:
        yield
    except (CandidateError, CallError) as error:
        raise ending_of(error, case) from error


def check_answers(candidate: Candidate, cases: Sequence[BoundCase], judge: Judge, timeout_s: float) -> None:
    """Run every case once (twice where outputs are exact) on poisoned outputs and have the judge compare.

    Raises:
        EndedEvaluation: the first case that is not right, with all of its problems.
    """
    for case in cases:
        with candidate_faults(case.label):
            case.bind(candidate)
            for fill in FILLS if case.prepared.two_fills else FILLS[:1]:
                _check_once(candidate, case, judge, fill, timeout_s)


def _check_once(candidate: Candidate, case: BoundCase, judge: Judge, fill: int, timeout_s: float) -> None:
    judge.poison(case.key, 0, fill)
    result = candidate.call(case.lane_key(0), timeout_s)
    if result.returned != 0:
        raise FailedCallError(result.returned)
    report = judge.compare(case.key, 0)
    if report.problems:
        raise EndedEvaluation(Status.WRONG, *(problem_finding(problem, case.label) for problem in report.problems))


def check_company(candidate: Candidate, allowed_threads: int, when: str) -> None:
    """Threads and processes of a candidate: an OpenMP pool is allowed after calls, nothing else.

    Args:
        candidate: running.
        allowed_threads: 1 before any call, then the size of the OpenMP pool.
        when: in words, such as ``after the calls``.

    Raises:
        EndedEvaluation: dishonest.
    """
    with candidate_faults(""):
        threads, processes = candidate.thread_count(), candidate.descendants()
    if threads > allowed_threads:
        message = f"{threads} threads {when}, expected at most {allowed_threads} (the OpenMP pool)"
        raise EndedEvaluation(Status.DISHONEST, Finding(kind="leftover_thread", message=message))
    if processes:
        message = f"processes {when}: {', '.join(processes)}, expected none beside the candidate's own"
        raise EndedEvaluation(Status.DISHONEST, Finding(kind="leftover_process", message=message))


@dataclass(frozen=True)
class Batch:
    """Calls in a row, caches warm, by two clocks: that of the candidate's process and the harness's own."""

    calls: int
    said_ms: float
    measured_ms: float
    cpu_ms: float
    """Used by all threads of the candidate's process meanwhile."""

    def agrees(self, said_ms: float, slack_share: float) -> bool:
        """Whether the calls can have taken ``said_ms`` altogether."""
        slack_ms = BATCH_SLACK_MS + CALL_SLACK_MS * self.calls
        return self.measured_ms <= said_ms * (1 + slack_share) + slack_ms

    def worked(self, said_ms: float, threads: int, slack_share: float) -> bool:
        """Whether so many threads can have done within ``said_ms`` what the batch took in CPU time.

        Wall time alone would accuse the honest on a busy machine: single calls of a process that slept are let in at
        once, the calls of a batch wait for their turn.
        """
        return self.cpu_ms <= threads * said_ms * (1 + slack_share) + CPU_SLACK_MS


def check_clock(candidate: Candidate, case: BoundCase, judge: Judge, timeout_s: float) -> float:
    """Hold the times that the candidate's process reports against the harness's own clock.

    Returns:
        Milliseconds per call outside the kernel (``host_ms``).

    Raises:
        EndedEvaluation: dishonest, if every batch took longer than its calls are said to.
    """
    with candidate_faults(case.label):
        batch, agreed = _batch(candidate, case, judge, timeout_s, lambda b: b.agrees(b.said_ms, OWN_SLACK_SHARE))
        if not agreed:
            raise ClockError(batch.calls, batch.said_ms, batch.measured_ms)
    return (batch.measured_ms - batch.said_ms) / batch.calls


def doubt_claim(
    candidate: Candidate, case: BoundCase, judge: Judge, claimed_ms: float, threads: int, timeout_s: float
) -> Finding | None:
    """A time per call that this process claimed earlier, against the harness's clock around such calls now.

    A kernel whose lies begin once it is timed passes ``check_clock``, and not this.

    Args:
        candidate: running, bound to the case.
        case: a timed one.
        judge: of the case.
        claimed_ms: per call.
        threads: that the kernel can use.
        timeout_s: limit of a call.

    Returns:
        A finding if every batch takes much longer, in wall time and in CPU time, although its calls find the caches
        warm.
    """

    def agrees(batch: Batch) -> bool:
        said_ms = batch.calls * claimed_ms
        return batch.agrees(said_ms, CLAIM_SLACK_SHARE) or batch.worked(said_ms, threads, CLAIM_SLACK_SHARE)

    with candidate_faults(case.label):
        batch, agreed = _batch(candidate, case, judge, timeout_s, agrees)
    if agreed:
        return None
    return clock_finding(ClockError(batch.calls, batch.calls * claimed_ms, batch.measured_ms), case.label)


def _batch(
    candidate: Candidate, case: BoundCase, judge: Judge, timeout_s: float, agrees: Callable[[Batch], bool]
) -> tuple[Batch, bool]:
    """The first batch that agrees (else the last tried) and whether it does; lanes in turn, caches warm."""
    lanes = range(len(case.lanes))
    keys = [case.lane_key(lane) for lane in lanes]
    most = IN_PLACE_CALLS if judge.task.mutates else MOST_CALLS
    # The shortest: one that waited for its turn would make a batch too short to show anything.
    shortest_ns = min(_timed(candidate, keys, 1, timeout_s).outer_ns for _ in range(SINGLE_CALLS))
    calls = max(LEAST_CALLS, min(most, round(BATCH_MS * 1e6 / shortest_ns)))
    tries = 0
    while True:
        if judge.task.mutates:
            for lane in lanes:
                judge.poison(case.key, lane)
        before_ms = candidate.cpu_ms()
        timed = _timed(candidate, keys, calls, LEAST_CALLS * timeout_s)
        batch = Batch(calls, sum(timed.inner_ns) / 1e6, timed.outer_ns / 1e6, candidate.cpu_ms() - before_ms)
        tries += 1
        agreed = agrees(batch)
        if agreed or tries == BATCH_TRIES:
            return batch, agreed


def _timed(candidate: Candidate, keys: Sequence[str], calls: int, timeout_s: float) -> TimedCalls:
    timed = candidate.time(keys, calls, 0, False, timeout_s)
    if timed.returned != 0:
        raise FailedCallError(timed.returned)
    return timed


def check_float_mode(candidate: Candidate) -> None:
    """Flush-to-zero must be off.

    Raises:
        EndedEvaluation: invalid.
    """
    with candidate_faults(""):
        mode = candidate.float_mode()
    if mode.flushes_results or mode.flushes_operands:
        message = "switches flush-to-zero on for the whole process (MXCSR), which a kernel must not"
        raise EndedEvaluation(Status.INVALID, Finding(kind="float_mode", message=message))
