"""A small NumPy task, candidates for it that misbehave in one way each, and benches to evaluate them on."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from kernelworks.evaluate.bench import Bench, open_bench
from kernelworks.evaluate.faults import fault_shim
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.process import CandidatePool
from kernelworks.evaluate.records import Heap
from kernelworks.evaluate.settings import Settings
from kernelworks.evaluate.supervision import Limits
from kernelworks.kernel.frontmatter import parse_kernel
from kernelworks.kernel.model import Kernel, Language, Origin, Params
from kernelworks.targets.cpp import CppTarget
from kernelworks.task.source import TaskReference

SETTINGS = Settings(threads=2, call_timeout_s=2.0, on_load="mark", allow_unsandboxed=True)
"""Tests share the machine with each other: waiting for quiet would be in vain."""

HEADER = """
import numpy as np
from jaxtyping import Bool, Float32, Int32

from kernelworks.task import case, task

A = np.ndarray
"""
HORNER = (
    HEADER
    + """
@task(
    cases=[
        case("main", "timed", n=65536),
        case("odd", "check", n=1003),
        case("seven", "edge", n=7),
        case("eight", "edge", n=8),
    ],
    outputs=["y"],
)
def horner(x: Float32[A, "n"]) -> Float32[A, "n"]:
    y = x
    for _ in range(12):
        y = y * x + np.float32(1)
    return y
"""
)
"""Pointwise, and many passes over memory: a compiled kernel is faster by far, so that timings are short."""

RIGHT = """
  for (int64_t i = 0; i < n; i++) {
    float v = x[i];
    for (int k = 0; k < 12; k++) v = v * x[i] + 1.0f;
    y[i] = v;
  }
"""
SLOW = """
  for (volatile int again = 0; again < 10; again = again + 1)
    for (int64_t i = 0; i < n; i++) {
      volatile float v = x[i];
      for (int k = 0; k < 12; k++) v = v * x[i] + 1.0f;
      y[i] = v;
    }
"""
"""Right, and slower than NumPy by more than ten times."""


def kernel(
    body: str, *, front: str = "", head: str = "", params: Params | None = None, flags: dict[str, str] | None = None
) -> Kernel:
    """A kernel of ``horner``: ``body`` stands in front of ``return 0``."""
    includes = "\n".join(f"#include <{name}>" for name in ("stdint.h", "stdio.h", "stdlib.h", "unistd.h"))
    text = f"""/*---
contract: function
{front}
---*/
{includes}
{head}
extern "C" int launch(const float* x, float* y, int64_t n) {{
{body}
  return 0;
}}
"""
    found = parse_kernel(text, Language.CPP, Origin(proposer="file"), params=params)
    return found.model_copy(update={"flags": flags or {}})


def write_task(folder: Path, text: str) -> TaskReference:
    """A task file of this text."""
    name = re.search(r"^def (\w+)\(", text, re.MULTILINE)
    assert name is not None
    path = folder / f"{name[1]}.py"
    path.write_text(text)
    return TaskReference(target=str(path))


@contextmanager
def bench_on(reference: TaskReference, *, heap: Heap = "warm", settings: Settings = SETTINGS) -> Generator[Bench]:
    """A bench with its judge."""
    fault_shim()
    with (
        Judge.start(reference, heap=heap, threads=settings.threads) as judge,
        CandidatePool(threads=settings.threads, limits=Limits()) as pool,
    ):
        bench = open_bench(judge, CppTarget(), settings, pool, heap=heap)
        yield bench
        bench.close()


MIXED = (
    HEADER
    + """
@task(
    cases=[
        case("wide", "timed", rows=60, cols=3000, times=7, shift=0.5),
        case("tall", "timed", rows=3000, cols=40, times=7, shift=-0.25),
        case("small", "check", rows=5, cols=3, times=2, shift=1.5),
    ],
    mutates=["state"],
    outputs=["y", "count", "big"],
    aggregate="total",
)
def mixed(
    x: Float32[A, "rows cols"], k: Int32[A, "rows"], times: int, shift: float, state: Float32[A, "rows"]
) -> tuple[Float32[A, "rows cols"], Int32[A, "rows"], Bool[A, "rows"]]:
    y = x
    for _ in range(times):
        y = np.abs(y) * np.float32(0.5) + np.float32(shift)
    state += x[:, 0]
    return y, k * 2, k > 0
"""
)
"""Two timed cases that count by their total, scalars, an input changed in place, outputs of three types."""
MIXED_RIGHT = """
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t j = 0; j < cols; j++) {
      float v = x[i * cols + j];
      for (int64_t t = 0; t < times; t++) v = (v < 0 ? -v : v) * 0.5f + (float)shift;
      y[i * cols + j] = v;
    }
    state[i] += x[i * cols];
    count[i] = 2 * k[i];
    big[i] = k[i] > 0;
  }
"""


def mixed_kernel(body: str) -> Kernel:
    """A kernel of ``mixed``."""
    text = f"""/*---
contract: function
---*/
#include <stdint.h>
extern "C" int launch(const float* x, const int32_t* k, int64_t times, double shift, float* state, float* y,
                      int32_t* count, uint8_t* big, int64_t rows, int64_t cols) {{
{body}
  return 0;
}}
"""
    return parse_kernel(text, Language.CPP, Origin(proposer="file"))
