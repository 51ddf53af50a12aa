from __future__ import annotations

from pathlib import Path

import pytest
from support.builds import kernel_text, make_kernel, scale_task

from kernelworks.targets.base import SanitizedBuild, SanitizingTarget
from kernelworks.targets.cache import BuildCache
from kernelworks.targets.cpp import CppTarget
from kernelworks.targets.gate import process_gate
from kernelworks.targets.sanitize import find_runtime

COPY = kernel_text("y[i] = x[i] * K;", front='params: {K: [2]}\nflags: {MATH: ["-ffast-math"]}\n')


@pytest.fixture
def target(tmp_path: Path) -> CppTarget:
    return CppTarget(cache=BuildCache(tmp_path / "builds"))


def test_such_a_build_keeps_the_kernels_flags_and_has_its_runtime(target: CppTarget, tmp_path: Path) -> None:
    assert isinstance(target, SanitizingTarget)
    built = target.build_sanitized(scale_task(), make_kernel(COPY), tmp_path)
    runtime = find_runtime(target.toolchain(), process_gate(), tmp_path)
    if isinstance(runtime, str):
        assert built == runtime
        return
    assert isinstance(built, SanitizedBuild), built
    assert {"-ffast-math", "-DK=2", "-march=native", "-fsanitize=address,undefined", "-g"} <= set(built.flags)
    assert built.flags.index("-O1") > built.flags.index("-O3")
    assert built.environment["LD_PRELOAD"] == str(built.runtime) == str(runtime)
    assert b"__asan_" in built.path.read_bytes()


def test_a_build_that_fails_says_why(target: CppTarget, tmp_path: Path) -> None:
    text = kernel_text("y[i] = x[i];", head="#ifdef __SANITIZE_ADDRESS__\n#error not with sanitizers\n#endif")
    said = target.build_sanitized(scale_task(), make_kernel(text), tmp_path)
    assert isinstance(said, str)
    assert "not with sanitizers" in said or "without the runtime" in said


def test_a_compiler_without_the_runtime_is_named(target: CppTarget, tmp_path: Path) -> None:
    bare = target.toolchain().model_copy(update={"family": "zig"})
    said = find_runtime(bare, process_gate(), tmp_path)
    assert isinstance(said, str)
    assert said.endswith("comes without the runtime of AddressSanitizer")
