from __future__ import annotations

import math
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pydantic import ValidationError

from kernelworks.kernel.descriptor import Cell, Descriptor
from kernelworks.kernel.outcome import Outcome
from kernelworks.kernel.verdict import Comparison, Decision, Finding, Status, Verdict
from kernelworks.search.archive import AddStatus
from kernelworks.search.core import FAILED_PARENTS, NO_EVIDENCE, Ask, Search, SearchConfig


def correct(
    kernel: str,
    speedup: float = 1.0,
    cell: Cell | None = (0, 0, 0),
    *,
    digest: str = "",
    against: str = "",
    decision: Decision = Decision.UNDECIDED,
) -> Verdict:
    duel = Comparison(
        opponent=against,
        policy="kernel",
        case="c",
        time_ms=1.0,
        opponent_time_ms=1.0,
        ratio=1.0,
        ratio_low=0.9,
        ratio_high=1.1,
        decision=decision,
        blocks=12,
        cache="cold",
    )
    return Verdict(
        kernel=kernel,
        status=Status.CORRECT,
        decision=Decision.UNDECIDED,
        speedup=speedup,
        speedup_low=speedup,
        speedup_high=speedup,
        time_ms=1.0,
        descriptor=None if cell is None else Descriptor(memory=cell[0], compute=cell[1], parallelism=cell[2]),
        code_digest=digest,
        comparisons=(duel,) if against else (),
    )


def failed(kernel: str, status: Status = Status.WRONG) -> Verdict:
    return Verdict(kernel=kernel, status=status, findings=(Finding(kind="x", message="x"),))


def must_ask(search: Search) -> Ask:
    ask = search.ask()
    assert ask is not None
    return ask


def give(search: Search, verdict: Verdict) -> None:
    search.tell(must_ask(search).number, verdict.kernel, Outcome.evaluated(verdict))


def seeded(*verdicts: Verdict, seed: int = 0, **config: Any) -> Search:
    search = Search(seed, SearchConfig(seeds=len(verdicts), **config))
    for verdict in verdicts:
        give(search, verdict)
    return search


def parents_of(search: Search, count: int) -> Counter[tuple[str, ...]]:
    return Counter(must_ask(search).parents for _ in range(count))


def test_the_first_asks_are_the_seeds_in_order() -> None:
    search = Search(0, SearchConfig(seeds=3))
    asks = [must_ask(search) for _ in range(3)]
    assert [(a.number, a.operator, a.parents, a.seed_index) for a in asks] == [
        (1, "seed", (), 0),
        (2, "seed", (), 1),
        (3, "seed", (), 2),
    ]
    assert list(search.in_flight) == [1, 2, 3]


def test_nothing_to_start_from_gives_none_and_changes_nothing() -> None:
    search = Search(0)
    before = search.state_digest()
    assert search.ask() is None
    assert search.state_digest() == before


def test_while_seeds_are_in_flight_there_is_no_parent_yet() -> None:
    search = Search(0, SearchConfig(seeds=1))
    seed = must_ask(search)
    assert search.ask() is None
    search.tell(seed.number, "a", Outcome.evaluated(correct("a")))
    assert must_ask(search).parents == ("a",)


def test_after_failures_only_the_best_failed_kernels_are_mutated() -> None:
    bad = [failed(f"invalid{i}", Status.INVALID) for i in range(5)]
    near = [failed(f"wrong{i}", Status.WRONG) for i in range(FAILED_PARENTS)]
    search = seeded(*bad, *near)
    assert set(parents_of(search, 300)) == {(v.kernel,) for v in near}
    assert search.best is None
    assert search.evaluations == len(bad) + len(near)


def test_one_correct_kernel_ends_the_mutation_of_failures() -> None:
    search = seeded(failed("bad"), correct("good", 0.01))
    assert set(parents_of(search, 50)) == {("good",)}


def test_a_correct_kernel_without_a_timing_is_no_elite() -> None:
    search = seeded(Verdict(kernel="a", status=Status.CORRECT), failed("b"))
    assert len(search.archive) == 0
    assert search.best is None


def test_a_correct_kernel_without_a_descriptor_goes_to_the_lowest_cell() -> None:
    search = seeded(correct("a", 2.0, None))
    assert search.incumbent(NO_EVIDENCE) == "a"


@pytest.mark.parametrize(
    ("decision", "status", "incumbent"),
    [
        (Decision.FASTER, AddStatus.IMPROVED, "new"),
        (Decision.UNDECIDED, AddStatus.NOT_ADDED, "old"),
        (Decision.SLOWER, AddStatus.NOT_ADDED, "old"),
    ],
)
def test_the_timing_against_the_incumbent_decides(decision: Decision, status: AddStatus, incumbent: str) -> None:
    search = seeded(correct("old", 2.0, (1, 1, 1)))
    verdict = correct("new", 2.5, (1, 1, 1), against="old", decision=decision)
    told = search.tell(must_ask(search).number, "new", Outcome.evaluated(verdict))
    assert told.status is status
    assert told.cell == (1, 1, 1)
    assert told.replaced == ("old" if status else None)
    assert told.best_changed == bool(status)
    assert search.incumbent((1, 1, 1)) == incumbent
    assert search.incumbent((0, 0, 0)) is None


