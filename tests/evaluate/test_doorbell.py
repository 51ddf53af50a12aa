"""The doorbell's own parts; ``test_process`` rings it between processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from kernelworks.evaluate.doorbell import Doorbell, Sweep, doorbell_shim, processor_clock


def test_the_shim_builds_here() -> None:
    assert doorbell_shim() is not None


def test_nobody_can_cut_the_page_away() -> None:
    bell = Doorbell()
    for size_bytes in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(bell.fd, size_bytes)
    bell.close()
    bell.close()


def test_a_ring_that_nobody_answers_has_no_time() -> None:
    bell = Doorbell()
    own = processor_clock(os.getpid())
    assert own is not None
    numbers: set[int] = set()
    for _ in range(3):
        assert bell.ring(0, own) is None
        assert bell.wait(own) is None
        numbers.add(bell.number)
    assert len(numbers) == 3
    bell.close()


def test_the_clock_of_a_process_counts_its_work_alone() -> None:
    busy = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        clock = processor_clock(child.pid)
        assert clock is not None
        time.sleep(0.1)
        first = time.clock_gettime(clock)
        time.sleep(0.3)
        assert first >= 0.2
        assert time.clock_gettime(clock) == pytest.approx(first, abs=0.05)
        child.kill()
    assert processor_clock(child.pid) is None


@pytest.mark.parametrize("shim", [True, False])
def test_a_sweep_reads_and_can_be_repeated(shim: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    doorbell_shim.cache_clear()
    if not shim:
        monkeypatch.setenv("CXX", "/nonexistent/compiler")
    try:
        sweep = Sweep(1 << 22)
        before = time.process_time_ns()
        sweep()
        sweep()
        assert time.process_time_ns() > before
        sweep.close()
        sweep.close()
    finally:
        doorbell_shim.cache_clear()
