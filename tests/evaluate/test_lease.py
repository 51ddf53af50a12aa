from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from kernelworks.evaluate.lease import LeaseHeldError, device_lease

HOLD = """
import sys, time
from kernelworks.evaluate.lease import device_lease
with device_lease("device"):
    print(flush=True)
    time.sleep(60)
"""


def test_timings_on_a_device_take_turns() -> None:
    inside: list[int] = []
    most: list[int] = []

    def hold() -> None:
        with device_lease("device"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.05)
            inside.pop()

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4


def test_another_process_is_waited_for_and_its_end_ends_the_wait() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with device_lease("another"):
            pass
        with (
            pytest.raises(LeaseHeldError, match="device device: another timing has held it"),
            device_lease("device", 0.1),
        ):
            pass
        threading.Timer(0.3, holder.kill).start()
        with device_lease("device") as waited_s:
            assert waited_s > 0.1


def test_it_is_given_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), device_lease("device"):
        _ = 1 / 0
    with device_lease("device", 0.0):
        pass
