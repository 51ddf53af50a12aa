"""What the experts can choose: knobs (strategies, which change the text) and params (compile-time numbers)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from kernelworks.propose.experts.ir import Layout, Program, Scope, compute_dtype
from kernelworks.propose.experts.plan import make_plan, online_pairs
from kernelworks.task.model import DType

KNOBS: dict[str, dict[str, str]] = {
    "style": {
        "vector": "explicit vectors with independent accumulators",
        "simd": "plain loops marked for vectorisation",
        "plain": "plain scalar loops",
    },
    "schedule": {
        "static": "rows dealt out in equal shares",
        "dynamic": "rows handed out in chunks on demand",
        "guided": "rows handed out in shrinking chunks",
        "serial": "one thread",
    },
    "buffer": {
        "scratch": "values kept between sweeps in a private row",
        "output": "values kept between sweeps in the output itself",
        "none": "values computed again in each sweep",
    },
    "softmax": {
        "two_pass": "maximum first, then the sum of exponentials",
        "online": "maximum and sum of exponentials in one sweep",
    },
    "stores": {"plain": "ordinary stores", "stream": "non-temporal stores"},
    "math": {
        "precise": "own functions of 1 to 3 ulp",
        "short": "own functions with a shorter exponential",
        "libm": "functions of libm",
        "libmvec": "vector functions of libm by fast-math flags",
    },
    "prefetch": {"off": "no software prefetch", "on": "software prefetch of the inputs"},
    "fusion": {"row": "all sweeps of a row together", "phases": "one parallel region for each sweep"},
}
"""For each knob its values and what they mean; the first is the default."""

# Constructs that fast-math would break: they tell NaN or infinity apart, or rely on exact rounding.
_EXACT = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "where", "maximum", "minimum", "finite_or_zero", "round"})
# knob, value, other knob, values that it excludes, what to use instead. Lines that are read again soon must not leave
# the caches; a private row does not live from one parallel region to the next.
_EXCLUDED = (
    ("math", "libmvec", "style", ("vector",), ("simd",)),
    ("stores", "stream", "style", ("simd", "plain"), ("vector",)),
    ("fusion", "phases", "buffer", ("scratch",), ("output", "none")),
    ("buffer", "output", "stores", ("stream",), ("plain",)),
)
OWN_FUNCTIONS = frozenset({"exp", "expm1", "log", "log1p", "tanh", "erf"})


@dataclass(frozen=True)
class Recipe:
    """The knob settings of one kernel."""

    style: str = "vector"
    schedule: str = "static"
    buffer: str = "scratch"
    softmax: str = "two_pass"
    stores: str = "plain"
    math: str = "precise"
    prefetch: str = "off"
    fusion: str = "row"

    def as_dict(self) -> dict[str, str]:
        """As plain data, for ``Origin.recipe``."""
        return asdict(self)


def recipe_of(found: Mapping[str, Any]) -> Recipe | None:
    """The recipe that a kernel's origin notes; None if it notes none of ours."""
    names = [f.name for f in fields(Recipe)]
    if not all(found.get(name) in KNOBS[name] for name in names):
        return None
    return Recipe(**{name: str(found[name]) for name in names})


@dataclass(frozen=True)
class _Knobs:
    """Which values of which knobs mean something."""

    knobs: dict[str, tuple[str, ...]]

    def settle(self, recipe: Recipe, turned: str = "") -> Recipe:
        """The nearest recipe that means something.

        Values that do not apply are replaced by the first that does. Of two values that exclude each other the one
        of the knob that was ``turned`` stays.
        """
        for name, values in self.knobs.items():
            if getattr(recipe, name) not in values:
                recipe = replace(recipe, **{name: values[0]})
        for name, value, other, excluded, instead in _EXCLUDED:
            if getattr(recipe, name) == value and getattr(recipe, other) in excluded:
                if turned == other:
                    recipe = replace(recipe, **{name: self._instead(name, value)})
                else:
                    possible = [v for v in instead if v in self.knobs[other]]
                    recipe = replace(recipe, **{other: possible[0] if possible else self.knobs[other][0]})
        return recipe

    def _instead(self, name: str, value: str) -> str:
        return next(v for v in (*self.knobs[name], *KNOBS[name]) if v != value)


@dataclass(frozen=True)
class ProgramChoices(_Knobs):
    """What can be chosen for one program."""

    lanes: tuple[int, ...]
    layout: Layout
    reduces: bool
    """Whether anything is summed up within rows."""

    def params(self, recipe: Recipe) -> dict[str, tuple[int, ...]]:
        """The params of a recipe with their values; the first is the default."""
        found: dict[str, tuple[int, ...]] = {}
        if recipe.style == "vector":
            found["LANES"] = self.lanes
        if self.layout is Layout.COLUMNS:
            found["TILE"] = (4, 2, 1, 8, 16) if recipe.style == "vector" else (64, 16, 32, 128, 256)
        elif recipe.style == "vector":
            found["UNROLL"] = (4, 1, 2, 8)
        elif self.reduces:
            found["RUN"] = (256, 64, 1024)
        if self.layout is Layout.FLAT:
            found["BLOCK"] = (16384, 1024, 4096, 65536, 262144)
        if recipe.schedule in ("dynamic", "guided"):
            found["CHUNK"] = (16, 1, 4, 64)
        if recipe.prefetch == "on":
            found["PREFETCH"] = (512, 128, 256, 1024, 2048)
        return found


