"""What the experts can choose: knobs (strategies, which change the text) and params (compile-time numbers)."""

from __future__ import annotations

from collections.abc import Mapping
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
class Choices:
    """Which values of which knobs mean something for a program, and the values of params here."""

    knobs: dict[str, tuple[str, ...]]
    lanes: tuple[int, ...]
    reduces: bool
    """Whether anything is summed up within rows."""

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

    def params(self, recipe: Recipe, layout: Layout) -> dict[str, tuple[int, ...]]:
        """The params of a recipe with their values; the first is the default."""
        found: dict[str, tuple[int, ...]] = {}
        if recipe.style == "vector":
            found["LANES"] = self.lanes
        if layout is Layout.COLUMNS:
            found["TILE"] = (4, 2, 1, 8, 16) if recipe.style == "vector" else (64, 16, 32, 128, 256)
        elif recipe.style == "vector":
            found["UNROLL"] = (4, 1, 2, 8)
        elif self.reduces:
            found["RUN"] = (256, 64, 1024)
        if layout is Layout.FLAT:
            found["BLOCK"] = (16384, 1024, 4096, 65536, 262144)
        if recipe.schedule in ("dynamic", "guided"):
            found["CHUNK"] = (16, 1, 4, 64)
        if recipe.prefetch == "on":
            found["PREFETCH"] = (512, 128, 256, 1024, 2048)
        return found


def choices_for(program: Program, simd_bits: int) -> Choices:
    """What can be chosen for a program on a machine with vectors of ``simd_bits``."""
    vector = _vector_type(program)
    lane_bits = 64 if vector is DType.FLOAT64 else 32
    widest = max(128, simd_bits or 256)
    lanes = tuple(bits // lane_bits for bits in (512, 256, 128) if bits <= widest)
    knobs: dict[str, tuple[str, ...]] = {
        "style": ("vector", "simd", "plain") if vector else ("simd", "plain"),
        "schedule": tuple(KNOBS["schedule"]),
        "buffer": _buffers(program),
        "softmax": ("two_pass", "online") if online_pairs(program) else ("two_pass",),
        "stores": ("plain", "stream") if vector and _streamable(program) else ("plain",),
        "math": _maths(program, vector),
        "prefetch": ("off", "on"),
        "fusion": ("row", "phases") if _has_phases(program) else ("row",),
    }
    return Choices(knobs, lanes, bool(program.reductions))


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


def _maths(program: Program, vector: DType | None) -> tuple[str, ...]:
    used = {node.op for node in program.nodes if node.scope is Scope.ELEMENT}
    own = used & OWN_FUNCTIONS if program.floating is DType.FLOAT32 else set[str]()
    if not own:
        return ("libm",)
    found = ["precise", *(["short"] if "exp" in own or own & {"tanh", "erf"} else []), "libm"]
    extremes = any(n.op == "reduce" and n.name in ("max", "min") for n in program.nodes)
    if not extremes and not {n.op for n in program.nodes} & _EXACT and vector:
        found.append("libmvec")
    return tuple(found)


def _has_phases(program: Program) -> bool:
    if program.layout is not Layout.ROWS:
        return False
    nests = make_plan(program, buffer="none", online=False).nests
    return any(sum(sweep.has_loop for sweep in nest.sweeps) > 1 for nest in nests)
