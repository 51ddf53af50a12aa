from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from kernelworks.targets.gate import BuildGate
from kernelworks.targets.process import OUTPUT_CAP_BYTES, Finished, Limits, run_compiler


def run(script: str, folder: Path, *, gate: BuildGate | None = None, limits: Limits | None = None) -> Finished:
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    argv = ["/bin/sh", "-c", script]
    return run_compiler(gate or BuildGate(), argv, cwd=folder, env=env, limits=limits or Limits(time_s=30))


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_status_and_both_streams_come_back(tmp_path: Path) -> None:
    done = run("echo out; echo err >&2; exit 3", tmp_path)
    assert (done.outcome, done.returncode) == ("exited", 3)
    assert sorted(done.output.split()) == ["err", "out"]
    assert not done.ok
    assert run("true", tmp_path).ok


def test_a_flood_is_drained_and_capped(tmp_path: Path) -> None:
    done = run("yes 'a line of output' | head -c 20000000; echo end >&2", tmp_path)
    assert done.ok
    assert len(done.output) < OUTPUT_CAP_BYTES + 100
    assert "more bytes dropped" in done.output


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    assert run(r"printf 'a\377b'", tmp_path).output == "a�b"


def test_at_the_time_limit_the_whole_group_is_gone(tmp_path: Path) -> None:
    done = run("sleep 60 & echo $!; wait", tmp_path, limits=Limits(time_s=0.3))
    assert done.outcome == "out_of_time"
    child = int(done.output)
    end_s = time.monotonic() + 10
    while not gone(child) and time.monotonic() < end_s:
        time.sleep(0.01)
    assert gone(child)


def test_a_child_that_keeps_the_pipe_open_does_not_hold_the_result_up(tmp_path: Path) -> None:
    done = run("sleep 60 & echo started", tmp_path)
    assert done.ok
    assert done.output == "started\n"


def test_a_compiler_that_closes_its_output_is_still_waited_for(tmp_path: Path) -> None:
    assert run("exec >&- 2>&-; sleep 0.1; exit 5", tmp_path).returncode == 5


def test_a_pause_for_a_timing_does_not_count(tmp_path: Path) -> None:
    gate = BuildGate()
    results: list[Finished] = []
    limits = Limits(time_s=2.0)
    thread = threading.Thread(
        target=lambda: results.append(run(f"touch {tmp_path}/up; sleep 0.3", tmp_path, gate=gate, limits=limits))
    )
    thread.start()
    while not (tmp_path / "up").exists():
        time.sleep(0.005)
    with gate.timing():
        time.sleep(2.2)
    thread.join()
    assert results[0].ok


def test_memory_of_the_compilers_children_counts(tmp_path: Path) -> None:
    hungry = f"""{sys.executable} -c "import time; b = bytearray(400 << 20); time.sleep(60)" & wait"""
    done = run(hungry, tmp_path, limits=Limits(time_s=30, memory_bytes=200 << 20))
    assert done.outcome == "out_of_memory"


@pytest.mark.parametrize(
    "script",
    ["kill -KILL $$", "echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1"],
)
def test_a_kill_that_is_not_ours_is_told_from_a_failure(script: str, tmp_path: Path) -> None:
    assert run(script, tmp_path).outcome == "killed"


def test_a_crash_of_the_compiler_is_no_kill(tmp_path: Path) -> None:
    done = run("kill -SEGV $$", tmp_path)
    assert (done.outcome, done.returncode) == ("exited", -11)


def test_a_file_cannot_grow_without_limit(tmp_path: Path) -> None:
    assert not run("head -c 60000000 /dev/zero > big", tmp_path, limits=Limits(time_s=30, file_bytes=1 << 20)).ok
    assert (tmp_path / "big").stat().st_size <= 1 << 20
