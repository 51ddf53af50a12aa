"""x86-64 instructions as plain data, and what kind of work each does.

Registers are named by family: the 64-bit name for general registers (``rax``), ``v0`` to ``v31`` for vector registers
of any width, ``k0`` to ``k7`` for masks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

STACK_POINTER = "rsp"
INSTRUCTION_POINTER = "rip"
ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
CALLEE_SAVED = frozenset(("rbx", "rbp", "r12", "r13", "r14", "r15"))
GENERAL = frozenset(("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", *(f"r{i}" for i in range(8, 16))))


@dataclass(frozen=True, slots=True)
class Register:
    """A register operand."""

    family: str
    size_bytes: int
    read: bool
    written: bool
    high_byte: bool = False


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant in the instruction; of jumps and calls the target address."""

    value: int


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory operand: ``segment:[base + index * scale + displacement]``."""

    base: str
    index: str
    scale: int
    displacement: int
    segment: str
    size_bytes: int
    """Bytes accessed; the element's size where it is broadcast."""
    read: bool
    written: bool


Operand = Register | Immediate | Memory


@dataclass(frozen=True, slots=True)
class Instruction:
    """One decoded instruction."""

    address: int
    size_bytes: int
    mnemonic: str
    """Without prefixes."""
    text: str
    """As a disassembler prints it."""
    operands: tuple[Operand, ...]
    implicit: frozenset[str]
    """Families that the encoding does not name but the instruction uses."""
    reads: frozenset[str]
    writes: frozenset[str]
    locked: bool = False
    repeated: bool = False
    opaque: bool = False
    """Decoded without a full description: operands and decorations may not say everything."""

    @property
    def end(self) -> int:
        """Address of the instruction that follows in memory."""
        return self.address + self.size_bytes

    @property
    def memory(self) -> Memory | None:
        """The memory operand that data moves through; of ``lea`` and ``nop`` none."""
        if self.mnemonic in ("lea", "nop"):
            return None
        return next((operand for operand in self.operands if isinstance(operand, Memory)), None)

    @property
    def uses_vector(self) -> bool:
        """Whether an operand is a vector register."""
        return any(isinstance(operand, Register) and is_vector(operand.family) for operand in self.operands)

    def rip_target(self) -> int | None:
        """The address that a ``rip``-relative operand names."""
        for operand in self.operands:
            if isinstance(operand, Memory) and operand.base == INSTRUCTION_POINTER:
                return self.end + operand.displacement
        return None


def is_vector(family: str) -> bool:
    """Whether the family is a vector register."""
    return family[0] == "v"


CONDITIONAL_JUMPS = frozenset(
    "jo jno jb jae je jne jbe ja js jns jp jnp jl jge jle jg jcxz jecxz jrcxz loop loope loopne".split()
)
ENDS = frozenset("jmp ret retf hlt ud0 ud1 ud2 int3 iretq sysret".split())
"""After these the next instruction in memory is not reached by falling through."""
PADDING = frozenset("nop endbr64 endbr32 fnop".split())
DIVISIONS = frozenset(("div", "idiv"))

_FMA = re.compile(r"v(?:fmadd|fmsub|fnmadd|fnmsub|fmaddsub|fmsubadd)(132|213|231)(ps|pd|ph)\Z")
_FLOAT = re.compile(
    r"v?(?:add|sub|mul|div|sqrt|rsqrt(?:14|28)?|rcp(?:14|28)?|max|min|hadd|hsub|addsub|dp|cmp\w*|round|rndscale|scalef"
    r"|getexp|getmant|range|reduce|fixupimm|exp2|f(?:n?m(?:add|sub)|maddsub|msubadd)\d{3}|fc?m(?:add|ul)c)(?:ps|pd|ph)\Z"
)
_SHARED = re.compile(
    r"v?(?:and|andn|or|xor)p[sd]\Z|v?p(?:and|andn|or|xor|ternlog)[dq]?\Z|v?cvt\w+\Z"
    r"|v?p(?:add|sub|mul|max|min|abs|avg|cmp|sad|madd|hadd|hsub|sign|sll|srl|sra|rol|ror|popcnt|lzcnt|test)\w*\Z"
)
_SCALAR_CONVERSION = re.compile(r"v?cvtt?(?:s[sdih]2\w+|\w+2u?s[sdih])\Z")
_DOT = re.compile(r"vpdp(?:busd|wssd|bssd|bsud|buud|wsud|wusd|wuud)s?\Z|vdpbf16ps\Z|vdpphps\Z|tdp\w+\Z")
_GATHER = re.compile(r"vp?(?:gather|scatter)\w+\Z")
_NON_TEMPORAL = re.compile(r"v?movnt\w+\Z")
_VECTOR_MOVE = re.compile(r"v?mov(?:aps|apd|ups|upd|dqa|dqu|dqa32|dqa64|dqu8|dqu16|dqu32|dqu64)\Z")
_WIDENING = re.compile(r"v?pmov[sz]x\w+\Z|v?cvt(?:ps2pd|dq2pd|ph2ps|ph2psx)\Z")
_NARROWING = re.compile(r"vpmov(?:us?|s)?[wdq][bwd]\Z|vcvt(?:ps2ph|neps2bf16)\Z")
_BROADCAST = re.compile(r"v?(?:broadcast\w+|pbroadcast\w+|movddup)\Z")
_ZEROING = re.compile(r"v?(?:xorp[sd]|pxor[dq]?)\Z")
_MULTIPLY = re.compile(r"v?mulp[sdh]\Z")

