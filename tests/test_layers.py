"""The import contracts hold, cover every folder, and would notice a breach."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kernelworks

ROOT = Path(__file__).parent.parent
PACKAGE = Path(kernelworks.__file__).parent
LINT = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command(sys.argv[1:])"


def run_contracts(source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter over a copy of the package."""
    shutil.copytree(source, folder / "kernelworks", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def contracts() -> list[dict[str, Any]]:
    """As they stand in pyproject.toml."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return data["tool"]["importlinter"]["contracts"]


def test_contracts_hold(tmp_path: Path) -> None:
    done = run_contracts(PACKAGE, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(contracts())} kept, 0 broken" in done.stdout


def test_every_folder_stands_in_a_layer() -> None:
    folders = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()}
    layered: set[str] = set()
    for contract in contracts():
        for layer in contract.get("layers", []):
            layered.update(part.strip() for part in layer.replace("|", ":").split(":"))
    assert folders <= layered


def test_a_breach_is_noticed(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(PACKAGE, broken, ignore=shutil.ignore_patterns("__pycache__"))
    with (broken / "search" / "__init__.py").open("a") as file:
        file.write("\nimport kernelworks.report.tables\n")
    done = run_contracts(broken, tmp_path / "checked")
    assert done.returncode == 1
    assert "Search is pure" in done.stdout
    assert "kernelworks.search -> kernelworks.report.tables" in done.stdout
