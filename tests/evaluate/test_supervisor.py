from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time

from hypothesis import given
from hypothesis import strategies as st
from support.candidates import LONG_S

from kernelworks.evaluate import supervisor


@given(st.integers(1, 64), st.lists(st.binary(max_size=100)))
def test_capture_keeps_head_and_tail(cap: int, chunks: list[bytes]) -> None:
    capture = supervisor.Capture(cap)
    for chunk in chunks:
        capture.add(chunk)
    whole = b"".join(chunks)
    report = capture.report()
    assert report["dropped_bytes"] == max(0, len(whole) - 2 * cap)


def test_children_are_found_alike_with_and_without_the_kernels_lists() -> None:
    sleep = shutil.which("sleep")
    assert sleep is not None
    with subprocess.Popen(["/bin/sh", "-c", f"{sleep} 100 & {sleep} 100; true"]) as shell:
        deadline = time.monotonic() + LONG_S
        while len(supervisor.descendants(shell.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        listed, scanned = supervisor.children_listed(shell.pid), supervisor.children_scanned(shell.pid)
        for pid in listed:
            os.kill(pid, signal.SIGKILL)
        shell.kill()
    assert len(listed) == 2
    assert sorted(listed) == sorted(scanned)
    assert supervisor.children_listed(shell.pid) == []
    assert supervisor.resident_bytes(shell.pid) == 0
