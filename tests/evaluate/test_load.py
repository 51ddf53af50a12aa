"""Foreign load, told from this process's own by real processes."""

from __future__ import annotations

import subprocess
import sys
import time

from kernelworks.evaluate.load import LoadWatch, own_cpu_s

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
