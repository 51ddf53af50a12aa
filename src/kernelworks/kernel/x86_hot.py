"""Which code of a program is hot, which runs inside a parallel region, and how many regions a call opens.

Hot blocks lie in a natural loop, or in a function without loops on every path from its entry to a store outside the
stack. All blocks of a function that is called from a loop are hot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from kernelworks.kernel.x86_cfg import Call, Function, Loop, Program
from kernelworks.kernel.x86_isa import Instruction
from kernelworks.kernel.x86_values import Values

_REGION = re.compile(
    r"(?:GOMP_parallel(?!_end)\w*|GOMP_teams_reg|__kmpc_fork_(?:call|call_if|teams)|pthread_create"
    r"|_ZNSt6thread15_M_start_thread\w*)\Z"
)
_THREAD = re.compile(r"pthread_create\Z|_ZNSt6thread")
SEVERAL = 2


@dataclass
class Site:
    """One function with what is known about how it is reached."""

    function: Function
    values: Values
    called_from_loop: bool = False
    in_region: bool = False

    @cached_property
    def calls(self) -> dict[int, list[Call]]:
        """Calls by block."""
        return self.function.calls_by_block()

    @property
    def loops(self) -> tuple[Loop, ...]:
        """Loops over data."""
        return tuple(loop for loop in self.function.loops if not loop.is_retry)

    def runs_often(self, block: int) -> bool:
        """Whether the block is repeated, by a loop here or in a caller."""
        return self.called_from_loop or block in self.function.in_loop

    def innermost(self, block: int) -> int:
        """Header of the innermost loop over data that holds the block; the block itself where there is none."""
        around = [loop for loop in self.loops if block in loop.blocks]
        return min(around, key=lambda loop: len(loop.blocks)).header if around else block

    @cached_property
    def hot(self) -> tuple[int, ...]:
        """Hot blocks, by address."""
        function = self.function
        if self.called_from_loop:
            retries = {b for loop in function.loops if loop.is_retry for b in loop.blocks}
            return tuple(b for b in function.blocks if b not in retries or b in function.in_loop)
        if self.loops:
            return tuple(b for b in function.blocks if b in function.in_loop)
        found: set[int] = set()
        for start, block in function.blocks.items():
            if start in function.immediate_dominators and any(self._stores_outside(i) for i in block.instructions):
                found.update(function.dominators(start))
        return tuple(sorted(found))

    def hot_instructions(self) -> Iterator[Instruction]:
        """Instructions of hot blocks, by address."""
        for block in self.hot:
            yield from self.function.blocks[block].instructions

    def _stores_outside(self, instruction: Instruction) -> bool:
        memory = instruction.memory
        if memory is None or not memory.written or instruction.mnemonic == "push":
            return False
        return self.values.place(instruction, memory).region != "stack"


def region_body(site: Site, call: Call) -> int | None:
    """The function that a call hands to the threads of a new region, where it can be seen."""
    register = "rdi" if call.name.startswith("GOMP_") else "rdx"
    value = site.values.value(call.instruction, register)
    return value.base if value is not None and value.kind == "code" else None


def opens_region(call: Call) -> bool:
    """Whether the call starts threads."""
    return _REGION.match(call.name) is not None


def find_sites(program: Program) -> dict[int, Site]:
    """Every reachable function with its context, in order of discovery."""
    sites = {a: Site(f, Values(program.image, f)) for a, f in program.functions.items()}
    pending = list(sites)
    while pending:
        site = sites[pending.pop()]
        for callee, from_loop, in_region in _edges(site):
            target = sites.get(callee)
            if target is None:
                continue
            before = (target.called_from_loop, target.in_region)
            target.called_from_loop |= from_loop
            target.in_region |= in_region
            if before != (target.called_from_loop, target.in_region):
                pending.append(callee)
    return sites


def _edges(site: Site) -> Iterator[tuple[int, bool, bool]]:
    """(callee, called from a loop, runs in a region) of every way out of a function."""
    direct: set[int] = set()
    indirect_in_loop = False
    has_region = False
    for block, calls in site.calls.items():
        often = site.runs_often(block)
        for call in calls:
            if call.target is not None:
                direct.add(call.target)
                yield call.target, often, site.in_region
            elif opens_region(call):
                has_region = True
                body = region_body(site, call)
                if body is not None:
                    direct.add(body)
                    yield body, False, True
            elif not call.name:
                indirect_in_loop |= often
    for address in site.function.taken - direct:
        yield address, indirect_in_loop, site.in_region or has_region


def region_evidence(program: Program, sites: dict[int, Site]) -> tuple[int, tuple[Instruction, ...]]:
    """How many regions one call of the entry opens, at most, counted up to two, and the calls that open them."""
    memo: dict[int, int] = {}
    calls = tuple(
        call.instruction
        for site in sites.values()
        for group in site.calls.values()
        for call in group
        if opens_region(call)
    )
    return _regions(program.entry, sites, memo), calls


def _regions(address: int, sites: dict[int, Site], memo: dict[int, int]) -> int:
    site = sites.get(address)
    if site is None:
        return 0
    if address in memo:
        return memo[address]
    memo[address] = 0  # a recursive call adds nothing new
    most: dict[int, int] = {}
    function = site.function
    position = {block: i for i, block in enumerate(function.order)}
    for block in function.order:
        above = max(
            (most[p] for p in function.predecessors[block] if p in most and position[p] < position[block]), default=0
        )
        here = sum(_opened(site, call, block, sites, memo) for call in site.calls.get(block, ()))
        most[block] = min(SEVERAL, above + here)
    memo[address] = max(most.values(), default=0)
    return memo[address]


def _opened(site: Site, call: Call, block: int, sites: dict[int, Site], memo: dict[int, int]) -> int:
    if call.target is not None:
        inner, repeats = _regions(call.target, sites, memo), True
    elif opens_region(call):
        body = region_body(site, call)
        inner, repeats = 1 + (_regions(body, sites, memo) if body is not None else 0), not _THREAD.match(call.name)
    else:
        return 0
    if inner and repeats and block in site.function.in_loop:
        return SEVERAL
    return inner
