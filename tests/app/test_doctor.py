"""What works here."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints, entry_points

import pytest

from kernelworks import plugins
from kernelworks.app import doctor as module
from kernelworks.app.doctor import doctor
from kernelworks.cli.tables import sandbox_lines
from kernelworks.evaluate.sandbox import Sandbox, find_sandbox


def test_the_cpp_target_is_proven_by_a_kernel() -> None:
    probe = doctor().targets["cpp"]
    assert probe.usable, probe.problem
    assert probe.device and probe.versions
    assert probe.problem == ""


def test_the_sandbox_of_a_target_is_said_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor().targets["cpp"]
    assert (found.sandbox, found.sandbox_lacks) == (find_sandbox().kind, find_sandbox().lacking)
    monkeypatch.setattr(module, "find_sandbox", lambda: Sandbox(lacking=("bubblewrap is not installed",)))
    report = doctor()
    assert report.targets["cpp"].sandbox == "none"
    assert "make system-deps" in report.targets["cpp"].sandbox_mend
    (line,) = sandbox_lines(report)
    assert line.startswith("sandbox of cpp")
    assert "none (bubblewrap is not installed): run 'make system-deps'" in line


def test_a_target_that_cannot_be_imported_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = EntryPoint("abacus", "no_such_package:Abacus", "kernelworks.targets")

    def with_gone(*, group: str) -> EntryPoints:
        others = entry_points(group=group)
        return EntryPoints([*others, gone]) if group == gone.group else others

    monkeypatch.setattr(plugins, "entry_points", with_gone)
    targets = doctor().targets
    assert set(targets) == {"abacus", "cpp", "python"}
    assert targets["cpp"].usable
    assert not targets["abacus"].usable
    assert "no_such_package" in targets["abacus"].problem
    assert targets["abacus"].mend
