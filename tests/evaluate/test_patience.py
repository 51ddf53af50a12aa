"""A reference that takes too long, or too much memory, by real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.evaluations import HEADER, write_task

from kernelworks.errors import TaskError
from kernelworks.evaluate import patience
from kernelworks.evaluate.judge import Judge

TASK = (
    HEADER
    + """
import time

@task(cases=[case("main", n=64)])
def f(x: Float32[A, "n"]) -> Float32[A, "n"]:
    if x.shape == (64,):
        WORK
    return x * 2
"""
)


def start(folder: Path, work: str, limit_s: float = 120.0, notice: patience.Notice | None = None) -> Judge:
    reference = write_task(folder, TASK.replace("WORK", work))
    return Judge.start(reference, heap="default", threads=1, load_only=True, reference_timeout_s=limit_s, notice=notice)


@pytest.mark.parametrize("work", ["time.sleep(100)", "while True: pass"])
def test_a_run_that_takes_too_long_ends_the_judge_and_names_the_limit(tmp_path: Path, work: str) -> None:
    with start(tmp_path, work, 0.5) as judge:
        with pytest.raises(TaskError, match=r"reference did not finish: one run took more than 0\.5 s") as caught:
            judge.check_task()
        assert "reference_timeout_s" in caught.value.mend
        assert not judge.alive


def test_many_short_runs_are_no_long_one(tmp_path: Path) -> None:
    with start(tmp_path, "time.sleep(0.2)", 1.0) as judge:
        assert not [p for p in judge.check_task() if p.refuses]


def test_who_waits_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    with start(tmp_path, "time.sleep(1)", notice=told.append) as judge:
        monkeypatch.setattr(patience, "NOTICE_S", 0.3)
        judge.prepare("main", 1, "normal")
    assert told == ["preparing a case takes long; a run of the reference may take 120 s"]


def test_a_reference_that_takes_the_last_memory_is_ended_before_it_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "available_memory_bytes", lambda: 0)
    work = "kept = [np.ones(1 << 22, np.float32) for _ in range(1 << 20) if not time.sleep(0.005)]"
    with start(tmp_path, work) as judge:
        with pytest.raises(TaskError, match=r"the task's reference ran out of memory: the reference took 0\.\d GiB"):
            judge.check_task()
        assert not judge.alive


def test_growth_where_there_is_memory_is_fine(tmp_path: Path) -> None:
    with start(tmp_path, "np.ones(150 << 20, np.float32)") as judge:
        assert not [p for p in judge.check_task() if p.refuses]
