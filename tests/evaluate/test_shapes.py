"""Sizes, layouts and weights that a kernel must be right on, by real processes: empty, odd, strided, not fresh."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.evaluations import HEADER, SETTINGS, bench_on, write_task

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.evaluation import Evaluation
from kernelworks.kernel.frontmatter import parse_kernel
from kernelworks.kernel.model import Language, Origin
from kernelworks.kernel.verdict import Status, Verdict
from kernelworks.task.model import CaseRole
from kernelworks.task.source import TaskReference

STRIDED = (
    HEADER
    + """
@task(cases=[case("main", rows=96, cols=640)], outputs=["y"], layout="strided")
def row_sums(x: Float32[A, "rows cols"], k: Int32[A, "rows"]) -> Float32[A, "rows"]:
    return np.abs(x).sum(-1) * (k % 3).astype(x.dtype)
"""
)
STRIDED_HEAD = (
    'extern "C" int launch(const float* x, const int32_t* k, float* y, int64_t rows, int64_t cols,'
    " int64_t sr, int64_t sc, int64_t sk)"
)
NORM = """
import torch

class Model(torch.nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(features)

    def forward(self, x):
        return torch.relu(self.norm(x))

rows = 512
features = 24

def get_inputs():
    return [torch.randn(rows, features)]

def get_init_inputs():
    return [features]
"""
NORM_BODY = """
  for (int64_t c = 0; c < cols; c++) {
    double sum = 0, squares = 0;
    for (int64_t r = 0; r < rows; r++) sum += x[r * cols + c];
    const double mean = sum / rows;
    for (int64_t r = 0; r < rows; r++) squares += (x[r * cols + c] - mean) * (x[r * cols + c] - mean);
    const double scale = 1 / std::sqrt(squares / rows + 1e-5);
    for (int64_t r = 0; r < rows; r++) {
      const double v = ANSWER;
      y[r * cols + c] = v > 0 ? v : (v != v ? v : 0);
    }
  }
"""
NORM_HEAD = (
    'extern "C" int launch(const float* x, const float* w, const float* b, const float*, const float*, const int64_t*,'
    " float* y, int64_t rows, int64_t cols, int64_t, int64_t, int64_t, int64_t)"
)


def verdict_on(bench: Bench, head: str, body: str, *, front: str = "", final: bool = False) -> Verdict:
    """Of a kernel, without a clock where it is not right."""
    top = f"/*---\ncontract: function\n{front}---*/\n#include <cmath>\n#include <cstdint>\n"
    text = f"{top}{head} {{\n{body}\nreturn 0;\n}}\n"
    kernel = parse_kernel(text, Language.CPP, Origin(proposer="file"))
    return Evaluation(bench, kernel, final=final).run(None)


@pytest.fixture(scope="module")
def strided_bench(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench_on(write_task(tmp_path_factory.mktemp("strided"), STRIDED)) as found:
        yield found


@pytest.fixture(scope="module")
def norm_bench(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    path = tmp_path_factory.mktemp("norm") / "norm.py"
    path.write_text(NORM)
    with bench_on(TaskReference(target=str(path))) as found:
        yield found


def row_sums(index: str, key: str = "k[r * sk]") -> str:
    return f"""
  for (int64_t r = 0; r < rows; r++) {{
    double sum = 0;
    for (int64_t c = 0; c < cols; c++) sum += std::fabs(x[{index}]);
    y[r] = sum * (({key} % 3 + 3) % 3);
  }}"""


def test_a_kernel_that_uses_the_strides_is_right(strided_bench: Bench) -> None:
    verdict = verdict_on(strided_bench, STRIDED_HEAD, row_sums("r * sr + c * sc"))
    assert verdict.status is Status.CORRECT, verdict.findings
    assert verdict.tested_elements == 96 * 640


@pytest.mark.parametrize("index", ["r * cols + c", "r * sr + c"])
def test_a_kernel_that_takes_inputs_for_dense_is_not(strided_bench: Bench, index: str) -> None:
    assert verdict_on(strided_bench, STRIDED_HEAD, row_sums(index)).status in (Status.WRONG, Status.CRASHED)


def test_what_lies_between_elements_belongs_to_nobody(strided_bench: Bench) -> None:
    spoil = "  if (sk > 1 && rows > 1) const_cast<int32_t*>(k)[1] = 7;"
    verdict = verdict_on(strided_bench, STRIDED_HEAD, row_sums("r * sr + c * sc") + spoil)
    assert verdict.status is Status.WRONG
    assert "memory between the elements of a strided input was changed, first 1 elem" in verdict.findings[0].message


def test_what_a_kernel_does_to_inputs_in_its_last_call_is_not_blamed_on_the_next(strided_bench: Bench) -> None:
    crash = "  if (rows == 96) { const_cast<float*>(x)[5] = 7; __builtin_trap(); }"
    body = row_sums("r * sr + c * sc")
    assert verdict_on(strided_bench, STRIDED_HEAD, body + crash).status is Status.CRASHED
    verdict = verdict_on(strided_bench, STRIDED_HEAD, body)
    assert verdict.status is Status.CORRECT, verdict.findings


def test_inputs_that_are_changed_in_timed_calls_alone_are_wrong(strided_bench: Bench) -> None:
    spoil = (
        "  static int calls; if (rows == 96 && ++calls > 12) const_cast<float*>(x)[96 * 640 - 1] += 0.f, "
        "const_cast<int32_t*>(k)[95] ^= 3 * 1024;"
    )
    verdict = verdict_on(strided_bench, STRIDED_HEAD, row_sums("r * sr + c * sc") + spoil)
    assert verdict.status in (Status.WRONG, Status.DISHONEST), verdict.findings


def test_layouts_of_every_kind_are_drawn(strided_bench: Bench) -> None:
    strides = [
        {slot.name: slot.value for slot in case.prepared.lanes[0] if slot.kind == "dim"}
        for case in strided_bench.checks
        if min(strided_bench.task.case(case.prepared.case).sizes.values()) > 1
    ]
    dense = [s["x_stride_0"] == s["cols"] and s["x_stride_1"] == 1 for s in strides]
    transposed = [s["x_stride_0"] == 1 and s["x_stride_1"] == s["rows"] for s in strides]
    gaps = [not d and not t for d, t in zip(dense, transposed, strict=True)]
    assert any(dense) and any(transposed) and any(gaps)
    (timed,) = strided_bench.timed
    assert {slot.name: slot.value for slot in timed.prepared.lanes[0] if slot.kind == "dim"}["x_stride_0"] == 640


def test_empty_and_single_sizes_are_run(strided_bench: Bench) -> None:
    ran = {case.prepared.case for case in strided_bench.checks}
    assert {"rows_0", "cols_0", "rows_1", "cols_1", "rows_65", "rows_63", "shape", "odd"} <= ran
    body = row_sums("r * sr + c * sc")
    past = "  if (rows == 0) y[0] = 1;"
    verdict = verdict_on(strided_bench, STRIDED_HEAD, body + past)
    assert verdict.status in (Status.WRONG, Status.CRASHED)
    assert any("rows_0" in finding.message for finding in verdict.findings), verdict.findings
    covered = verdict_on(strided_bench, STRIDED_HEAD, body + past, front='covers: ["rows > 0"]\n')
    assert covered.status is Status.CORRECT and (covered.coverage or 1) < 1


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("(x[r * cols + c] - mean) * scale * w[c] + b[c]", Status.CORRECT),
        ("(x[r * cols + c] - mean) * scale * w[c]", Status.WRONG),
        ("(x[r * cols + c] - mean) * scale", Status.WRONG),
    ],
)
def test_a_parameter_that_a_fresh_model_does_not_feel_must_be_used(
    norm_bench: Bench, answer: str, status: Status
) -> None:
    verdict = verdict_on(norm_bench, NORM_HEAD, NORM_BODY.replace("ANSWER", answer))
    assert verdict.status is status, verdict.findings
    if status is Status.CORRECT:
        assert verdict.gates == {"kernelbench": True, "kernelbench_v0": True, "kernelfoundry": True}


def test_the_draw_at_full_size_has_such_weights_too(norm_bench: Bench) -> None:
    full = norm_bench.task.case("seed")
    assert full.role is CaseRole.CHECK and full.sizes == norm_bench.task.case("main").sizes
    assert any(case.prepared.case == "seed" and case.prepared.family == "normal" for case in norm_bench.checks)


LARGE = (
    HEADER
    + """
@task(
    cases=[
        case("main", n=65536), case("few", "check", n=100), case("none", "edge", n=0), case("big", "large", n=LARGE_N)
    ],
    outputs=["y"],
)
def threes(x: Float32[A, "n"]) -> Float32[A, "n"]:
    return x * np.float32(3)
"""
)
SHORT = "  for (int64_t i = 0; i < n; i++) y[(INT)i] = x[(INT)i] * 3;"


@pytest.mark.parametrize(
    ("elements", "integer", "status", "tested"),
    [(200_000, "int64_t", "correct", 200_000), (200_000, "uint16_t", "", 0), (2**42, "int64_t", "untested", 65536)],
)
def test_the_large_case_is_run_where_memory_allows(
    module_home: Path, tmp_path: Path, elements: int, integer: str, status: str, tested: int
) -> None:
    settings = SETTINGS.model_copy(update={"large": True})
    with bench_on(write_task(tmp_path, LARGE.replace("LARGE_N", str(elements))), settings=settings) as bench:
        head = 'extern "C" int launch(const float* x, float* y, int64_t n)'
        quick = verdict_on(bench, head, SHORT.replace("INT", integer))
        verdict = verdict_on(bench, head, SHORT.replace("INT", integer), final=True)
    assert quick.status is Status.CORRECT and quick.tested_elements == 65536, "not for every candidate"
    kinds = [finding.kind for finding in verdict.findings]
    if not status:
        assert verdict.status is Status.WRONG and "case big" in verdict.findings[0].message
        return
    assert verdict.status is Status.CORRECT and verdict.tested_elements == tested
    assert ("large_not_tested" in kinds) == (status == "untested")
