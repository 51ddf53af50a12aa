"""The two kinds of opponents on the clock: a candidate in its process, a baseline in the judge's."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Literal

from kernelworks.evaluate.buffers import SharedBuffer
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.process import Arg, BufferArg, Candidate
from kernelworks.evaluate.records import BufferSlot, CaseProblem, PreparedCase, Slot
from kernelworks.evaluate.timing import Call

SPOT_CHECK_SHARE = 0.5
"""Share of a candidate's timed calls before which rows are rewritten and after which they are checked. At random, so
that no call can be told from an unchecked one."""


class CallError(Exception):
    """A call that went wrong although the candidate's process answered."""


class StaleAnswerError(CallError):
    """A timed call did not compute the rewritten rows; carries what was found."""

    def __init__(self, problem: CaseProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class FailedCallError(CallError):
    """``launch`` returned something other than 0."""

    def __init__(self, returned: int) -> None:
        super().__init__(f"launch returned {returned}, expected 0")
        self.returned = returned


class ClockError(CallError):
    """The candidate's process reports times that its calls cannot have taken."""

    def __init__(self, calls: int, said_ms: float, measured_ms: float) -> None:
        super().__init__(f"calls: {calls}, which took {measured_ms:.4g} ms; its process says {said_ms:.4g} ms")
        self.calls = calls
        self.said_ms = said_ms
        self.measured_ms = measured_ms


class BoundCase:
    """A prepared case as arguments of a candidate: one list per lane. Close it after use."""

    def __init__(self, prepared: PreparedCase) -> None:
        self.prepared = prepared
        self._buffers: dict[int, SharedBuffer] = {}
        self.lanes: tuple[tuple[Arg, ...], ...] = tuple(tuple(map(self._argument, lane)) for lane in prepared.lanes)

    @property
    def key(self) -> str:
        """Key of the prepared case."""
        return self.prepared.key

    @property
    def label(self) -> str:
        """Case and family of inputs, in words."""
        return f"{self.prepared.case}, {self.prepared.family} inputs"

    @property
    def working_set_bytes(self) -> int:
        """Inputs, weights and outputs of one lane."""
        return sum(s.layout.size_bytes for s in self.prepared.lanes[0] if isinstance(s, BufferSlot))

    def lane_key(self, lane: int) -> str:
        """Under which a candidate binds a lane."""
        return f"{self.key}/{lane}"

    def bind(self, candidate: Candidate) -> None:
        """Bind all lanes in a candidate."""
        for lane, arguments in enumerate(self.lanes):
            candidate.bind(self.lane_key(lane), arguments)

    def close(self) -> None:
        """Unmap the buffers; the judge keeps its own."""
        for buffer in self._buffers.values():
            buffer.close()

    def _argument(self, slot: Slot) -> Arg:
        if not isinstance(slot, BufferSlot):
            return slot.value
        if slot.fd not in self._buffers:
            self._buffers[slot.fd] = SharedBuffer.attach(slot.layout, os.dup(slot.fd))
        return BufferArg(self._buffers[slot.fd], output=slot.role == "output")


@dataclass
class CandidateSide:
    """A candidate on the clock. With ``spot_checks`` rows are rewritten and checked around a share of its calls."""

    candidate: Candidate
    case: BoundCase
    judge: Judge
    rng: random.Random
    flush_bytes: int
    allocate: bool
    timeout_s: float
    spot_checks: bool

    def time(self, lane: int) -> Call:
        """One call.

        Raises:
            StaleAnswerError: the rewritten rows were not computed.
            FailedCallError: non-zero return.
            ClockError: its process says that the call took no time.
            CandidateEndedError: the candidate ended.
        """
        # Under as_called the outputs are the candidate's own and gone after the call: nothing to look at.
        checked = self.spot_checks and not self.allocate and self.rng.random() < SPOT_CHECK_SHARE
        if checked:
            self.judge.apply(self.case.key, self.rng.randrange(1 << 16))
            self.judge.spot_poison(self.case.key, lane)
        timed = self.candidate.time([self.case.lane_key(lane)], 1, self.flush_bytes, self.allocate, self.timeout_s)
        if timed.returned != 0:
            raise FailedCallError(timed.returned)
        if timed.inner_ns[0] == 0:
            raise ClockError(1, 0.0, timed.outer_ns / 1e6)
        if checked:
            problem = self.judge.spot_check(self.case.key, lane)
            if problem is not None:
                raise StaleAnswerError(problem)
        return Call(timed.inner_ns[0] / 1e6, timed.page_faults[0])


@dataclass
class BaselineSide:
    """A trusted baseline on the clock, in the judge's process; its heap is the policy."""

    judge: Judge
    name: str
    case: BoundCase
    flush_bytes: int

    def time(self, lane: int) -> Call:
        """One call; its outputs are its own, so the lane does not matter."""
        del lane
        timed = self.judge.time_baseline(self.name, self.case.key, 1, self.flush_bytes)
        return Call(timed.elapsed_ns[0] / 1e6, timed.page_faults[0])


LARGEST_FLUSH_BYTES = 256 << 20
"""A sweep of more costs more than it shows; where the last-level cache is larger, timings are labelled warm."""


def flush_bytes_for(working_set_bytes: int, last_level_bytes: int) -> int:
    """How much memory to read before a call so that it starts cold; 0 where the working set evicts itself."""
    return 0 if working_set_bytes >= 2 * last_level_bytes else min(2 * last_level_bytes, LARGEST_FLUSH_BYTES)


def cache_state(working_set_bytes: int, last_level_bytes: int) -> Literal["cold", "warm"]:
    """What a call finds in the caches after the flush for its working set."""
    swept_bytes = flush_bytes_for(working_set_bytes, last_level_bytes) or working_set_bytes
    return "cold" if swept_bytes >= last_level_bytes else "warm"
