"""The compute axis of x86 code (docs/descriptors.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kernelworks.kernel.x86_fma import Walk
from kernelworks.kernel.x86_hot import Site
from kernelworks.kernel.x86_isa import (
    Instruction,
    Register,
    is_dot,
    is_packed_access,
    is_packed_float,
    is_shared_arithmetic,
    is_vector,
    is_zeroing,
)
from kernelworks.kernel.x86_rules import Rules

MIN_ACCUMULATORS = 4
TILE_ACCUMULATORS = 8
TILE_RATIO = 2.0
_VECTOR_LIBRARY = re.compile(r"_ZGV[a-e][NM]\d+[vlu]\w*\Z|__svml_\w+\Z")
_SCALAR = re.compile(r"v?(?:add|sub|mul|div|sqrt|max|min|fn?m(?:add|sub)\d{3})s[sdh]\Z")


def read_compute(sites: Iterable[Site], walks: Iterable[Walk], rules: Rules) -> None:
    """Enter what the hot code says about its arithmetic."""
    for site in sites:
        for block in site.hot:
            instructions = site.function.blocks[block].instructions
            packed_block = any(_is_packed_data(site, item) for item in instructions)
            for item in instructions:
                _arithmetic(item, packed_block, rules)
            for call in site.calls.get(block, ()):
                if _VECTOR_LIBRARY.match(call.name):
                    rules.add("compute", 1, call.instruction, f"call of the vector math library: {call.name}")
    for walk in walks:
        count = len(walk.accumulators)
        if count < MIN_ACCUMULATORS:
            continue
        first = min(walk.accumulators.values(), key=lambda item: item.address)
        rules.add("compute", 2, first, f"packed multiply-add, {count} independent accumulators")
        if count >= TILE_ACCUMULATORS and walk.multiply_adds >= TILE_RATIO * walk.loaded_vectors:
            reason = f"register tile: {count} accumulators, {walk.multiply_adds} multiply-adds"
            rules.add("compute", 3, first, f"{reason} for {walk.loaded_vectors:.3g} loaded vectors")


def _is_packed_data(site: Site, instruction: Instruction) -> bool:
    memory = instruction.memory
    if memory is None or not is_packed_access(instruction, memory):
        return False
    return site.values.place(instruction, memory).region != "constant"


def _arithmetic(instruction: Instruction, packed_block: bool, rules: Rules) -> None:
    mnemonic = instruction.mnemonic
    if is_dot(mnemonic):
        rules.add("compute", 3, instruction, "dot-product instruction")
    elif is_packed_float(mnemonic):
        rules.add("compute", 1, instruction, "packed arithmetic")
    elif _SCALAR.match(mnemonic):
        rules.add("compute", 0, instruction, "arithmetic on one element")
    elif is_shared_arithmetic(mnemonic) and instruction.uses_vector and not is_zeroing(instruction):
        # scalar code uses these on 128-bit registers too: the sign of a float, the minimum of two indices
        wide = any(isinstance(o, Register) and is_vector(o.family) and o.size_bytes > 16 for o in instruction.operands)
        if wide or packed_block:
            rules.add("compute", 1, instruction, "packed logic, conversion or integer arithmetic")
