"""Honest kernels of many styles pass in every family of inputs, and kernels that cut a corner do not: real builds,
processes and judges, NumPy references."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.evaluations import HEADER, SETTINGS, bench_on, write_task

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.checks import check_answers
from kernelworks.evaluate.endings import EndedEvaluation
from kernelworks.evaluate.evaluation import Evaluation
from kernelworks.evaluate.families import FAMILIES
from kernelworks.kernel.frontmatter import parse_kernel
from kernelworks.kernel.model import Kernel, Language, Origin
from kernelworks.kernel.verdict import Finding, Status
from kernelworks.targets.base import Artefact

ROWS_TASK = (
    HEADER
    + """
@task(
    cases=[case("main", "timed", rows=24, cols=4096), case("odd", "check", rows=13, cols=1003)],
    outputs=["soft", "log_soft", "layer", "rms", "total"],
)
def rows(
    x: Float32[A, "rows cols"], w: Float32[A, "cols"], b: Float32[A, "cols"]
) -> tuple[
    Float32[A, "rows cols"], Float32[A, "rows cols"], Float32[A, "rows cols"], Float32[A, "rows cols"],
    Float32[A, "rows"],
]:
    eps = x.dtype.type(1e-5)
    with np.errstate(all="ignore"):
        top = x.max(-1, keepdims=True)
        e = np.exp(x - top)
        sums = e.sum(-1, keepdims=True)
        d = x - x.mean(-1, keepdims=True)
        layer = d / np.sqrt((d * d).mean(-1, keepdims=True) + eps) * w + b
        rms = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w
        return e / sums, x - top - np.log(sums), layer, rms, x.sum(-1)
