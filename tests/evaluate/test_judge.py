from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import kernelworks.evaluate.judge as judge_module
from kernelworks.errors import EvaluationError, TaskError
from kernelworks.evaluate.buffers import SharedBuffer
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.numbers import storage
from kernelworks.evaluate.records import BufferSlot, DimSlot, PreparedCase
from kernelworks.task.source import TaskReference

NUMPY_TASK = """
import os
import signal
import sys
import time

import numpy as np
from jaxtyping import Float32

from kernelworks.task import case, task

print("hello from the task" + " " * 100)


@task(cases=[case("main", "timed", rows=64, cols=48), case("odd", "check", rows=5, cols=7)])
def scaled(x: Float32[np.ndarray, "rows cols"], w: Float32[np.ndarray, "cols"]) -> Float32[np.ndarray, "rows cols"]:
    BODY
"""
TORCH_TASK = """
import torch
from jaxtyping import BFloat16, Float32, Int64
from torch import Tensor

from kernelworks.task import case, task


@task(cases=[case("main", "timed", rows=64, cols=48), case("odd", "check", rows=5, cols=7)])
def best(
    x: BFloat16[Tensor, "rows cols"], w: Float32[Tensor, "cols"]
) -> tuple[BFloat16[Tensor, "rows cols"], Int64[Tensor, "rows"]]:
    y = torch.softmax(x.float() * w, -1)
    return y.to(x.dtype), y.argmax(-1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def write_task(folder: Path, body: str = "return x * w") -> TaskReference:
    path = folder / "scaled.py"
    path.write_text(NUMPY_TASK.replace("BODY", body))
    return TaskReference(target=str(path))


@pytest.fixture
def judge(folder: Path) -> Generator[Judge]:
    with Judge.start(write_task(folder), heap="warm", threads=1) as started:
        yield started


class Mapped:
    """A lane of a prepared case as a candidate's process maps it."""

    def __init__(self, prepared: PreparedCase, lane: int) -> None:
        self.slots = [s for s in prepared.lanes[lane] if isinstance(s, BufferSlot)]
        self.buffers = {s.name: SharedBuffer.attach(s.layout, os.dup(s.fd)) for s in self.slots}

    def __getitem__(self, name: str) -> NDArray[Any]:
        slot = next(s for s in self.slots if s.name == name)
        return np.frombuffer(self.buffers[name].data, storage(slot.dtype)).reshape(slot.shape)

    def close(self) -> None:
        for buffer in self.buffers.values():
            buffer.close()


def test_a_numpy_task_needs_no_torch(judge: Judge) -> None:
    assert judge.task.name == "scaled"
    assert judge.baseline_names().names == ("reference",)
    graph, reason = judge.trace()
    assert graph is None
    assert "NumPy" in reason
    judge.prepare("main", 1, "normal")
    assert "torch" not in Path(f"/proc/{judge.pid}/maps").read_text()


def test_a_case_from_preparation_to_report(judge: Judge) -> None:
    prepared = judge.prepare("main", 7, "wide")
    assert prepared is judge.prepare("main", 7, "wide")
    names = [slot.name for slot in prepared.lanes[0]]
    assert names == ["x", "w", "out0", "rows", "cols"]
    assert [s.value for s in prepared.lanes[0] if isinstance(s, DimSlot)] == [64, 48]
    first, second = Mapped(prepared, 0), Mapped(prepared, 1)
    judge.poison(prepared.key, 0)
    judge.poison(prepared.key, 1)
    assert np.isnan(first["out0"]).all()
    first["out0"][...] = first["x"] * first["w"]
    report = judge.compare(prepared.key, 0)
    assert not report.problems
    assert report.outputs[0].rms_error <= report.outputs[0].rms_limit
    assert [p.kind for p in judge.compare(prepared.key, 1).problems] == ["unwritten"]
    first["w"][3] = 0
    assert [p.kind for p in judge.compare(prepared.key, 0).problems] == ["input_changed"]
    assert second["w"][3] != 0
    first.close()
    second.close()


def test_rows_rewritten_between_timed_calls(judge: Judge) -> None:
    prepared = judge.prepare("main", 7, "normal")
    lane = Mapped(prepared, 0)
    for variant in range(5):
        judge.ready([prepared.key], 0, [variant])
        problem = judge.spot_check(prepared.key, 0)
        assert problem is not None
        assert problem.kind == "unwritten"
        lane["out0"][...] = lane["x"] * lane["w"]
        assert judge.spot_check(prepared.key, 0) is None
    judge.poison(prepared.key, 0)
    lane["out0"][...] = lane["x"] * lane["w"]
    assert not judge.compare(prepared.key, 0).problems, "poison restores the inputs"
    lane.close()


def test_baselines_task_check_and_necessary_bytes(judge: Judge) -> None:
    prepared = judge.prepare("main", 7, "normal")
    judge.warm_baseline("reference", prepared.key)
    timed = judge.time_baseline("reference", [prepared.key] * 4, 1 << 16)
    assert len(timed.elapsed_ns) == 4
    assert not [p for p in judge.check_task() if p.refuses]
    assert judge.necessary_bytes(prepared.key).total_bytes == (64 * 48 * 2 + 48) * 4


def test_released_cases_are_gone(judge: Judge) -> None:
    prepared = judge.prepare("odd", 7, "normal")
    slot = prepared.lanes[0][0]
    assert isinstance(slot, BufferSlot)
    judge.release(prepared.key)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(slot.fd)
    with pytest.raises(EvaluationError, match="prepared case: expected one of"):
        judge.compare(prepared.key, 0)