def test_fitness_decides_where_the_elite_changed_meanwhile() -> None:
    search = seeded(correct("old", 2.0))
    first, second, third = (must_ask(search).number for _ in range(3))

    def winner(kernel: str, speedup: float) -> Outcome:
        return Outcome.evaluated(correct(kernel, speedup, against="old", decision=Decision.FASTER))

    search.tell(second, "b", winner("b", 3.0))
    slower = search.tell(first, "a", winner("a", 2.5))
    faster = search.tell(third, "c", winner("c", 3.5))
    assert (slower.status, faster.status, faster.replaced) == (AddStatus.NOT_ADDED, AddStatus.IMPROVED, "b")


def test_exploitation_prefers_speed_and_exploration_does_not() -> None:
    kernels = [correct("slow", 1.0, (0, 0, 0)), correct("near", 1.8, (1, 0, 0)), correct("best", 2.0, (2, 0, 0))]
    greedy = parents_of(seeded(*kernels, exploit=1.0, explore=0.0, crossover=0.0), 600)
    assert greedy[("best",)] > greedy[("near",)] > greedy[("slow",)]
    assert greedy[("near",)] / greedy[("best",)] == pytest.approx((1.8 / 2.0) ** 6, abs=0.15)
    even = parents_of(seeded(*kernels, exploit=0.0, explore=1.0, crossover=0.0), 600)
    assert all(count == pytest.approx(200, abs=60) for count in even.values())


def test_kernels_that_are_no_elites_are_parents_at_times() -> None:
    search = seeded(correct("elite", 2.0), correct("loser", 1.0), exploit=0.5, explore=0.2)
    assert set(parents_of(search, 200)) == {("elite",), ("loser",)}
    only_elites = seeded(correct("elite", 2.0), correct("loser", 1.0), exploit=0.5, explore=0.5)
    assert set(parents_of(only_elites, 200)) == {("elite",)}


def test_crossover_mixes_two_elites_of_different_cells() -> None:
    search = seeded(correct("a", 1.0, (0, 0, 0)), correct("b", 2.0, (1, 0, 0)), correct("c", 0.5), crossover=1.0)
    asks = [must_ask(search) for _ in range(50)]
    assert {a.operator for a in asks} == {"crossover"}
    assert {a.parents for a in asks} == {("a", "b"), ("b", "a")}


def test_a_parent_without_a_move_left_is_not_asked_again() -> None:
    search = seeded(correct("a", 1.0, (0, 0, 0)), correct("b", 2.0, (1, 0, 0)), crossover=0.5)
    asked: list[tuple[str, ...]] = []
    while (ask := search.ask()) is not None:
        asked.append(ask.parents)
        search.tell(ask.number, "", Outcome.nothing())
    assert sorted(asked) == [("a",), ("a", "b"), ("b",), ("b", "a")]
    assert search.barren == 4


def test_a_parent_that_gives_duplicates_is_asked_less_until_it_gives_something_new() -> None:
    kernels = [correct("a", 1.0, (0, 0, 0)), correct("b", 1.0, (1, 0, 0))]
    search = seeded(*kernels, crossover=0.0)
    misses = 0
    while misses < 6:
        ask = must_ask(search)
        misses += ask.parents == ("a",)
        outcome = Outcome.duplicate("b") if ask.parents == ("a",) else Outcome.evaluated(failed("x"))
        search.tell(ask.number, "x", outcome)
    assert parents_of(search, 200)[("a",)] < 20
    while (ask := must_ask(search)).parents != ("a",):
        pass
    search.tell(ask.number, "y", Outcome.evaluated(failed("y")))
    assert parents_of(search, 200)[("a",)] > 60


def test_duplicates_are_no_evaluations_and_count_as_barren() -> None:
    search = seeded(correct("a"))
    for expected in (1, 2):
        told = search.tell(must_ask(search).number, "a", Outcome.duplicate("a"))
        assert told.status is AddStatus.NOT_ADDED
        assert (search.evaluations, search.barren) == (1, expected)
    give(search, failed("b"))
    assert (search.evaluations, search.barren) == (2, 0)


def test_what_is_told_is_seen() -> None:
    search = seeded(correct("a", digest="code"))
    assert search.seen.is_known_kernel("a")
    assert search.seen.known_code("code") == "a"
    search.tell(must_ask(search).number, "b", Outcome.duplicate("a"))
    assert search.seen.is_known_kernel("b")


