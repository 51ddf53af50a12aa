"""The command line as users call it: a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL_TASK = '''
"""A small operation, so that a run takes seconds."""
import torch
from jaxtyping import Float32
from torch import Tensor

from kernelworks.task import case, task


@task(cases=[case("main", "timed", rows=300, cols=500), case("odd", "check", rows=7, cols=33)])
def scaled_softmax(x: Float32[Tensor, "rows cols"]) -> Float32[Tensor, "rows cols"]:
    return torch.softmax(2.0 * x, dim=-1)
'''


def kernelworks(*arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    command = [sys.executable, "-m", "kernelworks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL)


def answer_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one JSON object that a command printed."""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start a command whose events are read line by line."""
    command = [sys.executable, "-m", "kernelworks", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, stdin=subprocess.DEVNULL
    )


def kill_after(process: subprocess.Popen[str], kind: str, count: int, delay_s: float = 0.0) -> int:
    """Read events until ``count`` of a kind came, wait a little, ``kill -9``; how many events of the kind came."""
    assert process.stdout is not None
    seen = 0
    for line in process.stdout:
        seen += json.loads(line)["kind"] == kind
        if seen >= count:
            break
    time.sleep(delay_s)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return seen
