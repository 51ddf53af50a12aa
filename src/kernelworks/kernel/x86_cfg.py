"""Control flow of the code that is reachable from an entry point: functions, basic blocks, dominators, natural loops.

Functions are found by control flow alone (calls and addresses that reachable code takes), so that neither names nor
symbol tables decide what is looked at; a tail call is followed as part of its caller. Dominators after Cooper, Harvey
and Kennedy, "A Simple, Fast Dominance Algorithm" (2001).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from kernelworks.errors import KernelError
from kernelworks.kernel.elf import Image
from kernelworks.kernel.x86_decode import Decoder
from kernelworks.kernel.x86_isa import CONDITIONAL_JUMPS, ENDS, PADDING, Immediate, Instruction, Memory, Register

MAX_INSTRUCTIONS = 50_000
_NO_RETURN = re.compile(
    r"(?:abort|_?exit|quick_exit|_Exit|longjmp|pthread_exit|__stack_chk_fail|__chk_fail|__assert_fail|__cxa_(?:re)?throw"
    r"|__cxa_bad_cast|__cxa_throw_\w+|_Unwind_Resume|_ZSt9terminatev|_ZSt\d+__throw_\w+|_ZSt\d+__glibcxx_assert_fail\w*)\Z"
)
_TABLE_LOOKBACK = 16
_MAX_TABLE_ENTRIES = 1024


@dataclass(frozen=True, slots=True)
class Call:
    """A call or a tail call; ``target`` inside the library, ``name`` of an import, or neither where it is indirect."""

    instruction: Instruction
    target: int | None
    name: str


@dataclass(frozen=True, slots=True)
class Block:
    """A basic block."""

    start: int
    instructions: tuple[Instruction, ...]
    successors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop. A *retry* loop only repeats a compare-and-swap that lost a race: no loop over data."""

    header: int
    blocks: frozenset[int]
    is_retry: bool


@dataclass(frozen=True)
class Function:
    """One function: blocks by start address, in address order."""

    entry: int
    blocks: dict[int, Block]
    calls: tuple[Call, ...]
    taken: frozenset[int]
    """Functions whose address is taken here, directly or through a table."""
    tables: dict[int, tuple[int, ...]]
    """Targets of each indirect jump that was resolved, by the jump's address."""
    table_addresses: frozenset[int]

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Blocks in reverse postorder from the entry."""
        seen, postorder = {self.entry}, list[int]()
        stack = [(self.entry, iter(self.blocks[self.entry].successors))]
        while stack:
            block, successors = stack[-1]
            following = next((s for s in successors if s not in seen), None)
            if following is None:
                postorder.append(block)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(self.blocks[following].successors)))
        return tuple(reversed(postorder))

    @cached_property
    def predecessors(self) -> dict[int, tuple[int, ...]]:
        """Blocks from which control can come."""
        found: dict[int, list[int]] = {start: [] for start in self.blocks}
        for start, block in self.blocks.items():
            for successor in block.successors:
                found[successor].append(start)
        return {start: tuple(sources) for start, sources in found.items()}

    @cached_property
    def immediate_dominators(self) -> dict[int, int]:
        """The closest strict dominator of each block; the entry has itself."""
        position = {block: i for i, block in enumerate(self.order)}
        dominator = {self.entry: self.entry}
        changed = True
        while changed:
            changed = False
            for block in self.order[1:]:
                ready = [p for p in self.predecessors[block] if p in dominator]
                new = ready[0]
                for other in ready[1:]:
                    while new != other:
                        if position[new] > position[other]:
                            new = dominator[new]
                        else:
                            other = dominator[other]
                if dominator.get(block) != new:
                    dominator[block] = new
                    changed = True
        return dominator

    def dominators(self, block: int) -> Iterator[int]:
        """The block and all blocks that lie on every path from the entry to it."""
        while True:
            yield block
            above = self.immediate_dominators[block]
            if above == block:
                return
            block = above

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Natural loops, one a header, by header address."""
        bodies: dict[int, set[int]] = {}
        for block in self.order:
            for header in self.blocks[block].successors:
                if header in self.dominators(block):
                    body = bodies.setdefault(header, {header})
                    pending = [block]
                    while pending:
                        member = pending.pop()
                        if member not in body:
                            body.add(member)
                            pending.extend(p for p in self.predecessors[member] if p in self.immediate_dominators)
        return tuple(Loop(header, frozenset(body), self._is_retry(body)) for header, body in sorted(bodies.items()))

    @cached_property
    def in_loop(self) -> frozenset[int]:
        """Blocks in a natural loop that is no retry loop."""
        return frozenset(block for loop in self.loops if not loop.is_retry for block in loop.blocks)

    def _is_retry(self, body: set[int]) -> bool:
        exits = [b for b in body if any(s not in body for s in self.blocks[b].successors)]
        if len(exits) != 1:
            return False
        instructions = self.blocks[exits[0]].instructions
        swaps = [i for i, item in enumerate(instructions) if item.mnemonic == "cmpxchg" and item.locked]
        return bool(
            swaps
            and instructions[-1].mnemonic in ("je", "jne")
            and all(_keeps_flags(item) for item in instructions[swaps[-1] + 1 : -1])
        )

    def calls_by_block(self) -> dict[int, list[Call]]:
        """The calls of each block that has some."""
        block_of = {item.address: start for start, block in self.blocks.items() for item in block.instructions}
        found: dict[int, list[Call]] = {}
        for call in self.calls:
            found.setdefault(block_of[call.instruction.address], []).append(call)
        return found


