"""How candidates are run."""

from __future__ import annotations

from typing import Literal

from kernelworks.data import Frozen
from kernelworks.evaluate.patience import REFERENCE_TIMEOUT_S

OnLoad = Literal["wait", "mark", "refuse"]
"""``wait`` for quiet, then time and mark what was disturbed; ``mark`` at once; ``refuse`` to time (``setup_error``)."""


class Settings(Frozen):
    """Limits and threads of every evaluation of a session."""

    threads: int
    """OpenMP threads of a candidate and of its baselines."""
    call_timeout_s: float = 20.0
    """Limit of one call of a candidate."""
    build_timeout_s: float = 60.0
    """Limit of one build."""
    sanitize: bool = False
    """Run kernels whose verdict goes on record in a build with sanitizers, too."""
    cache: Literal["cold", "warm"] = "cold"
    """What timed calls find in the caches: the harness evicts these before each, or leaves them as they are."""
    on_load: OnLoad = "wait"
    """Before and during a timing, where other work uses more than ``load_limit_cores``."""
    load_limit_cores: float = 0.2
    """One busy core cuts the power to see 3% from 89% to 10%."""
    load_wait_s: float = 10.0
    """Time that one evaluation waits at most for other work to end."""
    reference_timeout_s: float = REFERENCE_TIMEOUT_S
    """Limit of one run of the task's reference."""
    allow_unsandboxed: bool = False
    """Run kernels of foreign origin where there is no sandbox."""
    large: bool = False
    """Also run kernels on a case with more than 2^31 elements, where one is known and the memory is there."""
