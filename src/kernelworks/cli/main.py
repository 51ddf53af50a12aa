"""The entry point: which commands there are, and how every ending becomes a sentence and an exit code.

Everything but typer is imported inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from kernelworks import __version__
from kernelworks.cli import commands, runs, selftest
from kernelworks.cli.options import VerboseOption
from kernelworks.errors import KernelworksError

EXIT_USAGE = 2
EXIT_INTERNAL = 5
EXIT_BROKEN_PIPE = 141

app = typer.Typer(
    name="kernelworks",
    help="Evolves fast, verified compute kernels.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(commands.optimize)
app.command()(commands.evaluate)
app.command()(commands.doctor)
app.add_typer(commands.task_app, name="task")
app.add_typer(runs.runs_app, name="runs")
app.add_typer(selftest.selftest_app, name="selftest")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"kernelworks {__version__}")
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]  typer calls it
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
    verbose: VerboseOption = False,
) -> None:
    del version, verbose  # a callback and main() have read them


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code (docs/runs.md lists them).

    Errors are one sentence on stderr; with ``--json`` also ``{error: {kind, message, mend}}`` on stdout.
    """
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    # Read before parsing: a usage error, too, must be told in the form that was asked for.
    as_json = "--json" in given
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a path that the terminal cannot show ends nothing
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: a run stops cleanly and can be resumed
    try:
        code = app(given, prog_name="kernelworks", standalone_mode=False)
        sys.stdout.flush()
    except KernelworksError as error:
        _tell(error.kind, error.message, error.mend, as_json=as_json)
        return error.exit_code
    except typer.TyperException as error:
        _tell("usage", error.format_message().rstrip("."), "see --help", as_json=as_json)
        return EXIT_USAGE
    except (BrokenPipeError, SystemExit):
        # The reader has gone (``| head``); inside a command typer makes a SystemExit of that. What the interpreter
        # still flushes must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:  # noqa: BLE001  the top of the program: whatever comes here is a defect of ours
        verbose = "-v" in given or "--verbose" in given
        if verbose:
            traceback.print_exc()
        mend = "" if verbose else "kernelworks -v COMMAND ... shows the traceback"
        _tell("internal", f"internal error: {type(error).__name__}: {error}", mend, as_json=as_json)
        return EXIT_INTERNAL
    return code if isinstance(code, int) else 0


def _tell(kind: str, message: str, mend: str, *, as_json: bool) -> None:
    sentence = f"{message} ({mend})" if mend else message
    print(f"kernelworks: error: {sentence}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": {"kind": kind, "message": message, "mend": mend}}))
