"""Descriptors from source: every level, and what must never count."""

from __future__ import annotations

import pytest

from kernelworks.errors import KernelError
from kernelworks.kernel.model import Language
from kernelworks.kernel.source_descriptor import describe_source


def kernel(body: str, head: str = "") -> str:
    return f"""{head}
extern "C" int launch(const float* x, const float* w, float* y, int64_t rows, int64_t cols) {{
  {body}
  return 0;
}}
"""


FLAT = "for (int64_t i = 0; i < rows * cols; ++i) "
SCALED = FLAT + "y[i] = x[i] * 2.0f;"
TILE = """for (int64_t p = 0; p < cols; ++p) {
  float32x4_t b = vld1q_f32(w + p * 8), c = vld1q_f32(w + p * 8 + 4);
  for (int i = 0; i < 4; ++i) {
    float32x4_t a = vdupq_n_f32(x[i * cols + p]);
    acc[i][0] = vfmaq_f32(acc[i][0], a, b);
    acc[i][1] = vfmaq_f32(acc[i][1], a, c);
  }
}"""
DOT = """for (int64_t i = 0; i < rows; i += 16) {
  s0 = vfmaq_f32(s0, vld1q_f32(x + i), vld1q_f32(w + i));
  s1 = vfmaq_f32(s1, vld1q_f32(x + i + 4), vld1q_f32(w + i + 4));
  s2 = vfmaq_f32(s2, vld1q_f32(x + i + 8), vld1q_f32(w + i + 8));
  s3 = vfmaq_f32(s3, vld1q_f32(x + i + 12), vld1q_f32(w + i + 12));
}"""
STACK_TILE = """for (int64_t r = 0; r < rows; ++r) {
  float tile[32];
  for (int i = 0; i < 32; ++i) tile[i] = x[r * 32 + i];
  for (int i = 0; i < 32; ++i) y[i * rows + r] = tile[i];
}"""

