"""The commands ``runs list``, ``show``, ``resume`` and ``report``."""

from __future__ import annotations

import typer

from kernelworks.cli.options import (
    EvaluationsOption,
    EventsOption,
    JsonOption,
    MinutesOption,
    RunArgument,
    VerboseOption,
    print_json,
)

runs_app = typer.Typer(help="List, show and resume runs.", rich_markup_mode=None)


@runs_app.command("list")
def list_(json: JsonOption = False) -> None:
    """List all runs of this user, newest first."""
    from kernelworks.app.runs import list_runs
    from kernelworks.cli.tables import runs_table, show

    found = list_runs()
    if json:
        print_json({"runs": [run.model_dump(mode="json") for run in found]})
    elif found:
        show(runs_table(found))
    else:
        print("no runs yet")


@runs_app.command("show")
def show_(run: RunArgument, json: JsonOption = False) -> None:
    """Show the result of RUN, finished or not."""
    from kernelworks.app.runs import show_run
    from kernelworks.cli.tables import show_result

    result = show_run(run)
    if json:
        print_json(result.as_json())
    else:
        show_result(result)


@runs_app.command()
def resume(
    run: RunArgument,
    evaluations: EvaluationsOption = None,
    minutes: MinutesOption = None,
    events: EventsOption = False,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Continue RUN where it stopped; a limit given here replaces the run's own (totals, not additions)."""
    from kernelworks.app.optimize import resume as use_case
    from kernelworks.app.options import ResumeOptions
    from kernelworks.cli.follow import follow
    from kernelworks.cli.tables import show_result

    with follow(events=events, verbose=verbose) as listener:
        result = use_case(run, ResumeOptions(evaluations=evaluations, minutes=minutes), listener)
    if json:
        print_json(result.as_json())
    else:
        show_result(result, stderr=events)  # with events stdout carries them alone
    raise typer.Exit(result.exit_code)


@runs_app.command()
def report(run: RunArgument) -> None:
    """Write the HTML report of RUN into its folder and print the path."""
    from kernelworks.app.runs import write_report

    print(write_report(run))
