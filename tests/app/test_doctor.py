"""What works here."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints, entry_points

import pytest

from kernelworks import plugins
from kernelworks.app.doctor import doctor


def test_the_cpp_target_is_proven_by_a_kernel() -> None:
    probe = doctor().targets["cpp"]
    assert probe.usable, probe.problem
    assert probe.device and probe.versions
    assert probe.problem == ""


def test_a_target_that_cannot_be_imported_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = EntryPoint("abacus", "no_such_package:Abacus", "kernelworks.targets")

    def with_gone(*, group: str) -> EntryPoints:
        others = entry_points(group=group)
        return EntryPoints([*others, gone]) if group == gone.group else others

    monkeypatch.setattr(plugins, "entry_points", with_gone)
    targets = doctor().targets
    assert set(targets) == {"abacus", "cpp"}
    assert targets["cpp"].usable
    assert not targets["abacus"].usable
    assert "no_such_package" in targets["abacus"].problem
    assert targets["abacus"].mend
