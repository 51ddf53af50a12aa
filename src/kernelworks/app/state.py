"""Where a run stands, read from its store: what the result, the list and the report are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kernelworks.data import Frozen
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Status, Verdict
from kernelworks.search.core import Search, SearchConfig
from kernelworks.store.records import Event, StoredVerdict
from kernelworks.store.replay import Restored, restore
from kernelworks.store.run import RunStore

RunStatus = Literal["running", "done", "interrupted"]


class Figures(Frozen):
    """What the list of runs says of one; the event that ends a run carries it."""

    evaluations: int
    speedup: float | None = None
    speedup_low: float | None = None

    @classmethod
    def of(cls, evaluations: int, winner: Verdict | None) -> Figures:
        """The figures of a run with this winner."""
        if winner is None:
            return cls(evaluations=evaluations)
        return cls(evaluations=evaluations, speedup=winner.speedup, speedup_low=winner.speedup_low)


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
    def winner(self) -> Verdict | None:
        """The verdict of the newest final measurement; before there is one, that of the best elite.

        None if no kernel was correct, or none was when it was measured again.
        """
        chosen = [e.data["verdict"] for e in self.events if is_final(e, "winner")]
        if chosen:
            return next((v.verdict for v in self.verdicts if v.id == chosen[-1]), None)
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
    status: RunStatus = "running" if live else "done" if ending_of(events) is not None else "interrupted"
    return RunState(search, restored, store.verdicts(), events, status)


def is_final(event: Event, what: Literal["measured", "winner", "done"]) -> bool:
    """Whether an event belongs to the final measurements: one kernel's, the choice of the winner, or their end."""
    return event.kind == "evaluated" and event.data.get("final") == what


def ending_of(events: Sequence[Event]) -> Event | None:
    """The event that ended the run; None if it was cut off, or if the search went on since."""
    ending: Event | None = None
    for event in events:
        if event.kind in ("asked", "told", "stopped"):
            ending = None
        elif is_final(event, "done"):
            ending = event
    return ending


def kernels_by_id(store: RunStore) -> dict[str, Kernel]:
    """Every kernel of a run."""
    return {kernel.id: kernel for kernel in store.kernels()}
