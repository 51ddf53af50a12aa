"""Where tasks come from: the plug-in point ``kernelworks.task_sources`` and what a source returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kernelworks.data import Frozen
from kernelworks.task.graph import Graph
from kernelworks.task.model import Case, Task

Arrays = Sequence[Any]
"""Native arrays of the task's framework (torch tensors or NumPy arrays) and Python scalars, in prototype order."""


class TaskReference(Frozen):
    """What the user typed: TASK and ``--set`` overrides. Enough to load the task again in another process."""

    target: str
    """A file, a folder or ``module:name``."""
    overrides: dict[str, str] = {}
    precision: str = ""
    """``strict`` or ``relaxed``; empty: as the task itself says."""


class Calling(Frozen):
    """How the reference is made and called, for a class that takes its place.

    A tuple is written ``{"tuple": [...]}``, the place of input number ``i`` ``{"slot": i}``; numbers, words, None and
    lists stand for themselves.
    """

    init: tuple[Any, ...] = ()
    """Arguments of the constructor."""
    init_signature: str
    """As a person reads it: ``Model(in_features, out_features)``."""
    forward: tuple[Any, ...]
    """Arguments of a call."""
    forward_signature: str
    weights: tuple[str, ...] = ()
    """Qualified names of the weights, in the order of the task's."""


class LoadedTask(Protocol):
    """A task with the code behind it. Lives in the judge's process; never crosses a border."""

    @property
    def task(self) -> Task:
        """The plain data."""
        ...

    def make_inputs(self, case: Case, seed: int) -> list[Any]:
        """Fresh inputs and weights (arrays and scalars, prototype order) as the task itself draws them."""
        ...

    def run(self, arrays: Arrays, *, double: bool = False) -> list[Any]:
        """Outputs of the reference in order, then the arguments in ``mutates``; the arrays given stay as they are.

        ``double``: computed in float64 (complex128) throughout.
        """
        ...

    def program(self, arrays: Arrays) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The reference as a user's program calls it, for the clock: a callable and its positional arguments.

        It works on these very arrays (inputs and weights, prototype order) without checks or copies around it, and
        changes those in ``mutates`` in place.
        """
        ...

    def trace(self, case: Case) -> Graph:
        """The reference as ATen operators for one case's sizes; TaskError if it cannot be traced."""
        ...

    def calling(self) -> Calling:
        """How it is made and called; TaskError if that cannot be written down."""
        ...


class TaskSource(Protocol):
    """One format of tasks."""

    name: str

    def recognises(self, path: Path) -> bool:
        """Whether the file is of this format; reads text only, executes nothing."""
        ...

    def load(self, path: Path, overrides: Mapping[str, str], *, load_only: bool = False) -> LoadedTask:
        """Load it. ``load_only`` creates no inputs: sizes and dtypes come from meta tensors where possible.

        Raises:
            TaskError: what was expected and what was found.
        """
        ...
