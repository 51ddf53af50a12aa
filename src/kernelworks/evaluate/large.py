"""Offsets that 32 bits cannot hold: a kernel on the large case of its task, where the memory is there."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, closing

from kernelworks.errors import DoesNotFitError, TaskError
from kernelworks.evaluate.checks import check_answers
from kernelworks.evaluate.families import FAMILIES
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.process import Candidate
from kernelworks.evaluate.settings import Settings
from kernelworks.evaluate.sides import BoundCase
from kernelworks.kernel.verdict import Finding
from kernelworks.task.model import Case, Task, element_count
from kernelworks.task.source import TaskReference

CALL_TIMEOUT_FACTOR = 20
"""A call on the large case may take so many times the limit of another."""


def largest_elements(task: Task, cases: list[Case]) -> int:
    """Elements of the largest tensor in these cases."""
    return max((element_count(tensor, case) for case in cases for tensor in task.tensors), default=0)


def check_large(
    reference: TaskReference,
    task: Task,
    settings: Settings,
    inside: frozenset[str],
    start: Callable[[], AbstractContextManager[Candidate]],
) -> tuple[Case | None, Finding | None]:
    """Run a kernel on the large case, in a judge of its own: what the reference does wrong there ends nothing else.

    Args:
        reference: of the task.
        task: its plain data.
        settings: threads and limits.
        inside: names of the cases that the kernel covers.
        start: a candidate in a fresh process.

    Returns:
        The case if it was run and right, else why not.

    Raises:
        EndedEvaluation: the kernel is wrong there, or fails.
    """
    case = task.large
    if case is None:
        return None, _untested("no size of this task leads to a tensor of more than 2^31 elements")
    if case.name not in inside:
        return None, _untested("the kernel does not cover the large case")
    limit_s = settings.reference_timeout_s
    try:
        with Judge.start(reference, heap="default", threads=settings.threads, reference_timeout_s=limit_s) as judge:
            prepared = judge.prepare(case.name, random.SystemRandom().getrandbits(31), FAMILIES[0])
            if prepared.dropped:
                return None, _untested(prepared.dropped)
            with closing(BoundCase(prepared)) as bound, start() as candidate:
                check_answers(candidate, [bound], judge, CALL_TIMEOUT_FACTOR * settings.call_timeout_s)
    except (TaskError, DoesNotFitError) as error:
        return None, _untested(error.message)
    return case, None


def _untested(why: str) -> Finding:
    return Finding(kind="large_not_tested", message=f"offsets beyond 2^31 elements were not tested: {why}")
