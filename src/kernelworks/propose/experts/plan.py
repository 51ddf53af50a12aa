"""From a ``Program`` and a few choices to the order of work: nests, sweeps, what is saved between sweeps.

A *nest* is one parallel loop over rows (or tiles, or blocks). Inside a row, *sweeps* go over the swept axes: sweep
number L accumulates the reductions whose arguments need L earlier reductions, and stores what needs no more.
Reductions over rows end a nest; what depends on them comes in the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kernelworks.propose.experts.ir import Output, Program, Scope, compute_dtype

Buffer = Literal["none", "scratch", "output"]

_FREE = frozenset({"load", "scalar", "const", "count", "index", "cast", "neg", "abs", "finite_or_zero"})
_EXPENSIVE = frozenset(
    "exp exp2 expm1 log log1p log2 log10 sin cos tan asin acos atan sinh cosh tanh erf erfc pow atan2 div sqrt".split()
)


@dataclass(frozen=True)
class OnlinePair:
    """A maximum and the sum of exponentials against it, gathered in one sweep (Milakov and Gimelshein, 1805.02867)."""

    maximum: int
    total: int
    argument: int
    """What the maximum is over."""
    guarded: bool
    """Whether an infinite maximum counts as zero in the exponent (logsumexp)."""


@dataclass
class Sweep:
    """One pass over the swept axes of a row."""

    level: int
    rows: list[int] = field(default_factory=list[int])
    """Row values to be computed before it."""
    row_stores: list[Output] = field(default_factory=list[Output])
    body: list[int] = field(default_factory=list[int])
    """Element values, in order; those in ``restores`` are read, not computed."""
    reductions: list[int] = field(default_factory=list[int])
    pairs: list[OnlinePair] = field(default_factory=list[OnlinePair])
    stores: list[Output] = field(default_factory=list[Output])
    saves: list[int] = field(default_factory=list[int])
    restores: list[int] = field(default_factory=list[int])

    @property
    def online(self) -> list[list[OnlinePair]]:
        """The pairs by maximum: those that share one share its running sum as well."""
        tops = dict.fromkeys(pair.maximum for pair in self.pairs)
        return [[pair for pair in self.pairs if pair.maximum == top] for top in tops]

    @property
    def has_loop(self) -> bool:
        """Whether anything is done by element."""
        return bool(self.reductions or self.pairs or self.stores)


@dataclass
class Nest:
    """One parallel loop."""

    before: list[int]
    """Global values to be computed before it."""
    sweeps: list[Sweep]
    """The last one has no loop: it carries what follows the last loop."""
    totals: list[int]
    """Reductions over rows that it gathers."""
    buffers: list[int]
    """Element values that are kept between sweeps."""
    in_output: dict[int, str]
    """Buffers that live in the memory of an output: node -> argument."""


@dataclass
class Plan:
    """The order of work of a whole kernel."""

    nests: list[Nest]
    after: list[int]
    """Global values to be computed after the last nest."""
    global_stores: list[Output]


def online_pairs(program: Program) -> tuple[OnlinePair, ...]:
    """All places where the online form applies."""
    nodes = program.nodes
    found: list[OnlinePair] = []
    for total in program.reductions:
        raised = nodes[nodes[total].args[0]]
        if nodes[total].name != "sum" or raised.op != "exp":
            continue
        shifted = nodes[raised.args[0]]
        if shifted.op != "sub":
            continue
        argument, top = shifted.args
        guarded = nodes[top].op == "finite_or_zero"
        maximum = nodes[top].args[0] if guarded else top
        node = nodes[maximum]
        alike = compute_dtype(node.dtype) is compute_dtype(nodes[total].dtype)
        if node.op == "reduce" and node.name == "max" and node.args[0] == argument and alike:
            found.append(OnlinePair(maximum, total, argument, guarded))
    return tuple(found)


def make_plan(program: Program, *, buffer: Buffer, online: bool) -> Plan:
    """Order the work of a program."""
    pairs = {pair.total: pair for pair in online_pairs(program)} if online else {}
    phases = _phases(program)
    last = max(
        [0, *(phases[o.node] for o in program.outputs if program.nodes[o.node].scope is not Scope.GLOBAL)],
        default=0,
    )
    needed = {g: phases[program.nodes[g].args[0]] for g in program.global_reductions}
    last = max([last, *needed.values()])
    computed: set[int] = set()
    nests: list[Nest] = []
    for phase in range(last + 1):
        before = _global_values(program, phases, phase, computed)
        totals = [g for g, at in needed.items() if at == phase]
        outputs = [
            o for o in program.outputs if phases[o.node] == phase and program.nodes[o.node].scope is not Scope.GLOBAL
        ]
        nests.append(_Nesting(program, pairs, buffer, outputs, totals).nest(before))
    return Plan(
        nests,
        _global_values(program, phases, max(phases, default=0), computed),
        [o for o in program.outputs if program.nodes[o.node].scope is Scope.GLOBAL],
    )


def _phases(program: Program) -> list[int]:
    """How many nests must end before each node can be computed."""
    phases: list[int] = []
    for node in program.nodes:
        earliest = max((phases[a] for a in node.args), default=0)
        phases.append(earliest + (node.op == "reduce_rows"))
    return phases


def _global_values(program: Program, phases: list[int], phase: int, computed: set[int]) -> list[int]:
    found = [
        i
        for i, node in enumerate(program.nodes)
        if node.scope is Scope.GLOBAL and node.op not in ("const", "reduce_rows") and phases[i] <= phase
    ]
    fresh = [i for i in found if i not in computed]
    computed.update(fresh)
    return fresh


class _Nesting:
    """Builds one nest."""

    def __init__(
        self,
        program: Program,
        pairs: dict[int, OnlinePair],
        buffer: Buffer,
        outputs: list[Output],
        totals: list[int],
    ) -> None:
        self.nodes = program.nodes
        self.everywhere = frozenset(range(len(program.axes)))
        self.pairs = pairs
        self.buffer = buffer
        self.outputs = outputs
        self.totals = totals
        self.targets = [o.node for o in outputs] + [program.nodes[g].args[0] for g in totals]
        self.closure = self._closure(self.targets, {Scope.ROW, Scope.ELEMENT})
        self.levels = self._levels()

    def nest(self, before: list[int]) -> Nest:
        """Sweeps in order, then buffers between them."""
        top = max([0, *(self.levels[n] for n in self.closure)])
        sweeps = [self._sweep(level) for level in range(top + 1)]
        if sweeps[-1].has_loop:
            sweeps.append(Sweep(level=top + 1))
        buffers: list[int] = []
        in_output: dict[int, str] = {}
        if self.buffer != "none":
            buffers = self._add_buffers(sweeps)
        if self.buffer == "output":
            in_output = self._output_buffers(sweeps, buffers)
        return Nest(before, sweeps, self.totals, buffers, in_output)

    def _args(self, position: int) -> tuple[int, ...]:
        pair = self.pairs.get(position)
        return (pair.argument, pair.maximum) if pair else self.nodes[position].args

    def _closure(self, targets: list[int], scopes: set[Scope], stop: frozenset[int] = frozenset()) -> list[int]:
        wanted: set[int] = set()
        stack = [t for t in targets if self.nodes[t].scope in scopes]
        while stack:
            position = stack.pop()
            if position in wanted:
                continue
            wanted.add(position)
            if position not in stop:
                stack.extend(a for a in self._args(position) if self.nodes[a].scope in scopes)
        return sorted(wanted)

    def _levels(self) -> dict[int, int]:
        levels: dict[int, int] = {}
        for position in self.closure:
            pair = self.pairs.get(position)
            if pair is not None:
                levels[position] = levels[pair.argument] + 1
                continue
            earliest = max((levels.get(a, 0) for a in self.nodes[position].args), default=0)
            levels[position] = earliest + (self.nodes[position].op == "reduce")
        return levels

    def _sweep(self, level: int) -> Sweep:
        paired_maxima = {pair.maximum for total, pair in self.pairs.items() if total in self.levels}
        sweep = Sweep(level=level)
        for position in self.closure:
            node = self.nodes[position]
            if node.op == "reduce":
                if self.levels[position] != level + 1:
                    continue
                if position in self.pairs:
                    sweep.pairs.append(self.pairs[position])
                elif position not in paired_maxima:
                    sweep.reductions.append(position)
            elif node.scope is Scope.ROW and self.levels[position] == level:
                sweep.rows.append(position)
        for output in self.outputs:
            if self.levels[output.node] == level:
                element = self.nodes[output.node].scope is Scope.ELEMENT
                (sweep.stores if element else sweep.row_stores).append(output)
        sweep.body = self._body(sweep, frozenset())
        return sweep

    def _body(self, sweep: Sweep, restored: frozenset[int]) -> list[int]:
        return self._closure(self._direct(sweep), {Scope.ELEMENT}, restored)

    def _direct(self, sweep: Sweep) -> list[int]:
        return (
            [self.nodes[r].args[0] for r in sweep.reductions]
            + [pair.argument for pair in sweep.pairs]
            + [output.node for output in sweep.stores]
            + sweep.saves
        )

    def _add_buffers(self, sweeps: list[Sweep]) -> list[int]:
        buffers: list[int] = []
        for index, sweep in enumerate(sweeps):
            for position in sweep.body:
                source = self._saving_sweep(sweeps[:index], position)
                if source is None or not self._worth(position) or not self._is_boundary(sweep, position):
                    continue
                if position not in source.saves and position not in source.restores:
                    source.saves.append(position)
                sweep.restores.append(position)
                if position not in buffers:
                    buffers.append(position)
            sweep.body = self._body(sweep, frozenset(sweep.restores))
            sweep.restores = [p for p in sweep.restores if p in sweep.body]
        kept = [b for b in buffers if any(b in s.restores for s in sweeps)]
        for sweep in sweeps:
            sweep.saves = [p for p in sweep.saves if p in kept]
        return kept

    @staticmethod
    def _saving_sweep(earlier: list[Sweep], position: int) -> Sweep | None:
        return next((s for s in earlier if position in s.body), None)

    def _is_boundary(self, sweep: Sweep, position: int) -> bool:
        """Whether something that is new in this sweep uses the value."""
        if position in self._direct(sweep):
            return True
        return any(position in self.nodes[b].args and self.levels[b] >= sweep.level for b in sweep.body)

    def _worth(self, position: int) -> bool:
        """Whether computing it again costs more than reading it again from the nearest cache."""
        inside = self._closure([position], {Scope.ELEMENT})
        work = [self.nodes[p].op for p in inside if self.nodes[p].op not in _FREE]
        return len(work) >= 3 or any(op in _EXPENSIVE for op in work)

    def _output_buffers(self, sweeps: list[Sweep], buffers: list[int]) -> dict[int, str]:
        found: dict[int, str] = {}
        for position in buffers:
            last_use = max(i for i, s in enumerate(sweeps) if position in s.restores)
            for i, sweep in enumerate(sweeps):
                for output in sweep.stores:
                    # An output that lacks an axis has less memory than there are values to keep.
                    same = self.nodes[output.node].axes == self.nodes[position].axes == self.everywhere
                    if i >= last_use and same and output.argument not in found.values() and position not in found:
                        # Kept as computed: no 16-bit output has room for that.
                        same_type = output.dtype == compute_dtype(self.nodes[position].dtype)
                        if same_type and output.dtype.is_floating:
                            found[position] = output.argument
        return found
