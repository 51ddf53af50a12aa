"""From what the user typed to a loaded task: a file, a folder or ``module:name``.

Formats are plug-ins of the entry-point group ``kernelworks.task_sources``; the built-in ones are registered the same
way.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kernelworks.errors import TaskError
from kernelworks.plugins import load_plugin, plugin_names
from kernelworks.task.graph import Graph
from kernelworks.task.model import Case, Task
from kernelworks.task.modulefile import parse
from kernelworks.task.source import Arrays, Calling, LoadedTask, TaskReference, TaskSource

GROUP = "kernelworks.task_sources"
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def load_task(reference: TaskReference, *, load_only: bool = False) -> LoadedTask:
    """Load the task that a reference names.

    Args:
        reference: what the user typed.
        load_only: create no inputs; shapes come from tensors without memory.

    Raises:
        TaskError: nothing there, no known format, or whatever the format finds wrong; one sentence.
        EnvironmentLackError: the reference needs torch and there is none, or a plug-in cannot be imported.
    """
    precision = _precision(reference.precision)
    path = Path(reference.target).expanduser()
    if not path.exists() and _MODULE.fullmatch(reference.target):
        loaded = _load_module(reference, load_only=load_only)
    else:
        source, file = _find(path)
        loaded = source.load(file, reference.overrides, load_only=load_only)
    if precision is None or loaded.task.precision == precision:
        return loaded
    return _WithPrecision(loaded, loaded.task.model_copy(update={"precision": precision}))


def task_sources() -> tuple[TaskSource, ...]:
    """One instance of every registered source, by name.

    Raises:
        EnvironmentLackError: a plug-in cannot be imported.
    """
    return tuple(load_plugin(GROUP, "task source", name)() for name in plugin_names(GROUP))


def task_files(folder: Path) -> list[tuple[TaskSource, Path]]:
    """The files of a folder that some source recognises, by name; files that cannot be parsed are left out."""
    sources = task_sources()
    found: list[tuple[TaskSource, Path]] = []
    for file in sorted(p for p in folder.iterdir() if p.is_file()):
        try:
            source = _recognise(file, sources)
        except TaskError:
            continue
        if source is not None:
            found.append((source, file))
    return found


@dataclass(frozen=True)
class _WithPrecision:
    """A loaded task under another precision."""

    loaded: LoadedTask
    task: Task

    def make_inputs(self, case: Case, seed: int) -> list[Any]:
        return self.loaded.make_inputs(case, seed)

    def run(self, arrays: Arrays, *, double: bool = False) -> list[Any]:
        return self.loaded.run(arrays, double=double)

    def program(self, arrays: Arrays) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.loaded.program(arrays)

    def trace(self, case: Case) -> Graph:
        return self.loaded.trace(case)

    def calling(self) -> Calling:
        return self.loaded.calling()


def _find(path: Path) -> tuple[TaskSource, Path]:
    """Source and file of a path."""
    if not path.exists():
        raise TaskError(f"{path}: expected a task file, a folder or module:name, found nothing there")
    if path.is_dir():
        file = path / "task.py"
        if not file.is_file():
            return _single(path)
        path = file
    sources = task_sources()
    source = _recognise(path, sources)
    if source is None:
        formats = ", ".join(s.name for s in sources) or "none"
        raise TaskError(f"{path}: expected a task file of a known format ({formats}), found none of them")
    return source, path


def _single(folder: Path) -> tuple[TaskSource, Path]:
    found = task_files(folder)
    if len(found) == 1:
        return found[0]
    if not found:
        for file in sorted(folder.glob("*.py")):
            parse(file)  # says which line is wrong, if that is the reason
        raise TaskError(f"{folder}: expected task.py or a single task file in the folder, found none")
    names = ", ".join(file.name for _, file in found[:5]) + (", ..." if len(found) > 5 else "")
    raise TaskError(f"{folder}: expected task.py or a single task file in the folder, found {len(found)} ({names})")


def _recognise(path: Path, sources: tuple[TaskSource, ...]) -> TaskSource | None:
    if path.suffix == ".py":
        parse(path)
    return next((source for source in sources if source.recognises(path)), None)


def _load_module(reference: TaskReference, *, load_only: bool) -> LoadedTask:
    from kernelworks.task.python_source import PythonSource

    module, _, name = reference.target.partition(":")
    with _importable_from_here():
        return PythonSource().load_function(module, name, reference.overrides, load_only=load_only)


@contextmanager
def _importable_from_here() -> Generator[None]:
    """Modules of the working directory can be imported, as ``python -m`` allows."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _precision(text: str) -> Literal["strict", "relaxed"] | None:
    if not text:
        return None
    if text == "strict" or text == "relaxed":
        return text
    raise TaskError(f"precision: expected 'strict' or 'relaxed', found {text!r}")
