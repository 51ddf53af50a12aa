"""The floor and the bound in whole evaluations: who comes close to them is honest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.evaluations import HEADER, bench_on, kernel, write_task

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.evaluation import Evaluation
from kernelworks.kernel.verdict import Status, Verdict

MIRROR = (
    HEADER
    + """
@task(
    cases=[case("main", "timed", n=8388608), case("odd", "check", n=1003)],
    outputs=["y"],
)
def mirror(x: Float32[A, "n"]) -> Float32[A, "n"]:
    return -x
"""
)
STREAMS = """
  #pragma omp parallel for schedule(static)
  for (int64_t part = 0; part < (n + 4095) / 4096; ++part) {
    const int64_t end = (part + 1) * 4096 < n ? (part + 1) * 4096 : n;
    int64_t i = part * 4096;
#if defined(__SSE__)
    for (; i + 4 <= end; i += 4) _mm_stream_ps(y + i, _mm_sub_ps(_mm_set1_ps(-0.0f), _mm_loadu_ps(x + i)));
    _mm_sfence();
#endif
    for (; i < end; ++i) y[i] = -x[i];
  }
"""
INTRINSICS = "#if defined(__SSE__)\n#include <xmmintrin.h>\n#endif"


@pytest.fixture(scope="module")
def mirror_bench(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench_on(write_task(tmp_path_factory.mktemp("mirror"), MIRROR)) as found:
        yield found


def kinds(verdict: Verdict) -> list[str]:
    return [finding.kind for finding in verdict.findings]


def test_a_copy_by_streaming_stores_is_never_below_the_floor(mirror_bench: Bench) -> None:
    verdict = Evaluation(mirror_bench, kernel(STREAMS, head=INTRINSICS)).run(None)
    assert verdict.status is Status.CORRECT, verdict.findings
    assert "below_floor" not in kinds(verdict)
    (bound,) = verdict.roofline_detail
    assert (bound.case, bound.binds, bound.operations) == ("main", "memory", None)
    assert bound.bytes_moved == bound.bytes_shown == 2 * 4 * 8388608
    assert bound.untraced
    if verdict.time_ms is not None:
        assert verdict.roofline == pytest.approx(bound.bound_ms / verdict.time_ms)
        assert verdict.roofline is not None and 0 < verdict.roofline <= 4 / 3


def test_rates_that_make_a_kernel_look_impossible_are_measured_again_before_it_is_accused(mirror_bench: Bench) -> None:
    real = mirror_bench.hardware
    slow = tuple(
        b.model_copy(update=dict.fromkeys(("read_gbs", "copy_gbs", "triad_gbs", "fill_gbs"), 0.001))
        for b in real.bandwidths
    )
    mirror_bench.hardware = real.model_copy(update={"bandwidths": slow})
    try:
        verdict = Evaluation(mirror_bench, kernel(STREAMS, head=INTRINSICS)).run(None)
        assert verdict.status is Status.CORRECT, verdict.findings
        assert mirror_bench.hardware.bandwidths[0].best_gbs > 0.1
    finally:
        mirror_bench.hardware = real