@dataclass(frozen=True)
class Choices(_Knobs):
    """What can be chosen for a whole kernel: a value that means something for any of its programs."""

    programs: tuple[ProgramChoices, ...]

    def params(self, recipe: Recipe) -> dict[str, tuple[int, ...]]:
        """The params of a recipe with their values; the first is the default."""
        found: dict[str, tuple[int, ...]] = {}
        for program in self.programs:
            for name, values in program.params(program.settle(recipe)).items():
                found.setdefault(name, values)
        return found


def choices_for(programs: Sequence[Program], simd_bits: int) -> Choices:
    """What can be chosen for a kernel of these programs on a machine with vectors of ``simd_bits``."""
    types = [_vector_type(program) for program in programs]
    # Programs share the number of lanes, so the narrowest type decides: wider ones take two registers a vector.
    lane_bits = 32 if DType.FLOAT32 in types or DType.FLOAT64 not in types else 64
    widest = max(128, simd_bits or 256)
    lanes = tuple(bits // lane_bits for bits in (512, 256, 128) if bits <= widest)
    # Its flag holds for the whole file.
    fast = all(_bears_fast_math(program) for program in programs)
    each = tuple(
        ProgramChoices(_knobs(program, vector, fast=fast), lanes, program.layout, bool(program.reductions))
        for program, vector in zip(programs, types, strict=True)
    )
    return Choices({name: _offered(name, (c.knobs[name] for c in each)) for name in KNOBS}, each)


def _offered(knob: str, by_program: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """What at least one program offers, as ``KNOBS`` orders it."""
    found = {value for values in by_program for value in values}
    return tuple(value for value in KNOBS[knob] if value in found)


def _knobs(program: Program, vector: DType | None, *, fast: bool) -> dict[str, tuple[str, ...]]:
    return {
        "style": ("vector", "simd", "plain") if vector else ("simd", "plain"),
        "schedule": tuple(KNOBS["schedule"]),
        "buffer": _buffers(program),
        "softmax": ("two_pass", "online") if online_pairs(program) else ("two_pass",),
        "stores": ("plain", "stream") if vector and _streamable(program) else ("plain",),
        "math": _maths(program, vector, fast=fast),
        "prefetch": ("off", "on"),
        "fusion": ("row", "phases") if _has_phases(program) else ("row",),
    }


def _vector_type(program: Program) -> DType | None:
    """The lane type, if every value by element (and by row in columns) is of that type or a truth value."""
    lane = program.floating
    if lane not in (DType.FLOAT32, DType.FLOAT64):
        return None
    low = Scope.ROW if program.layout is Layout.COLUMNS else Scope.ELEMENT
    for node in program.nodes:
        # Sums may be gathered in float64, and means computed from them.
        wide = node.scope is Scope.ROW and lane is DType.FLOAT32 and node.dtype is DType.FLOAT64
        if (
            (node.scope >= low or node.op == "reduce")
            and not wide
            and compute_dtype(node.dtype) not in (lane, DType.BOOL)
        ):
            return None
        if node.op == "reduce" and node.dtype is DType.BOOL:
            return None
    if any(compute_dtype(o.dtype) not in (lane, DType.BOOL) for o in program.outputs if _is_wide(program, o.node, low)):
        return None
    return lane


def _is_wide(program: Program, node: int, low: Scope) -> bool:
    return program.nodes[node].scope >= low


def _buffers(program: Program) -> tuple[str, ...]:
    nests = make_plan(program, buffer="output", online=False).nests
    if not any(nest.buffers for nest in nests):
        return ("none",)
    return ("scratch", "output", "none") if any(nest.in_output for nest in nests) else ("scratch", "none")


def _streamable(program: Program) -> bool:
    wide = Scope.ROW if program.layout is Layout.COLUMNS else Scope.ELEMENT
    return any(program.nodes[o.node].scope >= wide and o.dtype == program.floating for o in program.outputs)


def _maths(program: Program, vector: DType | None, *, fast: bool) -> tuple[str, ...]:
    used = {node.op for node in program.nodes if node.scope is Scope.ELEMENT}
    own = used & OWN_FUNCTIONS if program.floating is DType.FLOAT32 else set[str]()
    if not own:
        return ("libm",)
    found = ["precise", *(["short"] if "exp" in own or own & {"tanh", "erf"} else []), "libm"]
    if fast and vector:
        found.append("libmvec")
    return tuple(found)


def _bears_fast_math(program: Program) -> bool:
    extremes = any(n.op == "reduce" and n.name in ("max", "min") for n in program.nodes)
    return not extremes and not {n.op for n in program.nodes} & _EXACT


def _has_phases(program: Program) -> bool:
    if program.layout is not Layout.ROWS:
        return False
    nests = make_plan(program, buffer="none", online=False).nests
    return any(sum(sweep.has_loop for sweep in nest.sweeps) > 1 for nest in nests)