"""
)
ROWS_HEAD = """
#include <stdint.h>
#include <math.h>
#include <string.h>
static inline float bf16(float v) {
  uint32_t u;
  memcpy(&u, &v, 4);
  if ((u & 0x7f800000) != 0x7f800000) u = (u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000;
  memcpy(&v, &u, 4);
  return v;
}
static inline float flushed(float v) { return fabsf(v) < 1.17549435e-38f ? 0.0f : v; }
"""
ROWS_SIGNATURE = """
extern "C" int launch(const float* x_, const float* w, const float* b, float* soft_, float* log_soft_, float* layer_,
                      float* rms_, float* total, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    const float* x = x_ + i * cols;
    float *soft = soft_ + i * cols, *log_soft = log_soft_ + i * cols;
    float *layer = layer_ + i * cols, *rms = rms_ + i * cols;
"""
TOP = "float top = -INFINITY; for (int64_t j = 0; j < cols; j++) top = top >= x[j] ? top : x[j];"
EXPS = "float sum = 0; for (int64_t j = 0; j < cols; j++) { soft[j] = expf(x[j] - top); sum += soft[j]; }"
SOFT = "for (int64_t j = 0; j < cols; j++) { soft[j] /= sum; log_soft[j] = x[j] - top - logf(sum); }"
TOTAL = "float t = 0; for (int64_t j = 0; j < cols; j++) t += x[j]; total[i] = t;"
MEAN = "const float mean = t / cols; float v = 0;"
VARIANCE = "for (int64_t j = 0; j < cols; j++) v += (x[j] - mean) * (x[j] - mean);"
LAYER = """
    const float scale = 1 / sqrtf(v / cols + 1e-5f);
    for (int64_t j = 0; j < cols; j++) layer[j] = (x[j] - mean) * scale * w[j] + b[j];
"""
SQUARES = "float q = 0; for (int64_t j = 0; j < cols; j++) q += x[j] * x[j];"
RMS = "for (int64_t j = 0; j < cols; j++) rms[j] = x[j] / sqrtf(q / cols + 1e-5f) * w[j];"
PLAIN = (TOP, EXPS, SOFT, TOTAL, MEAN, VARIANCE, LAYER, SQUARES, RMS)
LANES = "float l[16] = {}; for (int64_t j = 0; j < cols; j++) l[j % 16] += "
ACROSS = "for (int k = 1; k < 16; k++) l[0] += l[k];"


def sum_of(term: str) -> str:
    """Another sum for the output, so that the mean stays right."""
    return f"for (int64_t j = 0; j < cols; j++) t += {term}; total[i] = t;"


def kernel_of(text: str, front: str = "") -> Kernel:
    return parse_kernel(f"/*---\ncontract: function\n{front}---*/\n{text}", Language.CPP, Origin(proposer="file"))


def rows_kernel(front: str = "", *, head: str = ROWS_HEAD, **replaced: str) -> Kernel:
    """The plain kernel with some of its parts replaced."""
    names = ("TOP", "EXPS", "SOFT", "TOTAL", "MEAN", "VARIANCE", "LAYER", "SQUARES", "RMS")
    parts = [replaced.get(name, text) for name, text in zip(names, PLAIN, strict=True)]
    return kernel_of(head + ROWS_SIGNATURE + "\n".join(parts) + "\n}\nreturn 0;\n}\n", front)


def findings_of(bench: Bench, kernel: Kernel) -> tuple[Finding, ...]:
    """What the check of all answers finds.

    Raises:
        EndedEvaluation: an answer is wrong.
    """
    built = bench.target.build(bench.task, kernel)
    assert isinstance(built, Artefact), built
    with bench.pool.start(built.path) as candidate:
        cases = [*bench.checks, *bench.timed]
        return check_answers(candidate, cases, bench.judge, SETTINGS.call_timeout_s, flags=built.flags)


def ending_of(bench: Bench, kernel: Kernel) -> EndedEvaluation:
    with pytest.raises(EndedEvaluation) as caught:
        findings_of(bench, kernel)
    assert caught.value.status is Status.WRONG, caught.value.findings
    return caught.value


@pytest.fixture(scope="module")
def rows_bench(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench_on(write_task(tmp_path_factory.mktemp("rows"), ROWS_TASK)) as found:
        assert not found.dropped
        assert [c.prepared.family for c in found.checks if c.prepared.case == "odd"] == list(FAMILIES)
        yield found


HONEST = {
    "plain sequential sums": rows_kernel(),
    "fused multiply-add": rows_kernel("flags: {F: [-ffp-contract=fast]}\n"),
    "16 lanes": rows_kernel(
        TOTAL=f"{LANES}x[j]; {ACROSS} float t = l[0]; total[i] = t;",
        VARIANCE=f"{{ {LANES}(x[j] - mean) * (x[j] - mean); {ACROSS} v = l[0]; }}",
        SQUARES=f"float q; {{ {LANES}x[j] * x[j]; {ACROSS} q = l[0]; }}",
    ),
    "compensated sum": rows_kernel(
        TOTAL="""float t = 0, c = 0;
        for (int64_t j = 0; j < cols; j++) { float y = x[j] - c, s = t + y; c = (s - t) - y; t = s; }
        total[i] = t;""",
        MEAN="const float mean = t / cols; float v = 0;",
    ),
    "Welford": rows_kernel(
        MEAN="float mean = 0, v = 0;",
        VARIANCE="""for (int64_t j = 0; j < cols; j++) {
          const float d = x[j] - mean; mean += d / (j + 1); v += d * (x[j] - mean);
        }""",
    ),
    "sums in double": rows_kernel(
        TOTAL="double t = 0; for (int64_t j = 0; j < cols; j++) t += x[j]; total[i] = t;", SQUARES=f"{SQUARES}"
    ),
    "reciprocals": rows_kernel(
        SOFT="const float r = 1 / sum, lg = logf(sum) + top;"
        "for (int64_t j = 0; j < cols; j++) { soft[j] *= r; log_soft[j] = x[j] - lg; }"
    ),
}


@pytest.mark.parametrize("style", HONEST)
def test_honest_kernels_pass_every_family(rows_bench: Bench, style: str) -> None:
    assert findings_of(rows_bench, HONEST[style]) == ()


def test_fast_math_passes_but_for_what_it_was_told_to_ignore(rows_bench: Bench) -> None:
    found = findings_of(rows_bench, rows_kernel("flags: {F: [-ffast-math]}\n"))
    assert {f.kind for f in found} <= {"fast_math_specials", "fast_math_denormal", "specials"}
    ignored = rows_kernel("flags: {F: [-ffinite-math-only]}\n", RMS=f"{RMS} total[i] = t > 3e38f ? 1 : t;")
    (finding,) = [f for f in findings_of(rows_bench, ignored) if f.kind == "fast_math_specials"]
    assert "specials inputs" in finding.message
    assert (
        "specials inputs"
        in ending_of(rows_bench, rows_kernel(RMS=f"{RMS} total[i] = t > 3e38f ? 1 : t;")).findings[0].message
    )


BESIDE_INFINITY = {
    "compensated sum of squares": rows_kernel(
        SQUARES="""float q = 0, lost = 0;
        for (int64_t j = 0; j < cols; j++) {
          const float y = x[j] * x[j] - lost, s = q + y; lost = (s - q) - y; q = s;
        }"""
    ),
    "estimate of a root and a Newton step": rows_kernel(
        head="#include <immintrin.h>\n" + ROWS_HEAD,
        RMS="""const float m = q / cols + 1e-5f; float r = _mm_cvtss_f32(_mm_rsqrt_ss(_mm_set_ss(m)));
        for (int step = 0; step < 2; step++) r *= 1.5f - 0.5f * m * r * r;
        for (int64_t j = 0; j < cols; j++) rms[j] = x[j] * r * w[j];""",
    ),
}


@pytest.mark.parametrize("style", BESIDE_INFINITY)
def test_nan_beside_an_infinity_is_let_be_and_said(rows_bench: Bench, style: str) -> None:
    (finding,) = findings_of(rows_bench, BESIDE_INFINITY[style])
    assert finding.kind == "specials"
    assert finding.message.startswith("rms: ") and "specials inputs" in finding.evidence["case"]
    assert 0 < finding.evidence["share"] <= 0.25, "a row for each infinity"


CHEATS: dict[str, tuple[Kernel, str, str]] = {
    "no maximum subtracted": (rows_kernel(TOP="const float top = 0;"), "", "soft"),
    "mean of squares minus square of mean": (
        rows_kernel(VARIANCE=f"{{ {SQUARES} v = q - t * mean; v = v > 0 ? v : 0; }}"),
        "shifted",
        "layer",
    ),
    "softmax in bfloat16": (
        rows_kernel(EXPS=EXPS.replace("expf(x[j] - top)", "expf(bf16(x[j]) - top)")),
        "normal",
        "soft",
    ),
    "sum in bfloat16": (rows_kernel(RMS=f"{RMS} t = 0; {sum_of('bf16(x[j])')}"), "normal", "total"),
    "norm in bfloat16": (rows_kernel(RMS=RMS.replace("= x[j]", "= bf16(x[j])")), "normal", "rms"),
    "weights left out": (rows_kernel(RMS=RMS.replace(" * w[j]", "")), "normal", "rms"),
    "epsilon left out": (rows_kernel(RMS=RMS.replace(" + 1e-5f", " + 1e-30f")), "", "rms"),
    "subnormal numbers flushed": (
        rows_kernel(RMS=f"{RMS} t = 0; {sum_of('flushed(x[j])')}"),
        "denormal",
        "total",
    ),
    "maximum that ignores NaN": (
        rows_kernel(RMS=RMS.replace("x[j] /", "(x[j] > -3e38f ? x[j] : -3e38f) /")),
        "specials",
        "rms",
    ),
    "NaN in rows without an infinity": (
        rows_kernel(
            RMS=f"""{RMS} bool any = false;
            for (int64_t j = 0; j < rows * cols; j++) any |= x_[j] > 3.4e38f || x_[j] < -3.4e38f;
            if (any) for (int64_t j = 0; j < cols; j++) rms[j] = NAN;"""
        ),
        "specials",
        "rms",
    ),
    "online maximum that loses NaN": (
        rows_kernel(
            EXPS="""float m = -INFINITY, sum = 0;
            for (int64_t j = 0; j < cols; j++) {
              if (x[j] > m) { sum = sum * expf(m - x[j]) + 1; m = x[j]; } else { sum += expf(x[j] - m); }
            }
            for (int64_t j = 0; j < cols; j++) soft[j] = expf(x[j] - m);"""
        ),
        "specials",
        "soft",
    ),
    "no maximum subtracted at the timed shape": (
        rows_kernel(EXPS=f"if (cols == 4096) top = 0; {EXPS}"),
        "main, wide",
        "soft",
    ),
    "every term but the small ones": (
        rows_kernel(RMS=f"{RMS} t = 0; {sum_of('fabsf(x[j]) > 1e-3f ? x[j] : 0')}"),
        "",
        "total",
    ),
    "zeros": (rows_kernel(SOFT="for (int64_t j = 0; j < cols; j++) soft[j] = log_soft[j] = 0;"), "normal", "soft"),
    "a rounding too many": (
        rows_kernel(TOTAL=TOTAL.replace("total[i] = t", "total[i] = t * (1 + 0x1p-22f)")),
        "",
        "total",
    ),
}


@pytest.mark.parametrize("deed", CHEATS)
def test_corners_that_are_cut_show(rows_bench: Bench, deed: str) -> None:
    kernel, family, tensor = CHEATS[deed]
    finding = ending_of(rows_bench, kernel).findings[0]
    assert finding.evidence["tensor"] == tensor
    assert f"{family} inputs" in finding.evidence["case"] if family else "inputs" in finding.evidence["case"]


MATMUL_TASK = (
    HEADER
    + """
@task(
    cases=[case("main", "timed", m=24, k=4096, n=16), case("odd", "check", m=7, k=4096, n=5)],
    outputs=["c"],
)
def product(a: Float32[A, "m k"], b: Float32[A, "k n"]) -> Float32[A, "m n"]:
    with np.errstate(all="ignore"):
        return a @ b
"""
)
MATMUL_TEXT = """
extern "C" int launch(const float* a, const float* b, float* c, int64_t m, int64_t k, int64_t n) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      float s = 0, low = 0;
      for (int64_t l = 0; l < k; l++) { const float x = a[i * k + l], y = b[l * n + j]; TERM; }
      c[i * n + j] = s + low;
    }
  return 0;
}
"""
TF32_HEAD = """
static inline float tf32(float v) {
  uint32_t u;
  memcpy(&u, &v, 4);
  if ((u & 0x7f800000) != 0x7f800000) u = (u + 0x1000) & 0xffffe000;
  memcpy(&v, &u, 4);
  return v;
}
"""
THREE_BFLOAT16 = """
  const float xh = bf16(x), xm = bf16(x - xh), xl = bf16(x - xh - xm);
  const float yh = bf16(y), ym = bf16(y - yh), yl = bf16(y - yh - ym);
  s += xh * yh;
  low += xh * ym + xm * yh + (xh * yl + xl * yh + xm * ym)
