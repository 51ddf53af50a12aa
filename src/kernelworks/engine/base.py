"""The contract of an engine: where builds and evaluations run. Plug-in point ``kernelworks.engines``.

Builds and evaluations are separate jobs: a build needs a compiler, an evaluation the device. What a job carries and
what comes back is plain data, so that a job can be executed anywhere and more than once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from kernelworks.data import Frozen
from kernelworks.evaluate.opponent import Opponent
from kernelworks.kernel.descriptor import Descriptor
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Verdict


class Job(Frozen):
    """One piece of work. ``number`` is the search's ask; a build and its evaluation share it.

    ``as_called`` times against every baseline where everyone allocates; it comes last.
    """

    number: int
    kind: Literal["build", "evaluate", "as_called"]
    kernel: Kernel
    opponent: Opponent | None = None
    """Evaluate: the incumbent of the kernel's cell; None means the anchor."""


class Built(Frozen):
    """A build that succeeded."""

    descriptor: Descriptor
    code_digest: str
    flags: tuple[str, ...]
    build_ms: float
    cached: bool


class JobReport(Frozen):
    """The outcome of a job: ``built`` after a good build, otherwise a verdict."""

    number: int
    kind: Literal["build", "evaluate", "as_called"]
    built: Built | None = None
    verdict: Verdict | None = None


class Engine(Protocol):
    """Runs jobs. ``submit`` and ``collect`` are called from one thread."""

    def submit(self, job: Job) -> None:
        """Queue a job; returns at once."""
        ...

    def collect(self, timeout_s: float) -> Sequence[JobReport]:
        """Reports that are ready, waiting at most so long for the first.

        Raises:
            KernelworksError: the harness failed (never the candidate).
        """
        ...

    def close(self) -> None:
        """End everything that still runs; what was in flight is lost."""
        ...
