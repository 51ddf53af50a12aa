"""A believable outcome of a run, for tests of the faces. No figure here was measured."""

from __future__ import annotations

from typing import Literal, cast

from kernelworks.app.results import Best, OptimizeResult
from support.samples import correct_verdict


def sample_result(speedup: float | None, *, status: str = "done") -> OptimizeResult:
    """A run whose best kernel has this speed-up over torch eager; None: no kernel was correct."""
    best = None
    if speedup is not None:
        verdict = correct_verdict("0123456789abcdef", speedup, final=True)
        best = Best(kernel=verdict.kernel, path="runs/rms_norm/best.cpp", verdict=verdict, idea="one pass a row")
    return OptimizeResult(
        run="20260101-120000-rms_norm",
        folder="runs/rms_norm",
        task="rms_norm",
        status=cast(Literal["done", "interrupted"], status),
        evaluations=80,
        stopped_by="minutes",
        target="cpp",
        device="Example CPU",
        best=best,
        failures={"wrong": 3, "build_error": 1},
        filled=12,
        report="runs/rms_norm/report.html",
        seed=7,
        elapsed_s=93.4,
    )
