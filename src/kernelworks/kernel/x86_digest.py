"""A digest of machine code that renaming registers and moving addresses does not change.

Equal digests let a kernel pass as a duplicate without an evaluation, so a false equality is far worse than a false
difference. Hence registers are renamed by a bijection for each function that leaves every register alone which carries
meaning across its border or in an encoding (arguments that are read, results, implicit operands, all argument registers
where there are calls), that keeps callee-saved registers among themselves and the upper sixteen vector registers among
themselves. Branch targets become positions, calls become the number of the function or the name of the import,
constants become their bytes. Where the extent of an access to data is unknown, the whole section counts. Constructors
and the initial values of thread-local data always count.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from kernelworks.kernel.elf import Image, Relocation, Section
from kernelworks.kernel.x86_cfg import Function, Program
from kernelworks.kernel.x86_isa import (
    ARGUMENTS,
    CALLEE_SAVED,
    CONDITIONAL_JUMPS,
    GENERAL,
    INSTRUCTION_POINTER,
    PADDING,
    STACK_POINTER,
    Immediate,
    Instruction,
    Memory,
    Register,
    is_vector,
)

_VERSION = "x86-1"
_POINTER_BYTES = 8
_RESULTS = frozenset(("rax", "rdx", "v0", "v1", STACK_POINTER, INSTRUCTION_POINTER, "k0"))
_ARGUMENTS = frozenset((*ARGUMENTS, "rax", "r10", *(f"v{i}" for i in range(8))))
_AT_CALLS = _ARGUMENTS | {"r11"}
_DECORATIONS = re.compile(r"\{(?!k\d)[^}]*\}")
_COMPARISON = re.compile(r"v?p?cmp\w+\Z")


def code_digest(program: Program, constructors: tuple[Program, ...] = ()) -> str:
    """The digest of everything that is reachable from the entry point or runs when the library is loaded.

    Returns:
        32 hex digits.
    """
    functions = dict(program.functions)
    for constructor in constructors:
        functions.update(constructor.functions)
    numbers = {address: number for number, address in enumerate(functions)}
    writer = _Writer(program.image, numbers)
    digest = hashlib.sha256(_VERSION.encode())
    digest.update(repr([numbers.get(constructor.entry) for constructor in constructors]).encode())
    for number, function in enumerate(functions.values()):
        digest.update(f"\nfunction {number}\n".encode())
        digest.update("\n".join(writer.function(function)).encode())
    for part in writer.data.contents():
        digest.update(part)
    return digest.hexdigest()[:32]


class _Writer:
    """Writes functions in canonical form."""

    def __init__(self, image: Image, numbers: dict[int, int]) -> None:
        self._image = image
        self.data = _Data(image, numbers)

    def function(self, function: Function) -> list[str]:
        """The lines of one function."""
        code = [i for block in function.blocks.values() for i in block.instructions if i.mnemonic not in PADDING]
        positions = _positions(function, code)
        names = _Names(function, code)
        calls = {call.instruction.address: call for call in function.calls}
        lines: list[str] = []
        for instruction in code:
            call = calls.get(instruction.address)
            if call is not None and (call.name or call.target is not None):
                target = self.data.code(call.target) if call.target is not None else call.name
                lines.append(f"{instruction.mnemonic} {target}")
            elif instruction.address in function.tables:
                targets = [positions.get(t, hex(t)) for t in function.tables[instruction.address]]
                lines.append(f"{self._line(instruction, names, function)} {targets}")
            elif instruction.mnemonic in CONDITIONAL_JUMPS or instruction.mnemonic == "jmp":
                operand = instruction.operands[0] if instruction.operands else None
                if isinstance(operand, Immediate):
                    goal = f"@{positions.get(operand.value, hex(operand.value))}"
                else:
                    goal = self._line(instruction, names, function)
                lines.append(f"{instruction.mnemonic} {goal}")
            else:
                lines.append(self._line(instruction, names, function))
        return lines

    def _line(self, instruction: Instruction, names: _Names, function: Function) -> str:
        parts = [instruction.mnemonic]
        if instruction.locked or instruction.repeated:
            parts.append(f"locked={instruction.locked} {instruction.text.split()[0]}")
        for operand in instruction.operands:
            if isinstance(operand, Register):
                parts.append(f"{names.of(operand.family)}:{operand.size_bytes}{'h' if operand.high_byte else ''}")
            elif isinstance(operand, Immediate):
                parts.append(f"#{operand.value}")
            else:
                parts.append(self._memory(instruction, operand, names, function))
        parts.extend(_DECORATIONS.findall(instruction.text))
        raw = self._image.read(instruction.address, instruction.size_bytes)
        if instruction.opaque:
            parts.append(raw.hex())
        elif instruction.uses_vector and _COMPARISON.match(instruction.mnemonic):
            parts.append(raw[-1:].hex())  # the predicate, which a disassembler folds into the name
        return " ".join(parts)

    def _memory(self, instruction: Instruction, memory: Memory, names: _Names, function: Function) -> str:
        if memory.base == INSTRUCTION_POINTER:
            target = instruction.end + memory.displacement
            if target in function.table_addresses:
                return "table"
            size = 0 if instruction.mnemonic == "lea" or memory.index else memory.size_bytes
            return f"[{self.data.token(target, size)}]:{memory.size_bytes}"
        base = names.of(memory.base) if memory.base else ""
        index = names.of(memory.index) if memory.index else ""
        address = f"{memory.segment}:{base}+{index}*{memory.scale}+{memory.displacement}"
        return f"[{address}]:{memory.size_bytes}"


def _positions(function: Function, code: list[Instruction]) -> dict[int, int]:
    """Position of the instruction at which a jump to an address arrives; padding is skipped."""
    positions = {instruction.address: position for position, instruction in enumerate(code)}
    for start in function.blocks:
        block, seen = function.blocks[start], {start}
        while block.instructions[0].address not in positions:
            found = next((i.address for i in block.instructions if i.address in positions), None)
            if found is not None:
                positions[start] = positions[found]
                break
            if not block.successors or block.successors[0] in seen:
                break
            block = function.blocks[block.successors[0]]
            seen.add(block.start)
        positions.setdefault(start, positions.get(block.instructions[0].address, len(code)))
    return positions


class _Names:
    """The bijection of one function's registers: fixed ones keep their name, others are numbered by first use."""

    def __init__(self, function: Function, code: list[Instruction]) -> None:
        fixed = set(_RESULTS)
        for instruction in code:
            fixed |= instruction.implicit
            if instruction.opaque:
                fixed.update(f for i in code for f in (*i.reads, *i.writes))
        fixed |= _AT_CALLS if function.calls or function.taken else _ARGUMENTS & _live_at_entry(function)
        self._fixed = fixed
        self._given: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def of(self, family: str) -> str:
        """The canonical name."""
        if family in self._fixed:
            return family
        known = self._given.get(family)
        if known is None:
            kind = _class_of(family)
            if not kind:
                return family
            number = self._counts[kind] = self._counts.get(kind, -1) + 1
            known = self._given[family] = f"{kind}{number}"
        return known


