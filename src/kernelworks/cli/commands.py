"""The commands ``optimize``, ``evaluate``, ``task`` and ``doctor``: parse, call the use case, show the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelworks.cli.options import (
    ConfigOption,
    EvaluationsOption,
    EventsOption,
    JsonOption,
    MinutesOption,
    PrecisionOption,
    SetOption,
    TargetOption,
    TaskArgument,
    UnsandboxedOption,
    VerboseOption,
    parse_overrides,
    print_json,
    print_notice,
)

EXIT_REFUSED = 2
EXIT_LACKING = 3

task_app = typer.Typer(help="Check a task, or write a new one.", rich_markup_mode=None)


def optimize(
    task: TaskArgument,
    target: TargetOption = None,
    proposer: Annotated[str | None, typer.Option("--proposer", help="Who proposes kernels.")] = None,
    evaluations: EvaluationsOption = None,
    minutes: MinutesOption = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of all random choices.")] = None,
    seed_kernel: Annotated[
        list[str] | None, typer.Option("--seed-kernel", metavar="FILE", help="Evaluate this kernel first (repeatable).")
    ] = None,
    set_: SetOption = None,
    precision: PrecisionOption = "",
    config: ConfigOption = None,
    run: Annotated[str | None, typer.Option("--run", metavar="DIR", help="Folder of the run.")] = None,
    allow_unsandboxed: UnsandboxedOption = False,
    events: EventsOption = False,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Search for the fastest kernel that does the same work as TASK.

    Exit code 0: a kernel is faster than the fastest correct baseline; 1: none is.
    """
    from kernelworks.app.config import load_config
    from kernelworks.app.options import OptimizeOptions
    from kernelworks.task.source import TaskReference

    options = OptimizeOptions(
        task=TaskReference(target=task, overrides=parse_overrides(set_), precision=precision),
        config=load_config(
            Path(config) if config is not None else None,
            {
                "budget.evaluations": evaluations,
                "budget.minutes": minutes,
                "search.seed": seed,
                "search.proposer": proposer,
                "evaluation.target": target,
                "evaluation.allow_unsandboxed": allow_unsandboxed or None,
            },
        ),
        folder=run,
        seed_kernels=tuple(seed_kernel or ()),
    )
    # Only now, so that a wrong option is answered at once.
    from kernelworks.app.optimize import optimize as use_case
    from kernelworks.cli.follow import follow
    from kernelworks.cli.tables import show_result

    with follow(events=events, verbose=verbose) as listener:
        result = use_case(options, listener)
    if json:
        print_json(result.as_json())
    else:
        show_result(result, stderr=events)  # with events stdout carries them alone
    raise typer.Exit(result.exit_code)


def evaluate(
    task: TaskArgument,
    kernels: Annotated[list[str], typer.Argument(metavar="KERNEL...", help="Kernel files.", show_default=False)],
    target: TargetOption = None,
    set_: SetOption = None,
    precision: PrecisionOption = "",
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="Also run them in a build with AddressSanitizer and UBSan.")
    ] = False,
    large: Annotated[
        bool, typer.Option("--large", help="Also run them on a case with more than 2^31 elements, if memory allows.")
    ] = False,
    allow_unsandboxed: UnsandboxedOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Build, check and time kernel files.

    Exit code 0: all are correct; 1: one is not.
    """
    from kernelworks.app.config import load_config
    from kernelworks.app.evaluate import evaluate_files
    from kernelworks.app.options import EvaluateOptions
    from kernelworks.app.results import verdict_line
    from kernelworks.cli.plain import verdict_text
    from kernelworks.kernel.verdict import Verdict
    from kernelworks.task.source import TaskReference

    def on_verdict(verdict: Verdict) -> None:
        if json:
            print_json(verdict_line(verdict))
        else:
            print(verdict_text(verdict, verbose=verbose), flush=True)

    options = EvaluateOptions(
        config=load_config(
            Path(config) if config is not None else None,
            {
                "evaluation.target": target,
                "evaluation.large": large or None,
                "evaluation.sanitize": sanitize or None,
                "evaluation.allow_unsandboxed": allow_unsandboxed or None,
            },
        )
    )
    reference = TaskReference(target=task, overrides=parse_overrides(set_), precision=precision)
    raise typer.Exit(evaluate_files(reference, kernels, options, on_verdict, print_notice))


def doctor(json: JsonOption = False) -> None:
    """Build and run one tiny kernel per target; say what is missing.

    Exit code 0: at least one target is usable; 3: none is.
    """
    from kernelworks.app.doctor import doctor as use_case
    from kernelworks.cli.tables import doctor_table, sandbox_lines, show, torch_line

    report = use_case()
    if json:
        print_json(report.model_dump(mode="json"))
    else:
        show(doctor_table(report), *sandbox_lines(report), torch_line(report))
    raise typer.Exit(0 if any(probe.usable for probe in report.targets.values()) else EXIT_LACKING)


@task_app.command("check")
def task_check(
    task: TaskArgument,
    set_: SetOption = None,
    precision: PrecisionOption = "",
    load_only: Annotated[bool, typer.Option("--load-only", help="Load it, create no inputs.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Print the prototype of TASK and refuse it if no verdict on it would mean anything.

    Exit code 0: the task can be used; 2: it is refused.
    """
    from kernelworks.app.config import load_config
    from kernelworks.app.tasks import check_task
    from kernelworks.cli.plain import task_check_text
    from kernelworks.task.source import TaskReference

    reference = TaskReference(target=task, overrides=parse_overrides(set_), precision=precision)
    evaluation = load_config(Path(config) if config is not None else None).evaluation
    answer = check_task(reference, load_only, evaluation, print_notice)
    if json:
        print_json(answer.as_json())
    else:
        print(task_check_text(answer, verbose=verbose))
    raise typer.Exit(0 if answer.ok else EXIT_REFUSED)


@task_app.command("new")
def task_new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the operation.", show_default=False)],
) -> None:
    """Write a commented starter, NAME.py, in the current folder."""
    from kernelworks.app.tasks import new_task

    path = new_task(name, Path.cwd())
    print(f"wrote {path}\nnext: kernelworks task check {path.name}")
