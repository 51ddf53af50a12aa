"""A kernel once more, built to watch itself, on check and edge cases: AddressSanitizer and UBSan.

An error in memory makes the kernel wrong although its answers were right: the next compiler, size or neighbour in
memory would show it. Undefined behaviour is a finding, and so is a read beside a tensor on which no answer depends.
What could not be run is said ("not checked"), since silence would look like a pass.

The bytes around tensors are forbidden in such a process (``child.py``), so that a read one element too far shows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernelworks.evaluate import child
from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.endings import EndedEvaluation
from kernelworks.evaluate.process import Candidate, CandidateEndedError, CandidateError
from kernelworks.evaluate.program import Program
from kernelworks.evaluate.sanitizer_report import MemoryError_, Undefined, memory_errors, undefined
from kernelworks.evaluate.sides import BoundCase
from kernelworks.evaluate.supervision import Exit, Limits
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Finding, Status
from kernelworks.targets.base import SanitizedBuild, SanitizingTarget
from kernelworks.task.model import Case, CaseRole, Task, size_bytes

MOST_CASES = 8
LARGEST_BYTES = 64 << 20
"""Of a case's tensors: such a build is slow."""
SLOWER = 20.0
"""By which the limit of a call is multiplied."""
_LIMITS = Limits(memory_bytes=8 << 30, output_bytes=32 << 10)
"""The shadow of all memory is an eighth of it, and freed blocks are kept for a while."""


@dataclass(frozen=True)
class _Outcome:
    """How such a run ended."""

    ending: Exit
    cases: tuple[str, ...]
    """Those that were run."""
    wrong: str = ""
    """The first answer that was not right, in words."""
    stopped: str = ""
    """Why there was no end of it."""
    candidate: Candidate | None = None


def check_sanitized(bench: Bench, kernel: Kernel, cases: frozenset[str]) -> tuple[Finding, ...]:
    """Build and run a kernel under sanitizers.

    Args:
        bench: shared parts.
        kernel: built and checked before.
        cases: names of the cases inside its domain.

    Returns:
        Findings that leave it correct.

    Raises:
        EndedEvaluation: wrong, for an error in memory.
    """
    target = bench.target
    if not isinstance(target, SanitizingTarget):
        return (_not_checked(f"target {target.name} has no sanitizers"),)
    with tempfile.TemporaryDirectory(prefix="kernelworks-") as folder:
        Path(folder).chmod(0o755)  # a sandboxed process of another user loads the library
        built = target.build_sanitized(bench.task, kernel, Path(folder), timeout_s=bench.settings.build_timeout_s)
        if isinstance(built, str):
            return (_not_checked(built),)
        outcome = _run(bench, built, _chosen(bench.task, cases))
    return _findings(outcome, kernel.path or "kernel.cpp")


def _chosen(task: Task, names: frozenset[str]) -> Sequence[Case]:
    """Check and edge cases, small ones; the smallest timed case where there are none."""
    inside = [case for case in task.cases if case.name in names and case.role is not CaseRole.LARGE]
    inside.sort(key=lambda case: _bytes(task, case))
    small = [case for case in inside if _bytes(task, case) <= LARGEST_BYTES]
    return [c for c in small if c.role is not CaseRole.TIMED][:MOST_CASES] or inside[:1]


def _bytes(task: Task, case: Case) -> int:
    return sum(size_bytes(argument, case) for argument in task.tensors)


def _run(bench: Bench, built: SanitizedBuild, cases: Sequence[Case]) -> _Outcome:
    program = Program(
        Path(child.__file__), readable=(built.path.parent, built.runtime), environment=dict(built.environment)
    )
    ran: list[str] = []
    wrong = ""
    candidate = Candidate(threads=bench.settings.threads, limits=_LIMITS, program=program, sandbox=bench.pool.sandbox)
    try:
        candidate.loaded(built.path)
        for case in cases:
            with _prepared(bench, case) as bound:
                if bound is None:
                    continue
                ran.append(case.name)
                wrong = wrong or _call(bench, candidate, bound)
    except CandidateEndedError as error:
        return _Outcome(error.exit, tuple(ran), wrong, str(error), candidate)
    except CandidateError as error:
        return _Outcome(candidate.end(), tuple(ran), wrong, str(error), candidate)
    return _Outcome(candidate.end(), tuple(ran), wrong, "", candidate)


