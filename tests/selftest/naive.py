"""A naive evaluator, as one would write it in an hour: same process, same inputs, a tolerance, a median.

It runs as a script and prints one line of JSON. Every attack of the suite is written to be accepted by it; what that
is worth is the difference to the verdicts of Kernelworks.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from kernelworks.task.model import ScalarArgument
from kernelworks.task.python_source import PythonSource

loaded = PythonSource().load(Path(sys.argv[2]), {}, load_only=True)
folder = Path(sys.argv[3])
case = loaded.task.cases[0]
SWEEP = np.zeros(32 << 20, np.uint8)
SWEEP.fill(0)


def reference(*arrays: Any) -> Any:
    return loaded.run(list(arrays))


def report(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def evaluate(library: str) -> None:
    arrays = loaded.make_inputs(case, 42)
    outs = [np.array(answer) for answer in reference(*arrays)]
    launch = ctypes.CDLL(library).launch
    arguments: list[Any] = []
    for argument, value in zip(loaded.task.inputs, arrays, strict=True):
        scalar = isinstance(argument, ScalarArgument)
        arguments.append(ctypes.c_int64(value) if scalar else ctypes.c_void_p(value.ctypes.data))
    arguments += [ctypes.c_void_p(out.ctypes.data) for out in outs]
    arguments += [ctypes.c_int64(case.sizes[dim]) for dim in loaded.task.dims]
    errors = np.zeros(1, np.int64)
    for _ in range(3):
        expected = reference(*arrays)
        expected[0].astype(np.float32).tofile(folder / "golden.bin")
        launch(*arguments)
        time.sleep(0.02)  # whatever is still under way has arrived by now
        tolerance = float((folder / "tolerance.txt").read_text())
        for out, want in zip(outs, expected, strict=True):
            errors[0] += int((np.abs(out - want) > tolerance * (1 + np.abs(want))).sum())
    begun = time.perf_counter_ns()
    launch(*arguments)
    repeats = min(30, max(1, 20_000_000 // max(1, time.perf_counter_ns() - begun)))
    times: list[int] = []
    for _ in range(repeats):
        SWEEP.sum()
        begun = time.perf_counter_ns()
        launch(*arguments)
        times.append(time.perf_counter_ns() - begun)
    report({"correct": bool(errors[0] == 0), "time_ms": statistics.median(times) / 1e6, "repeats": repeats})


if __name__ == "__main__":
    evaluate(sys.argv[1])