def _keeps_flags(instruction: Instruction) -> bool:
    mnemonic = instruction.mnemonic
    return mnemonic.startswith(("mov", "vmov", "lea", "set", "cmov", "push", "pop")) or mnemonic == "nop"


@dataclass(frozen=True)
class Program:
    """Everything that is reachable from the entry point, in order of discovery."""

    image: Image
    entry: int
    functions: dict[int, Function]


def read_program(image: Image, entry: str) -> Program:
    """Follow the code from an entry point.

    Raises:
        KernelError: no function has this name, its code cannot be decoded, or there is far too much of it.
    """
    start = image.function_named(entry)
    if start is None:
        raise KernelError(f"entry point: expected a function {entry!r} in the library, found none")
    program = _follow(image, start)
    if not program.functions:
        raise KernelError(f"entry point {entry}: expected x86-64 code at {start:#x}, found bytes that do not decode")
    return program


def read_constructors(image: Image) -> tuple[Program, ...]:
    """The functions that run when the library is loaded, in order, without the start-up code of the C compiler."""
    found: list[Program] = []
    for section in image.sections:
        if not section.name.startswith(".init_array"):
            continue
        for slot in range(section.address, section.address + section.size_bytes, 8):
            relocation = image.relocations.get(slot)
            if relocation is None or relocation.target is None:
                continue
            program = _follow(image, relocation.target)
            if not _is_start_up(program):
                found.append(program)
    return tuple(found)


def _is_start_up(program: Program) -> bool:
    """Whether this is the C compiler's own ``frame_dummy``: a bare jump."""
    symbol = program.image.symbol_at(program.entry, is_function=True)
    function = program.functions.get(program.entry)
    if symbol is None or symbol.name != "frame_dummy" or function is None:
        return False
    return [i.mnemonic for i in function.blocks[program.entry].instructions if i.mnemonic not in PADDING] == ["jmp"]


def _follow(image: Image, start: int) -> Program:
    decoder = Decoder(image)
    functions: dict[int, Function] = {}
    pending = [start]
    total = 0
    while pending:
        address = pending.pop()
        if address in functions or decoder.at(address) is None:
            continue
        function = _Tracer(image, decoder, address).trace()
        functions[address] = function
        total += sum(len(block.instructions) for block in function.blocks.values())
        if total > MAX_INSTRUCTIONS:
            raise KernelError(f"code at {start:#x}: expected at most {MAX_INSTRUCTIONS} reachable instructions")
        found = [c.target for c in function.calls if c.target is not None]
        pending.extend(reversed(found + sorted(function.taken)))
    return Program(image, start, functions)


