from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelworks.targets.gate import BuildGate

ENVIRONMENT = {"PATH": os.environ["PATH"]}


def until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait for something that must come about; how long it takes is not the test's business."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it never came about"
        time.sleep(0.005)


def state(pid: int) -> str:
    """One letter: R, S, T (stopped), Z (zombie)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def gone(pid: int) -> bool:
    try:
        return state(pid) == "Z"
    except FileNotFoundError:
        return True


@contextmanager
def sleeper(gate: BuildGate, tmp_path: Path) -> Generator[subprocess.Popen[bytes]]:
    with gate.process(["sleep", "60"], cwd=tmp_path, env=ENVIRONMENT) as child:
        yield child


def test_a_timing_stops_the_whole_group_and_lets_it_go_on(tmp_path: Path) -> None:
    gate = BuildGate()
    # The shell is the group's leader and waits for a child of its own, as a compiler driver does.
    argv = ["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/child; wait"]
    with gate.process(argv, cwd=tmp_path, env=ENVIRONMENT) as leader:
        until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().endswith("\n"))
        child = int((tmp_path / "child").read_text())
        with gate.timing():
            until(lambda: state(leader.pid) == state(child) == "T")
            with gate.timing():
                until(lambda: state(child) == "T")
            assert state(leader.pid) == state(child) == "T", "the inner timing ended, the outer did not"
        until(lambda: state(leader.pid) == state(child) == "S")
    until(lambda: gone(child))


def test_no_compiler_starts_during_a_timing(tmp_path: Path) -> None:
    gate = BuildGate()
    started = threading.Event()

    def build() -> None:
        with gate.process(["true"], cwd=tmp_path, env=ENVIRONMENT):
            started.set()

    with gate.timing():
        thread = threading.Thread(target=build)
        thread.start()
        assert not started.wait(0.2)
    assert started.wait(20)
    thread.join()


def test_the_clock_stands_still_during_timings() -> None:
    gate = BuildGate()
    before_s = gate.clock_s()
    with gate.timing():
        frozen_s = gate.clock_s()
        with gate.timing():
            time.sleep(0.05)
        assert gate.clock_s() == frozen_s
    assert gate.clock_s() >= frozen_s >= before_s
    wall_s, built_s = time.monotonic(), gate.clock_s()
    time.sleep(0.02)
    assert 0.02 <= gate.clock_s() - built_s <= time.monotonic() - wall_s


def test_a_timing_waits_for_work_inside_the_process_and_holds_the_next_back() -> None:
    gate = BuildGate()
    order: list[str] = []
    working, timing = threading.Event(), threading.Event()
    release = threading.Event()

    def time_something() -> None:
        with gate.timing():
            order.append("timing")
            timing.set()
            release.wait(20)

    def work_later() -> None:
        with gate.working():
            order.append("second work")

    with gate.working():
        working.set()
        timer = threading.Thread(target=time_something)
        timer.start()
        assert not timing.wait(0.1)
        order.append("first work")
    assert timing.wait(20)
    worker = threading.Thread(target=work_later)
    worker.start()
    time.sleep(0.05)
    release.set()
    timer.join()
    worker.join()
    assert order == ["first work", "timing", "second work"]


def test_as_many_compilers_as_slots_run_and_one_alone_has_them_all(tmp_path: Path) -> None:
    gate = BuildGate(slots=2)
    most, running = 0, 0
    lock = threading.Lock()
    alone_saw: list[int] = []

    def build() -> None:
        nonlocal most, running
        with gate.process(["sleep", "0.02"], cwd=tmp_path, env=ENVIRONMENT):
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.02)
            with lock:
                running -= 1

    def build_alone() -> None:
        with gate.process(["true"], cwd=tmp_path, env=ENVIRONMENT, alone=True):
            for _ in range(5):
                with lock:
                    alone_saw.append(running)
                time.sleep(0.005)

    threads = [threading.Thread(target=build) for _ in range(8)] + [threading.Thread(target=build_alone)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 2
    assert alone_saw == [0] * 5


def test_killing_what_runs_ends_it_even_during_a_timing(tmp_path: Path) -> None:
    gate = BuildGate()
    with sleeper(gate, tmp_path) as child, gate.timing():
        gate.kill_running()
        info = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert info is not None
        assert info.si_status == signal.SIGKILL


def test_a_compiler_that_cannot_be_started_leaves_the_gate_open(tmp_path: Path) -> None:
    gate = BuildGate(slots=1)
    for alone in (True, False):
        with pytest.raises(FileNotFoundError), gate.process(["/no/such"], cwd=tmp_path, env=ENVIRONMENT, alone=alone):
            pass
    with gate.process(["true"], cwd=tmp_path, env=ENVIRONMENT, alone=True) as child:
        assert child.pid > 0


def test_many_timings_and_builds_at_once_end_with_nothing_stopped(tmp_path: Path) -> None:
    gate = BuildGate(slots=3)
    finished: list[int] = []

    def build() -> None:
        for _ in range(4):
            with gate.process(["sleep", "0.01"], cwd=tmp_path, env=ENVIRONMENT) as child:
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            finished.append(child.returncode)

    def time_something() -> None:
        for _ in range(8):
            with gate.timing():
                time.sleep(0.002)
            time.sleep(0.002)

    threads = [threading.Thread(target=t) for t in (build, build, build, build, time_something, time_something)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert finished == [0] * 16


def test_a_stopped_compiler_does_not_outlive_a_controller_that_is_killed(tmp_path: Path) -> None:
    script = f"""
import os, signal, sys, time
from pathlib import Path
from kernelworks.targets.gate import BuildGate
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, by children too
gate = BuildGate()
with gate.process(["sleep", "60"], cwd=Path({str(tmp_path)!r}), env={{"PATH": {os.environ["PATH"]!r}}}) as child:
    with gate.timing():
        print(child.pid, flush=True)
        time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        compiler = int(controller.stdout.readline())
        until(lambda: state(compiler) == "T")
        controller.kill()
        controller.wait()
    until(lambda: gone(compiler))
