"""Is it right, and is it honest: one candidate on every check and edge case, then on the timed ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from kernelworks.evaluate.determinism import vary
from kernelworks.evaluate.endings import EndedEvaluation, ending_of, problem_finding
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.process import Candidate, CandidateError
from kernelworks.evaluate.records import CaseProblem, CaseReport, OutputReport
from kernelworks.evaluate.sides import BoundCase, CallError, FailedCallError
from kernelworks.evaluate.survey import wrong_answer
from kernelworks.kernel.verdict import Finding, Status

FILLS = (0, 1)
"""Fill patterns of integer outputs: two runs, so that a value that happens to stand there is no answer."""


_RUNTIME = re.compile(
    r"(libc|libm|libmvec|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libgomp|libomp|libiomp5|libquadmath|libatomic"
    r"|libc\+\+|libc\+\+abi|libunwind|ld-linux[\w-]*)[.-]"
)
"""What compilers link or load on their own account."""

_FORGIVING_FLAGS = {
    "specials": frozenset({"-ffast-math", "-ffinite-math-only"}),
    "denormal": frozenset({"-ffast-math", "-funsafe-math-optimizations"}),
}
"""By family of inputs, flags that allow the compiler to go wrong on it: no infinities, approximate roots."""


@contextmanager
def candidate_faults(case: str) -> Generator[None]:
    """Turn what a candidate does wrong into the end of its evaluation."""
    try:
        yield
    except (CandidateError, CallError) as error:
        raise ending_of(error, case) from error


def check_answers(
    candidate: Candidate,
    cases: Sequence[BoundCase],
    judge: Judge,
    timeout_s: float,
    note: Callable[[CaseReport], None] | None = None,
    flags: Sequence[str] = (),
) -> tuple[Finding, ...]:
    """Run every case once (twice where outputs are exact) on poisoned outputs and have the judge compare.

    ``note`` is given every report, also that of an answer that is not right. ``flags`` are the compile arguments: code
    that was told that there are no infinities, or may approximate, is not wrong where there are some.

    Returns:
        What such code does with infinities, NaN and subnormal numbers, the first problem of each family; and the first
        NaN beside an infinity that was let be.

    Raises:
        EndedEvaluation: the first case that is not right, with all of its problems, and with other cases that fail.
    """
    found: dict[str, Finding] = {}
    for number, case in enumerate(cases):
        with candidate_faults(case.label):
            case.bind(candidate)
            for fill in FILLS if case.prepared.two_fills else FILLS[:1]:
                report = _check_once(candidate, case, judge, fill, timeout_s, note)
                problems = report.problems
                for output in report.outputs:
                    if output.let_be:
                        found.setdefault("specials", _let_be_finding(output, case))
                if problems:
                    kind = _forgiven_as(case, problems, flags)
                    if not kind:
                        more = vary(candidate, case, judge, timeout_s, problems, fill)
                        raise wrong_answer(candidate, problems, more, case, cases[:number], cases[number + 1 :], judge)
                    found.setdefault(kind, problem_finding(problems[0], case.label).model_copy(update={"kind": kind}))
    return tuple(found.values())


def _let_be_finding(output: OutputReport, case: BoundCase) -> Finding:
    message = (
        f"{output.name}: {output.let_be} of {output.elements} elements are NaN beside an infinity of the inputs, where"
        f" the right answer is finite; the first at {output.first_let_be} (case {case.label})"
    )
    evidence = {
        "case": case.label,
        "tensor": output.name,
        "first": output.first_let_be,
        "share": output.let_be / output.elements,
    }
    return Finding(kind="specials", message=message, evidence=evidence)


def _forgiven_as(case: BoundCase, problems: Sequence[CaseProblem], flags: Sequence[str]) -> str:
    """The kind of finding that these problems are; empty where they make the answer wrong."""
    family = case.prepared.family
    allowed = _FORGIVING_FLAGS.get(family, frozenset())
    if allowed.isdisjoint(flags) or any(problem.kind not in ("values", "nan_mask") for problem in problems):
        return ""
    return f"fast_math_{family}"


def _check_once(
    candidate: Candidate,
    case: BoundCase,
    judge: Judge,
    fill: int,
    timeout_s: float,
    note: Callable[[CaseReport], None] | None,
) -> CaseReport:
    judge.poison(case.key, 0, fill)
    result = candidate.call(case.lane_key(0), timeout_s)
    if result.returned != 0:
        raise FailedCallError(result.returned)
    report = judge.compare(case.key, 0)
    if note is not None:
        note(report)
    return report


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
    with candidate_faults(""):
        strange = candidate.strange_threads()
    if strange > 0:
        message = f"{strange} threads run Python code {when} beside the one that is called, expected none"
        raise EndedEvaluation(Status.DISHONEST, Finding(kind="leftover_thread", message=message))
    if processes:
        message = f"processes {when}: {', '.join(processes)}, expected none beside the candidate's own"
        raise EndedEvaluation(Status.DISHONEST, Finding(kind="leftover_process", message=message))


def check_libraries(candidate: Candidate, when: str) -> None:
    """The compiler's own runtime libraries are allowed, no other: what they compute is nobody's kernel.

    Raises:
        EndedEvaluation: dishonest.
    """
    with candidate_faults(""):
        opened = [name for name in candidate.added_libraries() if not _RUNTIME.match(name)]
    if opened:
        message = f"opened {', '.join(opened[:4])} {when}: a kernel does its work itself"
        raise EndedEvaluation(Status.DISHONEST, Finding(kind="library", message=message, evidence={"opened": opened}))


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
