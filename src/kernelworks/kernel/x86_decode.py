"""Decoding x86-64: capstone, and a small decoder for VEX and EVEX encodings that capstone 5 does not know.

Those are the AVX-512 FP16, BF16, AVX-VNNI and AMX instructions (Intel SDM volume 2, sections 2.3 and 2.7 for the
prefixes). A length and the operands are enough here; an instruction without a name stays neutral to every rule.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from kernelworks.kernel.elf import Image
from kernelworks.kernel.x86_isa import (
    GENERAL,
    Immediate,
    Instruction,
    Memory,
    Operand,
    Register,
    is_vector,
    stores_first,
)

_WINDOW_INSTRUCTIONS = 64
_MAX_INSTRUCTION_BYTES = 15
_LOCK, _REPEAT = 0xF0, (0xF2, 0xF3)
_STRING = frozenset(f"{name}{size}" for name in ("movs", "stos", "cmps", "scas", "lods") for size in "bwdq")
_PREFIX_WORDS = frozenset("lock rep repe repz repne repnz notrack bnd xacquire xrelease data16".split())
_IMPLICIT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("cmpxchg", "cdqe", "cwde", "cbw"), ("rax",)),
    **dict.fromkeys(("mul", "div", "idiv", "cqo", "cdq", "cwd", "rdtsc", "xgetbv"), ("rax", "rdx")),
    **dict.fromkeys(("cmpxchg8b", "cmpxchg16b", "cpuid", "rdtscp"), ("rax", "rbx", "rcx", "rdx")),
    **dict.fromkeys(("movsb", "movsw", "movsq"), ("rsi", "rdi", "rcx")),
    **dict.fromkeys(("stosb", "stosw", "stosd", "stosq"), ("rax", "rdi", "rcx")),
    **dict.fromkeys(("scasb", "lodsb", "cmpsb"), ("rax", "rsi", "rdi", "rcx")),
    **dict.fromkeys(("push", "pop", "call", "ret"), ("rsp",)),
    "leave": ("rsp", "rbp"),
    "mulx": ("rdx",),
}
"""Families that an instruction uses without naming them, beside those that capstone lists."""
_FP16 = {0x51: "sqrt", 0x58: "add", 0x59: "mul", 0x5C: "sub", 0x5D: "min", 0x5E: "div", 0x5F: "max"}
_FMA_OPERATIONS = {0x6: "fmaddsub", 0x7: "fmsubadd", 0x8: "fmadd", 0xA: "fmsub", 0xC: "fnmadd", 0xE: "fnmsub"}
_FMA_ORDERS = {0x9: "132", 0xA: "213", 0xB: "231"}


class Decoder:
    """Decodes instructions of one image on demand."""

    def __init__(self, image: Image) -> None:
        # capstone carries no types, hence Any at this border
        capstone: Any = importlib.import_module("capstone")
        self._image = image
        self._engine: Any = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self._engine.detail = True
        self._kinds = (capstone.x86.X86_OP_REG, capstone.x86.X86_OP_IMM, capstone.x86.X86_OP_MEM)
        self._writes: int = capstone.CS_AC_WRITE
        self._reads: int = capstone.CS_AC_READ
        self._names: dict[int, str] = {}
        self._known: dict[int, Instruction] = {}

    def at(self, address: int) -> Instruction | None:
        """The instruction at this address, or ``None`` where there is none that can be decoded."""
        found = self._known.get(address)
        if found is None and self._image.is_code(address):
            code = self._image.read(address, _WINDOW_INSTRUCTIONS * _MAX_INSTRUCTION_BYTES)
            for raw in self._engine.disasm(code, address, _WINDOW_INSTRUCTIONS):
                if raw.address not in self._known:
                    self._known[raw.address] = self._convert(raw)
            found = self._known.get(address) or _decode_prefixed(code, address)
            if found is not None:
                self._known[address] = found
        return found

    def _name(self, register: int) -> str:
        name = self._names.get(register)
        if name is None:
            name = self._names[register] = str(self._engine.reg_name(register) or "")
        return name

    def _convert(self, raw: Any) -> Instruction:
        words: list[str] = str(raw.mnemonic).split()
        mnemonic = next((w for w in words if w not in _PREFIX_WORDS), words[-1])
        kind_register, kind_immediate, kind_memory = self._kinds
        operands: list[Operand] = []
        for position, operand in enumerate(raw.operands):
            if operand.type == kind_register:
                name = self._name(operand.reg)
                read, written = bool(operand.access & self._reads), bool(operand.access & self._writes)
                operands.append(
                    Register(family_of(name), int(operand.size), read, written, name in ("ah", "bh", "ch", "dh"))
                )
            elif operand.type == kind_immediate:
                operands.append(Immediate(int(operand.imm)))
            elif operand.type == kind_memory:
                operands.append(self._memory(operand, position, mnemonic))
        implicit = {family_of(self._name(r)) for r in (*raw.regs_read, *raw.regs_write)}
        implicit.discard("rflags")
        implicit.update(_IMPLICIT.get(mnemonic, ()))
        if mnemonic == "imul" and len(operands) == 1:
            implicit.update(("rax", "rdx"))
        prefixes: list[int] = list(raw.prefix)
        return _instruction(
            int(raw.address),
            int(raw.size),
            mnemonic,
            f"{raw.mnemonic} {raw.op_str}".strip(),
            tuple(operands),
            frozenset(implicit),
            locked=_LOCK in prefixes or (mnemonic == "xchg" and any(isinstance(o, Memory) for o in operands)),
            repeated=prefixes[0] in _REPEAT and mnemonic in _STRING,
        )

    def _memory(self, operand: Any, position: int, mnemonic: str) -> Memory:
        memory = operand.mem
        index = self._name(memory.index) if memory.index else ""
        # capstone's access flags are wrong for non-temporal and masked moves, so the place of the operand decides
        written = position == 0 and stores_first(mnemonic)
        return Memory(
            base=family_of(self._name(memory.base)) if memory.base else "",
            index="" if index in ("riz", "eiz") else family_of(index),
            scale=int(memory.scale),
            displacement=int(memory.disp),
            segment=self._name(memory.segment) if memory.segment else "",
            size_bytes=int(operand.size),
            read=not written or bool(operand.access & self._reads and operand.access & self._writes),
            written=written,
        )


_LEGACY = {
    **{f"{p}{n}x": f"r{n}x" for n in "abcd" for p in ("", "e", "r")},
    **{f"{n}{h}": f"r{n}x" for n in "abcd" for h in "lh"},
    **{f"{p}{n}{s}": f"r{n}" for n in ("si", "di", "bp", "sp") for p in ("", "e", "r") for s in ("", "l")},
}
_NUMBERED = re.compile(r"(r\d+)[bwd]?\Z|[xyz]mm(\d+)\Z")


def family_of(name: str) -> str:
    """The family of a register's name: ``eax`` is ``rax``, ``zmm3`` is ``v3``."""
    known = _LEGACY.get(name)
    if known is not None:
        return known
    match = _NUMBERED.match(name)
    if match is None:
        return "rip" if name == "eip" else name
    return match[1] or f"v{match[2]}"