CASES = {
    "strided": (kernel(FLAT + "y[i * 2] = x[i * 3] * 2.0f;"), (0, 0, 0)),
    "packed": (kernel(SCALED), (1, 1, 0)),
    "copy": (kernel(FLAT + "y[i] = x[i];"), (1, 0, 0)),
    "unknown_call": (kernel(FLAT + "y[i] = std::exp(x[i]);"), (0, 0, 0)),
    "simd_pragma": (kernel("#pragma omp simd\n" + FLAT + "y[i] = std::exp(x[i]) * 2.0f;"), (1, 1, 0)),
    "stack_tile": (kernel(STACK_TILE), (2, 0, 0)),
    "prefetch": (kernel(FLAT + "{ __builtin_prefetch(x + i + 64); vst1q_f32(y + i, vld1q_f32(x + i)); }"), (3, 0, 0)),
    "prefetch_alone": (kernel("while (rows--) { __builtin_prefetch(x + 64); *y = *x; }"), (0, 0, 0)),
    "accumulators": (kernel(DOT), (1, 2, 0)),
    "register_tile": (kernel("float32x4_t acc[4][2];" + TILE), (2, 3, 0)),
    "dot_instruction": (
        kernel("for (int64_t i = 0; i < rows; i += 16) s = vdotq_s32(s, vld1q_s8(a + i), b);"),
        (1, 3, 0),
    ),
    "straight_line": (kernel("vst1q_f32(y, vmulq_f32(vld1q_f32(x), vld1q_f32(w)));"), (1, 1, 0)),
    "static": (kernel("#pragma omp parallel for\n" + SCALED), (1, 1, 1)),
    "dynamic": (kernel("#pragma omp parallel for schedule(dynamic, 4)\n" + SCALED), (1, 1, 2)),
    "collapse": (kernel("#pragma omp parallel for collapse(2)\n" + SCALED), (1, 1, 2)),
    "collapse_one": (kernel("#pragma omp parallel for collapse(1)\n" + SCALED), (1, 1, 1)),
    "reduction": (kernel("#pragma omp parallel for reduction(+ : s)\n" + FLAT + "s += x[i];"), (1, 1, 2)),
    "operator_pragma": (kernel('_Pragma("omp parallel for schedule(guided)")\n' + SCALED), (1, 1, 2)),
    "continued_pragma": (kernel("#pragma omp parallel for \\\n  schedule(guided)\n" + SCALED), (1, 1, 2)),
    "two_regions": (kernel(f"#pragma omp parallel for\n{SCALED}\n#pragma omp parallel for\n{SCALED}"), (1, 1, 3)),
    "one_of_two": (
        kernel(
            f"if (rows > 8) {{\n#pragma omp parallel for\n{SCALED}\n}} else {{\n#pragma omp parallel for\n{SCALED}\n}}"
        ),
        (1, 1, 1),
    ),
    "barrier": (kernel(f"#pragma omp parallel\n{{\n#pragma omp for\n{SCALED}\n#pragma omp barrier\n}}"), (1, 1, 3)),
    "atomic_in_loop": (kernel(f"#pragma omp parallel for\n{FLAT}{{\n#pragma omp atomic\ny[0] += x[i]; }}"), (1, 1, 3)),
    "helper": (
        kernel(FLAT + "one(x, y, i);", "static inline void one(const float* a, float* b, int64_t k) { b[k] = a[k]; }"),
        (0, 0, 0),
    ),
    "helper_loop": (
        kernel(
            "detail::all<4>(x, y, rows);",
            "namespace detail { template <int N> void all(const float* a, float* b,"
            " int64_t n) { for (int64_t k = 0; k < n; ++k) b[k] = a[k] * N; } }",
        ),
        (1, 1, 0),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cell(name: str) -> None:
    text, cell = CASES[name]
    descriptor = describe_source(text, Language.CPP)
    assert descriptor.cell == cell, "\n".join(map(str, descriptor.evidence))
    assert descriptor.basis == "source"


DEAD = {
    "comment": "// #pragma omp parallel for schedule(dynamic)\n/* vdotq_s32 __builtin_prefetch */",
    "string": 'static const char* words = "#pragma omp parallel for vdotq_s32(a, b, c)";',
    "unused function": f"static void unused(const float* x, float* y, int64_t rows, int64_t cols) {{\n"
    f"#pragma omp parallel for schedule(dynamic)\n{SCALED}\n}}",
    "preprocessed away": "#if 0\nstatic void launch_helper() { vdotq_s32(a, b, c); }\n#endif",
    "names": "static int vdotq_s32_like = 0, block_tile_prefetch = 1, num_blocks = 4;",
}


@pytest.mark.parametrize("dead", DEAD)
def test_dead_text_never_counts(dead: str) -> None:
    assert describe_source(kernel(SCALED, DEAD[dead])).cell == (1, 1, 0)


@pytest.mark.parametrize(
    "inside",
    [
        "// #pragma omp parallel for",
        "if (false) { vdotq_s32(a, b, c); }",
        "#if 0\nfor (;;) vdotq_s32(a, b, c);\n#else\n#endif",
        'puts("omp parallel");',
    ],
)
def test_dead_text_in_the_body_never_counts(inside: str) -> None:
    assert describe_source(kernel(f"{inside}\n{SCALED}")).cell == (1, 1, 0)


def test_an_own_function_with_an_intrinsics_name_is_no_intrinsic() -> None:
    own = "static int vdotq_s32(int a) { return a; }"
    assert describe_source(kernel(FLAT + "y[i] = vdotq_s32(3);", own)).compute == 1


def test_evidence_names_the_line() -> None:
    descriptor = describe_source(kernel("#pragma omp parallel for\n" + SCALED))
    lines = {e.axis: (e.address, e.reason) for e in descriptor.evidence}
    assert lines["parallelism"] == ("line 3", "level 1: parallel region")
    assert lines["memory"][0] == "line 4"


def test_a_missing_entry_point_is_an_error() -> None:
    with pytest.raises(KernelError, match="expected a function 'launch', found \\['other'\\]"):
        describe_source("int other() { return 0; }")


def test_other_languages_are_refused() -> None:
    with pytest.raises(KernelError, match="expected language cpp, found cuda"):
        describe_source("", Language.CUDA)
