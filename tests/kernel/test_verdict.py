"""A verdict's status, measurements and findings hold together."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from kernelworks.kernel.verdict import ENVIRONMENT_STATUSES, Decision, Finding, Status, Verdict

MEASURED: dict[str, Any] = {
    "kernel": "k",
    "status": Status.CORRECT,
    "decision": Decision.FASTER,
    "speedup": 2.0,
    "speedup_low": 1.9,
    "speedup_high": 2.1,
    "time_ms": 1.0,
}
FINDING = Finding(kind="mismatch", message="rows 3 to 5 differ")


def test_a_measured_verdict_survives_json() -> None:
    verdict = Verdict.model_validate(MEASURED)
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.CORRECT])
def test_a_failure_needs_a_finding_and_has_no_measurements(status: Status) -> None:
    assert Verdict(kernel="k", status=status, findings=(FINDING,)).decision is None
    with pytest.raises(ValidationError, match="needs at least one finding"):
        Verdict(kernel="k", status=status)
    with pytest.raises(ValidationError, match="a speed-up goes with status correct only"):
        Verdict.model_validate({**MEASURED, "status": status, "findings": (FINDING,)})


def test_a_correct_kernel_may_stay_untimed() -> None:
    assert Verdict(kernel="k", status=Status.CORRECT).speedup is None


@pytest.mark.parametrize("missing", ["decision", "time_ms", "speedup"])
def test_measurements_come_together(missing: str) -> None:
    with pytest.raises(ValidationError, match="come together or not at all"):
        Verdict.model_validate({**MEASURED, missing: None})


@pytest.mark.parametrize(
    ("low", "high"), [(None, 2.1), (1.9, None), (2.1, 1.9), (0.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0)]
)
def test_the_interval_is_an_interval(low: float | None, high: float | None) -> None:
    with pytest.raises(ValidationError, match="expected 0 < speedup_low <= speedup_high"):
        Verdict.model_validate({**MEASURED, "speedup_low": low, "speedup_high": high})


def test_an_interval_alone_is_refused() -> None:
    with pytest.raises(ValidationError, match="an interval goes with a speed-up only"):
        Verdict(kernel="k", status=Status.CORRECT, speedup_low=1.0)


def test_the_environment_is_never_the_candidates_fault() -> None:
    assert {Status.UNSUPPORTED, Status.SETUP_ERROR, Status.DOES_NOT_FIT} == ENVIRONMENT_STATUSES
