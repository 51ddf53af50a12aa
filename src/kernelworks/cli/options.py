"""Options that several commands share, with their checks."""

from __future__ import annotations

import json
import math
import sys
from typing import Annotated, Any

import typer

from kernelworks.errors import UsageError


def _positive(value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise typer.BadParameter(f"expected a positive number of minutes, found {value}")
    return value


TaskArgument = Annotated[
    str, typer.Argument(metavar="TASK", help="A Python file, a folder, or MODULE:NAME.", show_default=False)
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The folder or the id of a run.", show_default=False)]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Override a module-level constant of the task (repeatable)."),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        "--precision",
        help="strict, or relaxed: float32 outputs may be as rough as tf32's. Default: as the task says, else strict.",
        show_default=False,
    ),
]
TargetOption = Annotated[str | None, typer.Option("--target", help="Language and device of the kernels.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]
EventsOption = Annotated[bool, typer.Option("--events", help="Stream one JSON object per event on stdout.")]
ConfigOption = Annotated[str | None, typer.Option("--config", metavar="TOML", help="Configuration file.")]
EvaluationsOption = Annotated[
    int | None, typer.Option("--evaluations", min=1, help="Stop after so many evaluations.", show_default=False)
]
MinutesOption = Annotated[
    float | None,
    typer.Option("--minutes", callback=_positive, help="Stop after so many minutes of search.", show_default=False),
]
UnsandboxedOption = Annotated[
    bool,
    typer.Option(
        "--allow-unsandboxed",
        help="Run kernels from files, models and agents although nothing here can confine them.",
    ),
]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Say more; a traceback for internal errors.")]


def parse_overrides(settings: list[str] | None) -> dict[str, str]:
    """``--set NAME=VALUE`` as a mapping.

    Raises:
        UsageError: a setting without a name or ``=``, or one name twice.
    """
    found: dict[str, str] = {}
    for setting in settings or []:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--set: expected NAME=VALUE, found {setting!r}")
        if name in found:
            raise UsageError(f"--set {name}: expected one value, found {found[name]!r} and {value!r}")
        found[name] = value
    return found


def print_json(value: Any) -> None:
    """One line of JSON on stdout, at once."""
    print(json.dumps(value, allow_nan=False), flush=True)


def print_notice(text: str) -> None:
    """One line on stderr, for who waits."""
    print(text, file=sys.stderr, flush=True)
