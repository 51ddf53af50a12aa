"""The parallelism axis of x86 code (docs/descriptors.md)."""

from __future__ import annotations

import re

from kernelworks.kernel.x86_cfg import Call, Program
from kernelworks.kernel.x86_hot import SEVERAL, Site, opens_region, region_evidence
from kernelworks.kernel.x86_isa import DIVISIONS, Immediate, Instruction, Register
from kernelworks.kernel.x86_rules import Rules

_DYNAMIC = re.compile(
    r"GOMP_(?:parallel_)?loop(?:_ull)?(?:_ordered|_doacross)?_(?:(?:maybe_)?nonmonotonic_)?(?:dynamic|guided|runtime)\w*"
    r"|GOMP_loop(?:_ull)?_start|GOMP_task(?:loop\w*)?|GOMP_(?:parallel_)?sections(?:_start|2_start)?"
    r"|__kmpc_dispatch_init_\w+|__kmpc_omp_task(?!wait|yield)\w*|__kmpc_taskloop\w*"
)
_COMBINE = re.compile(
    r"GOMP_(?:atomic|critical|critical_name)_start|GOMP_parallel_reductions|__kmpc_reduce(?:_nowait)?"
    r"|__kmpc_critical\w*|__kmpc_atomic_\w+|pthread_mutex_lock|omp_set_(?:nest_)?lock"
)
_BARRIER = re.compile(
    r"GOMP_barrier(?:_cancel)?|GOMP_(?:loop|sections)_end(?:_cancel)?|GOMP_ordered_start|GOMP_doacross_\w+"
    r"|__kmpc_(?:cancel_)?barrier|__kmpc_ordered|__kmpc_doacross_\w+|pthread_barrier_wait|_ZNSt7barrier\w*"
)


def read_parallelism(program: Program, sites: dict[int, Site], rules: Rules) -> None:
    """Enter what the reachable code says about its threads."""
    count, regions = region_evidence(program, sites)
    if count == 0:
        entry = next(iter(program.functions[program.entry].blocks.values())).instructions[0]
        rules.add("parallelism", 0, entry, "no parallel region")
        return
    for region in regions:
        rules.add("parallelism", 1, region, "parallel region")
    if count >= SEVERAL:
        rules.add("parallelism", 3, regions[-1], "several parallel regions one after another")
    for site in sites.values():
        for block, calls in site.calls.items():
            for call in calls:
                _read_call(site, call, site.runs_often(block), rules)
        if site.in_region:
            _read_body(site, rules)


def _read_call(site: Site, call: Call, often: bool, rules: Rules) -> None:
    if _DYNAMIC.fullmatch(call.name) and (site.in_region or opens_region(call)):
        rules.add("parallelism", 2, call.instruction, f"shares handed out at run time: {call.name}")
    if not site.in_region:
        return
    if _BARRIER.fullmatch(call.name):
        rules.add("parallelism", 3, call.instruction, f"threads wait for each other: {call.name}")
    if _COMBINE.fullmatch(call.name):
        _combine(call.instruction, often, rules)


def _combine(instruction: Instruction, often: bool, rules: Rules) -> None:
    if often:
        rules.add("parallelism", 3, instruction, "threads exchange data inside a loop")
    else:
        rules.add("parallelism", 2, instruction, "partial results of the threads are combined")


def _read_body(site: Site, rules: Rules) -> None:
    for start, block in site.function.blocks.items():
        often = site.runs_often(start)
        for item in block.instructions:
            if item.locked:
                _combine(item, often, rules)
            if not often and _splits_share(site, item):
                rules.add("parallelism", 2, item, "a thread's share is split into several loop indices (collapse)")


def _splits_share(site: Site, instruction: Instruction) -> bool:
    """Whether the start of the thread's share is divided before the loop, as collapsed loops need it."""

    def is_share(family: str) -> bool:
        value = site.values.value(instruction, family)
        return value is not None and value.kind == "share"

    mnemonic, operands = instruction.mnemonic, instruction.operands
    if mnemonic in DIVISIONS:
        return is_share("rax")
    if mnemonic in ("shr", "sar") and isinstance(operands[0], Register) and isinstance(operands[-1], Immediate):
        return is_share(operands[0].family) and _masks_share(site, operands[-1].value)
    if mnemonic in ("mul", "imul") and len(operands) == 1 and isinstance(operands[0], Register):
        return is_share("rax") or is_share(operands[0].family)
    return mnemonic == "mulx" and is_share("rdx")


def _masks_share(site: Site, shift: int) -> bool:
    """Whether some instruction takes the low ``shift`` bits of a share: the remainder to a division by a shift."""
    for block in site.function.blocks.values():
        for item in block.instructions:
            target, source = (item.operands[0], item.operands[-1]) if len(item.operands) == 2 else (None, None)
            if item.mnemonic == "and" and isinstance(target, Register) and isinstance(source, Immediate):
                value = site.values.value(item, target.family)
                if value is not None and value.kind == "share" and source.value == (1 << shift) - 1:
                    return True
    return False
