"""Which instructions round to a narrow type, by name and in compiled code."""

from __future__ import annotations

import pytest

from kernelworks.kernel.x86 import describe_x86
from kernelworks.kernel.x86_narrow import narrow_type

from .conftest import Compile

HALVES = """#include <immintrin.h>
#include <cstdint>
__attribute__((noinline)) static void store(uint16_t* y, const float* x) {
  _mm_storeu_si128((__m128i*)y, _mm256_cvtps_ph(_mm256_loadu_ps(x), 0));
}
extern "C" int launch(const float* x, uint16_t* y, int64_t n) {
  for (int64_t i = 0; i + 8 <= n; i += 8) store(y + i, x + i);
  return 0;
}
extern "C" void unused(const double* x, float* y) { *y = (float)*x; }
"""


@pytest.mark.parametrize(
    ("mnemonic", "expected"),
    [
        ("vdpbf16ps", "bfloat16"),
        ("vcvtneps2bf16", "bfloat16"),
        ("vcvtps2ph", "float16"),
        ("vfmadd231ph", "float16"),
        ("vaddsh", "float16"),
        ("cvtsd2ss", "float32"),
        ("vcvtpd2ps", "float32"),
        ("vcvtph2ps", None),
        ("vcvtps2pd", None),
        ("vcvtss2sd", None),
        ("vfmadd231ps", None),
        ("vpshufb", None),
        ("vmovsh", None),
    ],
)
def test_what_rounds_is_told_from_what_widens(mnemonic: str, expected: str | None) -> None:
    assert narrow_type(mnemonic) == expected


def test_reachable_code_alone_counts(compile_cpp: Compile) -> None:
    found = describe_x86(compile_cpp(HALVES, "-O2", "-mf16c", "-mavx2")).descriptor.narrow
    assert [narrow.type for narrow in found] == ["float16"]
    assert found[0].instruction.startswith("vcvtps2ph")
