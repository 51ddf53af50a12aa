"""Use case ``evaluate``: kernel files of the user, one verdict each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from kernelworks.app.config import settings_of
from kernelworks.app.options import EvaluateOptions
from kernelworks.app.tasks import refuse_bad_task
from kernelworks.errors import DoesNotFitError, KernelError, UsageError
from kernelworks.evaluate.endings import unfit_verdict
from kernelworks.evaluate.patience import Notice
from kernelworks.evaluate.sandbox import find_sandbox
from kernelworks.evaluate.session import Session
from kernelworks.kernel.frontmatter import read_kernel
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Finding, Status, Verdict
from kernelworks.targets.registry import available_targets
from kernelworks.task.source import TaskReference

ENDED_BADLY = 1


def evaluate_files(
    reference: TaskReference,
    paths: Sequence[str],
    options: EvaluateOptions,
    on_verdict: Callable[[Verdict], None],
    notice: Notice | None = None,
) -> int:
    """Evaluate kernel files in the order given; a malformed one has its verdict too.

    Returns:
        0 if all are correct, else 1 (a task for which the memory is too small: a verdict for each kernel, then 1).

    Raises:
        UsageError: a file is not there; nothing is evaluated then.
        TaskError: the task cannot be loaded or is refused.
        EnvironmentLackError: no compiler, or no sandbox and no leave to do without.
    """
    for path in paths:
        if not Path(path).is_file():
            raise UsageError(f"kernel {path}: expected a file, found {'a folder' if Path(path).is_dir() else 'none'}")
    settings = settings_of(options.config.evaluation)
    if not settings.allow_unsandboxed:
        find_sandbox().require("a kernel from a file")
    all_correct = True
    try:
        target, by_language = _target(options, paths)
        with Session.open(reference, target, settings, notice, by_language=by_language) as session:
            refuse_bad_task(session)
            for path in paths:
                verdict = _verdict(path, lambda kernel: session.evaluate(kernel, None, final=True))
                all_correct &= verdict.status is Status.CORRECT
                on_verdict(verdict)
    except DoesNotFitError as error:  # found before any kernel was looked at
        for path in paths:
            on_verdict(_verdict(path, partial(_unfit, error)))
        return ENDED_BADLY
    return 0 if all_correct else ENDED_BADLY


def _target(options: EvaluateOptions, paths: Sequence[str]) -> tuple[str, bool]:
    """The target that was asked for; else that of the first file's language, and each file on its own language's."""
    evaluation = options.config.evaluation
    if "target" in evaluation.model_fields_set:
        return evaluation.target, False
    for path in paths:
        try:
            language = read_kernel(Path(path)).front.lang.value
        except KernelError:
            continue
        if language in available_targets():
            return language, True
    return evaluation.target, True


def _verdict(path: str, evaluate: Callable[[Kernel], Verdict]) -> Verdict:
    """That on a file, of whatever text."""
    try:
        kernel = read_kernel(Path(path), shown=path)
    except KernelError as error:
        finding = Finding(kind=error.kind, message=error.message)
        return Verdict(kernel="", path=path, status=Status.INVALID, findings=(finding,))
    return evaluate(kernel)


def _unfit(error: DoesNotFitError, kernel: Kernel) -> Verdict:
    return unfit_verdict(error, kernel.id, kernel.path, kernel.front.contract)
