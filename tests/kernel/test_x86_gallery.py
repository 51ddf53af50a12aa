"""Every level of every axis, on small kernels that g++ compiles. The ISA is given by flags: nothing is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelworks.kernel.x86 import describe_x86

from .conftest import Compile

V3, V4 = "-march=x86-64-v3", "-march=x86-64-v4"
HEAD = """
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>
#include <omp.h>
"""


@dataclass(frozen=True)
class Sample:
    name: str
    cell: tuple[int, int, int]
    code: str
    flags: tuple[str, ...] = (V3,)


def unary(body: str, pragma: str = "") -> str:
    return f"""{HEAD}
extern "C" int launch(const float* __restrict x, float* __restrict y, int64_t rows, int64_t cols) {{
  {pragma}
  {body}
  return 0;
}}
"""


FLAT = "for (int64_t i = 0; i < rows * cols; ++i) "
ROWS = "for (int64_t r = 0; r < rows; ++r) "

GEMM_TILE = """
static void micro(const float* a, const float* b, float* c, int64_t k, int64_t n) {
  __m256 acc[4][2];
  for (int i = 0; i < 4; ++i) for (int j = 0; j < 2; ++j) acc[i][j] = _mm256_setzero_ps();
  for (int64_t p = 0; p < k; ++p) {
    __m256 b0 = _mm256_loadu_ps(b + p * n), b1 = _mm256_loadu_ps(b + p * n + 8);
    for (int i = 0; i < 4; ++i) {
      __m256 v = _mm256_broadcast_ss(a + i * k + p);
      acc[i][0] = _mm256_fmadd_ps(v, b0, acc[i][0]);
      acc[i][1] = _mm256_fmadd_ps(v, b1, acc[i][1]);
    }
  }
  for (int i = 0; i < 4; ++i) for (int j = 0; j < 2; ++j) _mm256_storeu_ps(c + i * n + 8 * j, acc[i][j]);
}
extern "C" int launch(const float* a, const float* b, float* c, int64_t m, int64_t k, int64_t n) {
  for (int64_t i = 0; i < m; i += 4) for (int64_t j = 0; j < n; j += 16) micro(a + i * k, b + j, c + i * n + j, k, n);
  return 0;
}
"""


def dot(accumulators: int) -> str:
    names = [f"s{i}" for i in range(accumulators)]
    start = " ".join(f"__m256 {n} = _mm256_setzero_ps();" for n in names)
    steps = " ".join(
        f"{n} = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + {8 * k}), _mm256_loadu_ps(z + i + {8 * k}), {n});"
        for k, n in enumerate(names)
    )
    total = names[0]
    for n in names[1:]:
        total = f"_mm256_add_ps({total}, {n})"
    return f"""{HEAD}
extern "C" int launch(const float* x, const float* z, float* y, int64_t n) {{
  {start}
  for (int64_t i = 0; i < n; i += {8 * accumulators}) {{ {steps} }}
  _mm256_storeu_ps(y, {total});
  return 0;
}}
"""


SAMPLES = [
    # memory
    Sample("scalar_loop", (0, 0, 0), unary(FLAT + "y[i] = x[i] * 2.0f;"), (V3, "-fno-tree-vectorize")),
    Sample(
        "strided",
        (0, 0, 0),
        unary(ROWS + "{ float s = 0; for (int64_t c = 0; c < cols; ++c) s += x[c * rows + r]; y[r] = s; }"),
        (V3, "-fno-tree-vectorize"),
    ),
    Sample(
        "gather",
        (0, 1, 0),
        HEAD
        + """
extern "C" int launch(const float* x, const int32_t* index, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 8) {
    alignas(32) float t[8];
    __m256 v = _mm256_i32gather_ps(x, _mm256_set_epi32(index[i], 1, 2, 3, 4, 5, 6, 7), 4);
    v = _mm256_mul_ps(v, v);
    y[i] = _mm256_cvtss_f32(v);
  }
  return 0;
}
""",
    ),
    Sample("packed", (1, 1, 0), unary(FLAT + "y[i] = x[i] * 2.0f;")),
    Sample("packed_sse2", (1, 1, 0), unary(FLAT + "y[i] = x[i] * 2.0f;"), ("-march=x86-64",)),
    Sample("packed_avx512", (1, 1, 0), unary(FLAT + "y[i] = x[i] * 2.0f;"), (V4, "-mprefer-vector-width=512")),
    Sample("copy_through_libc", (1, 0, 0), unary(ROWS + "std::memcpy(y + r * cols, x + r * cols, cols * 4);")),
    Sample(
        "stack_tile",
        (2, 1, 0),
        unary("""for (int64_t r = 0; r < rows; r += 32) {
    float tile[32][33];
    for (int i = 0; i < 32; ++i) for (int c = 0; c < 32; ++c) tile[i][c] = x[(r + i) * 32 + c] * 2.0f;
    for (int c = 0; c < 32; ++c) for (int i = 0; i < 32; ++i) y[c * rows + r + i] = tile[i][c];
  }"""),
    ),
    Sample(
        "static_tile",
        (2, 1, 0),
        """
