"""Chains of fused multiply-adds: independent accumulators, register tiles, loads that are used more than once.

Each loop's own blocks are walked once, in address order, with a symbolic value for every vector register. An
*accumulator* is a register whose value at the end of the loop body follows from its value at the beginning through
additions inside fused multiply-adds. Where a reduction is unrolled completely, a chain that starts at zero or with a
product and adds up four products or more counts too. The steps of a polynomial (whose addend is a constant) never do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kernelworks.kernel.x86_hot import Site
from kernelworks.kernel.x86_isa import (
    Instruction,
    Memory,
    Register,
    fma_form,
    is_broadcast,
    is_multiply,
    is_vector,
    is_vector_move,
    is_zeroing,
)

_MIN_PRODUCTS = 4


class _Node(NamedTuple):
    """Symbolic value of a vector register; ``root`` tells chains (and loads) apart."""

    kind: Literal["carried", "constant", "zero", "product", "load", "chain", "other"]
    root: int | str = 0


@dataclass
class _Chain:
    start: str
    products: int = 0
    last: str = ""
    first: Instruction | None = None


@dataclass
class Walk:
    """What one loop (or one block of loop-free code) does with fused multiply-adds."""

    accumulators: dict[str, Instruction] = field(default_factory=dict[str, Instruction])
    """Independent accumulators by register, each with its first multiply-add."""
    multiply_adds: int = 0
    """Multiply-adds into those accumulators; steps of polynomials beside them do not count."""
    loaded_bytes: int = 0
    width_bytes: int = 0
    """Widest multiply-add."""
    reused: tuple[Instruction, int] | None = None
    """A load, and how many independent multiply-adds it feeds (2 or more)."""

    @property
    def loaded_vectors(self) -> float:
        """Loads in units of whole vectors, so that a broadcast counts as one element."""
        return self.loaded_bytes / self.width_bytes if self.width_bytes else 0.0


def walks(site: Site) -> Iterator[Walk]:
    """One walk for each loop over data; for each hot block that lies in no loop one more."""
    function = site.function
    in_loop: set[int] = set()
    for loop in site.loops:
        nested = {
            b
            for inner in function.loops
            if inner.header != loop.header and inner.blocks < loop.blocks
            for b in inner.blocks
        }
        in_loop |= loop.blocks
        own = [i for b in sorted(loop.blocks - nested) for i in function.blocks[b].instructions]
        clobbered = {f for b in nested for i in function.blocks[b].instructions for f in i.writes}
        yield _Walker(site, own, clobbered, is_loop=True).run()
    for block in site.hot:
        if block not in in_loop:
            yield _Walker(site, list(function.blocks[block].instructions), set(), is_loop=False).run()


class _Walker:
    def __init__(self, site: Site, code: list[Instruction], clobbered: set[str], *, is_loop: bool) -> None:
        self._site = site
        self._code = code
        self._is_loop = is_loop
        self._clobbered = clobbered
        self._written = {f for i in code for f in i.writes}
        self._nodes: dict[str, _Node] = {}
        self._chains: dict[int | str, _Chain] = {}
        self._fed: dict[int, dict[int | str, None]] = {}
        self._loads: dict[int, Instruction] = {}
        self._calls = {call.instruction.address for call in site.function.calls}
        self._walk = Walk()

    def run(self) -> Walk:
        for instruction in self._code:
            self._step(instruction)
        self._close()
        return self._walk

    def _node(self, family: str) -> _Node:
        known = self._nodes.get(family)
        if known is not None:
            return known
        if family in self._clobbered or not self._is_loop:
            return _Node("other")
        return _Node("carried", family) if family in self._written else _Node("constant")

    def _step(self, instruction: Instruction) -> None:
        if instruction.address in self._calls:
            for family in self._written:
                if is_vector(family):
                    self._nodes[family] = _Node("other")
            return
        memory = instruction.memory
        loads = memory is not None and memory.read and instruction.uses_vector and self._is_data(instruction, memory)
        if loads and memory is not None:
            self._walk.loaded_bytes += memory.size_bytes
        form = fma_form(instruction.mnemonic)
        if form:
            self._multiply_add(instruction, form)
            return
        target = instruction.operands[0] if instruction.operands else None
        if isinstance(target, Register) and is_vector(target.family):
            self._nodes[target.family] = self._result(instruction, loads)

    def _is_data(self, instruction: Instruction, memory: Memory) -> bool:
        return self._site.values.place(instruction, memory).region != "constant"

    def _result(self, instruction: Instruction, loads: bool) -> _Node:
        source = instruction.operands[-1]
        moves = is_vector_move(instruction.mnemonic) or is_broadcast(instruction.mnemonic)
        if is_zeroing(instruction):
            return _Node("zero")
        if is_multiply(instruction.mnemonic):
            return _Node("product", instruction.address)
        if moves and isinstance(source, Memory):
            if not loads:
                return _Node("constant")
            self._loads[instruction.address] = instruction
            return _Node("load", instruction.address)
        if moves and isinstance(source, Register):
            return self._node(source.family) if is_vector(source.family) else _Node("other")
        return _Node("other")

    def _multiply_add(self, instruction: Instruction, form: str) -> None:
        walk = self._walk
        target, second, third = (o for o in instruction.operands if not _is_mask(o))
        assert isinstance(target, Register)
        walk.width_bytes = max(walk.width_bytes, target.size_bytes)
        addend = {"132": second, "213": third, "231": target}[form]
        factors = [o for o in (target, second, third) if o is not addend]
        start = self._operand(instruction, addend)
        node = self._extend(instruction, target.family, start)
        self._nodes[target.family] = node
        if start.kind == "constant":
            return
        for factor in factors:
            value = self._operand(instruction, factor)
            if value.kind == "load" and isinstance(value.root, int):
                self._fed.setdefault(value.root, {})[node.root] = None

    def _operand(self, instruction: Instruction, operand: object) -> _Node:
        if isinstance(operand, Register):
            return self._node(operand.family)
        if isinstance(operand, Memory) and not self._is_data(instruction, operand):
            return _Node("constant")
        return _Node("other")

    def _extend(self, instruction: Instruction, family: str, start: _Node) -> _Node:
        """The value after adding a product to ``start``."""
        if start.kind == "constant":
            return _Node("other")
        root = start.root if start.kind in ("carried", "chain") else instruction.address
        chain = self._chains.get(root)
        if chain is None:
            chain = self._chains[root] = _Chain(start.kind, products=int(start.kind == "product"), first=instruction)
        chain.products += 1
        chain.last = family
        return _Node("chain", root)

    def _close(self) -> None:
        walk = self._walk
        for node in self._nodes.values():
            if node.kind == "chain" and isinstance(node.root, str):
                chain = self._chains[node.root]
                if chain.first is not None:
                    walk.accumulators[node.root] = chain.first
                    walk.multiply_adds += chain.products
        for root, chain in self._chains.items():
            complete = chain.start in ("zero", "product") and chain.products >= _MIN_PRODUCTS
            if isinstance(root, int) and complete and chain.first is not None:
                walk.accumulators.setdefault(chain.last, chain.first)
                walk.multiply_adds += chain.products
        best = max(self._fed.items(), key=lambda item: len(item[1]), default=None)
        if best is not None and len(best[1]) >= 2:
            walk.reused = (self._loads[best[0]], len(best[1]))


def _is_mask(operand: object) -> bool:
    return isinstance(operand, Register) and operand.family[0] == "k"
