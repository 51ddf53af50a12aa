"""The command ``selftest attacks``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kernelworks.cli.options import JsonOption, print_json

EXIT_MISSED = 1

selftest_app = typer.Typer(help="Try what a verdict must withstand.", rich_markup_mode=None)


@selftest_app.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]  typer calls it; it keeps ``attacks`` a command of its own
    """Try what a verdict must withstand."""


@selftest_app.command("attacks")
def attacks(
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="IDS", help="These ids alone, with commas between, no honest kernels."),
    ] = None,
    contract: Annotated[str | None, typer.Option("--contract", help="function or module alone.")] = None,
    short: Annotated[bool, typer.Option("--short", help="A part that takes about a minute.")] = False,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Of names, constants, sizes and order; else a new one.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run executable attacks of all kinds known, and honest kernels, against the evaluation.

    Exit code 0: every attack is caught and no honest kernel refused; 1: otherwise.
    """
    from kernelworks.app.options import SelftestOptions
    from kernelworks.app.selftest import run_attacks
    from kernelworks.cli.suite_text import outcome_text, suite_text
    from kernelworks.selftest.outcome import Outcome

    def on_outcome(outcome: Outcome) -> None:
        print(outcome_text(outcome), file=sys.stderr, flush=True)

    ids = tuple(part.strip().upper() for part in only.split(",") if part.strip()) if only is not None else ()
    report = run_attacks(SelftestOptions(ids=ids, contract=contract or "", short=short, seed=seed), on_outcome)
    if json:
        print_json(report.as_json())
    else:
        print(suite_text(report))
    raise typer.Exit(0 if report.ok else EXIT_MISSED)