static float tile[4096];
"""
        + unary(
            ROWS
            + """{
    for (int64_t c = 0; c < 4096; ++c) tile[c] = x[r * 4096 + c] * 2.0f;
    for (int64_t c = 0; c < 4096; ++c) y[r * 4096 + c] = tile[4095 - c] + 1.0f;
  }"""
        ),
    ),
    Sample(
        "thread_local_tile",
        (2, 1, 0),
        """
static thread_local float tile[4096];
"""
        + unary(
            ROWS
            + """{
    for (int64_t c = 0; c < 4096; ++c) tile[c] = x[r * 4096 + c] * 2.0f;
    for (int64_t c = 0; c < 4096; ++c) y[r * 4096 + c] = tile[4095 - c] + 1.0f;
  }"""
        ),
    ),
    Sample(
        "reduction_scratch",
        (1, 1, 0),
        unary(
            ROWS
            + """{
    alignas(64) float lanes[64];
    for (int k = 0; k < 64; ++k) lanes[k] = 0;
    __m256 s = _mm256_setzero_ps();
    for (int64_t c = 0; c < cols; c += 8) s = _mm256_add_ps(s, _mm256_loadu_ps(x + r * cols + c));
    _mm256_store_ps(lanes, s);
    for (int64_t half = rows; half > 0; half /= 2) for (int64_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
    y[r] = lanes[0];
  }"""
        ),
    ),
    Sample(
        "reused_load",
        (2, 1, 0),
        HEAD
        + """
extern "C" int launch(const float* x, const float* w, float* y, int64_t n) {
  __m256 a = _mm256_setzero_ps(), b = a;
  for (int64_t i = 0; i < n; i += 8) {
    __m256 v = _mm256_loadu_ps(x + i);
    a = _mm256_fmadd_ps(v, _mm256_loadu_ps(w + i), a);
    b = _mm256_fmadd_ps(v, _mm256_loadu_ps(w + n + i), b);
  }
  _mm256_storeu_ps(y, a);
  _mm256_storeu_ps(y + 8, b);
  return 0;
}
""",
    ),
    Sample(
        "non_temporal",
        (3, 1, 0),
        unary("""for (int64_t i = 0; i < rows * cols; i += 8)
    _mm256_stream_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(2.0f)));"""),
    ),
    Sample(
        "prefetch",
        (3, 1, 0),
        unary("""for (int64_t i = 0; i < rows * cols; i += 8) {
    _mm_prefetch((const char*)(x + i + 256), _MM_HINT_T0);
    _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(2.0f)));
  }"""),
    ),
    Sample(
        "prefetch_scalar",
        (0, 0, 0),
        unary(FLAT + "{ __builtin_prefetch(x + i + 64); y[i] = x[i] * 2.0f; }"),
        (V3, "-fno-tree-vectorize"),
    ),
    Sample(
        "straight_line",
        (1, 1, 0),
        unary("_mm256_storeu_ps(y, _mm256_mul_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)));"),
    ),
    # compute
    Sample("scalar_abs", (0, 0, 0), unary(FLAT + "y[i] = std::fabs(x[i]);"), (V3, "-fno-tree-vectorize")),
    Sample("packed_abs", (1, 1, 0), unary(FLAT + "y[i] = std::fabs(x[i]);")),
    Sample("scalar_libm", (0, 0, 0), unary(FLAT + "y[i] = std::exp(x[i]) * 2.0f;"), (V3,)),
    Sample("vector_libm", (1, 1, 0), unary(FLAT + "y[i] = std::exp(x[i]);"), (V3, "-ffast-math")),
    Sample("dot_1", (1, 1, 0), dot(1)),
    Sample("dot_3", (1, 1, 0), dot(3)),
    Sample("dot_4", (1, 2, 0), dot(4)),
    Sample("dot_8_without_tile", (1, 2, 0), dot(8)),
    Sample("register_tile", (2, 3, 0), HEAD + GEMM_TILE),
    Sample(
        "accumulators_beside_polynomials",
        (1, 2, 0),
        unary(
            """__m256 s[8];
  for (int u = 0; u < 8; ++u) s[u] = _mm256_setzero_ps();
  for (int64_t i = 0; i < rows * cols; i += 64)
    for (int u = 0; u < 8; ++u) {
      __m256 v = _mm256_loadu_ps(x + i + 8 * u), p = _mm256_set1_ps(0.1f);
      p = _mm256_fmadd_ps(p, v, _mm256_set1_ps(0.2f));
      p = _mm256_fmadd_ps(p, v, _mm256_set1_ps(0.3f));
      p = _mm256_fmadd_ps(p, v, _mm256_set1_ps(0.4f));
      s[u] = _mm256_fmadd_ps(p, p, s[u]);
    }
  for (int u = 0; u < 8; ++u) _mm256_storeu_ps(y + 8 * u, s[u]);"""
        ),
        (V4,),
    ),
    Sample(
        "polynomial",
        (1, 1, 0),
        unary("""for (int64_t i = 0; i < rows * cols; i += 32)
    for (int u = 0; u < 4; ++u) {
      __m256 v = _mm256_loadu_ps(x + i + 8 * u), p = _mm256_set1_ps(0.1f);
      p = _mm256_fmadd_ps(p, v, _mm256_set1_ps(0.2f));
      p = _mm256_fmadd_ps(p, v, _mm256_set1_ps(0.3f));
      p = _mm256_fmadd_ps(p, v, _mm256_set1_ps(0.4f));
      p = _mm256_fmadd_ps(p, v, _mm256_set1_ps(0.5f));
      _mm256_storeu_ps(y + i + 8 * u, p);
    }"""),
    ),
    Sample(
        "vnni",
        (1, 3, 0),
        HEAD
        + """
