from __future__ import annotations

from support.cli import answer_of, kernelworks


def test_one_attack_in_json() -> None:
    done = kernelworks("selftest", "attacks", "--only", "s14", "--contract", "function", "--seed", "5", "--json")
    assert done.returncode == 0, done.stderr
    report = answer_of(done)
    assert report["attacks"]["by_id"] == {"S14": {"function": "caught"}}
    assert (report["attacks"]["total"], report["attacks"]["caught"], report["attacks"]["missed"]) == (1, 1, [])
    assert report["honest"]["refused"] == [] and report["seed"] == 5
    assert "caught  S14" in done.stderr


def test_what_cannot_be_executed_is_said_in_words() -> None:
    done = kernelworks("selftest", "attacks", "--only", "F3", "--contract", "function")
    assert done.returncode == 0, done.stderr
    assert "impossible" in done.stdout and "0 of 0 attacks caught" in done.stdout


def test_an_unknown_id_and_contract_are_refused() -> None:
    for option, value in (("--only", "T99"), ("--contract", "device")):
        done = kernelworks("selftest", "attacks", option, value)
        assert done.returncode == 2
        assert value in done.stderr
