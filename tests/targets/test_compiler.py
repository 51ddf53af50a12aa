from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from kernelworks.errors import EnvironmentLackError
from kernelworks.targets.compile import Compilation, compile_shared
from kernelworks.targets.compiler import find_toolchain
from kernelworks.targets.cpp import CppTarget
from kernelworks.targets.gate import BuildGate

REAL = shutil.which("g++") or shutil.which("clang++") or ""
CLANG = next((path for name in ("clang++", "clang++-15") if (path := shutil.which(name))), None)


@pytest.fixture
def only_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that alone is the PATH, and a home where nothing is remembered."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("KERNELWORKS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CXX", raising=False)
    return folder


def write_compiler(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\nPATH={os.defpath}:/usr/local/bin\n{script}\n")
    path.chmod(0o755)


def test_the_machines_compiler_has_a_version_and_openmp() -> None:
    toolchain = find_toolchain()
    assert toolchain.openmp
    assert [int(part) for part in toolchain.version.split(".")] > [7]
    assert toolchain.version in toolchain.label
    assert Path(toolchain.command[0]).is_absolute()


def test_cxx_comes_before_the_path_and_may_hold_arguments(only_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_compiler(only_path / "g++", "exit 1")
    monkeypatch.setenv("PATH", f"{only_path}:{os.defpath}")
    monkeypatch.setenv("CXX", f"{REAL} -DEXTRA='1 2'")
    assert find_toolchain().command == (REAL, "-DEXTRA=1 2")


@pytest.mark.parametrize("value", ["no-such-compiler", "'unclosed"])
def test_a_cxx_that_is_none_is_named(value: str, only_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_compiler(only_path / "g++", f'exec {REAL} "$@"')
    monkeypatch.setenv("CXX", value)
    with pytest.raises(EnvironmentLackError, match="CXX: expected"):
        find_toolchain()


def test_a_machine_without_compiler_is_told_what_to_install(only_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [p for p in os.sys.path if not (Path(p) / "ziglang").exists()])  # pyright: ignore
    probe = CppTarget().probe()
    assert not probe.usable
    assert probe.problem == "no C++ compiler was found"
    assert "apt-get install g++" in probe.mend


def test_a_broken_compiler_is_named_with_what_it_answered(only_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_compiler(only_path / "g++", "echo 'cannot execute cc1plus' >&2; exit 1")
    monkeypatch.setenv("CXX", "g++")
    probe = CppTarget().probe()
    assert not probe.usable
    assert str(only_path / "g++") in probe.problem
    assert "cannot execute cc1plus" in probe.problem
    assert probe.mend


def test_a_compiler_that_tells_its_version_and_cannot_build(only_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_compiler(
        only_path / "g++", f'case "$*" in *-dM*) exec {REAL} "$@";; esac\necho "g++: error: no headers" >&2; exit 1'
    )
    monkeypatch.setenv("CXX", "g++")
    probe = CppTarget().probe()
    assert not probe.usable
    assert "expected a compiler that builds a small program, found: no headers" in probe.problem


def test_a_broken_compiler_is_passed_over_for_the_next(only_path: Path) -> None:
    write_compiler(only_path / "g++", "exit 1")
    write_compiler(only_path / "clang++", f'exec {REAL} "$@"')
    assert find_toolchain().command == (str(only_path / "clang++"),)


def test_without_openmp_kernels_are_built_single_threaded_and_it_is_said(only_path: Path) -> None:
    refuse = 'for word; do [ "$word" = -fopenmp ] && { echo "error: no libgomp" >&2; exit 1; }; done'
    write_compiler(only_path / "g++", f'{refuse}\nexec {REAL} "$@"')
    probe = CppTarget().probe()
    if "clang" in probe.versions["compiler"]:  # The ziglang wheel is there, and has OpenMP.
        assert probe.usable
        return
    assert probe.usable
    assert "no OpenMP: kernels are built single-threaded" in probe.problem
    assert "OpenMP" in probe.mend
    assert not find_toolchain().openmp


def test_a_foreign_compiler_that_relaxes_arithmetic_is_refused(
    only_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_compiler(only_path / "icpx", f'exec {REAL} -D__INTEL_LLVM_COMPILER=1 "$@"')
    monkeypatch.setenv("CXX", "icpx")
    with pytest.raises(EnvironmentLackError, match="Intel's compiler"):
        find_toolchain()


def test_a_finding_is_remembered_until_the_compiler_changes(only_path: Path) -> None:
    log = only_path / "calls"
    write_compiler(only_path / "g++", f'echo call >> {log}; exec {REAL} "$@"')
    first = find_toolchain()
    calls = len(log.read_text().splitlines())
    assert find_toolchain() == first
    assert len(log.read_text().splitlines()) == calls
    write_compiler(only_path / "g++", f'echo call >> {log}; exec {REAL} "$@" # changed')
    assert find_toolchain().identity != first.identity
    assert len(log.read_text().splitlines()) == 2 * calls


def test_a_damaged_memory_is_no_obstacle(only_path: Path, tmp_path: Path) -> None:
    write_compiler(only_path / "g++", f'exec {REAL} "$@"')
    first = find_toolchain()
    for path in (tmp_path / "home" / "cache" / "toolchains").iterdir():
        path.write_text(json.dumps({"command": []}))
    assert find_toolchain() == first


@pytest.mark.skipif(CLANG is None, reason="no clang++ here")
def test_clang_builds_with_openmp(only_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", CLANG or "")
    monkeypatch.setenv("PATH", os.defpath)
    toolchain = find_toolchain()
    assert toolchain.family == "clang"
    text = '#include <cmath>\nextern "C" double launch(double x) { return std::exp(x); }\n'
    assert compile_shared(toolchain, BuildGate(), Compilation(text, toolchain.base_flags), tmp_path) is None


def test_a_compiler_sees_nothing_private(only_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_compiler(only_path / "g++", f'env >> {tmp_path}/seen; exec {REAL} "$@"')
    monkeypatch.setenv("MODEL_API_KEY", "open sesame")
    monkeypatch.setenv("CPATH", "/opt/headers")
    find_toolchain()
    seen = (tmp_path / "seen").read_text()
    assert "sesame" not in seen
    assert "CPATH=/opt/headers" in seen


def test_a_compiler_killed_by_the_host_is_tried_once_more_and_no_more(tmp_path: Path) -> None:
    toolchain = find_toolchain()
    counter = tmp_path / "calls"
    fake = tmp_path / "fake"
    write_compiler(fake, f"echo call >> {counter}; kill -KILL $$")
    killed = toolchain.model_copy(update={"command": (str(fake),)})
    folder = tmp_path / "build"
    folder.mkdir()
    failed = compile_shared(killed, BuildGate(), Compilation("", ()), folder)
    assert failed is not None
    assert (failed.said.environment, failed.lasting) == (True, False)
    assert "out of host memory while compiling" in failed.said.reason
    assert len(counter.read_text().splitlines()) == 2

    write_compiler(fake, f'[ -e {counter}.once ] || {{ touch {counter}.once; kill -KILL $$; }}\nexec {REAL} "$@"')
    text = 'extern "C" int launch() { return 0; }\n'
    assert compile_shared(killed, BuildGate(), Compilation(text, toolchain.base_flags), folder) is None
