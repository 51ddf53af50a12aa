"""Every element type through the whole pipeline: annotation, prototype, families, bound, verdict; torch references."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.evaluations import SETTINGS, bench_on, write_task

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.checks import check_answers
from kernelworks.evaluate.endings import EndedEvaluation
from kernelworks.evaluate.evaluation import Evaluation
from kernelworks.kernel.frontmatter import parse_kernel
from kernelworks.kernel.model import Kernel, Language, Origin
from kernelworks.kernel.verdict import Status
from kernelworks.targets.base import Artefact
from kernelworks.task.model import DType
from kernelworks.task.prototype import prototype

TASK = """
import torch
from jaxtyping import BFloat16, Bool, Complex64, Float16, Float32, Float64, Int32, Int64
from torch import Tensor

from kernelworks.task import case, task


@task(
    cases=[case("main", "timed", rows=200, cols=256), case("odd", "check", rows=13, cols=61)],
    outputs=["y_float32", "y_float16", "y_bfloat16", "y_float64", "y_int32", "y_int64", "y_bool", "y_complex64"],
)
def every_type(
    f: Float32[Tensor, "rows cols"], h: Float16[Tensor, "rows cols"], b: BFloat16[Tensor, "rows cols"],
    d: Float64[Tensor, "rows cols"], i: Int32[Tensor, "rows cols"], l: Int64[Tensor, "rows cols"],
    m: Bool[Tensor, "rows cols"], z: Complex64[Tensor, "rows cols"],
) -> tuple[
    Float32[Tensor, "rows"], Float16[Tensor, "rows cols"], BFloat16[Tensor, "rows cols"], Float64[Tensor, "rows"],
    Int32[Tensor, "rows cols"], Int64[Tensor, "rows"], Bool[Tensor, "rows"], Complex64[Tensor, "rows cols"],
]:
    return (
        f.sum(-1), torch.softmax(h.float(), -1).to(h.dtype), b * torch.sigmoid(b), d.sum(-1),
        i * 3, l.sum(-1), m.any(-1), z * z,
    )
"""
PARTS = {
    DType.FLOAT32: "float s = 0; for (int64_t j = 0; j < cols; j++) s += f[j]; y_float32[r] = s;",
    DType.FLOAT16: """
      float top = -INFINITY, t = 0;
      for (int64_t j = 0; j < cols; j++) { const float v = h[j]; top = top >= v ? top : v; }
      for (int64_t j = 0; j < cols; j++) t += expf((float)h[j] - top);
      for (int64_t j = 0; j < cols; j++) y_float16[j] = (_Float16)(expf((float)h[j] - top) / t);
    """,
    DType.BFLOAT16: """
      for (int64_t j = 0; j < cols; j++) { const float v = wide(b[j]); y_bfloat16[j] = narrow(v / (1 + expf(-v))); }
    """,
    DType.FLOAT64: "double u = 0; for (int64_t j = 0; j < cols; j++) u += d[j]; y_float64[r] = u;",
    DType.INT32: "for (int64_t j = 0; j < cols; j++) y_int32[j] = 3 * i[j];",
    DType.INT64: "int64_t n = 0; for (int64_t j = 0; j < cols; j++) n += l[j]; y_int64[r] = n;",
    DType.BOOL: "bool any = false; for (int64_t j = 0; j < cols; j++) any |= m[j] != 0; y_bool[r] = any;",
    DType.COMPLEX64: """
      for (int64_t j = 0; j < cols; j++) {
        const float re = z[2 * j], im = z[2 * j + 1];
        y_complex64[2 * j] = re * re - im * im;
        y_complex64[2 * j + 1] = 2 * re * im;
      }
    """,
}
WRONG = {
    DType.FLOAT32: ("s += f[j]", "s += f[j] * 1.00001f"),
    DType.FLOAT16: ("expf((float)h[j] - top) / t)", "expf((float)h[j] - top) / t * 1.01f)"),
    DType.BFLOAT16: ("narrow(v / (1 + expf(-v)))", "narrow(v / (1 + expf(-v)) * 1.03f)"),
    DType.FLOAT64: ("u += d[j]", "u += (float)d[j]"),
    DType.INT32: ("3 * i[j]", "3 * i[j] + (j == 60)"),
    DType.INT64: ("n += l[j]", "n += l[j] & 0xffff"),
    DType.BOOL: ("y_bool[r] = any", "y_bool[r] = any && r % 13 != 12"),
    DType.COMPLEX64: ("= 2 * re * im", "= re * im"),
}
TEXT = """/*---
contract: function
---*/
#include <stdint.h>
#include <math.h>
#include <string.h>
static inline float wide(uint16_t v) { const uint32_t u = (uint32_t)v << 16; float f; memcpy(&f, &u, 4); return f; }
static inline uint16_t narrow(float v) {
  uint32_t u;
  memcpy(&u, &v, 4);
  if (v != v) return 0x7fc0;
  return (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
extern "C" int launch(ARGUMENTS) {
  for (int64_t r = 0; r < rows; r++) {
    { BODY }
    f += cols; h += cols; b += cols; d += cols; i += cols; l += cols; m += cols; z += 2 * cols;
    y_float16 += cols; y_bfloat16 += cols; y_int32 += cols; y_complex64 += 2 * cols;
  }
  return 0;
}
"""
ARGUMENTS = (
    "const float* f, const _Float16* h, const uint16_t* b, const double* d, const int32_t* i, const int64_t* l,"
    " const uint8_t* m, const float* z, float* y_float32, _Float16* y_float16, uint16_t* y_bfloat16, double* y_float64,"
    " int32_t* y_int32, int64_t* y_int64, uint8_t* y_bool, float* y_complex64, int64_t rows, int64_t cols"
)


def kernel(wrong: DType | None = None) -> Kernel:
    """A right kernel, or one that is wrong in one output."""
    parts = dict(PARTS)
    if wrong is not None:
        assert WRONG[wrong][0] in parts[wrong]
        parts[wrong] = parts[wrong].replace(*WRONG[wrong])
    text = TEXT.replace("ARGUMENTS", ARGUMENTS).replace("BODY", "\n".join(parts.values()))
    return parse_kernel(text, Language.CPP, Origin(proposer="file"))


@pytest.fixture(scope="module")
def bench(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    pytest.importorskip("torch")
    with bench_on(write_task(tmp_path_factory.mktemp("types"), TASK)) as found:
        yield found


def test_a_right_kernel_in_every_type(bench: Bench) -> None:
    assert not bench.dropped
    text = " ".join(prototype(bench.task).split())
    assert "const _Float16 *h" in text.replace("* ", " *"), text
    verdict = Evaluation(bench, kernel()).run(None)
    assert verdict.status is Status.CORRECT, verdict.findings
    assert "precision_class" not in {f.kind for f in verdict.findings}, verdict.findings


@pytest.mark.parametrize("dtype", WRONG)
def test_a_wrong_answer_in_each_type(bench: Bench, dtype: DType) -> None:
    built = bench.target.build(bench.task, kernel(dtype))
    assert isinstance(built, Artefact), built
    with bench.pool.start(built.path) as candidate, pytest.raises(EndedEvaluation) as caught:
        check_answers(candidate, [*bench.checks, *bench.timed], bench.judge, SETTINGS.call_timeout_s)
    assert caught.value.status is Status.WRONG
    assert {f.evidence["tensor"] for f in caught.value.findings if "tensor" in f.evidence} == {f"y_{dtype}"}
