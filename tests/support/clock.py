"""A task bound by arithmetic, and a kernel for it that can be made slower by a known share."""

from __future__ import annotations

from kernelworks.kernel.frontmatter import parse_kernel
from kernelworks.kernel.model import Kernel, Language, Origin

AT_WORK = """
import numpy as np
from jaxtyping import Float32

from kernelworks.task import case, task


@task(cases=[case("main", "timed", rows=1024, cols=1024)])
def settle(x: Float32[np.ndarray, "rows cols"]) -> Float32[np.ndarray, "rows cols"]:
    y = np.zeros_like(x)
    for _ in range(256):
        y = y * np.float32(0.5) + x
    return y
"""
AND_EAGER = """
import torch
from jaxtyping import Float32
from torch import Tensor

from kernelworks.task import case, task


@task(cases=[case("main", "timed", rows=512, cols=512)])
def settle(x: Float32[Tensor, "rows cols"]) -> Float32[Tensor, "rows cols"]:
    return torch.softmax(x @ x, dim=1)
"""
KERNEL = """/*---
contract: function
params:
  MORE: [0, 3, 300]
---*/
#include <stdint.h>
#include <time.h>

static double now_s() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

// The work, bound by arithmetic (the memory of a shared host is no steady thing), and then MORE percent of its time.
extern "C" int launch(const float* x, float* y, int64_t rows, int64_t cols) {
  const double begun = now_s();
#pragma omp parallel for schedule(static)
  for (int64_t at = 0; at < rows * cols; at += 64) {
    float settled[64] = {};
    for (int step = 0; step < 256; step++)
      for (int lane = 0; lane < 64; lane++) settled[lane] = settled[lane] * 0.5f + x[at + lane];
    for (int lane = 0; lane < 64; lane++) y[at + lane] = settled[lane];
  }
  const double end = begun + (now_s() - begun) * (1 + MORE / 100.0);
  while (now_s() < end) {
  }
  return 0;
}
"""


def settle_kernel(more: int) -> Kernel:
    """The kernel that takes so many percent more."""
    return parse_kernel(KERNEL, Language.CPP, Origin(proposer="file"), params={"MORE": more})
