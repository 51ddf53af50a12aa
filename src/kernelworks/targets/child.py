"""Run as a script in a process of its own (standard library alone): loads a built library, runs it, prints JSON.

``child.py kernel LIBRARY`` runs ``y = 2 x + 1`` over a few thousand elements; ``child.py bandwidth LIBRARY THREADS
ROUNDS SECONDS BYTES...`` measures rates at each working set, ``child.py peaks LIBRARY THREADS ROUNDS SECONDS`` those of
arithmetic.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

ELEMENTS = 4099
"""Not a multiple of any vector width."""
BANDWIDTH_PATTERNS = 7
PEAK_PATTERNS = 7


def run_kernel(library: str) -> dict[str, object]:
    """Run the tiny kernel; ``wrong`` counts elements that differ from the exact answer."""
    launch = ctypes.CDLL(library).launch
    launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    x = (ctypes.c_float * ELEMENTS)(*range(ELEMENTS))
    y = (ctypes.c_float * ELEMENTS)()
    status = launch(ctypes.addressof(x), ctypes.addressof(y), ELEMENTS)
    return {"status": status, "wrong": sum(y[i] != 2.0 * i + 1.0 for i in range(ELEMENTS))}


def run_bandwidth(
    library: str, threads: int, rounds: int, seconds: float, working_sets_bytes: list[int]
) -> dict[str, object]:
    """Measure each working set for ``seconds`` a pattern and round; rates in bytes per second."""
    measure = ctypes.CDLL(library).measure
    measure.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_double, ctypes.c_void_p]
    rows: list[list[float]] = []
    for working_set_bytes in working_sets_bytes:
        rates = (ctypes.c_double * BANDWIDTH_PATTERNS)()
        status = measure(working_set_bytes, threads, rounds, seconds, ctypes.addressof(rates))
        if status:
            return {"status": status, "rates": rows, "processor_s": time.process_time()}
        rows.append(list(rates))
    return {"status": 0, "rates": rows, "processor_s": time.process_time()}


def run_peaks(library: str, threads: int, rounds: int, seconds: float) -> dict[str, object]:
    """Measure arithmetic for ``seconds`` a pattern and round; operations per second."""
    measure = ctypes.CDLL(library).measure_peaks
    measure.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_double, ctypes.c_void_p]
    rates = (ctypes.c_double * PEAK_PATTERNS)()
    status = measure(threads, rounds, seconds, ctypes.addressof(rates))
    return {"status": status, "rates": [list(rates)], "processor_s": time.process_time()}


def main(arguments: list[str]) -> None:
    """Do what the first word says."""
    what, library, *words = arguments
    if what == "kernel":
        answer = run_kernel(library)
    elif what == "peaks":
        answer = run_peaks(library, int(words[0]), int(words[1]), float(words[2]))
    else:
        sizes = [int(word) for word in words[3:]]
        answer = run_bandwidth(library, int(words[0]), int(words[1]), float(words[2]), sizes)
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
