"""Every error that Kernelworks raises on purpose.

The tree, by the layer that raises it and the exit code of the command line::

    KernelworksError                      5   something is wrong in Kernelworks itself
    ├── UsageError                        2   an option, a config key, a path
    ├── TaskError                         2   the task cannot be loaded or used
    │   └── TaskRefusedError              2   the task loads, but no verdict on it would mean anything
    ├── KernelError                       2   the text of a kernel breaks a rule
    │   ├── KernelFormatError             2   front matter: line, expected, found
    │   └── ExpressionError               2   an expression of the front matter
    ├── ProposeError                      2   no proposer can work on this task
    ├── StoreError                        2   a run folder or database cannot be used
    ├── EnvironmentLackError              3   a compiler, a wheel or a device is missing
    │   └── DoesNotFitError               3   a task needs more memory than is left
    ├── EvaluationError                   5   the harness (not the candidate) failed
    └── InterruptedRunError               4   stopped before the end; resumable

What a *candidate* does wrong is never an exception: it is a ``Verdict`` with a status.
"""

from __future__ import annotations

from typing import ClassVar


class KernelworksError(Exception):
    """Base of all errors; ``kind`` is stable for scripts, ``mend`` says what to do (may be empty)."""

    kind: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 5

    def __init__(self, message: str, *, mend: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.mend = mend

    def __str__(self) -> str:
        return f"{self.message} ({self.mend})" if self.mend else self.message


class UsageError(KernelworksError):
    """An option, configuration key or path that cannot be used."""

    kind = "usage"
    exit_code = 2


class TaskError(KernelworksError):
    """The task cannot be loaded or used."""

    kind = "task"
    exit_code = 2


class TaskRefusedError(TaskError):
    """The task loads, but no verdict on it would mean anything; ``problems`` lists (kind, message)."""

    kind = "task_refused"

    def __init__(self, message: str, problems: tuple[tuple[str, str], ...] = (), *, mend: str = "") -> None:
        super().__init__(message, mend=mend)
        self.problems = problems


class KernelError(KernelworksError):
    """The text of a kernel breaks a rule."""

    kind = "kernel"
    exit_code = 2


class KernelFormatError(KernelError):
    """Front matter that breaks a rule: where, what was expected, what was found."""

    kind = "kernel_format"

    def __init__(self, line: int, expected: str, found: str) -> None:
        super().__init__(f"line {line}: expected {expected}, found {found}")
        self.line = line
        self.expected = expected
        self.found = found


class ExpressionError(KernelError):
    """An expression of the front matter that cannot be parsed or evaluated."""

    kind = "expression"


class ProposeError(KernelworksError):
    """No proposer can work on this task."""

    kind = "propose"
    exit_code = 2


class StoreError(KernelworksError):
    """A run folder or database that cannot be used."""

    kind = "store"
    exit_code = 2


class EnvironmentLackError(KernelworksError):
    """A compiler, a wheel or a device is missing; ``mend`` names the remedy."""

    kind = "environment"
    exit_code = 3


class DoesNotFitError(EnvironmentLackError):
    """A task needs more memory than is left; ``figures`` has the estimate, in bytes by name, where there is one."""

    kind = "does_not_fit"

    def __init__(self, message: str, figures: dict[str, int] | None = None, *, mend: str = "") -> None:
        super().__init__(message, mend=mend)
        self.figures = figures or {}


class EvaluationError(KernelworksError):
    """The harness itself failed; never the candidate's fault."""

    kind = "evaluation"
    exit_code = 5


class InterruptedRunError(KernelworksError):
    """The run stopped before its end and can be resumed."""

    kind = "interrupted"
    exit_code = 4
