"""The clock on real kernels: a kernel against its own copy is not decided, one made 3% slower is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelworks.evaluate.bench import Bench, open_bench
from kernelworks.evaluate.duel import Duel
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.process import CandidatePool
from kernelworks.evaluate.settings import Settings
from kernelworks.evaluate.supervision import Limits
from kernelworks.kernel.frontmatter import parse_kernel
from kernelworks.kernel.model import Kernel, Language, Origin
from kernelworks.kernel.verdict import Decision
from kernelworks.targets.base import Artefact
from kernelworks.targets.cpp import CppTarget
from kernelworks.targets.gate import process_gate
from kernelworks.task.source import TaskReference

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1800)]

PAIRS = 100
TASK = """
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
KERNEL = """/*---
contract: function
params:
  MORE: [0, 3]
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


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    path = tmp_path / "scale_rows.py"
    path.write_text(TASK)
    settings = Settings(threads=2)
    with (
        Judge.start(TaskReference(target=str(path)), heap="warm", threads=2) as judge,
        CandidatePool(threads=2, limits=Limits()) as pool,
    ):
        bench = open_bench(judge, CppTarget(), settings, pool, heap="warm")
        yield bench
        bench.close()


def build(bench: Bench, more: int) -> Artefact:
    kernel: Kernel = parse_kernel(KERNEL, Language.CPP, Origin(proposer="file"), params={"MORE": more})
    built = bench.target.build(bench.task, kernel)
    assert isinstance(built, Artefact)
    return built


def decisions(bench: Bench, candidate: Artefact, rival: Artefact) -> Counter[Decision]:
    found: Counter[Decision] = Counter()
    for _ in range(PAIRS):
        with (
            process_gate().timing(),
            bench.pool.start(candidate.path) as mine,
            bench.pool.start(rival.path) as theirs,
        ):
            (comparison,) = Duel(bench, mine).against_kernel("rival", theirs)
            found[comparison.decision] += 1
    return found


def test_a_kernel_against_its_own_copy_is_not_decided(bench: Bench) -> None:
    same = build(bench, 0)
    found = decisions(bench, same, same)
    assert PAIRS - found[Decision.UNDECIDED] <= 4, found


def test_a_kernel_made_three_percent_slower_is_found(bench: Bench) -> None:
    found = decisions(bench, build(bench, 3), build(bench, 0))
    assert found[Decision.SLOWER] >= 80, found
