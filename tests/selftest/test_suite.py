"""The short form passes, and what must not count as caught does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kernelworks.evaluate.settings import Settings
from kernelworks.kernel.model import Contract
from kernelworks.kernel.verdict import Status
from kernelworks.selftest.bait import Bait
from kernelworks.selftest.function.assemble import attack, plain
from kernelworks.selftest.listing import ATTACKS, HONEST
from kernelworks.selftest.model import Attack, Criterion, Honest, Host, Part
from kernelworks.selftest.outcome import AttackOutcome, Outcome
from kernelworks.selftest.pen import Pen
from kernelworks.selftest.suite import Choice, Stand, run_suite

SETTINGS = Settings(threads=2, call_timeout_s=5.0, on_load="mark")


def outcomes_of(items: Sequence[Attack | Honest], folder: Path, host: str = "tiny") -> list[Outcome]:
    return list(Stand(3, Contract.FUNCTION, host, folder, SETTINGS).outcomes(items))


def made(body: str, criterion: Criterion = Criterion.REFUSED, finding: str = "") -> Attack:
    def trick(pen: Pen, host: Host, bait: Bait) -> Part:
        return Part(body=body.replace("GOLDEN", f'"{bait.golden}"'))

    return attack("S1", f"{body[:40]} {criterion}", trick, ("tiny",), criterion, finding=finding)


@pytest.mark.timeout(400)
def test_the_short_form() -> None:
    seen: list[Outcome] = []
    choice = Choice(seed=11, short=True)
    report = run_suite(choice, SETTINGS, seen.append)
    assert report.missed == () and report.refused == (), [o for o in seen if not getattr(o, "caught", True)]
    assert report.ok
    assert len(report.attacks) == len([a for a in ATTACKS if a.short]) >= 20
    controls = [o for o in report.honest if o.name.startswith("control")]
    assert len(report.honest) - len(controls) == len([h for h in HONEST if h.short]) >= 5
    assert seen == [*sorted(seen, key=seen.index)] and len(seen) == len(report.attacks) + len(report.honest)
    answer = report.as_json()
    assert answer["attacks"]["total"] == answer["attacks"]["caught"] == len(answer["attacks"]["by_id"]) or (
        answer["attacks"]["total"] == answer["attacks"]["caught"]
    )
    assert sum(answer["attacks"]["by_defence"].values()) == len(report.attacks)


def test_what_is_caught_and_what_is_not(tmp_path: Path) -> None:
    attacks = {
        "harmless": made("${all}"),
        "does not compile": made("${all} nowhere();"),
        "wrong": made("$y[0] = 7;"),
        "no faster": made("${all} ", Criterion.HARMLESS),
        "opens a file": made('${all} if (fopen(GOLDEN, "r") == nullptr) return 0;', Criterion.UNTOUCHED),
        "touches nothing": made("${all}  ", Criterion.UNTOUCHED),
        "not named": made("${all}   ", Criterion.NAMED, "no_such_finding"),
        "named": made("${all}    ", Criterion.NAMED, "launch_overhead"),
    }
    outcomes = outcomes_of(list(attacks.values()), tmp_path)
    found = {o.variant: o for o in outcomes if isinstance(o, AttackOutcome)}
    results = {name: found[attacks[name].variant] for name in attacks}
    # Opening a file is seen by the bait, or the sandbox does not let it happen.
    expected = {"wrong", "no faster", "touches nothing", "named"}
    assert {name for name, o in results.items() if o.caught} - {"opens a file"} == expected
    assert results["does not compile"].by == "did not run: build_error"
    assert results["wrong"].by in ("values", "unwritten")
    assert results["no faster"].by == "no faster than its twin"
    assert results["opens a file"].by in ("golden.bin was opened", "no access")


def test_slower_twins_are_noticed(tmp_path: Path) -> None:
    """An honest kernel whose twin wastes time counts as an attack that gains."""

    def slow_twin(pen: Pen, host: Host, bait: Bait) -> str:
        text = plain(pen, host)
        head, _, tail = text.rpartition("  return 0;")
        return f"{head}  for (volatile int i = 0; i < 200000; i = i + 1) {{}}\n  return 0;{tail}"

    gains = replace(made("${all}", Criterion.HARMLESS), twin=slow_twin)
    (outcome,) = [o for o in outcomes_of([gains], tmp_path) if isinstance(o, AttackOutcome)]
    assert not outcome.caught and "times as fast as its twin" in outcome.by
    assert outcome.status is Status.CORRECT


def test_where_the_control_is_refused_nothing_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelworks.selftest import suite

    def broken(pen: Pen, host: Host) -> str:
        return plain(pen, host).replace("return 0;", "return 1;")

    monkeypatch.setitem(suite.PLAIN, Contract.FUNCTION, broken)
    control, outcome = outcomes_of([made("$y[0] = 7;")], tmp_path)
    assert not isinstance(control, AttackOutcome) and control.status is Status.CRASHED
    assert isinstance(outcome, AttackOutcome)
    assert (outcome.caught, outcome.by) == (False, "the control is crashed")
