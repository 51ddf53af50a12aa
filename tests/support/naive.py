"""Runs the naive evaluator of ``tests/selftest`` in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[1] / "selftest" / "naive.py"
LAUNCHER = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
PATIENCE_S = 60


def naive_report(library: Path, task: Path, folder: Path) -> dict[str, Any]:
    """What it prints first; empty where it prints nothing.

    A process stands between, as the parent of the one that is attacked: it is the one that gets stopped or traced.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, sys.executable, str(SCRIPT), str(library), str(task), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    assert process.stdout is not None
    watchdog = subprocess.Popen(["sleep", str(PATIENCE_S)])
    try:
        for line in process.stdout:
            if line.startswith("{") and "correct" in line:
                found: dict[str, Any] = json.loads(line)
                return found
        return {}
    finally:
        watchdog.kill()
        watchdog.wait()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
