"""What importing costs: nothing heavy before it is needed."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import kernelworks

HEAVY = {"torch", "sqlalchemy", "alembic", "rich", "capstone", "elftools", "tree_sitter", "jinja2", "ribs"}
WORKER_FOLDERS = ("task", "kernel", "targets", "evaluate")
ON_DEMAND = {"kernelworks.kernel.source_descriptor", "kernelworks.kernel.source_tree"}
"""Modules that are imported inside a function, and only where there is no disassembler for the processor."""


def modules_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after running the code."""
    script = f"{code}\nimport sys\nprint(' '.join({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def modules_of(folder: str) -> list[str]:
    """All modules of one folder of the package."""
    package = f"kernelworks.{folder}"
    paths = [f"{path}/{folder}" for path in kernelworks.__path__]
    return [package, *(m.name for m in pkgutil.walk_packages(paths, f"{package}."))]


def test_import_kernelworks_loads_nothing_but_itself() -> None:
    loaded = modules_after("import kernelworks")
    assert not loaded & (HEAVY | {"numpy", "pydantic", "typer", "yaml"})


def test_command_line_needs_typer_alone() -> None:
    loaded = modules_after("import kernelworks.cli.main")
    assert "typer" in loaded
    assert not loaded & (HEAVY | {"numpy", "pydantic"})


@pytest.mark.parametrize("folder", WORKER_FOLDERS)
def test_worker_folders_import_without_what_a_worker_may_lack(folder: str) -> None:
    imports = "\n".join(f"import {name}" for name in modules_of(folder) if name not in ON_DEMAND)
    loaded = modules_after(imports)
    assert "pydantic" in loaded
    assert not loaded & (HEAVY | {"typer"})


def test_modules_on_demand_are_what_they_are_called() -> None:
    for name in ON_DEMAND:
        assert modules_after(f"import {name}") & HEAVY


def test_search_is_light() -> None:
    loaded = modules_after("\n".join(f"import {name}" for name in modules_of("search")))
    assert not loaded & HEAVY
