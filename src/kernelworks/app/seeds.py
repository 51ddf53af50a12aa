"""The first kernels of a run: the user's own, then the proposer's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernelworks.errors import KernelFormatError, ProposeError, UsageError
from kernelworks.kernel.expression import parse_expression
from kernelworks.kernel.frontmatter import DEVICE_FACTS, read_kernel
from kernelworks.kernel.model import Kernel
from kernelworks.propose.base import ProposalContext, Proposer, Request
from kernelworks.propose.registry import get_proposer
from kernelworks.task.model import Task


def read_own(file: str) -> Kernel:
    """A kernel that the user gave.

    Raises:
        UsageError: its front matter breaks a rule.
        KernelError: it cannot be read.
    """
    try:
        return read_kernel(Path(file), shown=file)
    except KernelFormatError as error:
        raise UsageError(f"seed kernel {file}: {error.message}") from error


def refuse_unknown_names(kernels: Sequence[Kernel], task: Task) -> None:
    """A name in a user's expressions that nothing defines is a slip, found before anything is searched.

    Raises:
        UsageError: names the kernel, the expression and what is known.
    """
    for kernel in kernels:
        front = kernel.front
        known = {*task.dims, *front.params, *front.let, *DEVICE_FACTS}
        for text in (*front.covers, *front.constraints):
            unknown = sorted(parse_expression(text).names - known)
            if unknown:
                raise UsageError(
                    f"seed kernel {kernel.path}: expected names among {', '.join(sorted(known))} in {text!r},"
                    f" found {unknown[0]!r}"
                )


class NoMoves:
    """Stands in for a proposer that cannot work on the task, where the user gave kernels: these alone are evaluated."""

    name = "none"

    def seeds(self, context: ProposalContext) -> Sequence[Kernel]:
        """None of its own."""
        return ()

    def propose(self, context: ProposalContext, request: Request) -> Kernel | None:
        """No move."""
        return None


def proposer_and_seeds(
    name: str, context: ProposalContext, own: Sequence[Kernel]
) -> tuple[Proposer, tuple[Kernel, ...]]:
    """The proposer of this name and the first kernels: the user's own, then the proposer's; each once.

    Raises:
        ProposeError: it cannot work on the task, and the user gave no kernels.
    """
    proposer = get_proposer(name)
    try:
        made = proposer.seeds(context)
    except ProposeError:
        if not own:
            raise
        proposer, made = NoMoves(), ()
    found: dict[str, Kernel] = {}
    for kernel in (*own, *made):
        found.setdefault(kernel.id, kernel)
    return proposer, tuple(found.values())
