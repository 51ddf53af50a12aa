"""The search as ask and tell: which parents come next, and what a verdict changes.

Pure: no model, device, disk or clock. All randomness comes from the seed, so the same seed and the same order of
calls give the same asks; this is what a resumed run relies on. Any number of asks may be outstanding and they may be
told in any order: the search never waits.

How parents are chosen (the shares are those of KernelFoundry, arXiv 2603.12440, section 3):

- with probability ``exploit`` an elite, in proportion to its speed-up to the power ``greed``;
- with probability ``explore`` an elite, each cell alike;
- otherwise any correct kernel, elite or not.

A parent whose mutation led to nothing new (a duplicate) loses half of its weight each time, until a mutation of it is
evaluated; one from which the proposer has no move left is not asked again. While no kernel is correct, the best
failed ones are mutated.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Literal

from pydantic import Field, model_validator

from kernelworks.data import Frozen
from kernelworks.kernel.descriptor import Cell
from kernelworks.kernel.outcome import Outcome
from kernelworks.kernel.verdict import Status, Verdict
from kernelworks.search.archive import AddStatus, Archive, Elite
from kernelworks.search.fitness import FITNESS_FLOOR, challenge_against, fitness_of
from kernelworks.search.seen import Seen

FAILED_PARENTS = 8
"""How many of the best failed kernels are mutated while none is correct."""
NO_EVIDENCE: Cell = (0, 0, 0)
"""Cell of a correct kernel without a descriptor: a level is what was proven, and nothing was."""

Operator = Literal["seed", "mutate", "crossover"]


class SearchConfig(Frozen):
    """Numbers of the search."""

    seeds: int = Field(default=0, ge=0)
    """Seed kernels that the proposer has; the first asks are for them, in order."""
    exploit: float = Field(default=0.7, ge=0, le=1)
    explore: float = Field(default=0.2, ge=0, le=1)
    greed: float = Field(default=6.0, ge=0, allow_inf_nan=False)
    """At 6, an elite 10% slower than the best has half of its weight."""
    crossover: float = Field(default=0.15, ge=0, le=1)
    """Share of asks that mix two elites, once there are two."""
    aggregate: Literal["geomean", "total"] = "geomean"
    """The task's way to combine timed cases."""

    @model_validator(mode="after")
    def _shares(self) -> SearchConfig:
        if self.exploit + self.explore > 1:
            raise ValueError(f"search: expected exploit + explore of at most 1, found {self.exploit} + {self.explore}")
        return self


class Ask(Frozen):
    """One wish: make a kernel by this operator from these parents."""

    number: int
    """From 1, without gaps."""
    operator: Operator
    parents: tuple[str, ...] = ()
    """Kernel ids: none for a seed, one for a mutation, two different ones for a crossover."""
    seed: int
    """All randomness of the proposal comes from it; below 2**32."""
    seed_index: int | None = None
    """Operator ``seed``: which of the proposer's seed kernels, from 0."""


class Told(Frozen):
    """What an outcome changed. Holds discrete facts only, so that a replay can be compared exactly."""

    status: AddStatus
    cell: Cell | None = None
    """Where a correct and timed kernel was offered."""
    replaced: str | None = None
    """Id of the elite that lost its cell."""
    best_changed: bool = False


