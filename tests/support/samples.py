"""A believable finished run as plain data, for tests of what is shown. No figure here was measured."""

from __future__ import annotations

import random

from kernelworks.kernel.descriptor import Cell, Descriptor
from kernelworks.kernel.hardware import Bandwidth, Hardware
from kernelworks.kernel.model import Contract
from kernelworks.kernel.verdict import Baseline, Decision, Finding, Policy, Status, Verdict
from kernelworks.report.model import Elite, EvaluationRow, ReportData, Winner
from kernelworks.task.model import Case, CaseRole, DType, Task, TensorArgument
from kernelworks.task.prototype import prototype

PARENT_TEXT = """/*---
contract: function
idea: one pass a row
---*/
#include <cmath>
#include <cstdint>
extern "C" int launch(const float* x, const float* w, float* out0, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; ++r) {
        float sum = 0.0f;
        for (int64_t c = 0; c < cols; ++c) sum += x[r * cols + c] * x[r * cols + c];
        const float scale = 1.0f / std::sqrt(sum / static_cast<float>(cols) + 1e-5f);
        for (int64_t c = 0; c < cols; ++c) out0[r * cols + c] = x[r * cols + c] * scale * w[c];
    }
    return 0;
}
"""
SAMPLE_TIMES_MS: dict[Policy, dict[str, float]] = {
    "kernel": {"eager": 12.0, "compile": 4.5},
    "as_called": {"eager": 45.0, "compile": 10.5},
}
WINNER_TEXT = PARENT_TEXT.replace(
    "    for (int64_t r", "    #pragma omp parallel for schedule(static)\n    for (int64_t r"
)


def sample_task(name: str = "rms_norm") -> Task:
    """A row-wise norm with a weight."""
    rows_cols = ("rows", "cols")
    return Task(
        name=name,
        source="python",
        digest="5f" * 32,
        framework="torch",
        inputs=(
            TensorArgument(name="x", dtype=DType.FLOAT32, shape=rows_cols, role="input"),
            TensorArgument(name="w", dtype=DType.FLOAT32, shape=("cols",), role="input"),
        ),
        outputs=(TensorArgument(name="out0", dtype=DType.FLOAT32, shape=rows_cols, role="output"),),
        dims=rows_cols,
        cases=(
            Case(name="large", role=CaseRole.TIMED, sizes={"rows": 4096, "cols": 2048}),
            Case(name="odd", role=CaseRole.EDGE, sizes={"rows": 3, "cols": 67}),
        ),
    )


def correct_verdict(kernel: str, speedup: float, cell: Cell = (1, 1, 1), *, final: bool = False) -> Verdict:
    """A correct kernel with its interval; ``final`` adds all baselines under both policies."""
    low, high = speedup * 0.985, speedup * 1.015
    baselines: tuple[Baseline, ...] = ()
    if final:
        baselines = tuple(
            Baseline(
                name=name,
                time_ms=time_ms,
                speedup=speedup * time_ms / 12.0,
                speedup_low=low * time_ms / 12.0,
                speedup_high=high * time_ms / 12.0,
                policy=policy,
            )
            for policy, times_ms in SAMPLE_TIMES_MS.items()
            for name, time_ms in times_ms.items()
        )
    return Verdict(
        kernel=kernel,
        status=Status.CORRECT,
        decision=Decision.FASTER if low > 1.01 else Decision.SLOWER if high < 0.99 else Decision.UNDECIDED,
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        time_ms=12.0 / speedup,
        contract=Contract.FUNCTION,
        params={"UNROLL": 4, "ROWS": 2},
        flags=("-O3", "-march=native", "-fopenmp", "-DUNROLL=4", "-DROWS=2"),
        coverage=1.0,
        roofline=min(1.0, 0.21 * speedup),
        cache="cold",
        baselines=baselines,
        descriptor=Descriptor(memory=cell[0], compute=cell[1], parallelism=cell[2]),
    )