extern "C" int launch(const uint8_t* a, const int8_t* b, int32_t* y, int64_t n) {
  __m512i s = _mm512_setzero_si512();
  for (int64_t i = 0; i < n; i += 64) s = _mm512_dpbusd_epi32(s, _mm512_loadu_si512(a + i), _mm512_loadu_si512(b + i));
  _mm512_storeu_si512(y, s);
  return 0;
}
""",
        (V4, "-mavx512vnni"),
    ),
    Sample(
        "avx_vnni",
        (1, 3, 0),
        HEAD
        + """
extern "C" int launch(const __m256i* a, const __m256i* b, __m256i* y, int64_t n) {
  __m256i s = _mm256_setzero_si256();
  for (int64_t i = 0; i < n; ++i) s = _mm256_dpbusd_avx_epi32(s, _mm256_loadu_si256(a + i), _mm256_loadu_si256(b + i));
  _mm256_storeu_si256(y, s);
  return 0;
}
""",
        (V3, "-mavxvnni"),
    ),
    Sample(
        "bf16_dot",
        (1, 3, 0),
        HEAD
        + """
extern "C" int launch(const __m512bh* a, const __m512bh* b, float* y, int64_t n) {
  __m512 s = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; ++i) s = _mm512_dpbf16_ps(s, a[i], b[i]);
  _mm512_storeu_ps(y, s);
  return 0;
}
""",
        (V4, "-mavx512bf16"),
    ),
    Sample(
        "half_precision",
        (1, 1, 0),
        """#include <cstdint>
