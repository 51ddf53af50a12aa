"""Where pointers point: a forward dataflow over one function that tells stack, static and other memory apart.

A value is a pointer into the stack frame, into static or thread-local data, the address of code, or unknown. Its
offset is exact, or varies (an index was added, or it walks in a loop). Spilled pointers are followed through fixed
stack slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from kernelworks.kernel.elf import Image
from kernelworks.kernel.x86_cfg import Block, Call, Function
from kernelworks.kernel.x86_isa import (
    CALLEE_SAVED,
    INSTRUCTION_POINTER,
    STACK_POINTER,
    Immediate,
    Instruction,
    Memory,
    Register,
)

Region = Literal["stack", "static", "constant", "other"]
THREAD_LOCAL = -1
"""Base of every thread-local value; its real address is unknown."""


class Value(NamedTuple):
    """An abstract pointer."""

    kind: Literal["stack", "data", "code", "share"]
    """``share`` is no pointer: a number that follows from the thread's own share of a loop."""
    base: int
    offset: int | None


class Place(NamedTuple):
    """What a memory operand refers to."""

    region: Region
    varies: bool
    """Whether the address can differ between two executions of the instruction in one call."""
    base: int


_Key = str | tuple[int, int]
State = dict[_Key, Value]
"""Registers by family and 8-byte stack slots by (base, offset); what is missing is unknown."""

_FAR = Place("other", True, 0)


class Values:
    """Abstract values before each instruction of a function."""

    def __init__(self, image: Image, function: Function) -> None:
        self._image = image
        self._calls: Mapping[int, Call] = {call.instruction.address: call for call in function.calls}
        self._before: dict[int, State] = {}
        incoming: dict[int, State] = {function.entry: {STACK_POINTER: Value("stack", 0, 0)}}
        pending = list(reversed(function.order))
        position = {start: i for i, start in enumerate(function.order)}
        while pending:
            start = pending.pop()
            after = self._run(function.blocks[start], dict(incoming.get(start, {})))
            for successor in function.blocks[start].successors:
                known = incoming.get(successor)
                joined = dict(after) if known is None else _join(known, after)
                if joined != known:
                    incoming[successor] = joined
                    if successor not in pending:
                        pending.append(successor)
                        pending.sort(key=lambda block: -position[block])

    def value(self, instruction: Instruction, family: str) -> Value | None:
        """What a register holds just before an instruction."""
        return self._before.get(instruction.address, {}).get(family)

    def place(self, instruction: Instruction, memory: Memory) -> Place:
        """Where a memory operand of an instruction lies."""
        return _place(self._image, instruction, memory, self._before.get(instruction.address, {}))

    def _run(self, block: Block, state: State) -> State:
        for instruction in block.instructions:
            self._before[instruction.address] = dict(state)
            _step(self._image, instruction, self._calls.get(instruction.address), state)
        return state


def _join(one: State, other: State) -> State:
    joined: State = {}
    for key, value in one.items():
        second = other.get(key)
        if second is None or (second.kind, second.base) != (value.kind, value.base):
            continue
        joined[key] = value if value == second else Value(value.kind, value.base, None)
    return joined


def _place(image: Image, instruction: Instruction, memory: Memory, state: State) -> Place:
    if memory.segment in ("fs", "gs"):
        return Place("static", bool(memory.base or memory.index), THREAD_LOCAL)
    if memory.base == INSTRUCTION_POINTER:
        return _data_place(image, instruction.end + memory.displacement, instruction.end + memory.displacement, False)
    base, index = state.get(memory.base), state.get(memory.index)
    if index is not None and index.kind != "share" and memory.scale == 1 and (base is None or base.kind == "share"):
        base, index = index, Value("share", 0, None)
    if base is None or base.kind in ("code", "share"):
        return _FAR
    # after an alloca the stack pointer's own offset is unknown, yet fixed for the accesses that follow
    varies = bool(memory.index) or (base.offset is None and memory.base != STACK_POINTER)
    if base.kind == "stack":
        return Place("stack", varies, base.base)
    return _data_place(image, base.base, base.base + (base.offset or 0), varies)


def _data_place(image: Image, base: int, address: int, varies: bool) -> Place:
    if base == THREAD_LOCAL:
        return Place("static", varies, base)
    owner = image.symbol_at(base, is_function=False)
    section = image.section_at(address) or image.section_at(base)
    if section is not None and not section.writable:
        return Place("constant", varies, base)
    known = owner or section  # without a symbol the section stands for the object
    return Place("static", varies, known.address if known else base)


