"""What the clock of record sees beside a clock inside the kernel, and how much of its slack honest kernels use.

    python benchmarks/clock.py [--rings N] [--out FILE]

Kernels that take a known time, in one thread and in two, each called cold as an evaluation calls it. The inside clock
is read by the kernel itself, around its work, and stored in its output; only this benchmark believes it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from kernelworks.evaluate.buffers import SharedBuffer
from kernelworks.evaluate.doorbell import Sweep, doorbell_shim
from kernelworks.evaluate.process import Arg, BufferArg, CandidatePool, TimedCalls
from kernelworks.evaluate.supervision import Limits
from kernelworks.kernel.frontmatter import parse_kernel
from kernelworks.kernel.model import Language, Origin
from kernelworks.targets.base import Artefact
from kernelworks.targets.cpp import CppTarget
from kernelworks.task.model import Case, CaseRole, DType, Task, TensorArgument

TASK = Task(
    name="busy",
    source="python",
    digest="00",
    framework="numpy",
    inputs=(TensorArgument(name="x", dtype=DType.FLOAT32, shape=("n",), role="input"),),
    outputs=(TensorArgument(name="y", dtype=DType.INT64, shape=("n",), role="output"),),
    dims=("n",),
    cases=(Case(name="main", role=CaseRole.TIMED, sizes={"n": 1 << 10}),),
)
KERNEL = """/*---
contract: function
params:
  MICROSECONDS: [20, 50, 300, 3000]
  THREADS: [1, 2]
---*/
#include <stdint.h>
#include <time.h>
static int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}
extern "C" int launch(const float* x, int64_t* y, int64_t n) {
  const int64_t begun = now_ns();
#pragma omp parallel for num_threads(THREADS) schedule(static) if (THREADS > 1)
  for (int thread = 0; thread < THREADS; thread++)
    while (now_ns() - begun < MICROSECONDS * 1000LL) {}
  y[0] = now_ns() - begun;
  return 0;
}
"""
DEFAULT_RINGS = 200


def build(params: dict[str, bool | int | float | str]) -> Path:
    """The kernel at this point."""
    built = CppTarget().build(TASK, parse_kernel(KERNEL, Language.CPP, Origin(proposer="file"), params=params))
    assert isinstance(built, Artefact), built
    return built.path


def rung(
    pool: CandidatePool, library: Path | None, arguments: list[Arg], sweep: Sweep, rings: int, y: SharedBuffer
) -> tuple[list[TimedCalls], list[int]]:
    """Timed calls of one process, and what its kernel says that each took."""
    found: list[TimedCalls] = []
    inside: list[int] = []
    with pool.start(library) as candidate:
        candidate.bind("k", arguments)
        for _ in range(rings + 5):
            sweep()
            found.append(candidate.time(["k"], False, 10.0))
            inside.append(struct.unpack_from("q", y.data)[0])
    return found[5:], inside[5:]


def row(name: str, found: list[TimedCalls], inside_ns: list[int], overhead_ns: float) -> dict[str, object]:
    """Figures in microseconds."""
    outer = [timed.elapsed_ns - overhead_ns for timed in found]
    quartiles = statistics.quantiles(outer, n=4)
    median_us, inside_us = quartiles[1] / 1e3, statistics.median(inside_ns) / 1e3
    return {
        "kernel": name,
        "inside_us": inside_us,
        "doorbell_us": median_us,
        "bias_us": median_us - inside_us,
        "bias_share": median_us / inside_us - 1 if inside_us else None,
        "quartiles_us": [value / 1e3 for value in quartiles],
        "idle_cpu_us": [statistics.median(t.idle_cpu_ns for t in found) / 1e3, max(t.idle_cpu_ns for t in found) / 1e3],
        "idle_cpu_mean_us": statistics.mean(t.idle_cpu_ns for t in found) / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rings", type=int, default=DEFAULT_RINGS)
    parser.add_argument("--out", type=Path, help="write the figures there as JSON too")
    arguments = parser.parse_args()
    hardware = CppTarget().hardware()
    sweep = Sweep(2 * (hardware.l3_bytes or hardware.l2_bytes))
    rows: list[dict[str, object]] = []
    with (
        tempfile.TemporaryDirectory(prefix="kernelworks-bench-"),
        SharedBuffer.create("x", 4 << 10) as x,
        SharedBuffer.create("y", 8 << 10) as y,
        CandidatePool(threads=2, limits=Limits()) as pool,
    ):
        given: list[Arg] = [BufferArg(x), BufferArg(y, output=True), 1 << 10]
        points: list[dict[str, bool | int | float | str]] = [
            {"MICROSECONDS": us, "THREADS": threads} for threads in (1, 2) for us in (20, 50, 300, 3000)
        ]
        libraries = [(point, build(point)) for point in points]
        nothing, _ = rung(pool, doorbell_shim(), given, sweep, arguments.rings, y)
        overhead_ns = statistics.median(t.elapsed_ns for t in nothing)
        rows.append(row("nothing", nothing, [0] * len(nothing), 0.0))
        for point, library in libraries:
            found, inside = rung(pool, library, given, sweep, arguments.rings, y)
            rows.append(row(f"{point['MICROSECONDS']} us, {point['THREADS']} threads", found, inside, overhead_ns))
    figures = {
        "date": datetime.now(UTC).date().isoformat(),
        "device": hardware.name,
        "versions": {"python": sys.version.split()[0]},
        "command": " ".join(["python", *sys.argv]),
        "overhead_us": overhead_ns / 1e3,
        "kernels": rows,
    }
    text = json.dumps(figures, indent=1)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
