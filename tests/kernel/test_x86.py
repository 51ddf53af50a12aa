"""What must not move a descriptor or a digest, what must, and the errors."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kernelworks.errors import EvaluationError, KernelError
from kernelworks.kernel.describe import describe
from kernelworks.kernel.descriptor import Cell
from kernelworks.kernel.elf import read_image, sections_digest
from kernelworks.kernel.x86 import describe_x86
from kernelworks.kernel.x86_cfg import read_program
from kernelworks.kernel.x86_decode import Decoder

from .conftest import Compile

V3, V4 = "-march=x86-64-v3", "-march=x86-64-v4"

ROWS = """#include <cstdint>
extern "C" int launch(const float* x, const float* w, float* y, int64_t rows, int64_t cols) {
  #pragma omp parallel for schedule(dynamic)
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) y[r * cols + c] = x[r * cols + c] * w[c] + 0.5f;
  }
  return 0;
}
"""
RENAMED = """// #pragma omp parallel for collapse(2)  prefetch, tile, vdpbusd
#include <cstdint>
/* GOMP_barrier(); */ extern "C" int launch(const float *tile, const float *prefetch, float *atomic,
    int64_t num_blocks, int64_t warp_size)
{
#pragma omp parallel for schedule(dynamic)
    for (int64_t barrier = 0; barrier < num_blocks; ++barrier)
    {
        for (int64_t vnni = 0; vnni < warp_size; ++vnni)
            atomic[barrier * warp_size + vnni] = tile[barrier * warp_size + vnni] * prefetch[vnni] + 0.5f;
    }
    return 0;
}
"""
DEAD = """#include <immintrin.h>
extern "C" int never_called(const float* x, float* y, long n) {
  #pragma omp parallel
  {
    #pragma omp for
    for (long i = 0; i < n; i += 8) {
      _mm_prefetch((const char*)(x + i), _MM_HINT_T0);
      _mm256_stream_ps(y + i, _mm256_loadu_ps(x));
    }
    #pragma omp barrier
    y[0] = 1;
  }
  return 0;
}
"""


def cell(library: Path) -> Cell:
    return describe_x86(library).descriptor.cell


def digest(library: Path) -> str:
    return describe_x86(library).code_digest


def test_names_comments_and_formatting_move_nothing(compile_cpp: Compile) -> None:
    assert describe_x86(compile_cpp(ROWS, V3)).code_digest == digest(compile_cpp(RENAMED, V3))
    assert cell(compile_cpp(ROWS, V3)) == cell(compile_cpp(RENAMED, V3)) == (1, 1, 2)


def test_unreachable_code_moves_nothing(compile_cpp: Compile) -> None:
    plain, crowded = compile_cpp(ROWS, V3), compile_cpp(DEAD + ROWS, V3)
    assert cell(plain) == cell(crowded)
    assert digest(plain) == digest(crowded)


def test_the_number_of_a_comment_line_moves_nothing(compile_cpp: Compile) -> None:
    assert digest(compile_cpp(ROWS, V3)) == digest(compile_cpp("\n" * 40 + ROWS, V3))


def test_a_static_helper_that_is_kept_apart_is_followed(compile_cpp: Compile) -> None:
    helper = ROWS.replace(
        'extern "C"',
        """__attribute__((noinline)) void work(const float* x, const float* w, float* y, int64_t n) {
  for (int64_t c = 0; c < n; ++c) y[c] = x[c] * w[c] + 0.5f;
}
extern "C" """,
    ).replace(
        "for (int64_t c = 0; c < cols; ++c) y[r * cols + c] = x[r * cols + c] * w[c] + 0.5f;",
        "work(x + r * cols, w, y + r * cols, cols);",
    )
    assert cell(compile_cpp(helper, V3)) == (1, 1, 2)


def test_straight_line_code_called_from_a_loop_is_hot(compile_cpp: Compile) -> None:
    text = """#include <immintrin.h>
