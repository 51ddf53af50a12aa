"""From values on atoms to loop nests: order of axes, merging, what is swept, scopes.

Outputs that have an axis in common are computed by one nest; outputs that have none are unrelated, and each group of
them has a nest of its own. Within a nest, adjacent axes that every tensor treats alike become one loop. Reductions must
agree: all within rows over the same axes, and what is left of a row over the remaining ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from kernelworks.propose.experts.axes import ShapeError
from kernelworks.propose.experts.builder import Builder, RawNode, Tensor
from kernelworks.propose.experts.ir import Axis, Layout, Node, Output, Program, Scope
from kernelworks.task.model import TensorArgument

Result = tuple[TensorArgument, Tensor]
"""An output argument and the value that it takes."""


def build_programs(builder: Builder, results: Sequence[Result]) -> tuple[Program, ...]:
    """One program for each group of related outputs, in the order of their first ones.

    Raises:
        ShapeError: a group that no single loop nest computes.
    """
    return tuple(_build_program(builder, group) for group in _related(builder, results))


def _related(builder: Builder, results: Sequence[Result]) -> list[list[Result]]:
    """Results in groups that share no axis; those without any axis go with the first group."""
    groups: list[tuple[set[int], list[Result]]] = []
    without: list[Result] = []
    for result in results:
        atoms = _atoms_behind(builder, result[1])
        if not atoms:
            without.append(result)
            continue
        joined = [group for group in groups if group[0] & atoms]
        groups = [group for group in groups if not group[0] & atoms]
        groups.append((atoms.union(*(g[0] for g in joined)), [*(r for g in joined for r in g[1]), result]))
    if without:
        groups[:1] = [(groups[0][0], groups[0][1] + without)] if groups else [(set(), without)]
    position = {argument.name: i for i, (argument, _) in enumerate(results)}
    ordered = [sorted(group, key=lambda result: position[result[0].name]) for _, group in groups]
    return sorted(ordered, key=lambda group: position[group[0][0].name])


def _atoms_behind(builder: Builder, value: Tensor) -> set[int]:
    """All axes that are looped over to compute a value."""
    found = {atom for dim in value.dims for atom in dim}
    wanted = {value.node}
    for position in range(value.node, -1, -1):
        if position in wanted:
            node = builder.nodes[position]
            wanted.update(node.args)
            found.update(node.atoms, node.of)
    return set(builder.axes.resolve(sorted(found)))


def _build_program(builder: Builder, results: Sequence[Result]) -> Program:
    outputs = [value for _, value in results]
    raw = _Raw(builder, outputs)
    groups = raw.merged()
    of_atom = {atom: i for i, group in enumerate(groups) for atom in group}
    rank = len(groups)
    if not rank:
        raise ShapeError("outputs without any axis")
    nodes = [raw.node(node, of_atom) for node in raw.nodes]
    plan = _swept_axes(raw.nodes, of_atom, rank)
    swept = plan.swept
    axes = tuple(
        Axis(
            size=_size_text(builder, group),
            swept=i in swept,
        )
        for i, group in enumerate(groups)
    )
    expanded, where = _with_reductions(nodes, raw.nodes, of_atom, plan)
    scoped = _scoped(expanded, swept, plan.has_rows)
    layout = Layout.FLAT if not plan.has_rows else Layout.ROWS if rank - 1 in swept else Layout.COLUMNS
    if layout is Layout.COLUMNS and any(n.op == "reduce_rows" for n in scoped):
        raise ShapeError("a reduction over middle axes that a full reduction follows")
    stores = tuple(Output(argument.name, where[raw.place[value.node]], argument.dtype) for argument, value in results)
    strides = _strides(raw, builder, [argument.name for argument, _ in results], of_atom)
    return Program(axes, tuple(scoped), stores, layout, builder.axes.guards, strides)


class _Raw:
    """The nodes that outputs need, on resolved atoms, and the order of those atoms."""

    def __init__(self, builder: Builder, outputs: Sequence[Tensor]) -> None:
        self.builder = builder
        wanted = {value.node for value in outputs}
        for position in range(len(builder.nodes) - 1, -1, -1):
            if position in wanted:
                wanted.update(builder.nodes[position].args)
        self.place = {position: i for i, position in enumerate(sorted(wanted))}
        self.nodes = [self._resolved(builder.nodes[position]) for position in sorted(wanted)]
        self.outputs = [builder.axes.resolve(a for dim in value.dims for a in dim) for value in outputs]
        for value in outputs:
            for dim, size in zip(value.dims, value.shape, strict=True):
                if size != 1 and not builder.axes.resolve(dim):
                    raise ShapeError("an output that is expanded")

    def _resolved(self, node: RawNode) -> RawNode:
        resolve = self.builder.axes.resolve
        args = tuple(self.place[a] for a in node.args)
        return replace(node, args=args, atoms=resolve(node.atoms), of=resolve(node.of))

    def node(self, node: RawNode, of_atom: dict[int, int]) -> Node:
        """As a node on merged axes; reductions and scopes are completed later."""
        axes = frozenset(of_atom[a] for a in node.atoms)
        count = _size_text(self.builder, node.of) if node.op == "count" else ""
        if node.op == "index" and {a for a, group in of_atom.items() if group in axes} != set(node.of):
            raise ShapeError("an index along one of several axes that are one loop")
        return Node(node.op, node.args, node.dtype, axes, Scope.GLOBAL, node.name, node.constant, count)

    def merged(self) -> list[tuple[int, ...]]:
        """Loops, outermost first: runs of atoms that every tensor and reduction treats alike."""
        present = [set(n.atoms) for n in self.nodes if n.op == "load"]
        present += [set(n.of) for n in self.nodes if n.op in ("reduce", "index")]
        present += [set(atoms) for atoms in self.outputs]
        groups: list[list[int]] = []
        for atom in self._ordered():
            if groups and all((groups[-1][-1] in s) == (atom in s) for s in present):
                groups[-1].append(atom)
            else:
                groups.append([atom])
        return [tuple(group) for group in groups]

    def _ordered(self) -> list[int]:
        resolve = self.builder.axes.resolve
        chains = [n.atoms for n in self.nodes if n.op == "load"] + self.outputs
        chains += [resolve(order) for order in self.builder.orders]
        used = {a for n in self.nodes for a in (*n.atoms, *n.of)}
        after: dict[int, set[int]] = {a: set() for a in sorted(used)}
        for chain in chains:
            kept = [a for a in chain if a in used]
            if len(set(kept)) != len(kept):
                raise ShapeError("one axis used twice by a tensor")
            for first, second in pairwise(kept):
                after[second].add(first)
        order: list[int] = []
        while after:
            ready = next((a for a, before in after.items() if not before), None)
            if ready is None:
                raise ShapeError("axes that stand in different orders (a transposition)")
            del after[ready]
            for before in after.values():
                before.discard(ready)
            order.append(ready)
        return order


class _Swept:
    """Which axes are swept, and whether rows have values of their own."""

    def __init__(self, swept: frozenset[int], has_rows: bool, everything: frozenset[int]) -> None:
        self.swept = swept
        self.has_rows = has_rows
        self.everything = everything


def _swept_axes(raw: Sequence[RawNode], of_atom: dict[int, int], rank: int) -> _Swept:
    everything = frozenset(range(rank))
    of = [frozenset(of_atom[a] for a in r.of) for r in raw if r.op == "reduce"]
    within = [axes for axes in of if axes and axes != everything]
    if not within:
        return _Swept(frozenset({rank - 1}), False, everything)
    swept = within[0]
    for axes in within:
        if axes not in (swept, everything - swept):
            raise ShapeError("reductions over different axes")
    return _Swept(swept, True, everything)


def _with_reductions(
    nodes: Sequence[Node], raw: Sequence[RawNode], of_atom: dict[int, int], plan: _Swept
) -> tuple[list[Node], list[int]]:
    """Reductions as ``reduce`` over swept axes and ``reduce_rows`` over the rest; counts as C text."""
    made: list[Node] = []
    where: list[int] = []
    for node, source in zip(nodes, raw, strict=True):
        node = replace(node, args=tuple(where[a] for a in node.args))
        of = frozenset(of_atom[a] for a in source.of)
        if node.op == "reduce" and not of:
            where.append(node.args[0])
            continue
        if node.op == "reduce":
            argument = made[node.args[0]].axes
            if not of <= argument:
                raise ShapeError("a reduction over an axis on which its argument does not vary")
            if of & plan.swept:
                made.append(replace(node, axes=argument - plan.swept))
            if of - plan.swept or not plan.has_rows:
                if argument & plan.swept and not of & plan.swept:
                    raise ShapeError("reductions over different axes")
                if of & plan.swept:
                    node = replace(node, args=(len(made) - 1,))
                if of | plan.swept != plan.everything:
                    raise ShapeError("reductions over different axes")
                made.append(replace(node, op="reduce_rows", axes=frozenset()))
        else:
            made.append(node)
        where.append(len(made) - 1)
    return made, where


def _scoped(nodes: Sequence[Node], swept: frozenset[int], has_rows: bool) -> list[Node]:
    done: list[Node] = []
    for node in nodes:
        scope = Scope.ELEMENT if node.axes & swept else Scope.ROW if node.axes else Scope.GLOBAL
        if node.op == "reduce":
            scope = Scope.ROW
        elif node.op != "reduce_rows":
            scope = max([scope, *(done[a].scope for a in node.args)])
        done.append(replace(node, scope=scope))
    return done


def _strides(raw: _Raw, builder: Builder, outputs: Sequence[str], of_atom: dict[int, int]) -> dict[str, dict[int, str]]:
    tensors = {n.name: n.atoms for n in raw.nodes if n.op == "load"}
    tensors.update(zip(outputs, raw.outputs, strict=True))
    found: dict[str, dict[int, str]] = {}
    for name, atoms in tensors.items():
        strides: dict[int, str] = {}
        factors: list[str] = []
        for atom in reversed(atoms):
            strides.setdefault(of_atom[atom], " * ".join(reversed(factors)) or "1")
            factors.append(_c_text(builder.axes.text(atom)))
        found[name] = strides
    return found


def _size_text(builder: Builder, atoms: Sequence[int]) -> str:
    return " * ".join(_c_text(builder.axes.text(a)) for a in atoms) or "1"


def _c_text(text: str) -> str:
    return text.replace("//", "/")
