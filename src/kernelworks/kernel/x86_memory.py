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
        tiles = _Tiles()
        for block in site.hot:
            tiles.enter(site.innermost(block))
            for instruction in site.function.blocks[block].instructions:
                _access(site, instruction, tiles, rules)
            for call in site.calls.get(block, ()):
                if _BLOCK_COPY.match(call.name):
                    _block_copy(site, call.instruction, tiles, rules)
        tiles.judge(rules)
    for walk in walks:
        if walk.reused is not None:
            load, count = walk.reused
            rules.add("memory", 2, load, f"one load feeds {count} independent multiply-adds")


class _Tiles:
    """Indexed loads and stores of one function's stack frame and static arrays.

    A tile is loaded in an innermost loop that touches other memory too. Scratch that is only folded onto itself, as
    at the end of a reduction over the lanes of a vector, is none.
    """

    def __init__(self) -> None:
        self._scope = 0
        self._reaching_out: set[int] = set()
        self._stores: dict[tuple[str, int], Instruction] = {}
        self._loads: dict[tuple[str, int], list[tuple[int, Instruction]]] = {}

    def enter(self, scope: int) -> None:
        """The innermost loop (by its header) that the accesses which follow belong to."""
        self._scope = scope

    def reach_out(self) -> None:
        """An access of other memory."""
        self._reaching_out.add(self._scope)

    def store(self, region: str, base: int, instruction: Instruction) -> None:
        """An indexed store."""
        self._stores.setdefault((region, base), instruction)

    def load(self, region: str, base: int, instruction: Instruction) -> None:
        """An indexed load."""
        self._loads.setdefault((region, base), []).append((self._scope, instruction))

    def judge(self, rules: Rules) -> None:
        """Enter the tiles."""
        for key, store in self._stores.items():
            load = next((i for scope, i in self._loads.get(key, ()) if scope in self._reaching_out), None)
            if load is not None:
                rules.add("memory", 2, store, f"indexed {key[0]} tile, stored here")
                rules.add("memory", 2, load, f"indexed {key[0]} tile, loaded here")


def _access(site: Site, instruction: Instruction, tiles: _Tiles, rules: Rules) -> None:
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
            tiles.store(place.region, place.base, instruction)
        if memory.read:
            tiles.load(place.region, place.base, instruction)
    if place.region == "other":
        tiles.reach_out()
    if place.region in ("stack", "constant"):
        return
    if instruction.repeated or is_packed_access(instruction, memory):
        rules.add("memory", 1, instruction, "packed access to neighbouring elements")
    else:
        reason = "gather or scatter" if is_gather(mnemonic) else "access of one element"
        rules.add("memory", 0, instruction, reason)


def _block_copy(site: Site, call: Instruction, tiles: _Tiles, rules: Rules) -> None:
    """A copy or fill of the C library: vector code, and a store into a tile where it goes to one."""
    rules.add("memory", 1, call, "block copy or fill of the C library")
    target = site.values.value(call, "rdi")
    if target is not None and target.kind == "stack":
        tiles.store("stack", target.base, call)
