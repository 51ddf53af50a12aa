from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernelworks.errors import EnvironmentLackError, UsageError
from kernelworks.targets.registry import available_targets, get_target


def install(folder: Path, name: str, entry_points: str, modules: dict[str, str] | None = None) -> None:
    """Lay an installed package out as pip would."""
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[kernelworks.targets]\n{entry_points}\n")
    for module, text in (modules or {}).items():
        (folder / f"{module}.py").write_text(text)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_a_target_of_another_package_is_found_by_name(site: Path) -> None:
    install(site, "abacus", "abacus = abacus_target:Abacus", {"abacus_target": "class Abacus:\n    name = 'abacus'\n"})
    assert "abacus" in available_targets()
    assert get_target("abacus").name == "abacus"


def test_the_built_in_target_is_an_entry_point_like_any_other(site: Path) -> None:
    install(site, "builtin", "cpp = kernelworks.targets.cpp:CppTarget")
    assert get_target("cpp").name == "cpp"


def test_an_unknown_name_is_answered_with_those_that_exist(site: Path) -> None:
    install(site, "abacus", "abacus = abacus_target:Abacus")
    with pytest.raises(UsageError, match=r"'cppp': expected one of the registered targets \(abacus"):
        get_target("cppp")


def test_two_packages_with_one_name_are_refused_and_both_named(site: Path) -> None:
    install(site, "first", "twin = first_twin:Twin")
    install(site, "second", "twin = second_twin:Twin")
    with pytest.raises(UsageError, match=r"first_twin:Twin and second_twin:Twin|second_twin:Twin and first_twin:Twin"):
        get_target("twin")


def test_a_package_that_cannot_be_imported_is_the_environments_fault(site: Path) -> None:
    install(site, "broken", "broken = broken_target:Broken", {"broken_target": "import a_module_that_is_not_there\n"})
    assert "broken" in available_targets()
    with pytest.raises(EnvironmentLackError, match="a_module_that_is_not_there"):
        get_target("broken")
