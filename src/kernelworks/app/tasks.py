"""Use cases on tasks: check one, write a new one."""

from __future__ import annotations

from pathlib import Path

from kernelworks.app.config import Evaluation, settings_of
from kernelworks.app.results import TaskCheck
from kernelworks.errors import TaskRefusedError, UsageError
from kernelworks.evaluate.patience import Notice
from kernelworks.evaluate.session import Session
from kernelworks.task.prototype import prototype
from kernelworks.task.source import TaskReference


def check_task(
    reference: TaskReference, load_only: bool, evaluation: Evaluation | None = None, notice: Notice | None = None
) -> TaskCheck:
    """Load a task and, unless ``load_only``, run the checks that refuse one on which no verdict would mean anything.

    Args:
        reference: what the user typed.
        load_only: create no inputs.
        evaluation: threads and limits; default: those of a configuration without entries.
        notice: told when the reference keeps everyone waiting.

    Raises:
        TaskError: it cannot be loaded.
    """
    from kernelworks.evaluate.judge import Judge

    settings = settings_of(evaluation or Evaluation())
    with Judge.start(
        reference,
        heap="warm",
        threads=settings.threads,
        load_only=load_only,
        reference_timeout_s=settings.reference_timeout_s,
        notice=notice,
    ) as judge:
        problems = () if load_only else judge.check_task()
        return TaskCheck(
            ok=not any(p.refuses for p in problems),
            problems=tuple((p.kind, p.message) for p in problems),
            prototype=prototype(judge.task),
            task=judge.task,
        )


def refuse_bad_task(session: Session) -> None:
    """Run the checks on the task of a session.

    Raises:
        TaskRefusedError: no verdict on this task would mean anything.
    """
    problems = [p for p in session.check_task() if p.refuses]
    if problems:
        raise TaskRefusedError(
            f"task {session.task.name}: {problems[0].message}", tuple((p.kind, p.message) for p in problems)
        )


def new_task(name: str, folder: Path) -> Path:
    """Write a commented starter and return its path.

    Raises:
        TaskError: an operation cannot have this name.
        UsageError: the file exists, or the folder cannot be written.
    """
    from kernelworks.task.starter import starter_text

    text = starter_text(name)
    path = folder / f"{name}.py"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{path}: expected a new file, found an existing one") from error
    except OSError as error:
        raise UsageError(f"{path}: expected a writable folder, found {error.strerror}") from error
    return path
