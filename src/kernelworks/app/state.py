"""Where a run stands, read from its store: what the result, the list and the report are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Status, Verdict
from kernelworks.search.core import Search, SearchConfig
from kernelworks.store.records import Event, StoredVerdict
from kernelworks.store.replay import Restored, restore
from kernelworks.store.run import RunStore

ENDED = ("evaluations", "minutes", "exhausted")
"""Reasons after which a search is over; any other stop can be resumed."""

RunStatus = Literal["running", "done", "interrupted", "failed"]


@dataclass(frozen=True)
class RunState:
    """A run at one moment."""

    search: Search
    restored: Restored
    verdicts: tuple[StoredVerdict, ...]
    events: tuple[Event, ...]
    status: RunStatus

    @property
    def asked(self) -> tuple[StoredVerdict, ...]:
        """Verdicts that the search asked for, in order: its evaluations."""
        return tuple(v for v in self.verdicts if v.number is not None)

    @property
    def finals(self) -> dict[str, Verdict]:
        """Final measurements by kernel, the latest each."""
        return {v.verdict.kernel: v.verdict for v in self.verdicts if v.number is None}

    @property
    def winner(self) -> Verdict | None:
        """The best final measurement; before there is one, the verdict of the best elite."""
        correct = [v for v in self.finals.values() if v.status is Status.CORRECT and v.speedup_low is not None]
        if correct:
            return max(correct, key=lambda v: v.speedup_low or 0.0)
        best = self.search.best
        if best is None:
            return None
        return {v.verdict.kernel: v.verdict for v in self.asked}[best.kernel_id]

    @property
    def failures(self) -> dict[str, int]:
        """Status: how many kernels ended so, the correct ones apart."""
        counts = Counter(v.verdict.status for v in self.asked if v.verdict.status is not Status.CORRECT)
        return {status.value: counts[status] for status in Status if counts[status]}


def read_state(store: RunStore, *, live: bool = False) -> RunState:
    """Replay the log of a run.

    Args:
        store: open, for reading is enough.
        live: another process is writing it now.
    """
    search = Search(store.meta.seed, SearchConfig.model_validate(store.meta.search))
    restored = restore(store, search)
    events = store.events()
    return RunState(search, restored, store.verdicts(), events, _status(restored, events, live))


def _status(restored: Restored, events: Sequence[Event], live: bool) -> RunStatus:
    if live:
        return "running"
    if restored.stopped not in ENDED:
        return "interrupted"
    finished = any(e.kind == "evaluated" and e.data.get("final") == "done" for e in events)
    return "done" if finished else "interrupted"


def kernels_by_id(store: RunStore) -> dict[str, Kernel]:
    """Every kernel of a run."""
    return {kernel.id: kernel for kernel in store.kernels()}
