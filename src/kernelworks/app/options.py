"""What the use cases are asked: one frozen record each. Every face (command line, tests, programs) fills the same."""

from __future__ import annotations

from pydantic import Field

from kernelworks.app.config import Config
from kernelworks.data import Frozen
from kernelworks.task.source import TaskReference


class OptimizeOptions(Frozen):
    """One run to start."""

    task: TaskReference
    config: Config = Field(default_factory=Config)
    folder: str | None = None
    """Where the run lives; None: a new folder under the user's home of Kernelworks."""
    seed_kernels: tuple[str, ...] = ()
    """Kernel files that are evaluated first, before the proposer's own seeds."""


class ResumeOptions(Frozen):
    """What may change when a run goes on. None keeps the run's own limit."""

    evaluations: int | None = Field(default=None, ge=1)
    """New total of evaluations, those already made included."""
    minutes: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """New total of minutes, those already spent included."""


class EvaluateOptions(Frozen):
    """How kernel files are evaluated."""

    config: Config = Field(default_factory=Config)


class SelftestOptions(Frozen):
    """What of the attack suite is run."""

    ids: tuple[str, ...] = ()
    """Of the catalogue; none: everything, and the honest kernels."""
    contract: str = ""
    """``function`` or ``module``; empty: both."""
    short: bool = False
    """A part that takes about a minute."""
    seed: int | None = None
    """None: a new one."""
