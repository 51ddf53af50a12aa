"""The two kinds of opponents on the clock: a candidate in its process, a baseline in the judge's."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from kernelworks.evaluate.buffers import SharedBuffer
from kernelworks.evaluate.doorbell import Sweep
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.process import Arg, BufferArg, Candidate, TimedCalls
from kernelworks.evaluate.records import BufferSlot, CaseProblem, PreparedCase, Slot
from kernelworks.evaluate.timing import Call

IDLE_SLACK = 3.0
"""Processor time that a process may use after its answers: on average so often what one that does nothing uses ..."""
THREAD_SLACK_NS = 5_000
"""... and this for each thread, on its way from the last barrier to its sleep (honest kernels of two threads use at
most 2 us in all, under a load of five too) ..."""
HIDDEN_SHARE = 0.02
"""... and this share of what it uses until then (not of the time on the clock, which grows with other work)."""

SPOT_CHECK_SHARE = 0.5
"""Share of a candidate's timed calls after which the rewritten rows are checked, drawn at random. Rows are rewritten
and outputs poisoned before every call, so that none can be told from a checked one."""
FRESH_SHARE = 0.5
"""Share of the others that get rows which stood never before, while checked ones recur: a candidate that keeps answers,
by content too, is slower on them."""
RECALLS = 16
"""Rings on inputs that are new throughout, once a candidate has won, and as many on others. Ranks of so few differ by
up to 4.8 deviations, and by 3.6 where a quarter of the recurring ones is as slow as the new ones; of eight, by 2.5."""


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
        return BufferArg(self._buffers[slot.fd], output=slot.role == "output", slot=slot)


@dataclass(frozen=True)
class Overhead:
    """What a ring of the doorbell with so many calls takes when these do nothing."""

    calls: int
    round_trip_ns: float
    """Median; it is no part of what a candidate takes."""
    step_ns: float
    """Between the quartiles: what takes no longer cannot be told from nothing."""
    idle_cpu_ns: float
    """Processor time of the called process after its answer, median."""

    @property
    def host_ms(self) -> float:
        """Per call, outside the kernel."""
        return self.round_trip_ns / self.calls / 1e6


@dataclass
class Ledger:
    """Processor time of a candidate over a series of rings, as Linux counts it."""

    rings: int = 0
    calls: int = 0
    elapsed_ns: int = 0
    cpu_ns: int = 0
    idle_cpu_ns: int = 0
    fresh_ns: list[float] = field(default_factory=list[float])
    """Of rings on inputs that stood never before ..."""
    seen_ns: list[float] = field(default_factory=list[float])
    """... and on such as recur."""

    def add(self, timed: TimedCalls, calls: int) -> None:
        """Enter one ring."""
        self.rings += 1
        self.calls += calls
        self.elapsed_ns += timed.elapsed_ns
        self.cpu_ns += timed.cpu_ns
        self.idle_cpu_ns += timed.idle_cpu_ns

    def hidden_ms(self, overhead: Overhead, threads: int) -> float:
        """Processor time beyond what calls of these lengths on so many threads can use, with honest slack."""
        slack_ns = self.rings * (IDLE_SLACK * overhead.idle_cpu_ns + threads * THREAD_SLACK_NS)
        inside_ns = max(0.0, self.cpu_ns - threads * self.elapsed_ns)
        hidden_ns = inside_ns + self.idle_cpu_ns - slack_ns
        return hidden_ns / 1e6 if hidden_ns > HIDDEN_SHARE * self.cpu_ns else 0.0


@dataclass
class Recall:
    """Times of rings on inputs that are new throughout, and of such on inputs that recur, in turn with them."""

    new_ns: list[float] = field(default_factory=list[float])
    seen_ns: list[float] = field(default_factory=list[float])


@dataclass
class CandidateSide:
    """A candidate on the clock. With ``spot_checks`` rows are rewritten and checked around a share of its calls."""

    candidate: Candidate
    cases: tuple[BoundCase, ...]
    """Called one after the other behind one ring: the case, or it and its twins."""
    judge: Judge
    rng: random.Random
    sweep: Sweep | None
    """Run before each ring."""
    overhead: Overhead
    allocate: bool
    timeout_s: float
    spot_checks: bool
    ledger: Ledger = field(default_factory=Ledger)

    def time(self, lane: int) -> Call:
        """One ring; time and faults per call.

        Raises:
            StaleAnswerError: the rewritten rows were not computed, or an input was changed.
            FailedCallError: non-zero return.
            CandidateEndedError: the candidate ended.
        """
        # Under as_called the outputs are the candidate's own and gone after the call: nothing to look at.
        is_watched = self.spot_checks and not self.allocate
        checked: BoundCase | None = None
        if is_watched and self.rng.random() < SPOT_CHECK_SHARE:
            checked = self.rng.choice(self.cases)
        fresh = checked is None and self.rng.random() < FRESH_SHARE
        keys = [case.key for case in self.cases]
        lane_keys = [case.lane_key(lane) for case in self.cases]
        self.candidate.prepare(lane_keys, self.timeout_s)
        if is_watched:  # no call can be told from a checked one: rewritten rows and poison stand before each
            self.judge.ready(keys, lane, [None if fresh else self.rng.randrange(1 << 16) for _ in keys])
        elif self.judge.task.mutates:
            self.judge.restore(keys, lane)
        timed = self._ring(lane_keys)
        if checked is not None:
            # Whoever computes only now computes from inputs that have been put back.
            self.judge.withdraw(checked.key)
            self.candidate.settle(checked.lane_key(lane))
            problem = self.judge.spot_check(checked.key, lane)
            if problem is not None:
                raise StaleAnswerError(problem)
        calls = len(self.cases)
        self.ledger.add(timed, calls)
        taken_ns = self._taken_ns(timed)
        if is_watched:
            (self.ledger.fresh_ns if fresh else self.ledger.seen_ns).append(taken_ns)
        return Call(taken_ns / calls / 1e6, timed.page_faults / calls)

    def recall(self) -> Recall:
        """``RECALLS`` rings on inputs that are new throughout, in turn with as many on recurring ones.

        Between the two comes one that does not count, so that who keeps his last inputs alone has recurring ones again.
        Before each ring that counts, of either kind, the judge has drawn new inputs and written them: caches, clock
        rates and sleeping threads are the same for both.

        Raises:
            FailedCallError: non-zero return.
            CandidateEndedError: the candidate ended.
        """
        keys = [case.key for case in self.cases]
        found = Recall()
        for number in range(RECALLS):
            lane = number % 2
            found.new_ns.append(self._recalled_ns(lane, lambda lane=lane: self.judge.redraw(keys, lane)))
            self._recalled_ns(lane, lambda lane=lane: self._recur(keys, lane))
            found.seen_ns.append(self._recalled_ns(lane, lambda lane=lane: self._recur_after_new(keys, lane)))
        for key in keys:
            self.judge.apply(key, None)
        return found

    def _recalled_ns(self, lane: int, set_up: Callable[[], None]) -> float:
        lane_keys = [case.lane_key(lane) for case in self.cases]
        self.candidate.prepare(lane_keys, self.timeout_s)
        set_up()
        return self._taken_ns(self._ring(lane_keys))

    def _recur_after_new(self, keys: list[str], lane: int) -> None:
        self.judge.redraw(keys, lane)
        self._recur(keys, lane)

    def _recur(self, keys: list[str], lane: int) -> None:
        """Inputs as they stand before timed calls: variants, or under ``as_called`` what was drawn."""
        if not self.allocate:
            self.judge.ready(keys, lane, [self.rng.randrange(1 << 16) for _ in keys])
            return
        for key in keys:
            self.judge.apply(key, None)
        self.judge.restore(keys, lane)

    def _ring(self, lane_keys: list[str]) -> TimedCalls:
        if self.sweep is not None:
            self.sweep()
        timed = self.candidate.time(lane_keys, self.allocate, self.timeout_s)
        if timed.returned != 0:
            raise FailedCallError(timed.returned)
        return timed

    def _taken_ns(self, timed: TimedCalls) -> float:
        """Never below the step of the clock: a time of nothing would make every ratio infinite."""
        return max(timed.elapsed_ns - self.overhead.round_trip_ns, self.overhead.step_ns, 1.0)


@dataclass
class BaselineSide:
    """A trusted baseline on the clock, in the judge's process; its heap is the policy."""

    judge: Judge
    name: str
    cases: tuple[BoundCase, ...]
    flush_bytes: int

    def time(self, lane: int) -> Call:
        """One call of each case; its outputs are its own, so the lane does not matter."""
        del lane
        timed = self.judge.time_baseline(self.name, [case.key for case in self.cases], self.flush_bytes)
        calls = len(self.cases)
        return Call(sum(timed.elapsed_ns) / calls / 1e6, sum(timed.page_faults) / calls)


LARGEST_FLUSH_BYTES = 256 << 20
"""A sweep of more costs more than it shows; where the last-level cache is larger, timings are labelled warm."""

CacheState = Literal["cold", "warm"]


def flush_bytes_for(last_level_bytes: int, wanted: CacheState = "cold") -> int:
    """How much memory to read before a call so that it starts as wanted; 0 for warm.

    Also where the working set is larger than the cache: its tail would be found there by a kernel that walks backwards
    in every other call.
    """
    return min(2 * last_level_bytes, LARGEST_FLUSH_BYTES) if wanted == "cold" else 0


def cache_state(working_set_bytes: int, last_level_bytes: int, wanted: CacheState = "cold") -> CacheState:
    """What a call finds in the caches after the flush for its working set."""
    swept_bytes = max(flush_bytes_for(last_level_bytes, wanted), working_set_bytes)
    return "cold" if wanted == "cold" and swept_bytes >= last_level_bytes else "warm"
