from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelworks.errors import EnvironmentLackError, TaskError
from kernelworks.task.kernelbench import KernelBenchSource
from kernelworks.task.python_source import PythonSource
from kernelworks.task.resolve import load_task, task_files, task_sources
from kernelworks.task.source import LoadedTask, TaskReference, TaskSource

OURS = """
import numpy as np
from jaxtyping import Float32
from kernelworks.task import case, task

@task(cases=[case("main", n=64)])
def NAME(x: Float32[np.ndarray, "n"]) -> Float32[np.ndarray, "n"]:
    return x + 1
"""
THEIRS = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2

n = 8

def get_inputs():
    return [torch.rand(n)]

def get_init_inputs():
    return []
"""


def ours(name: str = "plus_one") -> str:
    return OURS.replace("NAME", name)


def load(target: Path | str, **overrides: str) -> LoadedTask:
    return load_task(TaskReference(target=str(target), overrides=overrides))


def test_built_in_sources_come_through_entry_points() -> None:
    found = {source.name: source for source in task_sources()}
    assert isinstance(found["python"], PythonSource)
    assert isinstance(found["kernelbench"], KernelBenchSource)


def test_files_of_both_formats(write_task: Any) -> None:
    assert load(write_task(ours(), name="a.py")).task.source == "python"
    loaded = load(write_task(THEIRS, name="b.py"), n="16")
    assert (loaded.task.source, loaded.task.cases[0].sizes) == ("kernelbench", {"x_0": 16})


def test_folders(write_task: Any, tmp_path: Path) -> None:
    write_task("X = 1", name="helper.py")
    (tmp_path / "notes.txt").write_text("nothing")
    write_task(ours("only"), name="only.py")
    assert load(tmp_path).task.name == "only"
    write_task("def f(:", name="broken.py")
    assert load(tmp_path).task.name == "only"
    write_task(ours("second"), name="second.py")
    assert [path.name for _, path in task_files(tmp_path)] == ["only.py", "second.py"]
    with pytest.raises(TaskError, match=r"expected task\.py or a single task file .* found 2 \(only\.py, second\.py\)"):
        load(tmp_path)
    write_task(ours("chosen"), name="task.py")
    assert load(tmp_path).task.name == "chosen"


def test_folders_without_a_task(write_task: Any, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"expected task\.py or a single task file in the folder, found none"):
        load(tmp_path)
    write_task("def f(:", name="broken.py")
    with pytest.raises(TaskError, match=r"broken\.py, line 1: expected Python, found a syntax error"):
        load(tmp_path)


def test_function_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_tasks.py").write_text(ours("first") + ours("second") + "other = 3\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    loaded = load("module_of_tasks:second", n="7")
    assert (loaded.task.name, loaded.task.cases[0].sizes) == ("second", {"n": 7})
    assert loaded.task.digest != load("module_of_tasks:first", n="7").task.digest
    for name in ("other", "absent"):
        with pytest.raises(
            TaskError, match=r"expected the name of a function under @task, found none \(first, second\)"
        ):
            load(f"module_of_tasks:{name}")
    with pytest.raises(TaskError, match=r"--set k: expected a constant, dim or scalar of task 'first' \(n\)"):
        load("module_of_tasks:first", k="7")
    assert sys.path == before


def test_modules_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_that_fails.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TaskError, match="importing 'module_that_fails' failed: ZeroDivisionError"):
        load("module_that_fails:f")
    with pytest.raises(TaskError, match="importing 'module_of_no_one' failed: ModuleNotFoundError"):
        load("module_of_no_one:f")


@pytest.mark.parametrize("name", ["absent.py", "absent", "some/where:else", "a:b:c"])
def test_nothing_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(TaskError, match="expected a task file, a folder or module:name, found nothing there"):
        load(tmp_path / name)


def test_unknown_formats(write_task: Any) -> None:
    for name, text in (("task.yaml", "a: 1"), ("task.py", "x = 1"), ("task", "")):
        with pytest.raises(
            TaskError, match=r"expected a task file of a known format \(.*kernelbench.*python.*\), found"
        ):
            load(write_task(text, name=name))


def test_syntax_and_import_errors_have_their_line(write_task: Any) -> None:
    with pytest.raises(TaskError, match="line 3: expected Python, found a syntax error"):
        load(write_task("\n\nif\n"))
    with pytest.raises(TaskError, match="line 2: the task file failed: ModuleNotFoundError"):
        load(write_task("from kernelworks.task import task\nimport module_of_no_one\n"))


def test_precision(write_task: Any) -> None:
    path = str(write_task(THEIRS))
    assert load(path).task.precision == "strict"
    loaded = load_task(TaskReference(target=path, precision="relaxed"), load_only=True)
    assert loaded.task.precision == "relaxed"
    arrays = loaded.make_inputs(loaded.task.cases[0], 0)
    assert torch.equal(loaded.run(arrays, double=True)[0], arrays[0].double() * 2)
    function, arguments = loaded.program(arrays)
    assert torch.equal(function(*arguments), arrays[0] * 2)
    assert loaded.trace(loaded.task.cases[0]).outputs
    with pytest.raises(TaskError, match="precision: expected 'strict' or 'relaxed', found 'loose'"):
        load_task(TaskReference(target=path, precision="loose"))


class TextSource:
    """A source of another package: files that end in ``.plus``."""

    name = "plus"

    def recognises(self, path: Path) -> bool:
        return path.suffix == ".plus"

    def load(self, path: Path, overrides: Mapping[str, str], *, load_only: bool = False) -> LoadedTask:
        copy = path.with_suffix(".py")
        copy.write_text(ours(path.read_text().strip()))
        return PythonSource().load(copy, overrides, load_only=load_only)


def plug_in(monkeypatch: pytest.MonkeyPatch, folder: Path, value: str) -> None:
    """Install a distribution with one more task source."""
    info = folder / "plus-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plus\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[kernelworks.task_sources]\nplus = {value}\n")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])


def test_a_plugged_in_source(tmp_path: Path, write_task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = EntryPoint("x", f"{__name__}:TextSource", "x")
    monkeypatch.setitem(sys.modules, module.module, sys.modules[__name__])
    plug_in(monkeypatch, tmp_path, module.value)
    source: TaskSource = TextSource()
    assert source.name in {s.name for s in task_sources()}
    assert load(write_task("grown", name="a.plus")).task.name == "grown"


def test_a_broken_plug_in_is_named(tmp_path: Path, write_task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, tmp_path, "module_of_no_one:Source")
    with pytest.raises(EnvironmentLackError, match=r"task source 'plus' cannot be loaded from module_of_no_one:Source"):
        load(write_task(ours()))
