"""The contract of a proposer. Plug-in point ``kernelworks.proposers``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from kernelworks.data import Frozen
from kernelworks.kernel.hardware import Hardware
from kernelworks.kernel.model import Kernel
from kernelworks.task.graph import Graph
from kernelworks.task.model import Task


class ProposalContext(Frozen):
    """What a proposer knows of the job. ``task`` carries timed cases only; check cases stay hidden."""

    task: Task
    graph: Graph | None
    target: str
    hardware: Hardware
    untraced: str = ""
    """Why there is no graph."""


class Request(Frozen):
    """One wish of the search."""

    operator: Literal["seed", "mutate", "crossover"]
    parents: tuple[Kernel, ...] = ()
    seed: int
    """All randomness of the proposal comes from it."""
    attempt: int = 0
    """Counts repetitions of the same wish after a duplicate."""


class Proposer(Protocol):
    """Makes the next kernel. Stateless between calls: everything it needs is in the request."""

    name: str

    def seeds(self, context: ProposalContext) -> Sequence[Kernel]:
        """The first kernels, most promising first.

        Raises:
            ProposeError: this proposer cannot work on the task; one sentence with what it did not know.
        """
        ...

    def propose(self, context: ProposalContext, request: Request) -> Kernel | None:
        """A new kernel, or None if no move is left from these parents."""
        ...