@contextmanager
def _prepared(bench: Bench, case: Case) -> Generator[BoundCase | None]:
    """A case of its own, on the task's own draw; None where it cannot be judged."""
    prepared = bench.judge.prepare(case.name, bench.rng.getrandbits(31), "normal")
    if prepared.dropped:
        yield None
        return
    bound = BoundCase(prepared)
    try:
        yield bound
    finally:
        bound.close()
        bench.judge.release(prepared.key)


def _call(bench: Bench, candidate: Candidate, case: BoundCase) -> str:
    """What is wrong with one answer; empty if nothing is."""
    case.bind(candidate)
    bench.judge.poison(case.key, 0)
    returned = candidate.call(case.lane_key(0), SLOWER * bench.settings.call_timeout_s).returned
    if returned != 0:
        return f"launch returned {returned} (case {case.label})"
    problems = bench.judge.compare(case.key, 0).problems
    return f"{problems[0].message} (case {case.label})" if problems else ""


def _findings(outcome: _Outcome, path: str) -> tuple[Finding, ...]:
    text = outcome.ending.stderr.text
    errors, behaviours = memory_errors(text), undefined(text)
    found: list[Finding] = []
    if behaviours:
        found.append(_undefined_behaviour(behaviours, path))
    beside = [error for error in errors if _is_harmless(error)]
    if beside:
        found.append(_memory(beside, outcome, path, "over_read"))
    broken = [error for error in errors if not _is_harmless(error)]
    if broken:
        raise EndedEvaluation(Status.WRONG, _memory(broken, outcome, path, "address_sanitizer"), *found)
    if outcome.stopped and not behaviours:
        found.append(_not_checked(outcome.stopped, outcome.ending.stderr.text[-300:]))
    elif outcome.wrong:
        message = f"a build at -O1 answers wrongly, so the kernel depends on how it is compiled: {outcome.wrong}"
        found.append(Finding(kind="depends_on_build", message=message))
    elif not outcome.cases:
        found.append(_not_checked("no case of this task is small enough"))
    return tuple(found)


def _is_harmless(error: MemoryError_) -> bool:
    """A read beside a tensor: had it changed the answer, other bytes there would have shown it."""
    return error.kind == "use-after-poison" and error.access == "read"


def _memory(errors: Sequence[MemoryError_], outcome: _Outcome, path: str, kind: str) -> Finding:
    sites = [_site(error, outcome) for error in errors]
    first = errors[0]
    what = f"a {first.access} of {first.size_bytes} bytes" if first.size_bytes else f"a {first.access or 'bad access'}"
    near = sites[0]["near"]
    message = f"{first.kind}: {what} at {path}:{first.line or '?'}{f', {near}' if near else ''}{_more(sites)}"
    if kind == "over_read":
        message += "; no answer depends on it"
    return Finding(kind=kind, message=message, evidence={"sites": sites, "cases": outcome.cases})


def _site(error: MemoryError_, outcome: _Outcome) -> dict[str, Any]:
    near = error.near
    if error.address is not None and outcome.candidate is not None:
        fault = outcome.candidate.locate(error.address, error.access)
        if fault.buffer is not None:
            near = str(fault).partition(" ")[2]
    return {**asdict(error), "near": near, "address": None}


def _undefined_behaviour(reports: Sequence[Undefined], path: str) -> Finding:
    sites = [asdict(report) for report in reports]
    message = f"undefined behaviour at {path}:{reports[0].line or '?'}: {reports[0].message}{_more(sites)}"
    return Finding(kind="undefined_behaviour", message=message, evidence={"sites": sites})


def _more(sites: Sequence[object]) -> str:
    return f" (and at {len(sites) - 1} more place{'s' if len(sites) > 2 else ''})" if len(sites) > 1 else ""


def _not_checked(why: str, said: str = "") -> Finding:
    evidence = {"stderr": said} if said else {}
    return Finding(kind="sanitizers", message=f"not checked: {why}", evidence=evidence)
