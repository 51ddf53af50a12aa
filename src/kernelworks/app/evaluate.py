"""Use case ``evaluate``: kernel files of the user, one verdict each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kernelworks.app.config import settings_of
from kernelworks.app.options import EvaluateOptions
from kernelworks.app.tasks import refuse_bad_task
from kernelworks.errors import KernelError, UsageError
from kernelworks.evaluate.session import Session
from kernelworks.kernel.frontmatter import read_kernel
from kernelworks.kernel.verdict import Finding, Status, Verdict
from kernelworks.task.source import TaskReference

ENDED_BADLY = 1


def evaluate_files(
    reference: TaskReference,
    paths: Sequence[str],
    options: EvaluateOptions,
    on_verdict: Callable[[Verdict], None],
) -> int:
    """Evaluate kernel files in the order given; a malformed one has its verdict too.

    Returns:
        0 if all are correct, else 1.

    Raises:
        UsageError: a file is not there; nothing is evaluated then.
        TaskError: the task cannot be loaded or is refused.
        EnvironmentLackError: no compiler.
    """
    for path in paths:
        if not Path(path).is_file():
            raise UsageError(f"kernel {path}: expected a file, found {'a folder' if Path(path).is_dir() else 'none'}")
    settings = settings_of(options.config.evaluation)
    all_correct = True
    with Session.open(reference, options.config.evaluation.target, settings) as session:
        refuse_bad_task(session)
        for path in paths:
            verdict = _evaluate_file(session, path)
            all_correct &= verdict.status is Status.CORRECT
            on_verdict(verdict)
    return 0 if all_correct else ENDED_BADLY


def _evaluate_file(session: Session, path: str) -> Verdict:
    try:
        kernel = read_kernel(Path(path), shown=path)
    except KernelError as error:
        finding = Finding(kind=error.kind, message=error.message)
        return Verdict(kernel="", path=path, status=Status.INVALID, findings=(finding,))
    return session.evaluate(kernel, None)
