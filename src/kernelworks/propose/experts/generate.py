"""From programs and a recipe to the text of a kernel file.

Several programs become one namespace each, with helpers of their own, and ``launch`` calls them in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kernelworks.propose.experts.emit import Emitter
from kernelworks.propose.experts.ir import Layout, Program
from kernelworks.propose.experts.plan import Buffer, make_plan
from kernelworks.propose.experts.recipe import KNOBS, OWN_FUNCTIONS, Choices, Recipe
from kernelworks.propose.experts.text import (
    LIBM_BINARY,
    c_type,
    combined,
    libm_name,
    literal,
    neutral,
)
from kernelworks.task.model import DType, Task
from kernelworks.task.prototype import parameters, prototype

if TYPE_CHECKING:
    from jinja2 import Environment

_LARGEST = {DType.FLOAT32: 3.4028234663852886e38, DType.FLOAT64: 1.7976931348623157e308}


def write_kernel(task: Task, programs: Sequence[Program], recipe: Recipe, choices: Choices) -> str:
    """The text of a kernel file, front matter and all."""
    alone = len(programs) == 1
    passed = parameters(task)
    signature = prototype(task) if alone else f"static int work({', '.join(p.declaration for p in passed)})"
    needs: set[str] = set()
    parts: list[str] = []
    for program, chosen in zip(programs, choices.programs, strict=True):
        context = _context(task, program, chosen.settle(recipe), signature)
        needs |= context["needs"]
        parts.append(_environment().get_template("program.cpp.j2").render(context))
    return (
        _environment()
        .get_template("kernel.cpp.j2")
        .render(
            idea=idea_of(programs, recipe),
            params={name: list(values) for name, values in choices.params(recipe).items()},
            covers=list(dict.fromkeys(guard for program in programs for guard in program.guards)),
            flags=_flags(recipe),
            math_header=recipe.math == "libmvec",
            needs=needs,
            parts=parts,
            prototype=prototype(task),
            passed=", ".join(p.name for p in passed),
        )
    )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    # Imported here: a worker that evaluates kernels never writes any.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("kernelworks.propose.experts"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 C++, not HTML
    )
    environment.filters["axis_name"] = lambda axis: f"n{axis}"
    environment.filters["tojson"] = _plain_json
    return environment


def _plain_json(value: Any) -> str:
    import json

    return json.dumps(value)


def _only_added_to_one(program: Program, op: str) -> bool:
    """Whether every result of a function is added to a constant of 1 and more: its absolute error decides then."""
    made = {i for i, node in enumerate(program.nodes) if node.op == op}
    if any(output.node in made for output in program.outputs):
        return False
    for user in program.nodes:
        if not made & set(user.args):
            continue
        others = [program.nodes[a] for a in user.args if a not in made]
        if user.op != "add" or len(others) != 1 or others[0].op != "const" or abs(others[0].constant) < 1:
            return False
    return bool(made)


def _flags(recipe: Recipe) -> dict[str, list[str]]:
    flags: dict[str, list[str]] = {}
    if recipe.math == "libmvec":
        flags["FAST"] = ["-ffast-math"]
    if recipe.style == "plain":
        flags["SCALAR"] = ["-fno-tree-vectorize"]
    return flags


def idea_of(programs: Sequence[Program], recipe: Recipe) -> str:
    """The strategy in words, at most 300 characters."""
    layouts = {
        Layout.FLAT: "blocks of the innermost axis",
        Layout.ROWS: "rows",
        Layout.COLUMNS: "tiles of columns",
    }
    loops = ", then ".join(layouts[program.layout] for program in programs)
    parts = [f"{loops}; {KNOBS['style'][recipe.style]}; {KNOBS['schedule'][recipe.schedule]}"]
    plain = Recipe()
    for name in ("buffer", "softmax", "stores", "math", "prefetch", "fusion"):
        value = getattr(recipe, name)
        if value != getattr(plain, name) or name == "buffer":
            parts.append(KNOBS[name][value])
    return "; ".join(parts)[:300]


def _context(task: Task, program: Program, recipe: Recipe, signature: str) -> dict[str, Any]:
    buffers: dict[str, Buffer] = {"scratch": "scratch", "output": "output", "none": "none"}
    plan = make_plan(program, buffer=buffers[recipe.buffer], online=recipe.softmax == "online")
    emitter = Emitter(task, program, recipe)
    nests = [emitter.nest(nest) for nest in plan.nests]
    after = emitter.global_lines(plan.after, plan.global_stores)
    last = len(program.axes) - 1
    flat = program.layout is Layout.FLAT
    kept = [i for i, axis in enumerate(program.axes) if not axis.swept and i != last]
    swept = [i for i, axis in enumerate(program.axes) if axis.swept and i != last]
    vector = recipe.style == "vector"
    lanes = "LANES" if vector else "1"
    lane = emitter.lane
    columns = program.layout is Layout.COLUMNS
    scratch_row = f"TILE * {lanes}" if columns else ("BLOCK" if flat else f"n{last}")
    scratch_size = " * ".join([*(f"n{a}" for a in swept), f"({scratch_row})"])
    return {
        "needs": _needs(emitter),
        "vector": vector,
        "layout": program.layout.name,
        "lane": c_type(lane),
        "word": "int32_t" if lane is DType.FLOAT32 else "int64_t",
        "word_max": "INT32_MAX" if lane is DType.FLOAT32 else "INT64_MAX",
        "nt": "ps" if lane is DType.FLOAT32 else "pd",
        "helpers": emitter.helpers,
        "combines": {kind: _combiner(kind) for kind, _ in sorted(emitter.reductions)},
        "signature": signature,
        "axes": program.axes,
        "kept_axes": kept,
        "swept_axes": swept,
        "last": last,
        "lanes": lanes,
        "nests": nests,
        "after": after,
        "schedule": recipe.schedule,
        "streams": "stream" in emitter.helpers,
        "scratch_type": c_type(lane),
        "scratch_size": scratch_size,
        "kept_at": f"({_position(swept)}) * {scratch_row}" if emitter.kept_at else "",
        "accuracy": recipe.math,
        "near_one": {op for op in ("erf", "tanh") if _only_added_to_one(program, op)},
        **_functions(recipe, emitter, vector, columns),
    }


def _needs(emitter: Emitter) -> set[str]:
    """What the head of the file must provide."""
    found = {"tiles" if emitter.columns else "sweeps"} if emitter.vector else set[str]()
    return found | ({"errno"} if ("sqrt", emitter.lane) in emitter.functions else set[str]())


def _position(axes: list[int]) -> str:
    """Linear position on the swept outer axes."""
    text = ""
    for axis in axes:
        text = f"({text}) * n{axis} + i{axis}" if text else f"i{axis}"
    return text


def _combiner(kind: str) -> Callable[[str, str], str]:
    def combine(left: str, right: str) -> str:
        return combined(kind, left, right)

    return combine


def _functions(recipe: Recipe, emitter: Emitter, vector: bool, columns: bool) -> dict[str, Any]:
    """Which functions the text calls, and who provides them."""
    lane = emitter.lane
    own: set[str] = set()
    if recipe.math in ("precise", "short") and lane is DType.FLOAT32:
        own = {op for op, dtype in emitter.functions if op in OWN_FUNCTIONS and dtype is DType.FLOAT32}
        if own & {"tanh", "erf"}:
            own.add("exp")
        if "log1p" in own:
            own.add("log")
    by_lane = sorted((op, d) for op, d in emitter.functions if vector and op not in own)
    numbers = set(emitter.row_functions)
    if not vector:
        numbers |= {(op, d) for op, d in emitter.functions}
        # In plain loops our functions serve single numbers too.
        numbers = {(op, d) for op, d in numbers if not (op in own and d is DType.FLOAT32)}
    guards = {"finite_or_zero"}

    def items(found: Any, *, binary: bool) -> list[dict[str, str]]:
        return [
            {"op": op, "type": c_type(d), "name": libm_name(op, d)}
            for op, d in sorted(found)
            if op not in guards and (op in LIBM_BINARY) == binary
        ]

    kind = "Vec" if vector else c_type(lane)
    across = vector and not columns
    end = "{}" if across or not vector else "splat({})"
    wrap = "splat({})" if vector else "{}"
    used = {op for op, _ in emitter.functions | emitter.row_functions}
    wide = [
        {"type": kind, "largest": wrap.format(literal(_LARGEST[lane], lane)), "zero": wrap.format(literal(0, lane))}
    ]
    single = [{"type": c_type(lane), "largest": literal(_LARGEST[lane], lane), "zero": literal(0, lane)}]
    return {
        "own_functions": own,
        "lane_functions": items(by_lane, binary=False),
        "lane_pairs": items(by_lane, binary=True),
        "number_functions": items(numbers, binary=False),
        "number_pairs": items(numbers, binary=True),
        "guards": ((wide if vector and columns else single) if "finite_or_zero" in used else []),
        "simd_reductions": [
            {
                "kind": kind_,
                "type": c_type(d),
                "combined": combined(kind_, "omp_out", "omp_in"),
                "neutral": neutral(kind_, d),
            }
            for kind_, d in sorted(emitter.reductions)
            if recipe.style == "simd" and kind_ in ("max", "min")
        ],
        "online": {
            "type": kind,
            "end_type": c_type(lane) if across else kind,
            "zero": end.format(literal(0, lane)),
            "minus_infinity": end.format(literal(-math.inf, lane)),
            "largest": end.format(literal(_LARGEST[lane], lane)),
            "across": across,
        },
    }
