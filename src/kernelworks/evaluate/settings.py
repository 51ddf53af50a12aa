"""How candidates are run."""

from __future__ import annotations

from kernelworks.data import Frozen


class Settings(Frozen):
    """Limits and threads of every evaluation of a session."""

    threads: int
    """OpenMP threads of a candidate and of its baselines."""
    call_timeout_s: float = 20.0
    """Limit of one call of a candidate."""
    build_timeout_s: float = 60.0
    """Limit of one build."""