__attribute__((noinline)) static void one(const float* x, float* y) {
  _mm256_stream_ps(y, _mm256_mul_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)));
}
extern "C" int launch(const float* x, float* y, long n) { for (long i = 0; i < n; i += 8) one(x + i, y + i); return 0; }
"""
    assert cell(compile_cpp(text, V3)) == (3, 1, 0)


def test_work_outside_the_loops_is_not_hot(compile_cpp: Compile) -> None:
    text = """#include <immintrin.h>
extern "C" int launch(const float* x, float* y, long n) {
  _mm_prefetch((const char*)x, _MM_HINT_T0);
  _mm256_stream_ps(y, _mm256_mul_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)));
  for (long i = 8; i < n; ++i) y[i] = x[i] * 2;
  return 0;
}
"""
    assert cell(compile_cpp(text, V3, "-fno-tree-vectorize")) == (0, 0, 0)


def test_a_switch_is_followed_through_its_table(compile_cpp: Compile) -> None:
    cases = "\n".join(
        f"case {k}: for (long i = 0; i < n; ++i) y[i] = {'x[i] * x[i]' if k == 5 else f'y[i] / {k + 3}.5f'}; break;"
        for k in range(8)
    )
    text = f"""extern "C" int launch(const float* __restrict x, float* __restrict y, long n, long m) {{
  switch (m) {{ {cases} default: return 1; }}
  return 0;
}}
"""
    library = compile_cpp(text, V3)
    program = read_program(read_image(library), "launch")
    assert any(program.functions[program.entry].tables.values())
    assert cell(library) == (1, 1, 0)
    assert digest(library) != digest(compile_cpp(text.replace("5.5f", "5.25f"), V3))


def test_a_function_behind_a_pointer_is_followed(compile_cpp: Compile) -> None:
    text = """typedef void (*Work)(const float*, float*, long);
