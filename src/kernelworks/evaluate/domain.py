"""A kernel's shape domain and point against a task's cases: what must hold before anything is built."""

from __future__ import annotations

from dataclasses import dataclass

from kernelworks.errors import KernelError
from kernelworks.evaluate.endings import EndedEvaluation
from kernelworks.kernel.frontmatter import compile_time_names, holds
from kernelworks.kernel.hardware import Hardware
from kernelworks.kernel.model import Kernel, Params
from kernelworks.kernel.verdict import Finding, Status
from kernelworks.targets.flags import bound_point
from kernelworks.task.model import Case, CaseRole, Task


@dataclass(frozen=True)
class Domain:
    """Where a kernel will be run."""

    point: Params
    """Values of its params: one build serves every case."""
    cases: frozenset[str]
    """Names of the cases inside its shape domain."""
    coverage: float
    """Share of edge cases among them; 1.0 where the task has none."""


def domain_of(kernel: Kernel, task: Task, hardware: Hardware) -> Domain:
    """The domain of a kernel.

    Raises:
        EndedEvaluation: invalid, if a timed or check case lies outside or an expression cannot be evaluated;
            unsupported, if the device lacks what the kernel needs.
    """
    missing = [need for need in kernel.front.needs if need not in hardware.features]
    if missing:
        message = f"needs {', '.join(missing)}, which {hardware.name} does not have"
        raise EndedEvaluation(Status.UNSUPPORTED, Finding(kind="needs", message=message))
    try:
        point = bound_point(task, kernel)
        every = (*task.cases, *filter(None, [task.large]))
        inside = frozenset(case.name for case in every if _covers(kernel, point, case))
    except KernelError as error:
        raise EndedEvaluation(Status.INVALID, Finding(kind=error.kind, message=error.message)) from error
    edges = task.cases_of(CaseRole.EDGE)
    covered = sum(case.name in inside for case in edges)
    return Domain(point, inside, covered / len(edges) if edges else 1.0)


def _covers(kernel: Kernel, point: Params, case: Case) -> bool:
    """Whether a case lies inside; only an edge case, or the large one, may lie outside."""
    front = kernel.front
    names = {**case.sizes, **compile_time_names(front, point)}
    failed = next((text for text in (*front.covers, *front.constraints) if not holds([text], names)), None)
    if failed is None or case.role in (CaseRole.EDGE, CaseRole.LARGE):
        return failed is None
    sizes = ", ".join(f"{dim} {size}" for dim, size in case.sizes.items())
    raise KernelError(f"expected {failed} in every timed and check case, found case {case.name} with {sizes}")
