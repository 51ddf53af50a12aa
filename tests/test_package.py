"""The package and its papers agree with each other."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import kernelworks

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def project() -> dict[str, Any]:
    """The [project] table."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_version_is_one() -> None:
    assert version("kernelworks") == kernelworks.__version__
    heading = re.search(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading is not None
    assert Version(heading.group(1)) <= Version(kernelworks.__version__)


def test_every_requirement_parses_and_has_a_lower_bound() -> None:
    extras = project()["optional-dependencies"]
    assert set(extras) == {"torch", "zig", "dev"}
    for text in [*project()["dependencies"], *(r for extra in extras.values() for r in extra)]:
        requirement = Requirement(text)
        assert any(spec.operator == ">=" for spec in requirement.specifier), text
        assert requirement.url is None


@pytest.mark.parametrize("group", ["targets", "proposers", "engines", "task_sources"])
def test_built_ins_register_through_entry_points(group: str) -> None:
    declared = project()["entry-points"][f"kernelworks.{group}"]
    installed = {point.name: point for point in entry_points(group=f"kernelworks.{group}")}
    assert declared
    for name, value in declared.items():
        assert installed[name].value == value
        assert callable(installed[name].load())


def make_targets() -> set[str]:
    """Targets of the Makefile."""
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_real_commands_and_files(document: Path) -> None:
    text = document.read_text()
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", "\n".join(re.findall(r"`[^`]*`", text, re.DOTALL))))
    assert named <= make_targets()
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (document.parent / link).exists(), f"{document.name} links to {link}"


def test_readme_shows_both_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


@pytest.mark.parametrize("script", [".ci/run", "scripts/system-deps.sh"])
def test_scripts_are_executable_and_parse(script: str) -> None:
    path = ROOT / script
    assert path.stat().st_mode & 0o111
    bash = shutil.which("bash")
    assert bash is not None
    assert subprocess.run([bash, "-n", str(path)], check=False).returncode == 0