_NO_STORE = frozenset(
    "cmp test bt push call jmp div idiv mul imul ptest vptest comiss comisd ucomiss ucomisd vcomiss vcomisd vucomiss"
    " vucomisd ldmxcsr vldmxcsr fld fild fldcw fadd fmul fsub fdiv clflush clflushopt clwb vtestps vtestpd".split()
)


def fma_form(mnemonic: str) -> str:
    """``132``, ``213`` or ``231`` of a packed fused multiply-add, else empty."""
    match = _FMA.match(mnemonic)
    return match[1] if match else ""


def is_packed_float(mnemonic: str) -> bool:
    """Packed floating-point arithmetic, which no compiler emits for scalar code."""
    return _FLOAT.match(mnemonic) is not None


def is_shared_arithmetic(mnemonic: str) -> bool:
    """Logic, conversion and integer arithmetic of vector registers: packed, or one lane of scalar code."""
    return _SHARED.match(mnemonic) is not None and _SCALAR_CONVERSION.match(mnemonic) is None


def is_dot(mnemonic: str) -> bool:
    """VNNI, BF16 or FP16 dot product, or a tile product."""
    return _DOT.match(mnemonic) is not None


def is_gather(mnemonic: str) -> bool:
    """Gather or scatter."""
    return _GATHER.match(mnemonic) is not None


def is_non_temporal(mnemonic: str) -> bool:
    """A move that bypasses the caches."""
    return _NON_TEMPORAL.match(mnemonic) is not None


def is_prefetch(mnemonic: str) -> bool:
    """A software prefetch."""
    return mnemonic.startswith("prefetch")


def is_vector_move(mnemonic: str) -> bool:
    """A plain move of a whole vector."""
    return _VECTOR_MOVE.match(mnemonic) is not None


def is_broadcast(mnemonic: str) -> bool:
    """One element into all lanes."""
    return _BROADCAST.match(mnemonic) is not None


def is_multiply(mnemonic: str) -> bool:
    """Packed multiplication."""
    return _MULTIPLY.match(mnemonic) is not None


def is_packed_access(instruction: Instruction, memory: Memory) -> bool:
    """Whether one access moves several neighbouring elements between memory and a vector register."""
    mnemonic = instruction.mnemonic
    if is_gather(mnemonic) or is_broadcast(mnemonic) or not instruction.uses_vector:
        return False
    if _WIDENING.match(mnemonic) or _NARROWING.match(mnemonic):
        return memory.size_bytes >= 4
    return memory.size_bytes >= 16


def is_zeroing(instruction: Instruction) -> bool:
    """The idiom that clears a vector register."""
    if not _ZEROING.match(instruction.mnemonic):
        return False
    families = [o.family if isinstance(o, Register) else "" for o in instruction.operands]
    return len(set(families[-2:])) == 1 and families[-1] != ""


def stores_first(mnemonic: str) -> bool:
    """Whether a memory operand in the first place is written (in the second or a later place it never is)."""
    return mnemonic not in _NO_STORE and not is_prefetch(mnemonic) and not mnemonic.startswith(("j", "nop"))
