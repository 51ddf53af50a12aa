"""Kernels that are right by luck, in a real build with sanitizers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.candidates import on_x86
from support.evaluations import RIGHT, kernel

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.endings import EndedEvaluation
from kernelworks.evaluate.evaluation import Evaluation
from kernelworks.evaluate.sanitizers import check_sanitized
from kernelworks.kernel.verdict import Finding, Status
from kernelworks.targets.base import SanitizedBuild, SanitizingTarget
from kernelworks.targets.cpp import CppTarget

CASES = frozenset({"main", "odd", "seven", "eight"})


@pytest.fixture(scope="module")
def sanitizing(horner_bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Skips where the compiler brings no runtime: that it is said there is another test's."""
    target = horner_bench.target
    assert isinstance(target, SanitizingTarget)
    folder = tmp_path_factory.mktemp("sanitized")
    built = target.build_sanitized(horner_bench.task, kernel(RIGHT), folder)
    if not isinstance(built, SanitizedBuild):
        pytest.skip(built)
    return horner_bench


def findings(bench: Bench, body: str, head: str = "", front: str = "") -> tuple[Finding, ...]:
    return check_sanitized(bench, kernel(body, head=head, front=front), CASES)


def line_of(body: str, part: str, head: str = "") -> int:
    lines = kernel(body, head=head).text.splitlines()
    return next(number for number, line in enumerate(lines, 1) if part in line)


def test_a_clean_kernel_has_no_findings(sanitizing: Bench) -> None:
    assert findings(sanitizing, "#pragma omp parallel for\n" + RIGHT.strip()) == ()


WRONG = {
    "heap": (
        "float* scratch = (float*)malloc(4 * n);\n scratch[n] = x[0]; free(scratch);\n",
        "heap-buffer-overflow: a write of 4 bytes at kernel.cpp:",
        "0 bytes past the end of a block of 28 bytes from line",
        "",
    ),
    "stack": (
        "float tile[8];\n for (volatile int64_t i = 0; i <= (n < 8 ? n + 1 : 7); i = i + 1) tile[i] = x[0];\n",
        "stack-buffer-overflow: a write of 4 bytes at kernel.cpp:",
        "overflows the variable tile of line",
        "",
    ),
    "table": (
        "volatile float sum = 0;\n for (int i = 0; i <= 16; i++) sum = sum + table[i * (int)(n > 0)];\n",
        "global-buffer-overflow: a read of 4 bytes at kernel.cpp:",
        "0 bytes past the end of the table table",
        "static float table[16] = {1.0f};",
    ),
    "after free": (
        "volatile float* gone = (float*)malloc(64);\n free((void*)gone); gone[3] = x[0];\n",
        "heap-use-after-free: a write of 4 bytes at kernel.cpp:",
        "inside a block of 64 bytes",
        "",
    ),
    "tensor": (
        "volatile float* end = y + n;\n end[0] = 1.0f;\n",
        "use-after-poison: a write of 4 bytes at kernel.cpp:",
        "0 bytes past the end of y",
        "",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_error_in_memory_is_wrong_and_has_its_line(sanitizing: Bench, name: str) -> None:
    body, said, near, head = WRONG[name]
    with pytest.raises(EndedEvaluation) as caught:
        findings(sanitizing, body + RIGHT, head)
    assert caught.value.status is Status.WRONG
    finding = caught.value.findings[0]
    assert finding.kind == "address_sanitizer"
    assert finding.message.startswith(said), finding
    assert near in finding.message, finding
    line = int(finding.message[len(said) :].split(",")[0].split(" ")[0])
    second = next(part for part in body.splitlines() if part.startswith(" "))
    assert line == line_of(body + RIGHT, second.strip()[:30], head)


def test_a_read_beside_a_tensor_is_a_finding(sanitizing: Bench) -> None:
    body = "volatile float seen = x[n]; (void)seen;\n"
    (finding,) = findings(sanitizing, body + RIGHT)
    assert finding.kind == "over_read"
    assert "0 bytes past the end of x" in finding.message and "no answer depends on it" in finding.message
    assert finding.evidence["sites"][0]["line"] == line_of(body, "seen = x[n]")


def test_undefined_behaviour_is_a_finding(sanitizing: Bench) -> None:
    body = "volatile int large = 2147483647;\n volatile int more = large + (int)n; (void)more;\n"
    (finding,) = findings(sanitizing, body + RIGHT)
    assert finding.kind == "undefined_behaviour"
    assert "signed integer overflow" in finding.message
    assert finding.evidence["sites"][0]["line"] == line_of(body, "large + (int)n")


@on_x86
def test_a_misaligned_vector_load_is_undefined_behaviour_at_the_callers_line(sanitizing: Bench) -> None:
    head = "#include <immintrin.h>"
    body = "if (n == 65536) return 0;\n alignas(64) static float kept[32]; kept[0] = x[0];\n"
    body += " volatile __m128i seen = _mm_load_si128((const __m128i*)(kept + 1)); (void)seen;\n"
    found = findings(sanitizing, body + RIGHT, head)
    assert found[0].kind == "undefined_behaviour"
    assert "misaligned" in found[0].message
    assert found[0].evidence["sites"][0]["line"] == line_of(body, "_mm_load_si128", head)


def test_flags_and_params_are_kept(sanitizing: Bench) -> None:
    front = "params: {B: [3]}\nflags: {MATH: [-ffast-math]}"
    head = 'static_assert(B == 3, "");\n#ifndef __FAST_MATH__\n#error fast-math was dropped\n#endif'
    assert findings(sanitizing, RIGHT, head, front) == ()


def test_an_answer_that_hangs_on_the_build_is_told(sanitizing: Bench) -> None:
    body = RIGHT + "\n#ifdef __SANITIZE_ADDRESS__\n y[0] = 0;\n#endif\n"
    (finding,) = findings(sanitizing, body)
    assert finding.kind == "depends_on_build"
    assert "a build at -O1 answers wrongly" in finding.message


def test_what_could_not_be_checked_is_said(
    horner_bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (finding,) = findings(horner_bench, RIGHT + "\n#ifdef __SANITIZE_ADDRESS__\n#error no\n#endif\n")
    if finding.kind != "sanitizers":
        pytest.fail(str(finding))
    assert finding.message.startswith("not checked: ")

    class Bare:
        """A target without such builds."""

        name = "bare"
        probe = build = hardware = measure_again = CppTarget.probe

    (finding,) = check_sanitized(replace(horner_bench, target=Bare()), kernel(RIGHT), CASES)  # type: ignore[arg-type]
    assert finding.message == "not checked: target bare has no sanitizers"


def test_an_evaluation_may_ask_for_it(sanitizing: Bench) -> None:
    body = WRONG["heap"][0] + RIGHT
    lucky = Evaluation(sanitizing, kernel(body)).run(None)
    assert lucky.status is Status.CORRECT
    assert "sanitize" not in lucky.stages_ms
    caught = Evaluation(sanitizing, kernel(body), sanitize=True).run(None)
    assert (caught.status, caught.findings[0].kind) == (Status.WRONG, "address_sanitizer")
    assert list(caught.stages_ms) == ["static", "build", "check", "sanitize"]