extern "C" int launch(const _Float16* x, _Float16* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * x[i] + (_Float16)1;
  return 0;
}
""",
        (V4, "-mavx512fp16"),
    ),
    # parallelism
    Sample("static", (1, 1, 1), unary(FLAT + "y[i] = x[i] * 2.0f;", "#pragma omp parallel for")),
    Sample(
        "static_chunks",
        (1, 1, 1),
        unary(
            ROWS + "for (int64_t c = 0; c < cols; ++c) y[r * cols + c] = x[r * cols + c] * 2.0f;",
            "#pragma omp parallel for schedule(static, 4)",
        ),
    ),
    Sample(
        "dynamic",
        (1, 1, 2),
        unary(
            ROWS + "for (int64_t c = 0; c < cols; ++c) y[r * cols + c] = x[r * cols + c] * 2.0f;",
            "#pragma omp parallel for schedule(dynamic, 4)",
        ),
    ),
    Sample(
        "guided",
        (1, 1, 2),
        unary(
            ROWS + "for (int64_t c = 0; c < cols; ++c) y[r * cols + c] = x[r * cols + c] * 2.0f;",
            "#pragma omp parallel for schedule(guided)",
        ),
    ),
    Sample(
        "collapse",
        (0, 0, 2),
        unary(
            ROWS + "for (int64_t c = 0; c < cols; ++c) y[c * rows + r] = x[r * cols + c];",
            "#pragma omp parallel for collapse(2)",
        ),
        (V3, "-fno-tree-vectorize"),
    ),
    Sample(
        "collapse_constant",
        (0, 0, 2),
        unary(
            ROWS + "for (int64_t c = 0; c < 48; ++c) y[c * rows + r] = x[r * 48 + c];",
            "#pragma omp parallel for collapse(2)",
        ),
        (V3, "-fno-tree-vectorize"),
    ),
    Sample(
        "partials",
        (1, 1, 2),
        unary("""double s = 0;
  #pragma omp parallel for reduction(+ : s)
  for (int64_t i = 0; i < rows * cols; ++i) s += x[i];
  y[0] = (float)s;"""),
        (V3, "-ffast-math"),
    ),
    Sample(
        "critical_once",
        (1, 1, 2),
        unary("""float s = 0;
  #pragma omp parallel
  {
    float mine = 0;
    #pragma omp for nowait
    for (int64_t i = 0; i < rows * cols; ++i) mine += x[i];
    #pragma omp critical
    s += mine;
  }
  y[0] = s;"""),
        (V3, "-ffast-math"),
    ),
    Sample(
        "two_regions",
        (1, 1, 3),
        unary("""
  #pragma omp parallel for
  for (int64_t i = 0; i < rows * cols; ++i) y[i] = x[i] * 2.0f;
  #pragma omp parallel for
  for (int64_t i = 0; i < rows * cols; ++i) y[i] = y[i] * y[i] + 1.0f;"""),
    ),
    Sample(
        "one_of_two_regions",
        (1, 1, 1),
        unary("""
  if (rows > 64) {
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; ++r) for (int64_t c = 0; c < cols; ++c) y[r * cols + c] = x[r * cols + c] * 2.0f;
  } else {
    #pragma omp parallel for
    for (int64_t i = 0; i < rows * cols; ++i) y[i] = x[i] * 2.0f;
  }"""),
    ),
    Sample(
        "region_in_loop",
        (1, 1, 3),
        unary(
            ROWS
            + """{
    #pragma omp parallel for
    for (int64_t c = 0; c < cols; ++c) y[r * cols + c] = x[r * cols + c] * 2.0f;
  }"""
        ),
    ),
    Sample(
        "barrier",
        (1, 1, 3),
        unary("""
  #pragma omp parallel
  {
    #pragma omp for
    for (int64_t i = 0; i < rows * cols; ++i) y[i] = x[i] * 2.0f;
    #pragma omp for
    for (int64_t i = 0; i < rows; ++i) y[i * cols] += y[(rows - 1 - i) * cols + 1];
  }"""),
    ),
    Sample(
        "atomic_in_loop",
        (0, 0, 3),
        HEAD
        + """
extern "C" int launch(const int32_t* x, int32_t* y, int64_t n) {
  #pragma omp parallel for
  for (int64_t i = 0; i < n; ++i) {
    #pragma omp atomic
    y[x[i] & 255] += 1;
  }
  return 0;
}
""",
    ),
    Sample(
        "float_atomic_in_loop",
        (0, 0, 3),
        HEAD
        + """
extern "C" int launch(const float* x, const int32_t* at, float* y, int64_t n) {
  #pragma omp parallel for
  for (int64_t i = 0; i < n; ++i) {
    #pragma omp atomic
    y[at[i]] += x[i];
  }
  return 0;
}
""",
    ),
    Sample(
        "blocked_dot_with_reduction",
        (1, 2, 2),
        """
