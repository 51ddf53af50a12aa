"""What a run tells while it goes: one record a step, for the live view, for plain lines and for ``--events``."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

from pydantic import Field, TypeAdapter

from kernelworks.data import Frozen
from kernelworks.kernel.descriptor import Cell
from kernelworks.kernel.verdict import Verdict


class _Event(Frozen):
    """Common to all events."""

    elapsed_s: float
    """Seconds of search so far, those before a resume included; setting up takes no search time."""


class Started(_Event):
    """The task is loaded and the run has its folder."""

    kind: Literal["started"] = "started"
    run: str
    folder: str
    task: str
    prototype: str
    target: str
    device: str
    evaluations: int | None
    """Budget of evaluations, if there is one."""
    minutes: float | None
    """Budget of minutes, if there is one."""
    done: int = 0
    """Evaluations that an earlier part of the run made."""
    anchor: str = "eager"
    """Name of the baseline over which speed-ups are stated: ``eager`` or ``reference``."""


class Phase(_Event):
    """A new phase begins: ``load``, ``check``, ``hardware``, ``baselines``, ``search``, ``final``, ``report``."""

    kind: Literal["phase"] = "phase"
    name: str
    detail: str = ""


class BaselineTimed(_Event):
    """A baseline has its time, or the reason why it has none."""

    kind: Literal["baseline"] = "baseline"
    name: str
    policy: Literal["kernel", "as_called"] = "kernel"
    time_ms: float | None
    problem: str = ""


class Trying(_Event):
    """A kernel has been proposed and goes to be built."""

    kind: Literal["trying"] = "trying"
    number: int
    """Number of the search's ask, from 1."""
    kernel: str
    operator: str
    """``seed``, ``mutate``, ``crossover`` or ``file``."""
    move: str = ""
    idea: str = ""


class BuildDone(_Event):
    """A build succeeded."""

    kind: Literal["built"] = "built"
    number: int
    kernel: str
    build_ms: float
    cached: bool = False


class Evaluated(_Event):
    """A verdict is there and counts as one evaluation."""

    kind: Literal["evaluated"] = "evaluated"
    number: int
    evaluations: int
    """Evaluations made so far, this one included."""
    kernel: str
    verdict: Verdict
    best: bool = False
    """Whether this is the best kernel so far."""


class Told(_Event):
    """The archive has taken or left a kernel."""

    kind: Literal["told"] = "told"
    number: int
    kernel: str
    outcome: str
    """``new`` (first in its cell), ``improved``, ``rejected`` or ``duplicate``."""
    cell: Cell | None = None
    filled: int = 0
    """Cells of the archive that hold an elite."""
    reachable: int = 64
    """Cells that the target can reach."""


class Finished(_Event):
    """The run ended."""

    kind: Literal["finished"] = "finished"
    stopped_by: str
    evaluations: int


RunEvent = Annotated[
    Started | Phase | BaselineTimed | Trying | BuildDone | Evaluated | Told | Finished, Field(discriminator="kind")
]
"""Any event of a run."""

EVENT_ADAPTER: TypeAdapter[RunEvent] = TypeAdapter(RunEvent)
"""Reads an event from JSON."""


class Listener(Protocol):
    """Whoever follows a run. Called from the thread that runs the search; must return quickly."""

    def on_event(self, event: RunEvent) -> None:
        """Take one event."""
        ...


class SilentListener:
    """Follows nothing."""

    def on_event(self, event: RunEvent) -> None:
        """Ignore the event."""


def event_json(event: RunEvent) -> str:
    """One line of JSON. Timing samples stay in the run's store; an event carries the verdict without them."""
    exclude = {"verdict": {"comparisons": {"__all__": {"samples_ms", "orders"}}}} if event.kind == "evaluated" else None
    return event.model_dump_json(exclude=exclude)
