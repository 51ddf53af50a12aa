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
PATIENCE_S = 120
"""After which a command that was interrupted hangs."""
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


def kernelworks(*arguments: str, timeout_s: float = 300, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run one command to its end; ``home`` in place of the test's own."""
    return subprocess.run(
        [sys.executable, "-m", "kernelworks", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        env=None if home is None else {**os.environ, "KERNELWORKS_HOME": str(home)},
    )


def answer_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one JSON object that a command printed."""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start a command whose events are read line by line, in a process group of its own, as a shell would."""
    return subprocess.Popen(
        [sys.executable, "-m", "kernelworks", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def read_until(process: subprocess.Popen[str], kind: str, count: int = 1, **fields: str) -> None:
    """Read events until ``count`` of a kind came that have these fields.

    Raises:
        AssertionError: the command ended before.
    """
    assert process.stdout is not None
    seen = 0
    for line in process.stdout:
        event = json.loads(line)
        seen += event.get("kind") == kind and all(event[name] == value for name, value in fields.items())
        if seen >= count:
            return
    raise AssertionError(f"the command ended after {seen} of {count} events {kind}")


def kill(process: subprocess.Popen[str], after_s: float = 0.0) -> None:
    """``kill -9``, of the command alone: what it started must go by itself."""
    time.sleep(after_s)
    process.kill()
    process.communicate()


def interrupt(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> tuple[str, str]:
    """Press Ctrl-C: the whole group gets the signal; another signal goes to the command alone, as a supervisor of
    services sends it. What the command still wrote on stdout and stderr."""
    if number is signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    try:
        return process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
