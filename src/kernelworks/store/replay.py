"""Resuming a run: its log is replayed into a fresh search, which must decide again what it decided then.

What was in flight when the process died (asked but not told) is handed back to be done first. An ask or an outcome
is logged after the search has taken it, and nothing is done in the world before an ask is logged; so a death between
the two costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from kernelworks.data import Frozen
from kernelworks.errors import StoreError
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.outcome import Outcome
from kernelworks.kernel.verdict import Verdict
from kernelworks.store.records import Event
from kernelworks.store.run import RunStore


class Replayable(Protocol):
    """What a replay needs of a search."""

    def ask(self) -> Frozen | None:
        """The next ask."""
        ...

    def tell(self, number: int, kernel_id: str, outcome: Outcome) -> Frozen:
        """Take an outcome."""
        ...


@dataclass(frozen=True)
class Pending:
    """An ask that was in flight."""

    number: int
    kernel: Kernel | None = None
    """What was proposed for it; None: to be proposed again from the same ask."""
    verdict: Verdict | None = None
    """Recorded but not told yet: tell it, nothing is to be evaluated again."""


@dataclass(frozen=True)
class Restored:
    """Where a run stands. The search itself knows its best, its elites and its asks in flight."""

    evaluations: int
    """Evaluations told so far."""
    elapsed_s: float
    """Seconds of search so far, over all sessions (``search_time_s``)."""
    requeue: tuple[Pending, ...]
    """In flight: first those with a kernel, which are to be claimed before anything new is proposed, then the others;
    both in the order in which they were asked."""
    stopped: str
    """``reason`` of the last ``stopped`` event with nothing asked or told after it; empty if the run was cut off."""


def restore(store: RunStore, search: Replayable) -> Restored:
    """Replay the log of ``store`` into a fresh ``search`` that was made with the run's seed and numbers.

    Raises:
        StoreError: the search asks or answers otherwise than recorded: the log belongs to another version of
            Kernelworks, or the search was not made with the run's seed and numbers.
    """
    events = store.events()
    kernels = {kernel.id: kernel for kernel in store.kernels()}
    verdicts = {stored.id: stored for stored in store.verdicts()}
    pending: dict[int, Pending] = {}
    evaluations = 0
    stopped = ""
    for event in events:
        data = event.data
        if event.kind == "asked":
            ask = search.ask()
            _expect(store, event, data, None if ask is None else ask.model_dump(mode="json"))
            pending[data["number"]] = Pending(data["number"])
        elif event.kind == "proposed":
            pending[data["number"]] = Pending(data["number"], kernels[data["kernel"]])
        elif event.kind == "told":
            verdict = None if data["verdict"] is None else verdicts[data["verdict"]].verdict
            outcome = Outcome(result=data["result"], verdict=verdict, of=data["of"])
            _expect(store, event, data["told"], _tell(search, data["number"], data["kernel"], outcome))
            del pending[data["number"]]
            evaluations += outcome.result == "evaluated"
        if event.kind in ("asked", "told", "stopped"):
            stopped = str(data.get("reason", "")) if event.kind == "stopped" else ""
    recorded = {v.number: v.verdict for v in verdicts.values() if v.number in pending}
    in_order = sorted(pending.values(), key=lambda p: (p.kernel is None, p.number))
    requeue = tuple(Pending(p.number, p.kernel, recorded.get(p.number)) for p in in_order)
    return Restored(evaluations, search_time_s(events), requeue, stopped)


def search_time_s(events: Iterable[Event]) -> float:
    """Seconds of search over all sessions; set-up and final measurements do not count.

    In each session from its ``started`` or ``resumed`` event, to ``stopped`` or, where the session was cut off, to
    the last event that it logged.
    """
    begun: dict[int, float] = {}
    ended: dict[int, float] = {}
    closed: set[int] = set()
    for event in events:
        session = event.session
        if event.kind in ("started", "resumed"):
            begun.setdefault(session, event.elapsed_s)
        if session in begun and session not in closed:
            ended[session] = event.elapsed_s
        if event.kind == "stopped":
            closed.add(session)
    return sum(ended[session] - begun[session] for session in begun)


def _tell(search: Replayable, number: int, kernel_id: str, outcome: Outcome) -> Any:
    try:
        return search.tell(number, kernel_id, outcome).model_dump(mode="json")
    except ValueError as error:
        return f"a refusal ({error})"


def _expect(store: RunStore, event: Event, recorded: Any, found: Any) -> None:
    if recorded != found:
        raise StoreError(
            f"{store.folder}: event {event.id} ({event.kind}): expected {recorded} as recorded, found {found}: the log "
            "belongs to another version of Kernelworks or another seed",
            mend=f"resume with Kernelworks {store.meta.kernelworks}",
        )