def _instruction(
    address: int,
    size_bytes: int,
    mnemonic: str,
    text: str,
    operands: tuple[Operand, ...],
    implicit: frozenset[str],
    *,
    locked: bool = False,
    repeated: bool = False,
    opaque: bool = False,
) -> Instruction:
    reads, writes = set(implicit), set(implicit)
    masked = any(isinstance(o, Register) and o.family[0] == "k" for o in operands[1:])
    for operand in operands:
        if isinstance(operand, Memory):
            reads.update(name for name in (operand.base, operand.index) if name)
        elif isinstance(operand, Register):
            # a write of 1 or 2 bytes, or under a mask, keeps the rest of the old value
            partial = (operand.size_bytes < 4 and operand.family in GENERAL) or (masked and is_vector(operand.family))
            if operand.read or (operand.written and partial):
                reads.add(operand.family)
            if operand.written:
                writes.add(operand.family)
    return Instruction(
        address,
        size_bytes,
        mnemonic,
        text,
        operands,
        implicit,
        frozenset(reads),
        frozenset(writes),
        locked,
        repeated,
        opaque,
    )


def _decode_prefixed(code: bytes, address: int) -> Instruction | None:
    """Decode one VEX or EVEX instruction; ``None`` for anything else and for truncated bytes."""
    try:
        if code[0] == 0x62:
            return _decode_evex(code, address)
        if code[0] in (0xC4, 0xC5):
            return _decode_vex(code, address)
    except IndexError:
        return None
    return None


def _decode_evex(code: bytes, address: int) -> Instruction:
    p0, p1, p2 = code[1], code[2], code[3]
    width = 16 << min(p2 >> 5 & 3, 2)
    map_, prefix, broadcast = p0 & 7, p1 & 3, bool(p2 & 0x10)
    high = {
        "reg": (~p0 >> 7 & 1) << 3 | (~p0 >> 4 & 1) << 4,
        "index": (~p0 >> 6 & 1) << 3,
        "rm": (~p0 >> 5 & 1) << 3,
    }
    second = (~p1 >> 3 & 15) | (~p2 >> 3 & 1) << 4
    element = 2 if map_ in (5, 6) else 4
    if broadcast and code[5] >> 6 == 3:
        width = 64  # static rounding implies 512 bits
    return _finish(
        code, address, 4, map_, prefix, width, high, second, element if broadcast else 0, mask=p2 & 7, evex=True
    )


