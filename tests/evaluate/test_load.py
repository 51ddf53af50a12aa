"""Foreign load, told from this process's own by real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from kernelworks.evaluate.load import BusyError, LoadWatch, Quiet, own_cpu_s, throttle_count

SPIN = "import time\nend = time.monotonic() + 1.0\nwhile time.monotonic() < end: pass"


def test_own_children_count_as_own() -> None:
    before_s = own_cpu_s()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    grown_s = own_cpu_s() - before_s
    assert 0.3 < grown_s < 3.0


def test_a_process_that_left_this_tree_is_foreign() -> None:
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SPIN!r}], start_new_session=True)"
    watch = LoadWatch()
    subprocess.run([sys.executable, "-c", orphan], check=True)
    time.sleep(1.0)
    foreign = watch.load()
    assert foreign.foreign_cores > 0.3
    assert foreign.steal_cores >= 0


def test_a_span_of_nothing_is_no_load() -> None:
    load = LoadWatch().load()
    assert load.foreign_cores >= 0


@contextmanager
def stranger() -> Generator[None]:
    """A busy process that is not below this one; ends by itself should nobody end it."""
    busy = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
    orphan = (
        "import subprocess, sys\n"
        f"p = subprocess.Popen([sys.executable, '-c', {busy!r}], start_new_session=True, stdout=subprocess.DEVNULL)\n"
        "print(p.pid)"
    )
    started = subprocess.run([sys.executable, "-c", orphan], check=True, stdout=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        os.kill(int(started.stdout), signal.SIGKILL)


def test_other_work_is_waited_for_within_the_budget() -> None:
    with stranger():
        quiet = Quiet("wait", 0.2, 0.5)
        quiet.settle()
        assert quiet.waited_s >= 0.5
        assert not quiet.patient


def test_refusing_names_the_load() -> None:
    with stranger(), pytest.raises(BusyError, match=r"other programs use \d\.\d\d cores") as caught:
        Quiet("refuse", 0.2, 10.0).settle()
    assert caught.value.load.foreign_cores > 0.2


def test_marking_waits_for_nobody() -> None:
    with stranger():
        quiet = Quiet("mark", 0.2, 10.0)
        quiet.settle()
    assert quiet.waited_s == 0 and not quiet.patient


def test_a_machine_below_the_limit_is_quiet() -> None:
    quiet = Quiet("wait", 1e6, 10.0)
    watch = LoadWatch()
    quiet.settle(watch)
    assert quiet.waited_s == 0 and quiet.patient
    assert throttle_count() >= 0