def test_unknown_cases_and_families_are_named(judge: Judge) -> None:
    with pytest.raises(EvaluationError, match=r"case: expected one of main, odd, .*, found 'none'"):
        judge.prepare("none", 1, "normal")
    with pytest.raises(EvaluationError, match=r"input family: expected one of normal, .*, found 'odd'"):
        judge.prepare("odd", 1, "odd")


def test_what_the_task_prints_is_kept_apart(judge: Judge, capfd: pytest.CaptureFixture[str]) -> None:
    judge.close()
    assert "hello from the task" in judge.output_tail
    assert capfd.readouterr() == ("", "")


def test_a_judge_can_be_closed_twice_and_leaves_no_process(judge: Judge) -> None:
    judge.prepare("main", 1, "normal")
    pid = judge.pid
    judge.close()
    judge.close()
    assert not Path(f"/proc/{pid}").exists()


def test_a_task_that_cannot_be_loaded(folder: Path) -> None:
    with pytest.raises(TaskError, match="found nothing there"):
        Judge.start(TaskReference(target=str(folder / "none.py")), heap="warm", threads=1)


def test_a_reference_that_raises_is_a_task_error(folder: Path) -> None:
    body = "\n    ".join(["if len(x) == 64:", "    raise ValueError('too wide')", "return x * w"])
    with Judge.start(write_task(folder, body), heap="warm", threads=1) as judge:
        with pytest.raises(TaskError, match="too wide"):
            judge.prepare("main", 1, "normal")
        assert not judge.prepare("odd", 1, "normal").dropped, "the judge goes on"


def test_a_reference_that_hangs_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(judge_module.LIMITS_S, "prepare", 0.5)
    body = "\n    ".join(["if len(x) == 64:", "    time.sleep(600)", "return x * w"])
    with Judge.start(write_task(folder, body), heap="warm", threads=1) as judge:
        with pytest.raises(TaskError, match=r"did not finish: no answer to 'prepare' in 0\.5 s"):
            judge.prepare("main", 1, "normal")
        assert not Path(f"/proc/{judge.pid}").exists()


def test_a_reference_that_kills_the_judge(folder: Path) -> None:
    last = "print('last words', flush=True)"
    body = "\n    ".join(
        ["if len(x) == 64:", f"    {last}", "    os.kill(os.getpid(), signal.SIGSEGV)", "return x * w"]
    )
    with Judge.start(write_task(folder, body), heap="warm", threads=1) as judge:
        with pytest.raises(TaskError, match=r"ended during 'prepare' \(signal SIGSEGV\)[^$]*last words"):
            judge.prepare("main", 1, "normal")
        with pytest.raises(EvaluationError, match="ended during 'compare'"):
            judge.compare("main/normal/1", 0)


def test_a_flood_of_output_is_drained_and_capped(folder: Path) -> None:
    body = "\n    ".join(["for i in range(20_000):", "    print(i, 'x' * 100)", "return x * w"])
    with Judge.start(write_task(folder, body), heap="warm", threads=1) as judge:
        judge.prepare("odd", 1, "normal")
        judge.close()
        lines = judge.output_tail.splitlines()
    assert len(lines) == 200
    assert lines[-1].startswith("19999 ")


HARNESS = """
import sys, time
from kernelworks.evaluate.judge import Judge
from kernelworks.task.source import TaskReference
judge = Judge.start(TaskReference(target=sys.argv[1]), heap="default", threads=1)
print(judge.pid, flush=True)
judge.prepare("main", 1, "normal")
"""


def test_the_judge_dies_with_its_harness(folder: Path) -> None:
    reference = write_task(folder, "time.sleep(600) if len(x) == 64 else None; return x * w")
    source = str(Path(judge_module.__file__).parents[2])
    paths = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS, reference.target],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    ) as harness:
        assert harness.stdout is not None
        pid = int(harness.stdout.readline())
        time.sleep(0.3)  # into the request, whose reference sleeps
        harness.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while running(pid):
        assert time.monotonic() < deadline, "the judge outlives its harness"
        time.sleep(0.05)


def running(pid: int) -> bool:
    """Whether a process is there and no zombie (nobody may reap it here)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_torch_with_narrow_floats_and_indices(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    path = folder / "best.py"
    path.write_text(TORCH_TASK)
    with Judge.start(TaskReference(target=str(path)), heap="warm", threads=2) as judge:
        graph, reason = judge.trace()
        assert (graph is None) == bool(reason)
        assert not [p for p in judge.check_task() if p.refuses]
        assert not judge.prepare("main", 1, "integers").dropped
        prepared = judge.prepare("main", 1, "wide")
        assert prepared.two_fills, prepared.dropped
        lane = Mapped(prepared, 0)
        for fill in (0, 1):
            judge.poison(prepared.key, 0, fill)
            x = torch.from_numpy(lane["x"]).view(torch.bfloat16)
            y = torch.softmax(x.float() * torch.from_numpy(lane["w"]), -1)
            lane["out0"][...] = y.to(torch.bfloat16).view(torch.uint16).numpy()
            lane["out1"][...] = y.argmax(-1).numpy()
            assert not judge.compare(prepared.key, 0).problems
        lane["out1"][3] += 1
        assert [p.kind for p in judge.compare(prepared.key, 0).problems] == ["values"]
        lane["out0"][:, 24:] = 0
        assert [p.tensor for p in judge.compare(prepared.key, 0).problems] == ["out0", "out1"]
        lane.close()
        assert judge.baseline_names().names[0] == "eager"
        names = judge.warm_baseline("eager", prepared.key)
        names = judge.warm_baseline("compile", prepared.key)
        assert ("compile" in names.names) != ("compile" in names.missing)
        for name in names.names:
            assert len(judge.time_baseline(name, [prepared.key] * 3, 0).elapsed_ns) == 3