def _step(image: Image, instruction: Instruction, call: Call | None, state: State) -> None:
    """Advance the state over one instruction."""
    if call is not None:
        _step_call(call, state)
        return
    mnemonic, operands = instruction.mnemonic, instruction.operands
    new = _result(image, instruction, state)
    if mnemonic == "push":
        _move_stack(state, -8)
        _spill(state, STACK_POINTER, 0, operands[0])
        return
    if mnemonic == "pop":
        reloaded = _slot(state, STACK_POINTER, 0)
        _move_stack(state, 8)
        new = reloaded
    if mnemonic == "leave":
        frame = state.pop("rbp", None)
        state.pop(STACK_POINTER, None)
        if frame is not None:
            state[STACK_POINTER] = frame
            _move_stack(state, 8)
        return
    if mnemonic == "mov" and isinstance(operands[0], Memory) and not operands[0].index:
        _spill(state, operands[0].base, operands[0].displacement, operands[1])
    for family in instruction.writes:
        if family != STACK_POINTER or mnemonic not in ("push", "pop", "ret"):
            state.pop(family, None)
    first = operands[0] if operands else None
    if new is not None and isinstance(first, Register):
        state[first.family] = new


def _step_call(call: Call, state: State) -> None:
    for key in [k for k in state if isinstance(k, str) and k not in CALLEE_SAVED and k != STACK_POINTER]:
        del state[key]
    if call.name == "__tls_get_addr":
        state["rax"] = Value("data", THREAD_LOCAL, 0)
    elif call.name == "omp_get_thread_num":
        state["rax"] = Value("share", 0, None)


def _move_stack(state: State, change: int) -> None:
    pointer = state.get(STACK_POINTER)
    if pointer is not None and pointer.offset is not None:
        state[STACK_POINTER] = Value("stack", pointer.base, pointer.offset + change)


def _slot_key(state: State, base: str, displacement: int) -> tuple[int, int] | None:
    pointer = state.get(base)
    if pointer is None or pointer.kind != "stack" or pointer.offset is None:
        return None
    return (pointer.base, pointer.offset + displacement)


def _slot(state: State, base: str, displacement: int) -> Value | None:
    key = _slot_key(state, base, displacement)
    return state.get(key) if key is not None else None


def _spill(state: State, base: str, displacement: int, source: object) -> None:
    key = _slot_key(state, base, displacement)
    if key is None:
        return
    value = state.get(source.family) if isinstance(source, Register) and source.size_bytes == 8 else None
    if value is None:
        state.pop(key, None)
    else:
        state[key] = value


def _result(image: Image, instruction: Instruction, state: State) -> Value | None:
    """The value that the first operand gets; ``None`` where it is unknown."""
    mnemonic, operands = instruction.mnemonic, instruction.operands
    if len(operands) < 2 or not isinstance(operands[0], Register):
        return None
    target, source = operands[0], operands[1]
    old = state.get(target.family)
    if mnemonic == "lea" and isinstance(source, Memory):
        return _effective(image, instruction, source, state)
    if mnemonic in ("mov", "movsxd"):
        if isinstance(source, Register):
            return state.get(source.family)
        if isinstance(source, Memory):
            if source.segment in ("fs", "gs") and not source.base:
                return Value("data", THREAD_LOCAL, None)
            return None if source.index else _loaded(image, instruction, source, state)
        return None
    if mnemonic == "imul":
        parts = [state.get(o.family) for o in operands if isinstance(o, Register)]
        return next((Value("share", 0, None) for p in parts if p is not None and p.kind == "share"), None)
    if mnemonic in ("add", "sub") and not isinstance(source, Memory):
        return _sum(old, source, state, -1 if mnemonic == "sub" else 1)
    if mnemonic in ("add", "sub"):
        return Value(old.kind, old.base, None) if old is not None and old.kind != "code" else None
    if mnemonic == "and" and old is not None and old.kind == "stack":
        # an alignment: offsets before and after it cannot be compared
        return Value("stack", old.base + 1, old.offset) if isinstance(source, Immediate) else None
    if mnemonic in ("inc", "dec") and old is not None:
        return Value(old.kind, old.base, None)
    return None


def _loaded(image: Image, instruction: Instruction, source: Memory, state: State) -> Value | None:
    slot = instruction.rip_target()
    if slot is not None:
        relocation = image.relocations.get(slot)
        if relocation is None or relocation.target is None:
            return None
        return Value("code" if image.is_code(relocation.target) else "data", relocation.target, 0)
    return _slot(state, source.base, source.displacement)


def _effective(image: Image, instruction: Instruction, source: Memory, state: State) -> Value | None:
    target = instruction.rip_target()
    if target is not None:
        return Value("code" if image.is_code(target) else "data", target, 0)
    base, index = state.get(source.base), state.get(source.index)
    if index is not None and (base is None or base.kind == "share"):
        base = index if source.scale == 1 or index.kind == "share" else base
        return Value(base.kind, base.base, None) if base is not None and base.kind != "code" else None
    if base is None or base.kind == "code":
        return None
    if source.index or base.offset is None:
        return Value(base.kind, base.base, None)
    return Value(base.kind, base.base, base.offset + source.displacement)


def _sum(old: Value | None, source: object, state: State, sign: int) -> Value | None:
    if isinstance(source, Immediate):
        if old is None:
            return None
        return Value(old.kind, old.base, None if old.offset is None else old.offset + sign * source.value)
    added = state.get(source.family) if isinstance(source, Register) else None
    for value in (old, added):
        if value is not None and value.kind in ("stack", "data"):
            return Value(value.kind, value.base, None)
    return Value("share", 0, None) if old is not None or added is not None else None