def failed_verdict(kernel: str, status: Status, message: str) -> Verdict:
    """A kernel that ended with another status."""
    return Verdict(kernel=kernel, status=status, findings=(Finding(kind=status.value, message=message),))


def sample_report(count: int = 80) -> ReportData:
    """A run with a winner, failures of several kinds and a part-filled archive."""
    dice = random.Random(4)
    rows: list[EvaluationRow] = []
    elites: dict[Cell, Elite] = {}
    reach = 0.7
    for number in range(1, count + 1):
        kernel = f"{dice.getrandbits(64):016x}"
        parents = tuple(r.kernel for r in rows[-1:])
        luck = dice.random()
        if luck < 0.06:
            verdict = failed_verdict(kernel, Status.WRONG, "output out0: RMS error 3.1e-3, the bound is 2.4e-7")
        elif luck < 0.10:
            verdict = failed_verdict(kernel, Status.BUILD_ERROR, "line 31: 'vec' was not declared in this scope")
        elif luck < 0.12:
            verdict = failed_verdict(kernel, Status.TIMED_OUT, "a call took longer than 20 s")
        else:
            reach = min(4.4, reach * (1 + 0.08 * dice.random()))
            cell = (dice.randrange(4), min(3, int(reach)), dice.randrange(4))
            verdict = correct_verdict(kernel, reach * (0.55 + 0.45 * dice.random()), cell)
            _enter(elites, cell, verdict)
        rows.append(
            EvaluationRow(
                number=number,
                kernel=kernel,
                verdict=verdict,
                operator="seed" if number < 9 else "mutate",
                move="" if number < 9 else "unroll 2 -> 4",
                parents=() if number < 9 else parents,
            )
        )
    best = max((r for r in rows if r.verdict.speedup_low is not None), key=lambda r: r.verdict.speedup_low or 0.0)
    task = sample_task()
    return ReportData(
        run="20260101-120000-rms_norm",
        task=task,
        prototype=prototype(task),
        target="cpp",
        seed=7,
        started="2026-01-01T12:00:00Z",
        elapsed_s=93.4,
        stopped_by="minutes",
        anchor="eager",
        hardware=sample_hardware(),
        versions={"kernelworks": "0.1.0", "python": "3.11.9", "torch": "2.13.0", "g++": "12.2.0"},
        evaluations=tuple(rows),
        elites=tuple(elites.values()),
        winner=Winner(
            kernel=best.kernel,
            text=WINNER_TEXT,
            verdict=correct_verdict(best.kernel, best.verdict.speedup or 1.0, (1, 2, 1), final=True),
            idea="one pass a row, rows shared between threads",
            path="runs/rms_norm/best.cpp",
            move="schedule none -> static",
            parent=rows[0].kernel,
            parent_text=PARENT_TEXT,
        ),
        config_toml='[budget]\nminutes = 1.5\n\n[search]\nseed = 7\nproposer = "experts"\n',
        event_counts={"proposed": count, "evaluated": count, "told": count},
        notes=("Another process used 0.3 of a core during 2 timings.",),
    )


def _enter(elites: dict[Cell, Elite], cell: Cell, verdict: Verdict) -> None:
    low = verdict.speedup_low or 0.0
    if cell not in elites or elites[cell].speedup_low < low:
        elites[cell] = Elite(
            cell=cell,
            kernel=verdict.kernel,
            speedup=verdict.speedup or 0.0,
            speedup_low=low,
            speedup_high=verdict.speedup_high or 0.0,
        )


def sample_hardware() -> Hardware:
    """A small server CPU."""
    return Hardware(
        name="Example CPU",
        kind="cpu",
        cores=2,
        simd_bits=512,
        features=("avx2", "fma", "avx512f"),
        l1_bytes=32 * 1024,
        l2_bytes=1024**2,
        l3_bytes=32 * 1024**2,
        memory_bytes=24 * 1024**3,
        bandwidths=(Bandwidth(level="memory", working_set_bytes=2**28, read_gbs=36.1, copy_gbs=41.0, triad_gbs=38.4),),
    )
