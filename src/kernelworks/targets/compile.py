"""From C++ text to a shared library with a known compiler: compile, link, and say what went wrong."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kernelworks.data import Frozen
from kernelworks.targets.base import BuildFailure, Diagnostic
from kernelworks.targets.diagnostics import first_error, parse_diagnostics
from kernelworks.targets.gate import BuildGate
from kernelworks.targets.process import Finished, Limits, run_compiler

SOURCE_NAME = "kernel.cpp"
LIBRARY_NAME = "kernel.so"
_OBJECT_NAME = "kernel.o"
_MESSAGE_FLAGS = {
    "gcc": ("-fmax-errors=20", "-fdiagnostics-color=never"),
    "clang": ("-ferror-limit=20", "-fno-color-diagnostics"),
    "zig": ("-ferror-limit=20", "-fno-color-diagnostics"),
}

SEARCH_VARIABLES = (
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "COMPILER_PATH",
    "GCC_EXEC_PREFIX",
    "LD_LIBRARY_PATH",
)
"""Variables that change what a compiler finds: passed on, and part of a build's key."""
# Nothing else reaches a compiler that works on a stranger's text: keys of model providers live in the environment.
_PASSED_ON = (*SEARCH_VARIABLES, "PATH", "HOME", "XDG_CACHE_HOME", "ZIG_GLOBAL_CACHE_DIR")


class Toolchain(Frozen):
    """A compiler that was found to work, and how it does OpenMP."""

    command: tuple[str, ...]
    """The first word is an absolute path."""
    family: Literal["gcc", "clang", "zig"]
    version: str
    identity: str
    """Changes when the compiler's file does."""
    openmp: bool
    openmp_compile: tuple[str, ...]
    openmp_link: tuple[str, ...]

    @property
    def label(self) -> str:
        """Name and version for people."""
        name = "zig c++ (clang)" if self.family == "zig" else Path(self.command[0]).name
        return f"{name} {self.version}"

    @property
    def base_flags(self) -> tuple[str, ...]:
        """Compile arguments of every kernel, before its own flags."""
        # zig instruments for undefined behaviour unless told otherwise.
        plain = ("-fno-sanitize=undefined",) if self.family == "zig" else ()
        return ("-O3", "-march=native", *self.openmp_compile, "-std=c++17", "-fPIC", *plain)

    @property
    def link_flags(self) -> tuple[str, ...]:
        """Link arguments. Never any of a kernel: fast-math at link sets flush-to-zero for the loading process."""
        return ("-shared", "-Wl,-z,defs", *self.openmp_link)


@dataclass(frozen=True)
class Compilation:
    """One text to build. ``flags`` are all compile arguments except names of files and the form of messages."""

    text: str
    flags: tuple[str, ...]
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Failed:
    """Why there is no library. ``lasting``: another try under the same key would fail in the same way."""

    said: BuildFailure
    lasting: bool


def compile_shared(toolchain: Toolchain, gate: BuildGate, compilation: Compilation, folder: Path) -> Failed | None:
    """Build ``LIBRARY_NAME`` in ``folder``; None on success.

    The source is written as it is, so lines of messages are lines of the text. Object code does not depend on the
    folder. A compiler that was killed by the host is tried once more, alone.
    """
    source = folder / SOURCE_NAME
    source.write_bytes(compilation.text.encode("utf-8"))
    compile_words = [*compilation.flags, *_MESSAGE_FLAGS[toolchain.family], "-c", SOURCE_NAME, "-o", _OBJECT_NAME]
    failure = _run(toolchain, gate, compilation, folder, compile_words)
    if failure is None:
        link_words = [_OBJECT_NAME, *toolchain.link_flags, "-o", LIBRARY_NAME]
        failure = _run(toolchain, gate, compilation, folder, link_words)
    (folder / _OBJECT_NAME).unlink(missing_ok=True)
    source.unlink()
    return failure


def compiler_environment(folder: Path) -> dict[str, str]:
    """The environment of a compiler: English messages, temporary files in ``folder``, nothing private."""
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {**passed, "LC_ALL": "C", "TMPDIR": str(folder), "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}


def _run(
    toolchain: Toolchain, gate: BuildGate, compilation: Compilation, folder: Path, words: list[str]
) -> Failed | None:
    argv = [*toolchain.command, *words]
    env = compiler_environment(folder)
    finished = run_compiler(gate, argv, cwd=folder, env=env, limits=compilation.limits)
    if finished.outcome == "killed":
        finished = run_compiler(gate, argv, cwd=folder, env=env, limits=compilation.limits, alone=True)
    return None if finished.ok else _failure(finished, compilation.limits)


def _failure(finished: Finished, limits: Limits) -> Failed:
    diagnostics = parse_diagnostics(finished.output)
    environment = False
    if finished.outcome == "killed":
        reason, environment = "out of host memory while compiling: the compiler was killed twice, once alone", True
    elif finished.outcome == "stopped":
        reason, environment = "the build was stopped", True
    elif finished.outcome == "out_of_time":
        reason = f"the compiler was ended at its limit of {limits.time_s:g} s"
    elif finished.outcome == "out_of_memory":
        reason = f"the compiler was ended at its limit of {limits.memory_bytes / 2**30:g} GiB of memory"
    elif "No space left on device" in finished.output:
        reason, environment = "no space left on the device that holds the build folder", True
    else:
        reason = _first_reason(finished, diagnostics)
    said = BuildFailure(diagnostics=diagnostics, log=finished.output, reason=reason, environment=environment)
    return Failed(said, lasting=not environment and finished.outcome != "out_of_time")


def _first_reason(finished: Finished, diagnostics: tuple[Diagnostic, ...]) -> str:
    error = first_error(diagnostics)
    if error is None:
        last = next((line for line in reversed(finished.output.splitlines()) if line.strip()), "no message")
        return f"the compiler ended with status {finished.returncode}: {last.strip()[:200]}"
    place = f"{error.file}:{error.line}: " if error.line else ""
    more = sum(d.severity.endswith("error") for d in diagnostics) - 1
    others = f" (and {more} more error{'s' if more > 1 else ''})" if more else ""
    return f"{place}{error.message}{others}"
