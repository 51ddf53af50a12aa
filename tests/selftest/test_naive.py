"""The attacks are worth catching: a naive evaluator accepts them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.naive import naive_report

from kernelworks.evaluate.settings import Settings
from kernelworks.kernel.model import Contract
from kernelworks.selftest.listing import ATTACKS
from kernelworks.selftest.model import Attack
from kernelworks.selftest.suite import Choice, Stand
from kernelworks.targets.base import Artefact
from kernelworks.targets.cpp import CppTarget
from kernelworks.task.python_source import PythonSource

SEED = 4
BY_LUCK = ("S16",)
"""Whether these are accepted is a matter of luck, which is the point of them."""
IN_CPP = [one for one in ATTACKS if one.contract is Contract.FUNCTION and one.id not in BY_LUCK]
SOME = ("a thread per call", "times changed on their way", "work ahead", "zeros", "by content", "not a number",
        "answers in memory", "a comparer that agrees", "a message of its own")  # fmt: skip


def refused(attacks: Sequence[Attack], folder: Path) -> list[str]:
    """Those that the naive evaluator does not accept."""
    target = CppTarget()
    found: list[str] = []
    for number, one in enumerate(attacks):
        place = folder / str(number)
        place.mkdir()
        stand = Stand(SEED, one.contract, Choice(seed=SEED).host_of(one), place, Settings(threads=2))
        prepared = stand.prepare(one)
        path = Path(stand.reference.target)
        built = target.build(PythonSource().load(path, {}, load_only=True).task, prepared.kernel)
        assert isinstance(built, Artefact), (one.variant, built)
        report = naive_report(built.path, path, prepared.bait.folder)
        prepared.bait.close()
        if not report.get("correct"):
            found.append(f"{one.id} {one.variant}: {report}")
    return found


@pytest.mark.timeout(300)
def test_some_are_accepted(tmp_path: Path) -> None:
    assert refused([one for one in IN_CPP if one.variant in SOME], tmp_path) == []


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_all_are_accepted(tmp_path: Path) -> None:
    assert refused(IN_CPP, tmp_path) == []
