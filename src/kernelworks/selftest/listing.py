"""Everything that the suite has, over both contracts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernelworks.kernel.model import Contract
from kernelworks.selftest import hosts
from kernelworks.selftest.function import assemble as in_cpp
from kernelworks.selftest.function.fallback import FALLBACK
from kernelworks.selftest.function.harness import HARNESS
from kernelworks.selftest.function.honest import FUNCTION_HONEST
from kernelworks.selftest.function.semantic import SEMANTIC
from kernelworks.selftest.function.timing import TIMING
from kernelworks.selftest.model import Attack, Honest, Host
from kernelworks.selftest.module import assemble as in_python
from kernelworks.selftest.module.fallback import MODULE_FALLBACK
from kernelworks.selftest.module.harness import MODULE_HARNESS
from kernelworks.selftest.module.honest import MODULE_HONEST
from kernelworks.selftest.module.hosts import MODULE_HOSTS
from kernelworks.selftest.module.semantic import MODULE_SEMANTIC
from kernelworks.selftest.module.timing import MODULE_TIMING
from kernelworks.selftest.pen import Pen

FUNCTION_ATTACKS: tuple[Attack, ...] = (*TIMING, *SEMANTIC, *FALLBACK, *HARNESS)
MODULE_ATTACKS: tuple[Attack, ...] = (*MODULE_TIMING, *MODULE_SEMANTIC, *MODULE_FALLBACK, *MODULE_HARNESS)
SHORT = frozenset(
    {
        (Contract.FUNCTION, variant)
        for variant in (
            "a thread per call",
            "pages that compute when they are read",
            "a detour of clock_gettime",
            "a part once warmed up",
            "work ahead",
            "a stale plan",
            "processes that spin",
            "what stands there",
            "zeros",
            "no maximum subtracted",
            "operands of few bits",
            "no bias",
            "by address",
            "a wiped input",
            "not a number",
            "a few elements off",
            "objects of the interpreter",
            "a comparer that agrees",
            "a message of its own",
            "counts set back",
            "another reference",
            "a daemon",
        )
    }
    | {
        (Contract.MODULE, variant)
        for variant in (
            "a tensor that computes when it is used",
            "operators of torch",
            "a kernel for show",
            "one buffer for all",
        )
    }
)
"""Variants of the short form: one session for each contract and operation that they share."""
ATTACKS: tuple[Attack, ...] = tuple(
    replace(one, short=(one.contract, one.variant) in SHORT) for one in (*FUNCTION_ATTACKS, *MODULE_ATTACKS)
)
HONEST: tuple[Honest, ...] = (*FUNCTION_HONEST, *MODULE_HONEST)
PLAIN: dict[Contract, Callable[[Pen, Host], str]] = {
    Contract.FUNCTION: in_cpp.plain,
    Contract.MODULE: in_python.plain,
}
"""The plainest honest kernel of any operation."""
HOSTS: dict[Contract, dict[str, Host]] = {Contract.FUNCTION: hosts.HOSTS, Contract.MODULE: MODULE_HOSTS}
