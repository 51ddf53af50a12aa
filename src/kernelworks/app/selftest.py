"""Use case ``selftest attacks``: what a verdict is worth here, by executing what it must withstand."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from kernelworks.app.config import Config, settings_of
from kernelworks.app.options import SelftestOptions
from kernelworks.errors import UsageError
from kernelworks.kernel.model import Contract
from kernelworks.selftest.catalogue import CATALOGUE
from kernelworks.selftest.outcome import Outcome, SuiteReport
from kernelworks.selftest.suite import LANGUAGES, Choice, run_suite

CALL_TIMEOUT_S = 5.0
"""All calls here take milliseconds."""
LARGEST_SEED = 1_000_000


def run_attacks(options: SelftestOptions, on_outcome: Callable[[Outcome], None]) -> SuiteReport:
    """Run the suite, or what is asked for of it.

    Raises:
        UsageError: no such id or contract.
        EnvironmentLackError: something is missing that the suite needs.
    """
    unknown = sorted(set(options.ids) - set(CATALOGUE))
    if unknown:
        raise UsageError(f"--only: expected ids among {', '.join(CATALOGUE)}, found {unknown[0]!r}")
    names = [contract.value for contract in LANGUAGES]
    if options.contract and options.contract not in names:
        raise UsageError(f"--contract: expected one of {', '.join(names)}, found {options.contract!r}")
    choice = Choice(
        seed=options.seed if options.seed is not None else secrets.randbelow(LARGEST_SEED),
        ids=frozenset(options.ids),
        contracts=frozenset([Contract(options.contract)] if options.contract else LANGUAGES),
        short=options.short,
    )
    # What is disturbed is marked: nothing here is a figure of record, and a verdict on honesty needs no quiet.
    settings = settings_of(Config().evaluation).model_copy(update={"call_timeout_s": CALL_TIMEOUT_S, "on_load": "mark"})
    return run_suite(choice, settings, on_outcome)
