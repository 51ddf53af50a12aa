"""What a run's store holds, as plain data."""

from __future__ import annotations

from typing import Any, Literal

from kernelworks import __version__
from kernelworks.data import Frozen
from kernelworks.kernel.hardware import Hardware
from kernelworks.kernel.verdict import Verdict

EventKind = Literal[
    "started", "asked", "proposed", "duplicate", "built", "evaluated", "told", "baseline", "resumed", "stopped"
]
"""Kinds of events. The data of ``asked``, ``proposed`` and ``told`` is fixed, since a run is resumed from it:

===========  ====================================================================================================
kind         data
===========  ====================================================================================================
started      of the caller; the search begins
asked        the ask as the search gave it (``number``, ``operator``, ``parents``, ``seed``, ...)
proposed     ``number``, ``kernel``: the kernel that goes to be built
duplicate    of the caller; a proposal that was dropped and asked for again
built        of the caller
evaluated    of the caller
told         ``number``, ``kernel``, ``result``, ``of``, ``verdict`` (id of its row or null), ``told`` (the answer)
baseline     of the caller
resumed      of the caller; the search goes on in a new session
stopped      of the caller, with ``reason``; the session's search has ended
===========  ====================================================================================================
"""


class RunMeta(Frozen):
    """What a run was started with. Never changes."""

    run: str
    """Its id (``registry.new_run_id``)."""
    created_at: str
    """ISO 8601, UTC."""
    task: str
    """As the user gave it."""
    task_data: dict[str, Any] = {}
    """The loaded task, and what is needed to load it again."""
    target: str
    device: str = ""
    proposer: str
    seed: int
    search: dict[str, Any] = {}
    """Numbers of the search, from which a replay builds it again."""
    config: dict[str, Any] = {}
    """Effective configuration."""
    hardware: Hardware | None = None
    versions: dict[str, str] = {}
    """Compiler, torch, Python, ..."""
    command: tuple[str, ...] = ()
    kernelworks: str = __version__


class Event(Frozen):
    """One line of the log."""

    id: int
    """Rising, from 1."""
    session: int
    """Which opening for writing it belongs to, from 1."""
    at_s: float
    """Seconds since the epoch by the wall clock."""
    elapsed_s: float
    """Seconds since the session began, by a clock that never jumps."""
    kind: str
    data: dict[str, Any]


class StoredVerdict(Frozen):
    """A verdict and the ask it answers."""

    id: int
    number: int | None
    """None: not asked for by the search (a baseline, a final measurement)."""
    verdict: Verdict
