"""The descriptor from source, for CPUs whose machine code is not disassembled here (docs/descriptors.md).

Coarser than machine code: whether a compiler vectorises a loop is guessed from its shape. Import only where needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import tree_sitter

from kernelworks.errors import KernelError
from kernelworks.kernel.descriptor import AXES, Descriptor, Evidence
from kernelworks.kernel.model import Language
from kernelworks.kernel.source_tree import (
    LoopNode,
    Source,
    Visit,
    has_unit_stride,
    pragma_of,
    read_source,
    text_of,
    visit,
)

MAX_EVIDENCE = 4
_SHOWN_CHARACTERS = 80

_LOAD = re.compile(
    r"(?:vld[1-4]q?_\w+|svld[1-4]\w*|_mm\d*_(?:load|loadu|maskload|maskz_loadu|mask_loadu|lddqu)_?\w*)\Z"
)
_BROADCAST = re.compile(r"(?:vld1q?_dup_\w+|vdupq?_n_\w+|svdup\w*|_mm\d*_(?:broadcast|set1)\w*)\Z")
_STORE = re.compile(r"(?:vst[1-4]q?_\w+|svst[1-4]\w*|_mm\d*_(?:store|storeu|maskstore|mask_storeu)_\w+)\Z")
_STREAM = re.compile(r"(?:__builtin_nontemporal_\w+|svstnt1\w*|svldnt1\w*|_mm\d*_stream_\w+)\Z")
_PREFETCH = re.compile(r"(?:__builtin_prefetch|_mm_prefetch|svprf\w+|__pld\w*)\Z")
_ARITHMETIC = re.compile(
    r"(?:v(?:add|sub|mul|div|mla|mls|fma|fms|max|min|maxnm|minnm|abs|neg|sqrt|recpe|rsqrte|rnd\w*|c[gl][te]|ceq)q?_\w+"
    r"|sv(?:add|sub|mul|div|mla|mls|mad|msb|max|min|abs|neg|sqrt)\w*"
    r"|_mm\d*_(?:mask_|maskz_)?(?:add|sub|mul|div|max|min|sqrt|fn?m(?:add|sub)|rcp\w*|rsqrt\w*|cmp\w*)_\w+)\Z"
)
_FMA_FIRST = re.compile(r"(?:v(?:fma|fms|mla|mls)q?_\w+|sv(?:mla|mls)\w*)\Z")
_FMA_LAST = re.compile(r"_mm\d*_(?:mask_)?fn?m(?:add|sub)_p[sdh]\Z")
_DOT = re.compile(
    r"(?:v(?:us|su|bf)?dotq?_\w+|vbf?mmlaq_\w+|sv(?:us|su|bf)?dot\w*|svmmla\w*|svmopa\w*|vmmlaq_\w+"
    r"|_mm\d*_(?:mask_)?dp(?:busd|wssd|bf16)\w*)\Z"
)
_INLINED = frozenset("abs fabs fabsf sqrt sqrtf fma fmaf fmax fmaxf fmin fminf min max".split())
_REGION = re.compile(r"(?:teams\s+distribute\s+)?parallel\b")
_DYNAMIC = re.compile(
    r"schedule\s*\(\s*(?:\w+\s*:\s*)?(?:dynamic|guided|runtime|auto)\b|^(?:parallel\s+)?sections|^task"
)
_COLLAPSE = re.compile(r"\bcollapse\s*\(\s*(?!1\s*\))\w+")
_COMBINE = re.compile(r"^(?:critical|atomic)\b")
_ATOMIC_CALL = re.compile(r"(?:__atomic_\w+|__sync_\w+|(?:.*[.>])?fetch_(?:add|sub|max|min|or|and)|(?:.*[.>])?lock)\Z")


def describe_source(text: str, language: Language = Language.CPP, entry: str = "launch") -> Descriptor:
    """Read a descriptor from the source of a C++ kernel.

    Raises:
        KernelError: the language is not C++, or the source defines no function of this name.
    """
    if language is not Language.CPP:
        raise KernelError(f"source descriptor: expected language cpp, found {language}")
    source = read_source(text, entry)
    facts = _Facts()
    for body in source.bodies():
        nodes = list(visit(body))
        has_loops = any(item.loops for item in nodes)
        hot = [item for item in nodes if item.loops or not has_loops]
        _read_calls(source, hot, facts)
        _read_loops(source, hot, facts)
        _read_tiles(source, hot, facts)
        _read_accumulators(source, hot, facts)
    _read_threads(source, entry, facts)
    return facts.describe()


class _Facts:
    """(axis, level, line, text, reason) in order of entry; a fact with ``needs`` stands on a lower level only."""

    def __init__(self) -> None:
        self._facts: list[tuple[str, int, tree_sitter.Node, str, int]] = []

    def add(self, axis: str, level: int, node: tree_sitter.Node, reason: str, *, needs: int = 0) -> None:
        self._facts.append((axis, level, node, reason, needs))

    def describe(self) -> Descriptor:
        levels = dict.fromkeys(AXES, 0)
        evidence: list[Evidence] = []
        for axis in AXES:
            entered = {level for name, level, *_ in self._facts if name == axis}
            standing = [f for f in self._facts if f[0] == axis and (f[4] == 0 or f[4] in entered)]
            standing.sort(key=lambda fact: -fact[1])
            levels[axis] = standing[0][1] if standing else 0
            for _, level, node, reason, _ in standing[:MAX_EVIDENCE]:
                line, shown = f"line {node.start_point[0] + 1}", text_of(node)[:_SHOWN_CHARACTERS]
                evidence.append(Evidence(axis=axis, address=line, instruction=shown, reason=f"level {level}: {reason}"))
        return Descriptor(
            memory=levels["memory"],
            compute=levels["compute"],
            parallelism=levels["parallelism"],
            basis="source",
            evidence=tuple(evidence),
        )


def _called(source: Source, node: tree_sitter.Node) -> str:
    """The name that a call expression calls; empty where the kernel defines that function itself."""
    if node.type != "call_expression":
        return ""
    name = text_of(node.child_by_field_name("function")).split("<")[0].split("::")[-1]
    return "" if name in source.functions else name


def _arguments(node: tree_sitter.Node) -> list[str]:
    arguments = node.child_by_field_name("arguments")
    return [] if arguments is None else [text_of(child) for child in arguments.named_children]


def _read_calls(source: Source, hot: Iterable[Visit], facts: _Facts) -> None:
    for item in hot:
        name = _called(source, item.node)
        if not name:
            continue
        if _DOT.match(name):
            facts.add("compute", 3, item.node, "dot-product instruction")
        elif _ARITHMETIC.match(name):
            facts.add("compute", 1, item.node, "vector intrinsic")
        elif _LOAD.match(name) or _STORE.match(name):
            facts.add("memory", 1, item.node, "vector load or store")
        elif _STREAM.match(name):
            facts.add("memory", 1, item.node, "vector load or store")
            facts.add("memory", 3, item.node, "non-temporal access", needs=1)
        elif _PREFETCH.match(name):
            facts.add("memory", 3, item.node, "software prefetch", needs=1)


def _read_loops(source: Source, hot: Iterable[Visit], facts: _Facts) -> None:
    """Loops that a compiler can be expected to vectorise."""
    by_loop: dict[int, tuple[LoopNode, list[tree_sitter.Node]]] = {}
    for item in hot:
        if item.loops and item.loops[-1].is_innermost:
            by_loop.setdefault(item.loops[-1].node.id, (item.loops[-1], []))[1].append(item.node)
    for loop, nodes in by_loop.values():
        simd = any(re.search(r"\bsimd\b", pragma) for pragma in loop.pragmas)
        calls = {_called(source, node) for node in nodes} - {""}
        if not simd and (not loop.unit_step or not loop.variable or calls - _INLINED):
            continue
        indexed = [n for n in nodes if n.type == "subscript_expression"]
        unit = [n for n in indexed if has_unit_stride(_index(n), loop.variable)]
        if unit or simd:
            facts.add("memory", 1, unit[0] if unit else loop.node, "unit-stride innermost loop")
        if (unit or simd) and any(_computes(n) for n in nodes):
            facts.add("compute", 1, loop.node, "arithmetic in a unit-stride innermost loop")


def _computes(node: tree_sitter.Node) -> bool:
    if node.type == "assignment_expression":
        return text_of(node.child_by_field_name("operator")) in ("+=", "-=", "*=", "/=")
    if node.type == "call_expression":
        return True
    above = node.parent
    while above is not None and above.type in ("binary_expression", "parenthesized_expression"):
        above = above.parent
    in_index = above is not None and above.type == "subscript_argument_list"
    arithmetic = node.type == "binary_expression" and text_of(node.child_by_field_name("operator")) in (
        "+",
        "-",
        "*",
        "/",
    )
    return arithmetic and not in_index and (above is None or above.type != "for_statement")


def _index(subscript: tree_sitter.Node) -> str:
    return text_of(subscript.child_by_field_name("indices")).strip("[]")


def _array(subscript: tree_sitter.Node) -> str:
    base: tree_sitter.Node | None = subscript
    while base is not None and base.type == "subscript_expression":
        base = base.child_by_field_name("argument")
    return text_of(base)


def _read_tiles(source: Source, hot: Iterable[Visit], facts: _Facts) -> None:
    """Local or static arrays that loops both store to and load from at a variable index."""
    stored: dict[str, tree_sitter.Node] = {}
    loaded: dict[str, tree_sitter.Node] = {}
    for item in hot:
        node = item.node
        if node.type != "subscript_expression" or not item.loops or _array(node) not in source.arrays:
            continue
        parent = node.parent
        if parent is not None and parent.type == "subscript_expression":
            continue
        if not any(loop.variable and re.search(rf"\b{loop.variable}\b", text_of(node)) for loop in item.loops):
            continue
        is_target = parent is not None and parent.type == "assignment_expression"
        if is_target and parent is not None and parent.child_by_field_name("left") == node:
            stored.setdefault(_array(node), node)
        else:
            loaded.setdefault(_array(node), node)
    for name, node in stored.items():
        if name in loaded:
            facts.add("memory", 2, node, "tile in a local or static array, stored here")
            facts.add("memory", 2, loaded[name], "tile in a local or static array, loaded here")


def _read_accumulators(source: Source, hot: Iterable[Visit], facts: _Facts) -> None:
    """Accumulators of vector multiply-adds by loop, counting constant inner loops by their trips."""
    found: dict[int, _Counts] = {}
    loads: dict[str, tree_sitter.Node] = {}
    for item in hot:
        name = _called(source, item.node)
        outer = _outer_loop(item.loops)
        if not name or outer is None:
            continue
        counts = found.setdefault(outer.node.id, _Counts())
        trips = _trips(item.loops)
        target = _assigned(item.node)
        if _LOAD.match(name):
            counts.loads += trips
            loads[target] = item.node
        elif _BROADCAST.match(name):
            counts.loads += trips / 4
        elif _FMA_FIRST.match(name) or _FMA_LAST.match(name):
            arguments = _arguments(item.node)
            addend = arguments[0 if _FMA_FIRST.match(name) else -1] if arguments else ""
            counts.multiply_adds += trips
            if addend and addend == target:
                counts.accumulators[target] = _copies(target, item.loops)
                counts.first = counts.first or item.node
                for argument in arguments:
                    if argument in loads and argument != addend:
                        counts.fed.setdefault(argument, set()).add(target)
    for counts in found.values():
        counts.judge(loads, facts)


class _Counts:
    """Multiply-adds of one loop."""

    def __init__(self) -> None:
        self.accumulators: dict[str, int] = {}
        self.multiply_adds = 0
        self.loads = 0.0
        self.fed: dict[str, set[str]] = {}
        self.first: tree_sitter.Node | None = None

    def judge(self, loads: dict[str, tree_sitter.Node], facts: _Facts) -> None:
        for name, targets in self.fed.items():
            if sum(self.accumulators[target] for target in targets) >= 2:
                facts.add("memory", 2, loads[name], "one load feeds several multiply-adds")
        total = sum(self.accumulators.values())
        if self.first is None or total < 4:
            return
        facts.add("compute", 2, self.first, f"vector multiply-add, {total} independent accumulators")
        if total >= 8 and self.multiply_adds >= 2 * self.loads:
            facts.add("compute", 3, self.first, f"register tile, {total} accumulators")


def _outer_loop(loops: tuple[LoopNode, ...]) -> LoopNode | None:
    """The innermost loop whose trip count is no literal: what is left after full unrolling."""
    return next((loop for loop in reversed(loops) if loop.trips == 0), loops[0] if loops else None)


def _trips(loops: tuple[LoopNode, ...]) -> int:
    product = 1
    for loop in reversed(loops):
        if loop.trips == 0:
            break
        product *= loop.trips
    return product


def _copies(target: str, loops: tuple[LoopNode, ...]) -> int:
    """How many registers a target such as ``acc[i][j]`` stands for once constant loops are unrolled."""
    product = 1
    for loop in loops:
        if loop.trips and re.search(rf"\b{loop.variable}\b", target):
            product *= loop.trips
    return product


def _assigned(call: tree_sitter.Node) -> str:
    parent = call.parent
    if parent is not None and parent.type == "assignment_expression":
        return text_of(parent.child_by_field_name("left"))
    if parent is not None and parent.type == "init_declarator":
        return text_of(parent.child_by_field_name("declarator"))
    return ""


def _read_threads(source: Source, entry: str, facts: _Facts) -> None:
    first: tree_sitter.Node | None = None
    for body in source.bodies():
        shared_loops = 0
        for item in visit(body):
            pragma = pragma_of(item.node)
            name = _called(source, item.node)
            if pragma and _REGION.match(pragma):
                first = first or item.node
                facts.add("parallelism", 1, item.node, "parallel region")
            if pragma and (_DYNAMIC.search(pragma) or _COLLAPSE.search(pragma) or "reduction" in pragma):
                facts.add("parallelism", 2, item.node, "dynamic, collapsed or combined", needs=1)
            if (pragma and _COMBINE.match(pragma)) or _ATOMIC_CALL.match(name):
                level, reason = (3, "inside a loop") if item.loops else (2, "once a thread")
                facts.add("parallelism", level, item.node, f"threads exchange data {reason}", needs=1)
            if pragma.startswith(("barrier", "ordered")):
                facts.add("parallelism", 3, item.node, "threads wait for each other", needs=1)
            if re.match(r"for\b", pragma) and "nowait" not in pragma:
                shared_loops += 1
                if shared_loops == 2:
                    facts.add("parallelism", 3, item.node, "threads wait between two shared loops", needs=1)
    if first is not None and _regions(source, entry, set()) >= 2:
        facts.add("parallelism", 3, first, "several parallel regions one after another", needs=1)


def _regions(source: Source, name: str, active: set[str]) -> int:
    """Parallel regions that one call of a function opens, at most."""
    if name in active:
        return 0
    return max(_regions_below(source, f, active | {name}, ()) for f in source.functions[name])


def _regions_below(source: Source, node: tree_sitter.Node, active: set[str], loops: tuple[LoopNode, ...]) -> int:
    total = 0
    branches: dict[str, int] = {"consequence": 0, "alternative": 0}
    for item in visit(node):
        here = 1 if _REGION.match(pragma_of(item.node)) else 0
        if item.node.type == "call_expression":
            name = text_of(item.node.child_by_field_name("function")).split("<")[0].split("::")[-1]
            here += _regions(source, name, active) if name in source.functions else 0
        if not here:
            continue
        here = 2 * here if item.loops or loops else here
        branch = _branch(item.node, node)
        if branch:
            branches[branch] += here
        else:
            total += here
    return total + max(branches.values())


def _branch(node: tree_sitter.Node, top: tree_sitter.Node) -> str:
    """``consequence`` or ``alternative`` of the outermost ``if`` below ``top`` that holds the node; else empty."""
    found, current = "", node
    while current.parent is not None and current != top:
        parent = current.parent
        if parent.type == "if_statement":
            for name in ("consequence", "alternative"):
                if parent.child_by_field_name(name) == current:
                    found = name
        current = parent
    return found