class Search:
    """Ask and tell over a MAP-Elites archive.

    Args:
        seed: of every random choice.
        config: numbers of the search.
    """

    def __init__(self, seed: int, config: SearchConfig | None = None) -> None:
        self._config = SearchConfig() if config is None else config
        self._random = Random(seed)
        self._archive = Archive(qd_score_offset=FITNESS_FLOOR)
        self._seen = Seen()
        self._in_flight: dict[int, Ask] = {}
        self._asked = 0
        self._evaluations = 0
        self._barren = 0
        self._correct: dict[str, float] = {}
        self._failed: dict[str, float] = {}
        self._misses: dict[str, int] = {}
        self._spent: set[tuple[str, ...]] = set()

    @property
    def archive(self) -> Archive:
        """The archive; read it, do not add to it."""
        return self._archive

    @property
    def seen(self) -> Seen:
        """Known kernels and codes. ``tell`` enters what it is told; whoever proposes claims at once."""
        return self._seen

    @property
    def best(self) -> Elite | None:
        """The best-ever elite; its fitness never decreases."""
        return self._archive.best_elite

    @property
    def in_flight(self) -> Mapping[int, Ask]:
        """Asks that were not told yet, by number, in order."""
        return MappingProxyType(self._in_flight)

    @property
    def evaluations(self) -> int:
        """Outcomes ``evaluated`` so far, failures included, duplicates not."""
        return self._evaluations

    @property
    def barren(self) -> int:
        """Outcomes in a row that were no evaluation."""
        return self._barren

    def incumbent(self, cell: Cell) -> str | None:
        """Id of the kernel that a newcomer of this cell is timed against; None: the anchor."""
        elite = self._archive.retrieve(cell)
        return None if elite is None else elite.kernel_id

    def ask(self) -> Ask | None:
        """The next wish; None if there is no seed and no parent to start from (and then nothing changes).

        None is final only with nothing in flight: a kernel that is told later can be a parent.
        """
        number = self._asked + 1
        if self._asked < self._config.seeds:
            index = self._asked
            ask = Ask(number=number, operator="seed", seed=self._random.getrandbits(32), seed_index=index)
        else:
            parents = self._choose_parents()
            if not parents:
                return None
            operator: Operator = "mutate" if len(parents) == 1 else "crossover"
            ask = Ask(number=number, operator=operator, parents=parents, seed=self._random.getrandbits(32))
        self._asked = number
        self._in_flight[number] = ask
        return ask

    def tell(self, number: int, kernel_id: str, outcome: Outcome) -> Told:
        """Take the outcome of an ask.

        An evaluated kernel that is correct and timed is offered to the archive. Against the elite of its cell the
        decision of a timing against this elite counts; where the verdict has none (the elite changed meanwhile), the
        fitness does.

        Args:
            number: of the ask.
            kernel_id: the kernel that was proposed; empty for outcome ``nothing``.
            outcome: what became of it.

        Raises:
            ValueError: no ask of this number is in flight, or the verdict is of another kernel.
        """
        ask = self._in_flight.get(number)
        if ask is None:
            raise ValueError(f"tell: expected the number of an ask in flight {sorted(self._in_flight)}, found {number}")
        verdict = outcome.verdict
        if verdict is not None and verdict.kernel != kernel_id:
            raise ValueError(f"tell: expected the verdict of kernel {kernel_id!r}, found that of {verdict.kernel!r}")
        del self._in_flight[number]
        if kernel_id:
            self._seen.claim(kernel_id)
        if verdict is None:
            self._note_miss(ask, spent=outcome.result == "nothing")
            return Told(status=AddStatus.NOT_ADDED)
        self._seen.claim_code(verdict.code_digest, kernel_id)
        self._evaluations += 1
        self._barren = 0
        if ask.operator == "mutate":
            self._misses.pop(ask.parents[0], None)
        return self._place(kernel_id, verdict)

    def state_digest(self) -> str:
        """SHA-256 of the whole state: equal digests go on equally."""
        state = [
            self._config.model_dump(mode="json"),
            self._random.getstate(),
            [e.model_dump(mode="json") for e in self._archive],
            None if self.best is None else self.best.model_dump(mode="json"),
            [a.model_dump(mode="json") for a in self._in_flight.values()],
            [self._asked, self._evaluations, self._barren],
            list(self._correct.items()),
            list(self._failed.items()),
            sorted(self._misses.items()),
            sorted(self._spent),
            self._seen.state(),
        ]
        return hashlib.sha256(json.dumps(state).encode()).hexdigest()

    def _note_miss(self, ask: Ask, *, spent: bool) -> None:
        self._barren += 1
        if ask.operator == "mutate":
            self._misses[ask.parents[0]] = self._misses.get(ask.parents[0], 0) + 1
        if spent and ask.parents:
            self._spent.add(ask.parents)

    def _place(self, kernel_id: str, verdict: Verdict) -> Told:
        fitness = fitness_of(verdict)
        if verdict.status is not Status.CORRECT or verdict.speedup is None:
            self._failed[kernel_id] = fitness
            return Told(status=AddStatus.NOT_ADDED)
        self._correct[kernel_id] = fitness
        cell = NO_EVIDENCE if verdict.descriptor is None else verdict.descriptor.cell
        elite, best = self._archive.retrieve(cell), self.best
        challenge = None if elite is None else challenge_against(verdict, elite.kernel_id, self._config.aggregate)
        status = self._archive.add(kernel_id, cell, fitness, challenge=challenge)
        replaced = elite.kernel_id if elite is not None and status else None
        return Told(status=status, cell=cell, replaced=replaced, best_changed=self.best != best)

    def _choose_parents(self) -> tuple[str, ...]:
        """One parent for a mutation, two for a crossover, none if nothing is left. Draws only if something is."""
        elites = list(self._archive)
        pairs_left = self._pairs_left(elites)
        single = self._mutable([e.kernel_id for e in elites])
        others = self._mutable(self._correct)
        if pairs_left and (not others or self._random.random() < self._config.crossover):
            return self._choose_pair(elites, pairs_left)
        if others:
            return (self._choose_one(single, others),)
        ranked = sorted(enumerate(self._mutable(self._failed)), key=lambda i: (-self._failed[i[1]], -i[0]))
        failed = [kernel for _, kernel in ranked[:FAILED_PARENTS]]
        return (self._draw(failed, [0.0] * len(failed)),) if failed else ()

    def _choose_one(self, elites: Sequence[str], others: Sequence[str]) -> str:
        share = self._random.random()
        if elites and share < self._config.exploit:
            return self._draw(elites, [self._config.greed * self._correct[kernel] for kernel in elites])
        if elites and share < self._config.exploit + self._config.explore:
            return self._draw(elites, [0.0] * len(elites))
        return self._draw(others, [0.0] * len(others))

    def _choose_pair(self, elites: Sequence[Elite], pairs: Mapping[str, Sequence[str]]) -> tuple[str, str]:
        """The first parent best-biased, the second any elite of another cell."""
        firsts = [e for e in elites if e.kernel_id in pairs]
        weights = [math.exp(self._config.greed * (e.fitness - max(f.fitness for f in firsts))) for e in firsts]
        first = self._random.choices(firsts, weights)[0].kernel_id
        return (first, self._random.choice(pairs[first]))

    def _pairs_left(self, elites: Sequence[Elite]) -> dict[str, list[str]]:
        """For each elite, those with which a crossover may still give something."""
        ids = [e.kernel_id for e in elites]
        partners = {a: [b for b in ids if a != b and (a, b) not in self._spent] for a in ids}
        return {a: bs for a, bs in partners.items() if bs}

    def _mutable(self, kernels: Sequence[str] | Mapping[str, float]) -> list[str]:
        return [kernel for kernel in kernels if (kernel,) not in self._spent]

    def _draw(self, kernels: Sequence[str], log_weights: Sequence[float]) -> str:
        """One kernel in proportion to exp(log weight), halved for each fruitless mutation of it in a row."""
        logs = [w - math.log(2) * self._misses.get(k, 0) for k, w in zip(kernels, log_weights, strict=True)]
        top = max(logs)
        return self._random.choices(kernels, [math.exp(value - top) for value in logs])[0]