static void one(const float* x, float* y, long n) { for (long i = 0; i < n; ++i) y[i] = x[i] * 2; }
static void two(const float* x, float* y, long n) { for (long i = 0; i < n; ++i) y[i] = x[i] + 2; }
static const Work table[] = {one, two};
extern "C" int launch(const float* __restrict x, float* __restrict y, long n, long k) {
  table[k & 1](x, y, n);
  return 0;
}
"""
    assert cell(compile_cpp(text, V3)) == (1, 1, 0)
    assert digest(compile_cpp(text, V3)) != digest(compile_cpp(text.replace("{one, two}", "{two, one}"), V3))


# digests ------------------------------------------------------------------------------------------------------------

BODY = "for (long i = 0; i < n; ++i) y[i] = EXPRESSION;"


def loop(expression: str, head: str = "") -> str:
    return f"""#include <cmath>
{head}
extern "C" int launch(const float* __restrict a, const float* __restrict b, float* __restrict y, long n) {{
  {BODY.replace("EXPRESSION", expression)}
  return 0;
}}
"""


DIFFERENT = {
    "operands swapped": (loop("a[i] - b[i]"), loop("b[i] - a[i]")),
    "arguments of a call swapped": (loop("std::pow(a[i], b[i])"), loop("std::pow(b[i], a[i])")),
    "constant": (loop("a[i] * 0.5f"), loop("a[i] * 0.25f")),
    "constant added": (loop("a[i] + 1.0f"), loop("a[i] + 1.0000001f")),
    "other function of libm": (loop("std::sin(a[i])"), loop("std::cos(a[i])")),
    "comparison": (loop("a[i] < b[i] ? 1.f : 0.f"), loop("a[i] <= b[i] ? 1.f : 0.f")),
    "ordered comparison": (loop("a[i] > b[i] ? a[i] : 0.f"), loop("!(a[i] <= b[i]) ? a[i] : 0.f")),
    "maximum": (loop("a[i] > b[i] ? a[i] : b[i]"), loop("a[i] < b[i] ? a[i] : b[i]")),
    "table": (
        loop("a[i] * t[i & 15]", "static const float t[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};"),
        loop("a[i] * t[i & 15]", "static const float t[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17};"),
    ),
    "which table": (
        loop("t[i & 3] - u[i & 3]", "static const float t[4] = {1, 2, 3, 4}, u[4] = {5, 6, 7, 8};"),
        loop("u[i & 3] - t[i & 3]", "static const float t[4] = {1, 2, 3, 4}, u[4] = {5, 6, 7, 8};"),
    ),
    "initial value": (
        loop("a[i] + s++", "static float s = 1;"),
        loop("a[i] + s++", "static float s = 2;"),
    ),
    "thread-local initial value": (
        loop("a[i] + s++", "static thread_local float s = 1;"),
        loop("a[i] + s++", "static thread_local float s = 2;"),
    ),
    "constructor": (
        loop("a[i] * t[i & 3]", "static float t[4]; __attribute__((constructor)) static void fill() { t[1] = 2; }"),
        loop("a[i] * t[i & 3]", "static float t[4]; __attribute__((constructor)) static void fill() { t[1] = 3; }"),
    ),
    "callee": (
        loop("f(a[i])", "__attribute__((noinline)) static float f(float v) { return v * v; }"),
        loop("f(a[i])", "__attribute__((noinline)) static float f(float v) { return v * v + v; }"),
    ),
    "order of callees": (
        loop(
            "f(g(a[i]))",
            "__attribute__((noipa)) static float f(float v) { return v * v; }\n"
            "__attribute__((noipa)) static float g(float v) { return v + v; }",
        ),
        loop(
            "g(f(a[i]))",
            "__attribute__((noipa)) static float f(float v) { return v * v; }\n"
            "__attribute__((noipa)) static float g(float v) { return v + v; }",
        ),
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("flags", [(V3,), (V4, "-ffast-math", "-mprefer-vector-width=512")], ids=["v3", "v4"])
def test_different_work_has_different_digests(name: str, flags: tuple[str, ...], compile_cpp: Compile) -> None:
    first, second = DIFFERENT[name]
    if name == "ordered comparison" and "-ffast-math" in flags:  # without NaN the two are one
        assert digest(compile_cpp(first, *flags)) == digest(compile_cpp(second, *flags))
        return
    assert digest(compile_cpp(first, *flags)) != digest(compile_cpp(second, *flags))


def test_unrolling_and_the_instruction_set_change_the_digest(compile_cpp: Compile) -> None:
    text = loop("a[i] * b[i]")
    flags = ((V3,), (V3, "-funroll-loops"), (V4, "-mprefer-vector-width=512"), ("-march=x86-64",))
    assert len({digest(compile_cpp(text, *chosen)) for chosen in flags}) == 4


def test_stripping_changes_no_digest(compile_cpp: Compile) -> None:
    for text in (ROWS, loop("std::sin(a[i])"), DIFFERENT["table"][0]):
        assert digest(compile_cpp(text, V3)) == digest(compile_cpp(text, V3, "-s"))


def assembly(*lines: str) -> str:
    body = "\\n".join(
        (".text", ".globl launch", ".type launch, @function", "launch:", *lines, ".size launch, .-launch")
    )
    return f'asm("{body}");'


def test_free_registers_are_masked(compile_cpp: Compile) -> None:
    def text(number: str, vector: str) -> str:
        return assembly(
            f"mov 8(%rdi), %{number}",
            f"vmovups (%rdi,%{number}), %{vector}",
            f"vaddps %{vector}, %{vector}, %{vector}",
            f"vmovups %{vector}, (%rsi)",
            "xor %eax, %eax",
            "ret",
        )

    base = digest(compile_cpp(text("r8", "ymm9")))
    assert base == digest(compile_cpp(text("r9", "ymm8")))
    assert base == digest(compile_cpp(text("rcx", "ymm15")))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("vmovups (%rdi), %ymm8",), ("vmovups (%rsi), %ymm8",)),
        (("vaddps %ymm2, %ymm2, %ymm8",), ("vaddps %ymm3, %ymm3, %ymm8",)),
        (("vmovups (%rdi), %ymm8",), ("vmovups (%rdi), %xmm8",)),
        (("mov (%rdi), %r8",), ("mov (%rdi), %r8d",)),
        (("mov (%rdi), %al",), ("mov (%rdi), %ah",)),
        (
            ("mov (%rdi), %r8", "mov (%rdi), %r9", "add %r8, %r9", "mov %r9, (%rdx)"),
            ("mov (%rdi), %r8", "mov (%rdi), %r9", "add %r8, %r9", "mov %r8, (%rdx)"),
        ),
        (("mov (%rdi), %rax",), ("mov (%rdi), %rdx",)),
        (("mov (%rdi), %rcx", "shl %cl, %rax"), ("mov (%rdi), %r8", "shl %cl, %rax")),
        (("lock incq (%rdi)",), ("incq (%rdi)",)),
        (("rep stosb",), ("stosb",)),
        (("vaddps {rn-sae}, %zmm8, %zmm8, %zmm8",), ("vaddps {rz-sae}, %zmm8, %zmm8, %zmm8",)),
        (("vaddps %zmm8, %zmm8, %zmm8{%k1}",), ("vaddps %zmm8, %zmm8, %zmm8{%k1}{z}",)),
        (("vcmpps $17, %ymm8, %ymm9, %ymm9",), ("vcmpps $1, %ymm8, %ymm9, %ymm9",)),
        (("vdpbf16ps %zmm8, %zmm8, %zmm8{%k1}",), ("vdpbf16ps %zmm8, %zmm8, %zmm8{%k1}{z}",)),
        (("vpshufd $1, %ymm8, %ymm8",), ("vpshufd $2, %ymm8, %ymm8",)),
        (("mov 8(%rdi), %r8",), ("mov 16(%rdi), %r8",)),
        (("mov (%rdi,%r8,4), %r9",), ("mov (%rdi,%r8,8), %r9",)),
        (("mov %fs:8, %r9",), ("mov %gs:8, %r9",)),
        (("1: dec %rdi", "jne 1b"), ("1: dec %rdi", "je 1b")),
        (("1: dec %rdi", "dec %rdi", "jne 1b"), ("dec %rdi", "1: dec %rdi", "jne 1b")),
    ],
)
def test_registers_and_details_that_carry_meaning_stay(
    one: tuple[str, ...], other: tuple[str, ...], compile_cpp: Compile
) -> None:
    first, second = compile_cpp(assembly(*one, "ret")), compile_cpp(assembly(*other, "ret"))
    assert digest(first) != digest(second)


def test_a_preserved_register_is_no_scratch_register(compile_cpp: Compile) -> None:
    def text(register: str) -> str:
        return assembly("mov (%rdi), %" + register, f"mov %{register}, (%rsi)", "ret")

    assert digest(compile_cpp(text("r8"))) == digest(compile_cpp(text("r9")))
    assert digest(compile_cpp(text("r8"))) != digest(compile_cpp(text("r12")))


# decoding -----------------------------------------------------------------------------------------------------------

NEW_ENCODINGS = (
    "vdpbf16ps %zmm1, %zmm18, %zmm31",
    "vdpbf16ps 64(%rax,%r9,4), %zmm2, %zmm3{%k1}",
    "vdpbf16ps 4(%rdi){1to16}, %zmm2, %zmm3",
    "{vex} vpdpbusd %ymm1, %ymm2, %ymm3",
    "{vex} vpdpbusd 32(%r13), %ymm12, %ymm13",
    "{vex} vpdpwssds (%rsp), %xmm2, %xmm9",
    "vaddph %zmm1, %zmm2, %zmm3",
    "vfmadd231ph 128(%rip), %zmm2, %zmm3",
    "vfmadd132ph %ymm1, %ymm2, %ymm3",
    "vfnmadd213ph %xmm17, %xmm2, %xmm3",
    "vfmadd231sh %xmm1, %xmm2, %xmm3",
    "vcmpph $1, %zmm1, %zmm2, %k1",
    "vmovw %eax, %xmm1",
    "vmovsh (%rdi), %xmm1",
    "tdpbf16ps %tmm1, %tmm2, %tmm3",
    "tileloadd (%rdi,%rsi,1), %tmm1",
    "vrndscaleph $3, %zmm1, %zmm2",
    "vfpclassph $3, %zmm1, %k1",
    "vcvtneps2bf16 %zmm1, %ymm2",
)


def test_encodings_that_the_disassembler_lacks_are_decoded(compile_cpp: Compile) -> None:
    library = compile_cpp(assembly(*NEW_ENCODINGS, "ret"), "-nostartfiles")
    image = read_image(library)
    start = image.function_named("launch")
    assert start is not None
    decoder, address, seen = Decoder(image), start, list[str]()
    for _ in NEW_ENCODINGS:
        instruction = decoder.at(address)
        assert instruction is not None, seen
        seen.append(instruction.mnemonic)
        address = instruction.end
    last = decoder.at(address)
    assert last is not None and last.mnemonic == "ret", seen
    assert {"vdpbf16ps", "vpdpbusd", "vpdpwssds", "vaddph", "vfmadd231ph", "vfnmadd213ph", "vfmadd231sh", "tdp"} <= set(
        seen
    )


def test_instruction_borders_agree_with_objdump(compile_cpp: Compile) -> None:
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("binutils' objdump is not installed")
    library = compile_cpp(DEAD.replace("never_called", "launch"), V4, "-mprefer-vector-width=512")
    listing = subprocess.run(
        [objdump, "-d", "--no-show-raw-insn", str(library)], capture_output=True, text=True, check=True
    )
    expected = {int(m, 16) for m in re.findall(r"^ +([0-9a-f]+):\t", listing.stdout, re.MULTILINE)}
    program = read_program(read_image(library), "launch")
    found = {i.address for f in program.functions.values() for b in f.blocks.values() for i in b.instructions}
    assert found and found <= expected


# borders ------------------------------------------------------------------------------------------------------------


def test_a_missing_entry_point_is_an_error(compile_cpp: Compile) -> None:
    with pytest.raises(KernelError, match="expected a function 'start' in the library, found none"):
        describe_x86(compile_cpp(ROWS, V3), "start")


def test_what_is_no_library_is_an_error(tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("not a library")
    with pytest.raises(EvaluationError, match="expected an ELF shared library, found"):
        describe_x86(text)
    with pytest.raises(EvaluationError, match="expected a readable file, found No such file"):
        describe_x86(tmp_path / "absent.so")


def test_other_machines_are_described_from_source(compile_cpp: Compile) -> None:
    library = compile_cpp(ROWS, V3)
    report = describe(library, ROWS, "aarch64")
    assert report.descriptor.basis == "source"
    assert report.descriptor.cell == (1, 1, 2)
    assert report.code_digest == sections_digest(library)
    assert describe(library, ROWS, "x86_64") == describe_x86(library)


def test_the_digest_of_all_sections_sees_code_and_constants(compile_cpp: Compile) -> None:
    texts = (loop("a[i] - b[i]"), loop("b[i] - a[i]"), loop("a[i] * 0.5f"), loop("a[i] * 0.25f"))
    assert len({sections_digest(compile_cpp(text, V3)) for text in texts}) == 4
    assert sections_digest(compile_cpp(texts[0], V3)) == sections_digest(compile_cpp("// other\n" + texts[0], V3))