@dataclass
class _Tracer:
    """Recursive descent through one function."""

    image: Image
    decoder: Decoder
    entry: int
    code: dict[int, Instruction] = field(default_factory=dict[int, Instruction])
    edges: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    calls: list[Call] = field(default_factory=list[Call])
    taken: set[int] = field(default_factory=set[int])
    tables: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    table_addresses: set[int] = field(default_factory=set[int])

    def trace(self) -> Function:
        pending = [self.entry]
        leaders = {self.entry}
        while pending:
            instruction = self.decoder.at(pending.pop())
            while instruction is not None and instruction.address not in self.code:
                self.code[instruction.address] = instruction
                if len(self.code) > MAX_INSTRUCTIONS:
                    raise KernelError(f"function at {self.entry:#x}: expected at most {MAX_INSTRUCTIONS} instructions")
                jumps, falls = self._follow(instruction)
                leaders.update(jumps)
                pending.extend(jumps)
                if instruction.mnemonic in CONDITIONAL_JUMPS:
                    leaders.add(instruction.end)
                self.edges[instruction.address] = (*jumps, *((instruction.end,) if falls else ()))
                instruction = self.decoder.at(instruction.end) if falls else None
        self._note_addresses()
        return Function(
            self.entry,
            self._blocks(leaders),
            tuple(sorted(self.calls, key=lambda call: call.instruction.address)),
            frozenset(self.taken - {self.entry}),
            self.tables,
            frozenset(self.table_addresses),
        )

    def _follow(self, instruction: Instruction) -> tuple[tuple[int, ...], bool]:
        """Jump targets, and whether control can reach the next instruction."""
        mnemonic = instruction.mnemonic
        if mnemonic == "call":
            call = self._call(instruction)
            self.calls.append(call)
            # what follows a call that never returns is padding, then another function
            returns = not _NO_RETURN.match(call.name) and instruction.end not in self.image.function_starts
            return (), returns
        operand = instruction.operands[0] if instruction.operands else None
        if mnemonic in CONDITIONAL_JUMPS and isinstance(operand, Immediate):
            return (operand.value,), True
        if mnemonic == "jmp":
            call = self._call(instruction)
            if call.name:
                self.calls.append(call)
                return (), False
            if call.target is not None:
                return (call.target,), False
            targets = self._table(instruction)
            if not targets:
                self.calls.append(call)
            return targets, False
        return (), mnemonic not in ENDS

    def _call(self, instruction: Instruction) -> Call:
        operand = instruction.operands[0] if instruction.operands else None
        if isinstance(operand, Immediate):
            target, name = self._through_plt(operand.value)
            return Call(instruction, target, name)
        slot = instruction.rip_target()
        relocation = self.image.relocations.get(slot) if slot is not None else None
        if relocation is not None:
            return Call(instruction, relocation.target, relocation.name if relocation.target is None else "")
        return Call(instruction, None, "")

    def _through_plt(self, address: int) -> tuple[int | None, str]:
        section = self.image.section_at(address)
        if section is None or not section.name.startswith((".plt", ".iplt")):
            return address, ""
        stub = self.decoder.at(address)
        for _ in range(4):
            if stub is None:
                break
            slot = stub.rip_target() if stub.mnemonic == "jmp" else None
            relocation = self.image.relocations.get(slot) if slot is not None else None
            if relocation is not None:
                return relocation.target, relocation.name if relocation.target is None else ""
            stub = self.decoder.at(stub.end)
        return address, ""

    def _table(self, jump: Instruction) -> tuple[int, ...]:
        """Targets of a jump through a table of 32-bit offsets, the form that position-independent switches take."""
        earlier = sorted(a for a in self.code if a <= jump.address)[-_TABLE_LOOKBACK:]
        recent = [self.code[a] for a in earlier]
        bases = {i.operands[1].base for i in recent if i.mnemonic == "movsxd" and isinstance(i.operands[1], Memory)}
        owner = self.image.symbol_at(self.entry, is_function=True)
        for item in sorted(self.code.values(), key=lambda i: (i.address > jump.address, -i.address)):
            target = item.rip_target() if item.mnemonic == "lea" else None
            register = item.operands[0] if item.operands else None
            if target is None or not isinstance(register, Register) or register.family not in bases:
                continue
            section = self.image.section_at(target)
            if section is None or section.executable or section.writable:
                continue
            found: list[int] = []
            for entry in range(_limit(recent)):
                raw = self.image.read(target + 4 * entry, 4)
                code = target + int.from_bytes(raw, "little", signed=True)
                inside = owner is None or owner.address <= code < owner.address + owner.size_bytes
                if len(raw) < 4 or not inside or not self.image.is_code(code):
                    break
                found.append(code)
            if found:
                self.table_addresses.add(target)
                self.tables[jump.address] = tuple(found)
                return tuple(dict.fromkeys(found))
        return ()

    def _note_addresses(self) -> None:
        """Functions whose address the code takes, by ``lea``, through the GOT or through a table of pointers."""
        relocations = self.image.relocations
        for item in self.code.values():
            target = item.rip_target()
            if target is None or target in self.table_addresses or item.mnemonic in ("call", "jmp"):
                continue
            if item.mnemonic == "lea" and self.image.is_code(target):
                self.taken.add(self._through_plt(target)[0] or target)
            owner = self.image.symbol_at(target, is_function=False)
            slots = range(owner.address, owner.address + owner.size_bytes, 8) if owner else (target,)
            for slot in slots:
                relocation = relocations.get(slot)
                if relocation is None or relocation.target is None:
                    continue
                if self.image.is_code(relocation.target):
                    self.taken.add(relocation.target)

    def _blocks(self, leaders: set[int]) -> dict[int, Block]:
        blocks: dict[int, Block] = {}
        current: list[Instruction] = []
        ordered = sorted(self.code)
        # code that overlaps itself: what falls through elsewhere than to its neighbour ends a block too
        leaders.update(
            self.code[a].end for a, b in zip(ordered, [*ordered[1:], -1], strict=True) if self.code[a].end != b
        )
        for address in ordered:
            item = self.code[address]
            current.append(item)
            successors = self.edges[address]
            if item.end in leaders or successors != (item.end,):
                known = tuple(dict.fromkeys(s for s in successors if s in self.code))
                blocks[current[0].address] = Block(current[0].address, tuple(current), known)
                current = []
        return blocks


def _limit(recent: list[Instruction]) -> int:
    """Entries of a switch's table: one more than the constant that the index was compared with."""
    for item in reversed(recent):
        if item.mnemonic == "cmp" and isinstance(item.operands[1], Immediate):
            return min(item.operands[1].value + 1, _MAX_TABLE_ENTRIES)
    return _MAX_TABLE_ENTRIES