"""
THREE_TF32 = """
  const float xh = tf32(x), xl = tf32(x - xh), yh = tf32(y), yl = tf32(y - yh);
  s += xh * yh;
  low += xh * yl + xl * yh
"""


def matmul_kernel(term: str) -> Kernel:
    return kernel_of(ROWS_HEAD + TF32_HEAD + MATMUL_TEXT.replace("TERM", term))


@pytest.fixture(scope="module")
def matmul_bench(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench_on(write_task(tmp_path_factory.mktemp("matmul"), MATMUL_TASK)) as found:
        assert not found.dropped
        yield found


@pytest.mark.parametrize(
    "term",
    ["s += x * y", THREE_BFLOAT16, THREE_TF32],
    ids=["serial over 4,096 terms", "three parts in bfloat16", "three products in tf32"],
)
def test_accurate_products_pass_and_are_exact_on_integers(matmul_bench: Bench, term: str) -> None:
    assert findings_of(matmul_bench, matmul_kernel(term)) == ()


@pytest.mark.parametrize(
    ("term", "family"),
    [
        ("s += bf16(x) * bf16(y)", "normal"),
        ("s += tf32(x) * tf32(y)", "normal"),
        ("s += l % 97 == 96 ? 0 : x * y", "normal"),
        ("s += x * y; low = s * 0x1p-22f", "integers"),
    ],
    ids=["bfloat16", "tf32", "terms left out", "too small for any bound"],
)
def test_inaccurate_products_do_not(matmul_bench: Bench, term: str, family: str) -> None:
    finding = ending_of(matmul_bench, matmul_kernel(term)).findings[0]
    assert f"{family} inputs" in finding.evidence["case"]


ZEROS_TASK = (
    HEADER
    + """
