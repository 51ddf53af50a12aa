"""The whole attack suite, as the command line runs it: everything is caught, nobody honest is refused."""

from __future__ import annotations

import json

import pytest
from support.cli import kernelworks

from kernelworks.selftest.catalogue import CATALOGUE

pytestmark = [pytest.mark.proof, pytest.mark.timeout(3000)]

LIMIT_S = 600
"""On two cores with nothing else running."""


def test_everything_is_caught_and_nobody_honest_is_refused() -> None:
    done = kernelworks("selftest", "attacks", "--json", timeout_s=2900)
    report = json.loads(done.stdout)
    attacks, honest = report["attacks"], report["honest"]
    missed = [v for v in attacks["variants"] if not v["caught"]]
    refused = [k for k in honest["kernels"] if k["status"] != "correct"]
    assert (missed, refused) == ([], []), f"seed {report['seed']}"
    assert set(attacks["by_id"]) == set(CATALOGUE)
    assert all(set(entry) == {"function", "module"} for entry in attacks["by_id"].values())
    assert honest["total"] >= 40
    assert done.returncode == 0
    assert report["elapsed_s"] < LIMIT_S