def test_telling_twice_or_out_of_the_blue_is_refused() -> None:
    search = Search(0, SearchConfig(seeds=1))
    number = must_ask(search).number
    with pytest.raises(ValueError, match=r"ask in flight \[1\], found 7"):
        search.tell(7, "a", Outcome.nothing())
    with pytest.raises(ValueError, match="verdict of kernel 'a', found that of 'b'"):
        search.tell(number, "a", Outcome.evaluated(correct("b")))
    search.tell(number, "a", Outcome.evaluated(correct("a")))
    with pytest.raises(ValueError, match=r"ask in flight \[\], found 1"):
        search.tell(number, "a", Outcome.evaluated(correct("a")))


def test_extreme_speedups_leave_the_choice_of_parents_possible() -> None:
    search = seeded(correct("a", 5e-324, (0, 0, 0)), correct("b", math.inf, (1, 0, 0)))
    assert ("b",) in parents_of(search, 20)


def test_shares_above_one_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"exploit \+ explore of at most 1"):
        SearchConfig(exploit=0.8, explore=0.3)


def drive(search: Search, script: Random, steps: int) -> list[Ask]:
    """A world that answers at random, out of order, with everything that can happen."""
    asks: list[Ask] = []
    for step in range(steps):
        ask = search.ask()
        if ask is not None:
            asks.append(ask)
        while search.in_flight and (ask is None or script.random() < 0.6):
            ask = search.in_flight[script.choice(list(search.in_flight))]
            kernel = f"k{step}-{ask.number}"
            cell = (script.randrange(4), script.randrange(4), script.randrange(4))
            outcome = script.choice(
                [
                    Outcome.evaluated(correct(kernel, math.exp(script.gauss(0, 1)), cell)),
                    Outcome.evaluated(failed(kernel, script.choice(list(Status)[:9]))),
                    Outcome.duplicate("k0"),
                    Outcome.nothing(),
                ]
            )
            search.tell(ask.number, "" if outcome.result == "nothing" else kernel, outcome)
    return asks


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_and_the_same_calls_give_the_same_asks(seed: int) -> None:
    config = SearchConfig(seeds=4)
    first, second, other = Search(seed, config), Search(seed, config), Search(seed + 100, config)
    asks = drive(first, Random(seed), 150)
    assert drive(second, Random(seed), 150) == asks
    assert first.state_digest() == second.state_digest()
    assert drive(other, Random(seed), 150) != asks


class SearchMachine(RuleBasedStateMachine):
    """Any order of asks and tells keeps the search's promises, and a twin that sees the same stays equal."""

    def __init__(self) -> None:
        super().__init__()
        self.search = Search(3, SearchConfig(seeds=2))
        self.twin = Search(3, SearchConfig(seeds=2))
        self.known: set[str] = set()
        self.asked = 0
        self.evaluated = 0
        self.best = -math.inf

    def answer(self, data: st.DataObject, kernel: str, outcome: Outcome) -> None:
        number = data.draw(st.sampled_from(list(self.search.in_flight)))
        assert self.search.tell(number, kernel, outcome) == self.twin.tell(number, kernel, outcome)

    @rule()
    def ask(self) -> None:
        ask = self.search.ask()
        assert ask == self.twin.ask()
        if ask is None:
            return
        self.asked += 1
        assert ask.number == self.asked
        assert set(ask.parents) <= self.known
        assert len(set(ask.parents)) == {"seed": 0, "mutate": 1, "crossover": 2}[ask.operator]
        assert (ask.operator == "seed") == (self.asked <= 2)

    @precondition(lambda self: self.search.in_flight)
    @rule(
        data=st.data(),
        speedup=st.floats(1e-6, 1e6),
        cell=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
    )
    def evaluate(self, data: st.DataObject, speedup: float, cell: Cell) -> None:
        kernel = f"good{self.evaluated}"
        against = self.search.incumbent(cell) or ""
        decision = data.draw(st.sampled_from(Decision))
        verdict = correct(kernel, speedup, cell, against=against, decision=decision)
        self.answer(data, kernel, Outcome.evaluated(verdict))
        assert self.search.incumbent(cell) == (kernel if not against or decision is Decision.FASTER else against)
        self.evaluated += 1
        self.known.add(kernel)

    @precondition(lambda self: self.search.in_flight)
    @rule(data=st.data(), status=st.sampled_from(list(Status)[:9]))
    def fail(self, data: st.DataObject, status: Status) -> None:
        kernel = f"bad{self.evaluated}"
        self.answer(data, kernel, Outcome.evaluated(failed(kernel, status)))
        self.evaluated += 1
        self.known.add(kernel)

    @precondition(lambda self: self.search.in_flight)
    @rule(data=st.data(), again=st.booleans())
    def lead_nowhere(self, data: st.DataObject, again: bool) -> None:
        self.answer(data, "again" if again else "", Outcome.duplicate("good0") if again else Outcome.nothing())

    @invariant()
    def promises(self) -> None:
        assert self.search.evaluations == self.evaluated
        assert self.search.state_digest() == self.twin.state_digest()
        best = -math.inf if self.search.best is None else self.search.best.fitness
        assert best >= self.best
        self.best = best


TestSearchMachine = SearchMachine.TestCase
TestSearchMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
