"""Moves between recipes: mutation, crossover, and the recipes to start from. All chance comes from the caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from random import Random

from kernelworks.propose.experts.recipe import KNOBS, Choices, Recipe

Params = Mapping[str, int]

_KNOB_WEIGHTS = {"style": 0.5, "math": 0.7}
"""Knobs whose other values rarely win are turned less often; the rest weigh 1."""
_SECOND_MOVE = 0.25
_MIXES = 8


@dataclass(frozen=True)
class Point:
    """A recipe with a value for each of its params."""

    recipe: Recipe
    params: tuple[tuple[str, int], ...]

    @property
    def values(self) -> dict[str, int]:
        """The params as a mapping."""
        return dict(self.params)


@dataclass(frozen=True)
class Move:
    """A neighbour and what was changed, in words."""

    point: Point
    words: str
    turned: str
    """The knob or param."""


class Moves:
    """All points of one kernel on one machine."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def point(self, recipe: Recipe, params: Params | None = None) -> Point:
        """The nearest point that means something; params that are missing or unknown take their default."""
        recipe = self._choices.settle(recipe)
        given = params or {}
        values = self._choices.params(recipe)
        return Point(
            recipe,
            tuple((name, given[name] if given.get(name) in listed else listed[0]) for name, listed in values.items()),
        )

    def neighbours(self, point: Point) -> Iterator[Move]:
        """Every point that differs by one knob or one param."""
        for name, values in self._choices.knobs.items():
            before = getattr(point.recipe, name)
            for value in values:
                recipe = self._choices.settle(replace(point.recipe, **{name: value}), turned=name)
                if value != before and getattr(recipe, name) == value:
                    made = self.point(recipe, point.values)
                    yield Move(made, f"{name}: {before} -> {value} ({KNOBS[name][value]})", name)
        listed = self._choices.params(point.recipe)
        for name, before in point.params:
            for value in listed[name]:
                if value != before:
                    made = Point(point.recipe, tuple((n, value if n == name else v) for n, v in point.params))
                    yield Move(made, f"{name}: {before} -> {value}", name)

    def mutations(self, point: Point, random: Random) -> Iterator[Move]:
        """Neighbours in random order, each knob and param equally likely; now and then with a second move on top."""
        by_name: dict[str, list[Move]] = {}
        for move in self.neighbours(point):
            by_name.setdefault(move.turned, []).append(move)
        while by_name:
            names = list(by_name)
            (name,) = random.choices(names, [_KNOB_WEIGHTS.get(n, 1.0) for n in names])
            move = by_name[name].pop(random.randrange(len(by_name[name])))
            if not by_name[name]:
                del by_name[name]
            if random.random() < _SECOND_MOVE:
                others = [m for m in self.neighbours(move.point) if m.turned != name and m.point != point]
                if others:
                    second = random.choice(others)
                    yield Move(second.point, f"{move.words}; {second.words}", name)
            yield move

    def mixtures(self, first: Point, second: Point, random: Random) -> Iterator[Move]:
        """Crossings of two points; where they are too alike for a new one, with a mutation on top."""
        for _ in range(_MIXES):
            taken: list[str] = []
            recipe = first.recipe
            for knob in fields(Recipe):
                ours, theirs = getattr(first.recipe, knob.name), getattr(second.recipe, knob.name)
                if ours != theirs and random.random() < 0.5:
                    recipe = replace(recipe, **{knob.name: theirs})
                    taken.append(f"{knob.name}: {theirs}")
            values = first.values
            for name, value in second.params:
                if values.get(name) != value and random.random() < 0.5:
                    values[name] = value
                    taken.append(f"{name}: {value}")
            mixed = self.point(recipe, values)
            if mixed not in (first, second):
                yield Move(mixed, "from the second parent " + ", ".join(taken), "")
        for move in self.mutations(first, random):
            yield replace(move, words=f"parents too alike to mix; {move.words}")

    def seeds(self, *, larger_than_cache: bool) -> list[Move]:
        """First points, most promising first, spread over ways to use memory, units and threads."""
        stream = "stream" if larger_than_cache else "plain"
        other = "plain" if larger_than_cache else "stream"
        wanted: list[tuple[Recipe, dict[str, int]]] = [
            (Recipe(stores=stream, math="short"), {}),
            (Recipe(stores=other, math="short"), {}),
            (Recipe(stores=stream, schedule="dynamic"), {}),
            *([(Recipe(softmax="online"), dict[str, int]())] if len(self._choices.knobs["softmax"]) > 1 else []),
            (Recipe(buffer="output", prefetch="on"), {}),
            (Recipe(style="simd"), {}),
            (Recipe(buffer="none", stores=stream), {"UNROLL": 1, "TILE": 1, "BLOCK": 4096}),
            (Recipe(buffer="output", fusion="phases"), {}),
            (Recipe(stores=stream, prefetch="on", schedule="guided"), {"UNROLL": 8, "TILE": 8}),
            (Recipe(schedule="serial"), {"UNROLL": 2, "TILE": 2}),
            (Recipe(style="plain", schedule="serial", math="libm", buffer="none"), {}),
        ]
        found: dict[Point, Move] = {}
        for recipe, params in wanted:
            point = self.point(recipe, params)
            found.setdefault(point, Move(point, "", ""))
        return list(found.values())
