"""What became of one ask of the search, as plain data: the search is told it, the store keeps it."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from kernelworks.data import Frozen
from kernelworks.kernel.verdict import Verdict


class Outcome(Frozen):
    """One of: ``evaluated`` with its verdict, ``duplicate`` of a known kernel, ``nothing`` (no move was left)."""

    result: Literal["evaluated", "duplicate", "nothing"]
    verdict: Verdict | None = None
    of: str = ""
    """Duplicate: id of the kernel with the same text or the same machine code."""

    @model_validator(mode="after")
    def _ties(self) -> Outcome:
        if (self.verdict is not None) != (self.result == "evaluated"):
            raise ValueError(f"outcome: expected a verdict with result evaluated only, found result {self.result}")
        if bool(self.of) != (self.result == "duplicate"):
            raise ValueError(f"outcome: expected 'of' with result duplicate only, found result {self.result}")
        return self

    @classmethod
    def evaluated(cls, verdict: Verdict) -> Outcome:
        """The kernel was evaluated, with whatever status."""
        return cls(result="evaluated", verdict=verdict)

    @classmethod
    def duplicate(cls, of: str) -> Outcome:
        """The kernel is the kernel ``of`` again; it was not evaluated."""
        return cls(result="duplicate", of=of)

    @classmethod
    def nothing(cls) -> Outcome:
        """The proposer had no move left from these parents."""
        return cls(result="nothing")
