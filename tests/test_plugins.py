from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernelworks.errors import EnvironmentLackError, UsageError
from kernelworks.plugins import load_plugin, plugin_names

GROUP = "kernelworks.tests_of_plugins"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def install(folder: Path, package: str, *entry_points: str) -> None:
    """Lay an installed package out as pip would."""
    information = folder / f"{package}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *entry_points, ""]))


def test_names_are_sorted_and_nothing_is_imported(site: Path) -> None:
    install(site, "tools", "saw = no_such_module:Saw", "axe = no_such_module:Axe")
    assert plugin_names(GROUP) == ("axe", "saw")
    assert plugin_names("kernelworks.no_such_group") == ()


def test_the_object_behind_a_name(site: Path) -> None:
    install(site, "tools", "path = pathlib:Path")
    assert load_plugin(GROUP, "tool", "path") is Path


def test_unknown_names_are_answered_with_those_that_exist(site: Path) -> None:
    with pytest.raises(UsageError, match=r"^tool 'axe': expected one of the registered tools \(none\)$"):
        load_plugin(GROUP, "tool", "axe")
    install(site, "tools", "saw = pathlib:Path", "adze = pathlib:Path")
    with pytest.raises(UsageError, match=r"^tool 'axe': expected one of the registered tools \(adze, saw\)$"):
        load_plugin(GROUP, "tool", "axe")


def test_two_packages_with_one_name_are_refused(site: Path) -> None:
    install(site, "tools", "axe = pathlib:Path")
    install(site, "others", "axe = pathlib:PurePath")
    assert plugin_names(GROUP) == ("axe",)
    with pytest.raises(UsageError, match=r"expected one package that offers it, found pathlib:\w+ and pathlib:\w+"):
        load_plugin(GROUP, "tool", "axe")


def test_a_package_seen_twice_counts_once(
    site: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    install(site, "tools", "axe = pathlib:Path")
    install(other, "tools_again", "axe = pathlib:Path")
    monkeypatch.setattr(sys, "path", [str(other), *sys.path])
    assert load_plugin(GROUP, "tool", "axe") is Path


@pytest.mark.parametrize("value", ["no_such_module:Axe", "pathlib:NoSuchName"])
def test_what_cannot_be_loaded_is_a_lack_of_the_environment(site: Path, value: str) -> None:
    install(site, "tools", f"axe = {value}")
    with pytest.raises(EnvironmentLackError, match=rf"tool 'axe' cannot be loaded from {value}: ") as caught:
        load_plugin(GROUP, "tool", "axe")
    assert caught.value.mend == "reinstall the package that offers it"


def test_built_ins_are_plug_ins_too() -> None:
    assert "local" in plugin_names("kernelworks.engines")
    assert "cpp" in plugin_names("kernelworks.targets")
    assert "experts" in plugin_names("kernelworks.proposers")
    assert {"python", "kernelbench"} <= set(plugin_names("kernelworks.task_sources"))