def _decode_vex(code: bytes, address: int) -> Instruction:
    if code[0] == 0xC5:
        payload, map_, start = code[1], 1, 2
        high = {"reg": (~payload >> 7 & 1) << 3, "index": 0, "rm": 0}
    else:
        first, payload, start = code[1], code[2], 3
        map_ = first & 31
        high = {
            "reg": (~first >> 7 & 1) << 3,
            "index": (~first >> 6 & 1) << 3,
            "rm": (~first >> 5 & 1) << 3,
        }
    width = 32 if payload & 4 else 16
    second = ~payload >> 3 & 15
    return _finish(code, address, start, map_, payload & 3, width, high, second, 0, mask=0, evex=False)


_GENERAL_ORDER = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *(f"r{i}" for i in range(8, 16)))


def _finish(
    code: bytes,
    address: int,
    at: int,
    map_: int,
    prefix: int,
    width: int,
    high: dict[str, int],
    second: int,
    broadcast_bytes: int,
    *,
    mask: int,
    evex: bool,
) -> Instruction:
    """Opcode, ModRM, SIB, displacement and immediate, which VEX and EVEX share."""
    opcode, modrm = code[at], code[at + 1]
    at += 2
    mode, rm = modrm >> 6, modrm & 7
    has_immediate = map_ == 3 or (map_ == 1 and opcode in (0x70, 0x71, 0x72, 0x73, 0xC2, 0xC4, 0xC5, 0xC6))
    source: Operand
    if mode == 3:
        number = rm | high["rm"] | (high["index"] << 1 if evex else 0)
        source = Register(f"v{number}", width, read=True, written=False)
    else:
        base, index, scale = _GENERAL_ORDER[rm | high["rm"]], "", 1
        if rm == 4:
            sib = code[at]
            at += 1
            index_number = (sib >> 3 & 7) | high["index"]
            index, scale = ("" if index_number == 4 else _GENERAL_ORDER[index_number]), 1 << (sib >> 6)
            base = "" if sib & 7 == 5 and mode == 0 else _GENERAL_ORDER[(sib & 7) | high["rm"]]
        elif rm == 5 and mode == 0:
            base = "rip"
        displacement_bytes = 1 if mode == 1 else 4 if mode == 2 or (mode == 0 and base in ("", "rip")) else 0
        raw = code[at : at + displacement_bytes]
        at += displacement_bytes
        displacement = int.from_bytes(raw, "little", signed=True)
        size = broadcast_bytes or width
        if evex and displacement_bytes == 1:
            displacement *= size
        source = Memory(base, index, scale, displacement, "", size, read=True, written=False)
    at += has_immediate
    if at > len(code):
        raise IndexError(at)
    operands: list[Operand] = [
        Register(f"v{(modrm >> 3 & 7) | high['reg']}", width, read=True, written=True),
        Register(f"v{second}", width, read=True, written=False),
        source,
    ]
    if mask:
        operands.insert(1, Register(f"k{mask}", 8, read=True, written=False))
    if has_immediate:
        operands.append(Immediate(code[at - 1]))
    mnemonic = _name_of(map_, prefix, opcode)
    text = f"{mnemonic} ({code[:at].hex()})"
    return _instruction(address, at, mnemonic, text, tuple(operands), frozenset(), opaque=True)


def _name_of(map_: int, prefix: int, opcode: int) -> str:
    if map_ == 2:
        if opcode == 0x52 and prefix == 2:
            return "vdpbf16ps"
        if opcode in (0x50, 0x51):
            kind = ("buud", "busd", "bsud", "bssd")[prefix]
            return f"vpdp{kind}{'s' if opcode & 1 else ''}"
        if opcode in (0x52, 0x53, 0xD2, 0xD3):
            return f"vpdpwssd{'s' if opcode & 1 else ''}"
        if opcode == 0x5E or (opcode == 0x5C and prefix in (2, 3)):
            return "tdp"
        if opcode == 0x72 and prefix in (2, 3):
            return "vcvtneps2bf16"
    if map_ == 5 and opcode in _FP16 and prefix in (0, 2):
        return f"v{_FP16[opcode]}{'sh' if prefix else 'ph'}"
    if map_ == 6 and prefix == 1:
        operation, order = _FMA_OPERATIONS.get(opcode & 0xE), _FMA_ORDERS.get(opcode >> 4)
        if operation and order:
            scalar = opcode & 1 and opcode & 0xF > 8
            operation = _FMA_OPERATIONS[opcode & 0xF] if opcode & 0xF in (6, 7) else operation
            return f"v{operation}{order}{'sh' if scalar else 'ph'}"
    return f"unnamed.{map_}.{prefix}.{opcode:02x}"
