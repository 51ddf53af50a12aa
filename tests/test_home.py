from __future__ import annotations

from pathlib import Path

import pytest

from kernelworks.home import home


def test_the_variable_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELWORKS_HOME", str(tmp_path / "here"))
    assert home() == tmp_path / "here"
    assert not home().exists()
    monkeypatch.setenv("KERNELWORKS_HOME", "relative")
    assert home() == Path.cwd() / "relative"


def test_without_the_variable_it_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in (None, ""):
        if value is None:
            monkeypatch.delenv("KERNELWORKS_HOME")
        else:
            monkeypatch.setenv("KERNELWORKS_HOME", value)
        assert home() == tmp_path / ".cache" / "kernelworks"
