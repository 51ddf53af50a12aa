"""When a search stops, and how many evaluations may still begin. The clock's value is passed in."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernelworks.data import Frozen

StopReason = Literal["evaluations", "minutes", "exhausted"]


class StopRules(Frozen):
    """The limits of a search; a limit that is None does not bind."""

    evaluations: int | None = Field(default=None, ge=1)
    minutes: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    patience: int = Field(default=100, ge=1)
    """Asks in a row that led to no evaluation (duplicates, no move) after which nothing new is expected."""

    def reason(self, *, evaluations: int, elapsed_s: float, barren: int, none_left: bool) -> StopReason | None:
        """Why the search stops now, or None. The first of the three that holds, in the order of ``StopReason``.

        Args:
            evaluations: evaluations told so far, of all sessions of the run.
            elapsed_s: seconds of search so far, of all sessions of the run.
            barren: ``Search.barren``.
            none_left: whether ``Search.ask`` gave None with nothing in flight.
        """
        if self.evaluations is not None and evaluations >= self.evaluations:
            return "evaluations"
        if self.minutes is not None and elapsed_s >= 60 * self.minutes:
            return "minutes"
        if none_left or barren >= self.patience:
            return "exhausted"
        return None

    def may_begin(self, *, evaluations: int, in_flight: int) -> bool:
        """Whether one more evaluation may begin so that their total never passes the limit."""
        return self.evaluations is None or evaluations + in_flight < self.evaluations