def _class_of(family: str) -> str:
    """Registers of one class may stand for each other; empty for registers that are never renamed."""
    if is_vector(family):
        return "low" if int(family[1:]) < 16 else "high"
    if family in GENERAL:
        return "saved" if family in CALLEE_SAVED else "scratch"
    return "mask" if family[0] == "k" else ""


def _live_at_entry(function: Function) -> set[str]:
    """Registers that some path reads before it writes them (backward dataflow)."""
    uses: dict[int, set[str]] = {}
    kills: dict[int, set[str]] = {}
    for start, block in function.blocks.items():
        use, kill = set[str](), set[str]()
        for instruction in block.instructions:
            use |= instruction.reads - kill
            if not instruction.mnemonic.startswith(("cmov", "set")):
                kill |= instruction.writes
        uses[start], kills[start] = use, kill
    live: dict[int, set[str]] = {start: set() for start in function.blocks}
    pending = list(function.blocks)
    while pending:
        start = pending.pop()
        after = {family for s in function.blocks[start].successors for family in live[s]}
        before = uses[start] | (after - kills[start])
        if before != live[start]:
            live[start] = before
            pending.extend(function.predecessors[start])
    return live[function.entry]


class _Data:
    """References to data and code in canonical form."""

    def __init__(self, image: Image, numbers: dict[int, int]) -> None:
        self._image = image
        self._numbers = numbers
        self._sections: dict[str, Section] = {s.name: s for s in image.sections if s.name.startswith(".tdata")}

    def code(self, address: int) -> str:
        """A reference to a function."""
        number = self._numbers.get(address)
        return f"function{number}" if number is not None else f"code{address:#x}"

    def token(self, address: int, size_bytes: int) -> str:
        """What an address names; ``size_bytes`` is 0 where the extent of the access is unknown."""
        image = self._image
        if image.is_code(address):
            return self.code(address)
        relocation = image.relocations.get(address)
        section = image.section_at(address)
        if relocation is not None and size_bytes == _POINTER_BYTES:
            return f"slot({self._relocated(relocation)})"
        if section is None:
            return f"nowhere{address:#x}"
        if size_bytes and not section.writable and relocation is None:
            return f"constant({image.read(address, size_bytes).hex()})"
        self._sections[section.name] = section
        return f"{section.name}+{address - section.address}"

    def contents(self) -> Iterator[bytes]:
        """Contents of every section that was named, and of those that their pointers name."""
        written: set[str] = set()
        while len(written) < len(self._sections):
            section = next(s for name, s in self._sections.items() if name not in written)
            written.add(section.name)
            yield f"\nsection {section.name} {section.size_bytes}\n".encode()
            yield section.data
            for slot, relocation in sorted(self._image.relocations.items()):
                if section.address <= slot < section.address + section.size_bytes:
                    yield f"\n{slot - section.address} {self._relocated(relocation)}".encode()

    def _relocated(self, relocation: Relocation) -> str:
        if relocation.target is None:
            return f"import {relocation.name}+{relocation.addend}"
        return self.token(relocation.target, 0)