@task(cases=[case("main", "timed", rows=2, cols=393216)], outputs=["y"])
def softmax(x: Float32[A, "rows cols"]) -> Float32[A, "rows cols"]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
"""
)


def test_answers_that_are_small_throughout_are_not_zero(module_home: Path, tmp_path: Path) -> None:
    """Softmax over 393,216 columns: 2.5e-6 on average, below any absolute tolerance in use."""
    text = 'extern "C" int launch(const float* x, float* y, int64_t rows, int64_t cols) { BODY return 0; }'
    body = "for (int64_t i = 0; i < rows * cols; i++) y[i] = 0;"
    with bench_on(write_task(tmp_path, ZEROS_TASK)) as bench:
        assert ending_of(bench, kernel_of("#include <stdint.h>\n" + text.replace("BODY", body))).findings


def test_relaxed_precision_admits_tf32_and_says_so(module_home: Path, tmp_path: Path) -> None:
    reference = write_task(tmp_path, MATMUL_TASK).model_copy(update={"precision": "relaxed"})
    with bench_on(reference) as bench:
        verdict = Evaluation(bench, matmul_kernel("s += tf32(x) * tf32(y)")).run(None)
        assert verdict.status is Status.CORRECT, verdict.findings
        (finding,) = [f for f in verdict.findings if f.kind == "precision_class"]
        assert finding.evidence["class"] == "float16 or tf32"
        assert finding.evidence["tensor"] == "c"
        plain = Evaluation(bench, matmul_kernel("s += x * y")).run(None)
        assert not [f for f in plain.findings if f.kind == "precision_class"]
