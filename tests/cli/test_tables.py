from __future__ import annotations

import io

import pytest
from rich.console import Console
from support.results import sample_result

from kernelworks.app.results import DoctorReport, OptimizeResult, RunSummary, TargetReport
from kernelworks.cli.tables import doctor_table, result_parts, runs_table, show_result


def shown(*parts: object) -> str:
    console = Console(file=io.StringIO(), width=160, record=True)
    for part in parts:
        console.print(part, markup=False)
    return console.export_text()


def shown_result(result: OptimizeResult) -> str:
    return shown(*result_parts(result))


def test_every_baseline_stands_under_both_policies() -> None:
    text = shown_result(sample_result(4.0))
    eager = next(line for line in text.splitlines() if "torch eager" in line)
    for part in ("12.0 ms", "4.00x", "[3.94, 4.06]", "45.0 ms", "15.0x"):
        assert part in eager, part
    assert "torch.compile" in text
    assert "winner: runs/rms_norm/best.cpp" in text
    assert "report: runs/rms_norm/report.html" in text
    assert "of the memory bound" in text
    assert "wrong 3, build_error 1" in text
    assert "nothing was faster" not in text


def test_a_run_that_beats_nothing_says_so() -> None:
    assert "nothing was faster than the fastest correct baseline" in shown_result(sample_result(2.0))
    assert "no kernel was correct" in shown_result(sample_result(None))


def test_an_interrupted_run_names_the_next_command() -> None:
    text = shown_result(sample_result(4.0, status="interrupted"))
    assert "kernelworks runs resume 20260101-120000-rms_norm" in text


def test_the_table_is_whole_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_result(sample_result(4.0))
    out = capsys.readouterr().out
    assert "…" not in out
    assert "\x1b" not in out
    assert "winner: runs/rms_norm/best.cpp\n" in out


def test_runs_are_listed() -> None:
    run = RunSummary(
        run="run-1",
        folder="runs/run-1",
        task="rms_norm",
        status="done",
        started="2026-01-01T12:00:00Z",
        evaluations=80,
        speedup=4.1,
        speedup_low=4.0,
    )
    other = run.model_copy(update={"run": "run-2", "speedup": None, "speedup_low": None})
    text = shown(runs_table([run, other]))
    assert "4.10x" in text
    assert "run-2" in text


def test_the_doctor_says_what_is_missing() -> None:
    report = DoctorReport(
        targets={
            "cpp": TargetReport(usable=True, device="Example CPU", versions={"g++": "12.2.0"}),
            "other": TargetReport(usable=False, problem="no compiler found", mend="install g++"),
        }
    )
    text = shown(doctor_table(report))
    assert "g++ 12.2.0" in text
    assert "no compiler found; install g++" in text
