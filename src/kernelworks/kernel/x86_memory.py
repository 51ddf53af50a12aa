"""The memory axis of x86 code (docs/descriptors.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kernelworks.kernel.x86_fma import Walk
from kernelworks.kernel.x86_hot import Site
from kernelworks.kernel.x86_isa import (
    Instruction,
    is_gather,
    is_non_temporal,
    is_packed_access,
    is_prefetch,
    stores_first,
)
from kernelworks.kernel.x86_rules import Rules

_BLOCK_COPY = re.compile(r"(?:mem(?:cpy|move|set)|__mem(?:cpy|move|set)_chk)\Z")


def read_memory(sites: Iterable[Site], walks: Iterable[Walk], rules: Rules) -> None:
    """Enter what the hot code says about its memory accesses."""
    for site in sites:
        tile = _Tile()
        for instruction in site.hot_instructions():
            _access(site, instruction, tile, rules)
        for block in site.hot:
            for call in site.calls.get(block, ()):
                if _BLOCK_COPY.match(call.name):
                    _block_copy(site, call.instruction, tile, rules)
        tile.judge(rules)
    for walk in walks:
        if walk.reused is not None:
            load, count = walk.reused
            rules.add("memory", 2, load, f"one load feeds {count} independent multiply-adds")


class _Tile:
    """Indexed loads and stores of one function's stack frame and static arrays."""

    def __init__(self) -> None:
        self._stores: dict[tuple[str, int], Instruction] = {}
        self._loads: dict[tuple[str, int], Instruction] = {}

    def store(self, region: str, base: int, instruction: Instruction) -> None:
        self._stores.setdefault((region, base), instruction)

    def load(self, region: str, base: int, instruction: Instruction) -> None:
        self._loads.setdefault((region, base), instruction)

    def judge(self, rules: Rules) -> None:
        for key, store in self._stores.items():
            load = self._loads.get(key)
            if load is not None:
                rules.add("memory", 2, store, f"indexed {key[0]} tile, stored here")
                rules.add("memory", 2, load, f"indexed {key[0]} tile, loaded here")


def _access(site: Site, instruction: Instruction, tile: _Tile, rules: Rules) -> None:
    mnemonic = instruction.mnemonic
    if is_prefetch(mnemonic):
        rules.add("memory", 3, instruction, "software prefetch", needs=1)
        return
    memory = instruction.memory
    if memory is None or mnemonic in ("push", "pop", "call", "jmp"):
        return
    if is_non_temporal(mnemonic):
        rules.add("memory", 3, instruction, "non-temporal access", needs=1)
    place = site.values.place(instruction, memory)
    if place.region in ("stack", "static") and place.varies:
        if memory.written or (instruction.repeated and stores_first(mnemonic)):
            tile.store(place.region, place.base, instruction)
        if memory.read:
            tile.load(place.region, place.base, instruction)
    if place.region in ("stack", "constant"):
        return
    if instruction.repeated or is_packed_access(instruction, memory):
        rules.add("memory", 1, instruction, "packed access to neighbouring elements")
    else:
        reason = "gather or scatter" if is_gather(mnemonic) else "access of one element"
        rules.add("memory", 0, instruction, reason)


def _block_copy(site: Site, call: Instruction, tile: _Tile, rules: Rules) -> None:
    """A copy or fill of the C library: vector code, and a store into a tile where it goes to one."""
    rules.add("memory", 1, call, "block copy or fill of the C library")
    target = site.values.value(call, "rdi")
    if target is not None and target.kind == "stack":
        tile.store("stack", target.base, call)
