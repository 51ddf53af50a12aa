"""The lines of a kernel: what a plan and a recipe say, as C++ statements for the templates.

Values are named after their operation and position (``exp_4``), loads after their argument (``x_here``); names of the
prototype are never reused.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernelworks.propose.experts.ir import Layout, Node, Output, Program, Scope, compute_dtype
from kernelworks.propose.experts.lines import NestText, RegionText, SweepText
from kernelworks.propose.experts.plan import Nest, OnlinePair, Sweep
from kernelworks.propose.experts.recipe import Recipe
from kernelworks.propose.experts.text import c_type, combined, literal, neutral, operation
from kernelworks.task.model import DType, Task
from kernelworks.task.prototype import C_TYPES


class Emitter:
    """Turns nests of one program and recipe into text. Collects which helpers and functions the text needs."""

    def __init__(self, task: Task, program: Program, recipe: Recipe) -> None:
        self.program = program
        self.nodes = program.nodes
        self.recipe = recipe
        self.vector = recipe.style == "vector"
        self.columns = program.layout is Layout.COLUMNS
        self.lane = program.floating or DType.FLOAT32
        self.last = len(program.axes) - 1
        self.helpers: set[str] = set()
        self.functions: set[tuple[str, DType]] = set()
        """Functions by element: operation and type."""
        self.row_functions: set[tuple[str, DType]] = set()
        self.reductions: set[tuple[str, DType]] = set()
        self._taken = {a.name for a in task.arguments} | set(task.dims)
        self._names: dict[int, str] = {}
        self._dtypes = {a.name: a.dtype for a in task.tensors}
        self._in_output: dict[int, str] = {}
        self._buffers: dict[int, str] = {}
        self.kept_at = "kept_at" if self.columns or any(a.swept for a in program.axes[:-1]) else ""
        """Where the values kept of one run along the innermost axis start."""
        self._pointers: dict[str, str] = {}
        self._column_values: list[tuple[str, str]] = []

    # Names and operands.

    def unique(self, wanted: str) -> str:
        """A name that nothing else has."""
        name = wanted
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def name(self, position: int) -> str:
        """The variable of a node."""
        if position not in self._names:
            node = self.nodes[position]
            if node.op in ("load", "scalar"):
                stem = f"{node.name}_here"
            else:
                stem = f"{node.name if 'reduce' in node.op else node.op}_{position}"
            self._names[position] = self.unique(stem)
        return self._names[position]

    def _operand(self, position: int, scope: Scope) -> str:
        """A node's value as used by a statement of this scope."""
        node = self.nodes[position]
        wide = self.vector and (scope is Scope.ELEMENT or (scope is Scope.ROW and self.columns))
        splat = "splat_wide" if self._is_wide_float(node.dtype) else "splat"
        if node.op == "const":
            text = literal(node.constant, node.dtype)
            return f"{splat}({text})" if wide else text
        if node.scope is Scope.ROW and self.columns and scope >= Scope.ROW:
            return f"{self.name(position)}[v]"
        narrow = node.scope is Scope.GLOBAL or (node.scope is Scope.ROW and not self.columns)
        return f"{splat}({self.name(position)})" if wide and narrow else self.name(position)

    def _is_wide_float(self, dtype: DType) -> bool:
        """Whether a value is a float64 among float32 lanes: a sum, or what is computed of it."""
        return self.vector and dtype is DType.FLOAT64 and self.lane is DType.FLOAT32

    def _type(self, node: Node, scope: Scope) -> str:
        if self.vector and (scope is Scope.ELEMENT or (scope is Scope.ROW and self.columns)):
            if self._is_wide_float(node.dtype):
                self.helpers.add("wide")
                return "Wide"
            return "Mask" if node.dtype is DType.BOOL else "Vec"
        return c_type(node.dtype)

    # Single statements.

    def _value(self, position: int, scope: Scope) -> str:
        node = self.nodes[position]
        if node.op == "load":
            return self._load(node, scope)
        if node.op == "scalar":
            return f"static_cast<{c_type(node.dtype)}>({node.name})"
        if node.op == "count":
            return f"static_cast<{c_type(node.dtype)}>({node.count})"
        if node.op == "index":
            return self._index(node)
        args = [self._operand(a, scope) for a in node.args]
        types = [compute_dtype(self.nodes[a].dtype) for a in node.args]
        if node.op == "cast":
            return self._cast(node, args[0], types[0], scope)
        text = operation(node, args, types)
        self._note(node, text, scope)
        return text

    def _note(self, node: Node, text: str, scope: Scope) -> None:
        if node.op in ("maximum", "minimum"):
            self.helpers.add(node.op)
        elif f"{node.op}_of(" in text and node.op != "abs":
            wide = scope is Scope.ELEMENT or (scope is Scope.ROW and self.columns)
            (self.functions if wide else self.row_functions).add((node.op, compute_dtype(node.dtype)))

    def _cast(self, node: Node, text: str, source: DType, scope: Scope) -> str:
        target = compute_dtype(node.dtype)
        if source is target:
            return text
        wide = self.vector and (scope is Scope.ELEMENT or (scope is Scope.ROW and self.columns))
        if target is DType.BOOL:
            return f"{text} != {literal(0, source)}"
        if not wide:
            return f"static_cast<{c_type(target)}>({text})"
        if DType.FLOAT64 in (source, target) and source is not DType.BOOL:
            self.helpers.add("wide")
            return f"{'wide' if target is DType.FLOAT64 else 'narrow'}_of({text})"
        return f"select({text}, splat({literal(1, target)}), splat({literal(0, target)}))"

    def _index(self, node: Node) -> str:
        (axis,) = node.axes
        if axis != self.last:
            return f"i{axis}"
        start = "" if self.program.layout is Layout.ROWS else "start + "
        return f"{start}c"

    def _load(self, node: Node, scope: Scope) -> str:
        dtype, along = self._dtypes[node.name], self.last in node.axes
        if scope is not Scope.ELEMENT and not self.columns:
            return self._read(f"{node.name}[{self._offset(node.name, range(self.last + 1))}]", dtype)
        pointer = self._row_pointer(node.name)
        inner = self._swept_offset(node.name)
        if along:
            if self.vector:
                self._note_type(dtype)
                return f"load({pointer} + {_plus(inner, 'c')}, lanes)"
            return self._read(f"{pointer}[{_plus(inner, 'c')}]", dtype)
        single = self._read(f"{pointer}[{inner or '0'}]", dtype)
        return f"splat({single})" if self.vector else single

    def _read(self, place: str, dtype: DType) -> str:
        if dtype is DType.BFLOAT16:
            self.helpers.add("widen")
            return f"widen({place})"
        return f"{place} != 0" if dtype is DType.BOOL else place if compute_dtype(dtype) is dtype else f"(float){place}"

    def _note_type(self, dtype: DType) -> None:
        names = {DType.FLOAT16: "half", DType.BFLOAT16: "bfloat", DType.BOOL: "bool"}
        if dtype in names:
            self.helpers.add(names[dtype])

    def _offset(self, argument: str, axes: Iterable[int]) -> str:
        strides = self.program.strides[argument]
        terms = [f"i{a}" if strides[a] == "1" else f"i{a} * ({strides[a]})" for a in axes if a in strides]
        return " + ".join(terms) or "0"

    def _swept_offset(self, argument: str) -> str:
        axes = [i for i, axis in enumerate(self.program.axes) if axis.swept and i != self.last]
        return "" if not any(a in self.program.strides[argument] for a in axes) else self._offset(argument, axes)

    def _row_pointer(self, argument: str) -> str:
        if argument not in self._pointers:
            self._pointers[argument] = self.unique(f"{argument}_row")
        return self._pointers[argument]

    def _pointer_lines(self) -> list[str]:
        lines: list[str] = []
        outputs = {o.argument for o in self.program.outputs}
        kept = [i for i, axis in enumerate(self.program.axes) if not axis.swept and i != self.last]
        for argument, name in self._pointers.items():
            offset = self._offset(argument, kept)
            if self.program.layout is not Layout.ROWS and self.last in self.program.strides[argument]:
                offset = "start" if offset == "0" else f"{offset} + start"
            const = "" if argument in outputs else "const "
            place = argument if offset == "0" else f"{argument} + {offset}"
            lines.append(f"{const}{C_TYPES[self._dtypes[argument]]}* const {name} = {place};")
        return lines

    def _store(self, output: Output, scope: Scope) -> str:
        strides = self.program.strides[output.argument]
        kept = [i for i, axis in enumerate(self.program.axes) if not axis.swept and i != self.last]
        once = [f"i{a} == 0" for a in kept if a not in strides]
        if self.last not in strides:
            once += ["start == 0"] if self.program.layout is not Layout.ROWS else []
            once += ["c == 0"] if scope is Scope.ELEMENT or self.columns else []
        # An output that varies on fewer axes than the nest is written by the first task that has its value.
        return (f"if ({' && '.join(once)}) " if once else "") + self._plain_store(output, scope)

    def _plain_store(self, output: Output, scope: Scope) -> str:
        value = self._operand(output.node, scope)
        dtype = output.dtype
        if scope is not Scope.ELEMENT and not self.columns:
            place = f"{output.argument}[{self._offset(output.argument, range(self.last + 1))}]"
            return f"{place} = {self._written(value, dtype)};"
        pointer, place = self._row_pointer(output.argument), self._swept_offset(output.argument)
        if self.last not in self.program.strides[output.argument]:
            single = value if not self.vector else f"{value}[0] != 0" if dtype is DType.BOOL else f"{value}[0]"
            return f"{pointer}[{place or '0'}] = {self._written(single, dtype)};"
        place = _plus(place, "c")
        if not self.vector:
            return f"{pointer}[{place}] = {self._written(value, dtype)};"
        self._note_type(dtype)
        streamed = self.recipe.stores == "stream" and dtype == self.lane
        if streamed:
            self.helpers.add("stream")
        return f"{'stream' if streamed else 'store'}({pointer} + {place}, {value}, lanes);"

    def _written(self, value: str, dtype: DType) -> str:
        if dtype is DType.BFLOAT16:
            self.helpers.add("narrow")
            return f"narrow({value})"
        return f"(_Float16){value}" if dtype is DType.FLOAT16 else value

    # Sweeps.

    def nest(self, nest: Nest) -> NestText:
        """All regions of a nest."""
        before = [self._define(p, Scope.GLOBAL) for p in nest.before]
        self._in_output = nest.in_output
        scratch = [b for b in nest.buffers if b not in nest.in_output]
        self._buffers = {b: self.unique(f"kept_{b}") for b in scratch}
        groups = [nest.sweeps] if self.recipe.fusion == "row" else _split(nest.sweeps)
        arrays: list[tuple[str, str]] = []
        regions: list[RegionText] = []
        done: list[int] = []
        for i, group in enumerate(groups):
            region = self._region(group, done, nest.totals if i == len(groups) - 1 else [])
            done += [r for s in group for r in s.rows]
            regions.append(region)
            if i < len(groups) - 1:
                results = [r for s in group for r in _results(s)]
                arrays += [(c_type(self.nodes[r].dtype), f"{self.name(r)}_rows") for r in results]
                region.saves = [f"{self.name(r)}_rows[task] = {self.name(r)};" for r in results]
                done += results
        arrays += [(self._total_type(g), f"{self.name(g)}_partial") for g in nest.totals]
        totals = [line for g in nest.totals for line in self._total(g)]
        return NestText(before, arrays, regions, [self._buffers[b] for b in scratch], totals)

    def _region(self, sweeps: list[Sweep], done: list[int], totals: list[int]) -> RegionText:
        self._pointers = {}
        self._column_values = []
        texts = [self._sweep(sweep) for sweep in sweeps]
        if done:
            again = [
                f"const {c_type(self.nodes[p].dtype)} {self.name(p)} = {self.name(p)}_rows[task];"
                if self.nodes[p].op == "reduce"
                else self._define(p, Scope.ROW)
                for p in sorted(done)
            ]
            texts[0].rows = again + texts[0].rows
        partials = [
            f"{self.name(g)}_partial[task] = {self._operand(self.nodes[g].args[0], Scope.ROW)};" for g in totals
        ]
        return RegionText(texts, self._pointer_lines(), [], partials, self._column_values)

    def _define(self, position: int, scope: Scope) -> str:
        node = self.nodes[position]
        if scope is Scope.ROW and self.columns:
            return f"{self.name(position)}[v] = {self._value(position, scope)};"
        return f"const {self._type(node, scope)} {self.name(position)} = {self._value(position, scope)};"

    def _sweep(self, sweep: Sweep) -> SweepText:
        text = SweepText(
            self._title(sweep),
            [self._define(p, Scope.ROW) for p in sweep.rows],
            [self._store(o, Scope.ROW) for o in sweep.row_stores],
            sweep.has_loop,
        )
        if self.columns:
            self._column_values += [(self._type(self.nodes[p], Scope.ROW), self.name(p)) for p in sweep.rows]
        if not sweep.has_loop:
            return text
        for position in sweep.body:
            if self.nodes[position].op == "const":
                continue
            restored = position in sweep.restores
            kind = self._type(self.nodes[position], Scope.ELEMENT)
            value = self._kept(position) if restored else self._value(position, Scope.ELEMENT)
            text.body.append(f"const {kind} {self.name(position)} = {value};")
            if position in sweep.saves and not restored:
                text.body.append(self._keep(position))
        text.body += [self._store(o, Scope.ELEMENT) for o in sweep.stores]
        if self.recipe.prefetch == "on":
            text.body += self._prefetches(sweep)
        clauses: list[str] = []
        for position in sweep.reductions:
            clauses += self._reduction(position, text)
        for pairs in sweep.online:
            self._online(pairs, text)
        if self.recipe.style == "simd" and not sweep.pairs:
            text.simd = " ".join(["#pragma omp simd", *([] if self.columns else clauses)])
        return text

    def _title(self, sweep: Sweep) -> str:
        parts = [f"{self.nodes[r].name} of {self.name(self.nodes[r].args[0])}" for r in sweep.reductions]
        parts += [f"maximum of {self.name(p.argument)} and sum of exponentials against it" for p, *_ in sweep.online]
        parts += [o.argument for o in sweep.stores]
        return ", ".join(parts)

    def _kept_place(self, position: int) -> str:
        if position in self._in_output:
            argument = self._in_output[position]
            return f"{self._row_pointer(argument)} + {_plus(self._swept_offset(argument), 'c')}"
        return f"{_plus(self._buffers[position], self.kept_at)} + c"

    def _kept(self, position: int) -> str:
        place = self._kept_place(position)
        return f"load({place}, lanes)" if self.vector else f"*({place})"

    def _keep(self, position: int) -> str:
        place = self._kept_place(position)
        return (
            f"store({place}, {self.name(position)}, lanes);" if self.vector else f"*({place}) = {self.name(position)};"
        )

    def _prefetches(self, sweep: Sweep) -> list[str]:
        loads = [self.nodes[p] for p in sweep.body if self.nodes[p].op == "load" and p not in sweep.restores]
        wide = [n for n in loads if n.axes == frozenset(range(len(self.program.axes)))]
        return [
            f"__builtin_prefetch({self._row_pointer(n.name)} + {_plus(self._swept_offset(n.name), 'c')} + PREFETCH);"
            for n in wide
        ]

    def _reduction(self, position: int, text: SweepText) -> list[str]:
        """Lines of one accumulator; returns the clause of a simd loop."""
        node = self.nodes[position]
        kind, dtype = node.name, compute_dtype(node.dtype)
        wide = self._is_wide_float(dtype)
        if wide:
            self.helpers.add("wide")
        else:
            self.reductions.add((kind, dtype))
        if kind in ("max", "min"):
            self.helpers.add("maximum" if kind == "max" else "minimum")
        name, start = self.name(position), neutral(kind, dtype)
        value = self._operand(node.args[0], Scope.ELEMENT)
        filled = f"splat_wide({start})" if wide else f"splat({start})"
        if self.columns:
            self._column_values.append((self._type(node, Scope.ROW), name))
            text.inits.append(f"{name}[v] = {filled if self.vector else start};")
            text.body.append(f"{name}[v] = {combined(kind, f'{name}[v]', f'wide_of({value})' if wide else value)};")
            return []
        if not self.vector:
            return self._plain_reduction(name, kind, dtype, value, text)
        parts, vector = self.unique(f"{name}_parts"), "Wide" if wide else "Vec"
        kept = f"keep({value}, lanes, {neutral(kind, self.lane)})"
        text.inits += [f"{vector} {parts}[UNROLL];", f"for ({vector}& part : {parts}) part = {filled};"]
        text.body.append(f"{parts}[u] = {combined(kind, f'{parts}[u]', f'wide_of({kept})' if wide else kept)};")
        text.ends.append(f"const {c_type(dtype)} {name} = {kind}_across({parts});")
        return []

    def _plain_reduction(self, name: str, kind: str, dtype: DType, value: str, text: SweepText) -> list[str]:
        start, part = neutral(kind, dtype), self.unique(f"{name}_run")
        text.inits.append(f"{c_type(dtype)} {name} = {start};")
        text.run_inits.append(f"{c_type(dtype)} {part} = {start};")
        text.body.append(f"{part} = {combined(kind, part, value)};")
        text.run_ends.append(f"{name} = {combined(kind, name, part)};")
        operator = {"sum": "+", "prod": "*"}.get(kind, f"nan_{kind}")
        return [f"reduction({operator} : {part})"]

    def _online(self, pairs: list[OnlinePair], text: SweepText) -> None:
        """Lines of a maximum and the sums against it, which differ only in how they end."""
        first, *others = sorted(pairs, key=lambda pair: pair.guarded)  # the end of a guarded sum may change it
        dtype = compute_dtype(self.nodes[first.maximum].dtype)
        self.helpers.update({"online", "maximum"})
        self.functions.add(("exp", dtype))
        if not self.columns:
            self.row_functions.add(("exp", dtype))
        top, total = self.name(first.maximum), self.name(first.total)
        value = self._operand(first.argument, Scope.ELEMENT)
        lowest, nothing = literal(-3.4028234663852886e38, dtype), literal(0, dtype)
        at, declared = ("[v]", "") if self.columns else ("", f"{c_type(dtype)} ")
        if self.columns:
            kind = self._type(self.nodes[first.maximum], Scope.ROW)
            self._column_values += [(kind, name) for name in (top, *(self.name(pair.total) for pair in pairs))]
        if self.columns or not self.vector:
            text.inits += [
                f"{declared}{top}{at} = {f'splat({lowest})' if self.vector else lowest};",
                f"{declared}{total}{at} = {f'splat({nothing})' if self.vector else nothing};",
            ]
            text.body.append(f"online_add({top}{at}, {total}{at}, {value});")
        else:
            tops, totals = self.unique(f"{top}_parts"), self.unique(f"{total}_parts")
            text.inits += [
                f"Vec {tops}[UNROLL], {totals}[UNROLL];",
                f"for (int u = 0; u < UNROLL; ++u) {tops}[u] = splat({lowest}), {totals}[u] = splat({nothing});",
            ]
            kept = f"keep({value}, lanes, {literal(float('-inf'), dtype)})"
            text.body.append(f"online_add({tops}[u], {totals}[u], {kept});")
            text.ends += [f"Lane {top}, {total};", f"online_across({tops}, {totals}, {top}, {total});"]
        text.ends.append(f"online_end({top}{at}, {total}{at}, {'true' if first.guarded else 'false'});")
        for pair in others:
            other, guarded = f"{self.name(pair.total)}{at}", "true" if pair.guarded else "false"
            text.ends += [f"{declared}{other} = {total}{at};", f"online_end({top}{at}, {other}, {guarded});"]

    # Totals over rows.

    def _total_type(self, position: int) -> str:
        node = self.nodes[position]
        return "double" if node.dtype.is_floating and node.name in ("sum", "prod") else c_type(node.dtype)

    def _total(self, position: int) -> list[str]:
        node = self.nodes[position]
        kind, name, held = node.name, self.name(position), self._total_type(position)
        if kind in ("max", "min"):
            self.helpers.add("maximum" if kind == "max" else "minimum")
        start = neutral(kind, DType.FLOAT64 if held == "double" else compute_dtype(node.dtype))
        return [
            f"{held} {name}_total = {start};",
            f"for (int64_t task = 0; task < tasks; ++task) {name}_total = "
            f"{combined(kind, f'{name}_total', f'{name}_partial[task]')};",
            f"const {c_type(node.dtype)} {name} = static_cast<{c_type(node.dtype)}>({name}_total);",
        ]

    def global_lines(self, positions: list[int], outputs: list[Output]) -> list[str]:
        """Values and stores after the last nest."""
        lines = [self._define(p, Scope.GLOBAL) for p in positions]
        return lines + [
            f"{o.argument}[0] = {self._written(self._operand(o.node, Scope.GLOBAL), o.dtype)};" for o in outputs
        ]


def _split(sweeps: list[Sweep]) -> list[list[Sweep]]:
    """One group a loop; what has no loop goes with the one before it."""
    groups: list[list[Sweep]] = []
    for sweep in sweeps:
        if groups and not sweep.has_loop:
            groups[-1].append(sweep)
        else:
            groups.append([sweep])
    return groups


def _results(sweep: Sweep) -> list[int]:
    return [*sweep.reductions, *(r for pairs in sweep.online for r in (pairs[0].maximum, *(p.total for p in pairs)))]


def _plus(left: str, right: str) -> str:
    return " + ".join(part for part in (left, right) if part)