#include <immintrin.h>
#include <cstdint>
extern "C" int launch(const float* x, const float* z, float* y, int64_t rows, int64_t n) {
  float s=0;
  #pragma omp parallel for reduction(+:s)
  for (int64_t r = 0; r < rows; ++r) {
    __m256 a[4];
    for (auto& v : a) v = _mm256_setzero_ps();
    for (int64_t i = 0; i < n; i += 32)
      for (int k = 0; k < 4; ++k)
        a[k] = _mm256_fmadd_ps(_mm256_loadu_ps(x + r * n + i + 8 * k), _mm256_loadu_ps(z + i + 8 * k), a[k]);
    float t[8];
    _mm256_storeu_ps(t, _mm256_add_ps(_mm256_add_ps(a[0], a[1]), _mm256_add_ps(a[2], a[3])));
    for (float v : t) s += v;
  }
  y[0]=s; return 0;
}
""",
    ),
    Sample(
        "parallel_transpose",
        (2, 0, 2),
        """
#include <cstdint>
extern "C" int launch(const float* __restrict x, float* __restrict y, int64_t rows, int64_t cols) {
  #pragma omp parallel for schedule(dynamic)
  for (int64_t r = 0; r < rows; r += 32) for (int64_t q = 0; q < cols; q += 32) {
    float tile[32][33];
    for (int i = 0; i < 32; ++i) for (int c = 0; c < 32; ++c) tile[c][i] = x[(r + i) * cols + q + c];
    for (int c = 0; c < 32; ++c) for (int i = 0; i < 32; ++i) y[(q + c) * rows + r + i] = tile[c][i];
  }
  return 0; }
""",
    ),
    Sample(
        "collapse_in_fixed_shares",
        (0, 0, 1),
        """
#include <cstdint>
extern "C" int launch(const float* x, float* y, int64_t rows, int64_t cols) {
  #pragma omp parallel for collapse(2) schedule(static, 4)
  for (int64_t r = 0; r < rows; r++) for (int64_t c = 0; c < cols; c++) y[c * rows + r] = x[r * cols + c]*2;
  return 0; }
""",
    ),
    Sample(
        "threads_of_the_standard_library",
        (1, 1, 1),
        """
#include <thread>
#include <cstdint>
extern "C" int launch(const float* __restrict x, float* __restrict y, int64_t n, int64_t k) {
  std::thread t([=]{ for (int64_t i = 0; i < n/2; ++i) y[i] = x[i]*2; });
  for (int64_t i = n/2; i < n; ++i) y[i] = x[i]*2;
  t.join(); return 0; }
""",
    ),
    Sample(
        "parallel_non_temporal",
        (3, 1, 1),
        """
#include <cstdint>
#include <immintrin.h>
extern "C" int launch(const float* x, float* y, int64_t rows, int64_t cols) {
  #pragma omp parallel for
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c += 8)
      _mm256_stream_ps(y + r * cols + c, _mm256_mul_ps(_mm256_loadu_ps(x + r * cols + c), _mm256_set1_ps(2)));
  return 0; }
""",
    ),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_cell(sample: Sample, compile_cpp: Compile) -> None:
    library = compile_cpp(sample.code, *sample.flags)
    descriptor = describe_x86(library).descriptor
    assert descriptor.cell == sample.cell, "\n".join(map(str, descriptor.evidence))
    assert descriptor.basis == "x86"


def test_every_level_of_every_axis_is_in_the_gallery() -> None:
    for axis in range(3):
        assert {sample.cell[axis] for sample in SAMPLES} == {0, 1, 2, 3}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_each_axis_has_evidence_of_its_level(sample: Sample, compile_cpp: Compile) -> None:
    descriptor = describe_x86(compile_cpp(sample.code, *sample.flags)).descriptor
    for axis in ("memory", "compute", "parallelism"):
        level = getattr(descriptor, axis)
        reasons = [e.reason for e in descriptor.evidence if e.axis == axis]
        if level:
            assert reasons and reasons[0].startswith(f"level {level}: ")
        assert all(int(reason[6]) <= level for reason in reasons)


def test_stripping_the_library_changes_no_level(compile_cpp: Compile, tmp_path: Path) -> None:
    for sample in SAMPLES:
        if sample.name in ("register_tile", "dynamic", "barrier", "static_tile"):
            stripped = compile_cpp(sample.code, *sample.flags, "-s")
            assert describe_x86(stripped).descriptor.cell == sample.cell
