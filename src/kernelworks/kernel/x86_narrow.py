"""Arithmetic in narrow types: instructions that compute in, or round to, fewer bits than float32 or float64 have.

No offence by itself: schemes that split a number into narrow parts can be as accurate as the wide type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kernelworks.kernel.descriptor import NarrowArithmetic
from kernelworks.kernel.x86_hot import Site

_TYPES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("bfloat16", re.compile(r"v?(dpbf16ps|cvtne2ps2bf16|cvtneps2bf16)|tdpbf16ps")),
    ("float16", re.compile(r"vcvt(ps2ph|ps2phx|pd2ph|ss2sh|sd2sh)|tdpfp16ps|v[a-z0-9]*(ph|sh)")),
    ("float32", re.compile(r"v?cvt(pd2ps|sd2ss)")),
)
"""By type; the half-precision forms of AVX512-FP16 end in ``ph`` and ``sh``. Widening is no narrow arithmetic."""


def read_narrow(sites: Iterable[Site]) -> tuple[NarrowArithmetic, ...]:
    """The first instruction of each narrow type in code that is reachable from the entry point, by address."""
    first: dict[str, NarrowArithmetic] = {}
    for site in sites:
        for block in site.function.blocks.values():
            for instruction in block.instructions:
                name = narrow_type(instruction.mnemonic)
                if name is None:
                    continue
                found = NarrowArithmetic(type=name, address=instruction.address, instruction=instruction.text)
                if name not in first or found.address < first[name].address:
                    first[name] = found
    return tuple(sorted(first.values(), key=lambda found: found.address))


def narrow_type(mnemonic: str) -> str | None:
    """The type to which an instruction rounds its result, where that is narrower than float64."""
    for name, pattern in _TYPES:
        if pattern.fullmatch(mnemonic) and not mnemonic.startswith(("vcvtph2", "vcvtsh2", "vmov")):
            return name
    return None
