"""Is it right, and is it honest: one candidate on every check and edge case, then on the timed ones."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from kernelworks.evaluate.endings import EndedEvaluation, ending_of, problem_finding
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.process import Candidate, CandidateError, TimedCalls
from kernelworks.evaluate.sides import BoundCase, FailedCallError, StaleAnswerError
from kernelworks.kernel.verdict import Finding, Status

FILLS = (0, 1)
"""Fill patterns of integer outputs: two runs, so that a value that happens to stand there is no answer."""
BATCH_CALLS = 8
"""Calls of the batch by which the candidate's clock is held against the harness's."""
CLOCK_SLACK_MS = 2.0
CLOCK_SLACK_SHARE = 0.25


@contextmanager
def candidate_faults(case: str) -> Generator[None]:
    """Turn what a candidate does wrong into the end of its evaluation."""
    try:
        yield
    except (CandidateError, StaleAnswerError, FailedCallError) as error:
        raise ending_of(error, case) from error


def check_answers(candidate: Candidate, cases: Sequence[BoundCase], judge: Judge, timeout_s: float) -> None:
    """Run every case once (twice where outputs are exact) on poisoned outputs and have the judge compare.

    Raises:
        EndedEvaluation: the first case that is not right, with all of its problems.
    """
    for case in cases:
        with candidate_faults(case.prepared.case):
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
        name = f"{case.prepared.case}, {case.prepared.family} inputs"
        raise EndedEvaluation(Status.WRONG, *(problem_finding(problem, name) for problem in report.problems))


def check_company(candidate: Candidate, threads_before: int, threads: int) -> None:
    """Threads and processes after the calls against those before: an OpenMP pool is allowed, nothing else.

    Raises:
        EndedEvaluation: dishonest.
    """
    with candidate_faults(""):
        now, processes = candidate.thread_count(), candidate.descendants()
    allowed = threads_before + threads - 1
    if now > allowed:
        message = f"{now} threads after the calls, expected at most {allowed} (the OpenMP pool)"
        raise EndedEvaluation(Status.DISHONEST, Finding(kind="leftover_thread", message=message))
    if processes:
        message = f"processes outlive the call: {', '.join(processes)}"
        raise EndedEvaluation(Status.DISHONEST, Finding(kind="leftover_process", message=message))


def check_clock(candidate: Candidate, case: BoundCase, timeout_s: float) -> float:
    """Hold the times that the candidate's process reports against the harness's own clock, over a batch.

    Returns:
        Milliseconds per call outside the kernel (``host_ms``).

    Raises:
        EndedEvaluation: dishonest, if the batch took much longer than its calls are said to.
    """
    with candidate_faults(case.prepared.case):
        keys = [case.lane_key(lane) for lane in range(len(case.lanes))]
        timed: TimedCalls = candidate.time(keys, BATCH_CALLS, 0, False, timeout_s)
        if timed.returned != 0:
            raise FailedCallError(timed.returned)
    inner_ms, outer_ms = sum(timed.inner_ns) / 1e6, timed.outer_ns / 1e6
    if outer_ms - inner_ms > CLOCK_SLACK_MS + CLOCK_SLACK_SHARE * inner_ms:
        message = f"{BATCH_CALLS} calls took {outer_ms:.3f} ms, its process says {inner_ms:.3f} ms"
        evidence = {"outer_ms": outer_ms, "inner_ms": inner_ms}
        raise EndedEvaluation(Status.DISHONEST, Finding(kind="clock", message=message, evidence=evidence))
    return (outer_ms - inner_ms) / BATCH_CALLS


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
