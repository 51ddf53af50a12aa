"""What the faces know of a run while it goes, gathered from its events. No output here."""

from __future__ import annotations

from collections import Counter

from kernelworks.app.events import (
    BaselineTimed,
    BuildDone,
    Evaluated,
    Finished,
    Phase,
    RunEvent,
    Started,
    Told,
    Trying,
)
from kernelworks.kernel.verdict import Status


class RunState:
    """The sum of all events so far."""

    def __init__(self) -> None:
        self.started: Started | None = None
        self.phase = "load"
        self.detail = ""
        self.baselines: list[BaselineTimed] = []
        self.in_flight: dict[int, Trying] = {}
        """By the number of the ask, oldest first."""
        self.built: list[int] = []
        """Asks that have been built, in this order: the first is on the device, the others wait for it."""
        self.evaluations = 0
        self.best: Evaluated | None = None
        self.failures: Counter[Status] = Counter()
        self.filled = 0
        self.reachable = 0
        self.elapsed_s = 0.0
        self.finished: Finished | None = None
        self._moves: dict[int, Trying] = {}

    def take(self, event: RunEvent) -> None:
        """Add one event."""
        self.elapsed_s = max(self.elapsed_s, event.elapsed_s)
        match event:
            case Started():
                self.started = event
                self.evaluations = event.done
            case Phase():
                self.phase, self.detail = event.name, event.detail
            case BaselineTimed():
                self.baselines.append(event)
            case Trying():
                self.in_flight[event.number] = self._moves[event.number] = event
            case BuildDone():
                self.built.append(event.number)
            case Evaluated():
                self._evaluated(event)
            case Told():
                self._leave(event.number)
                self.filled, self.reachable = event.filled, event.reachable
            case Finished():
                self.finished = event

    def _evaluated(self, event: Evaluated) -> None:
        self._leave(event.number)
        self.evaluations = event.evaluations
        if event.verdict.status is not Status.CORRECT:
            self.failures[event.verdict.status] += 1
        if event.best:
            self.best = event

    def _leave(self, number: int) -> None:
        self.in_flight.pop(number, None)
        if number in self.built:
            self.built.remove(number)

    def move_of(self, number: int) -> str:
        """What the kernel of this ask changes, in words."""
        trying = self._moves.get(number)
        return "" if trying is None else trying.move or trying.operator

    @property
    def share_done(self) -> float:
        """Between 0 and 1: of the limit that is nearest."""
        shares = [0.0]
        if self.started is not None and self.started.evaluations:
            shares.append(self.evaluations / self.started.evaluations)
        if self.started is not None and self.started.minutes:
            shares.append(self.elapsed_s / (60 * self.started.minutes))
        return min(1.0, max(shares))

    @property
    def left_s(self) -> float | None:
        """Estimate of the seconds of search that are left; None before it can be told."""
        if self.started is None or self.phase != "search":
            return None
        estimates: list[float] = []
        if self.started.minutes is not None:
            estimates.append(60 * self.started.minutes - self.elapsed_s)
        made = self.evaluations - self.started.done
        if self.started.evaluations is not None and made:
            seconds_each = (self.elapsed_s - self.started.elapsed_s) / made
            estimates.append((self.started.evaluations - self.evaluations) * seconds_each)
        return max(0.0, min(estimates)) if estimates else None
