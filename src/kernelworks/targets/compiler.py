"""Finding a C++ compiler that works: ``CXX``, then ``PATH``, then the ``ziglang`` wheel."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from kernelworks.errors import EnvironmentLackError
from kernelworks.home import home
from kernelworks.targets.compile import Compilation, Toolchain, compile_shared, compiler_environment
from kernelworks.targets.gate import BuildGate, process_gate
from kernelworks.targets.process import Limits, run_compiler

PATH_NAMES = ("g++", "clang++", "c++")
MEND = "install g++ (apt-get install g++), or pip install 'kernelworks[zig]', or set CXX to a C++17 compiler"
OPENMP_MEND = "install the compiler's OpenMP library (apt-get install libomp-dev, or pip install intel-openmp)"

# zig builds its C++ library on first use: a minute on an idle machine, several on a busy one.
_TRIAL_LIMITS = Limits(time_s=900.0)
_TRIAL = """#include <cmath>
#include <cstdint>
#include <vector>
#ifdef KERNELWORKS_TRIAL_OPENMP
#include <omp.h>
#endif
extern "C" int launch(const float* x, float* y, int64_t n) {
    std::vector<float> shift(1, 1.0f);
#pragma omp parallel for
    for (int64_t i = 0; i < n; ++i) y[i] = std::exp(x[i]) + shift[0];
#ifdef KERNELWORKS_TRIAL_OPENMP
    return omp_get_num_threads() - 1;
#else
    return 0;
#endif
}
"""
_MACRO = re.compile(r"#define (__\w+) (.*)")
_FOREIGN = {"__INTEL_LLVM_COMPILER": "Intel's compiler", "__NVCOMPILER": "NVIDIA's compiler"}
"""Compilers that relax floating point without being asked."""


@dataclass(frozen=True)
class _OpenMP:
    """One way to switch OpenMP on."""

    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]


def find_toolchain(gate: BuildGate | None = None) -> Toolchain:
    """The first compiler with OpenMP that builds a small program, else the first that builds it single-threaded.

    With ``CXX`` set only that one is tried. What was found is remembered on disk for as long as the compiler's file
    stays the same.

    Raises:
        EnvironmentLackError: no compiler, or none that works; the message says what each one answered.
    """
    gate = gate or process_gate()
    problems: list[str] = []
    single_threaded: Toolchain | None = None
    for command in _commands():
        found = _examine(command, gate)
        if isinstance(found, str):
            problems.append(found)
        elif found.openmp:
            return found
        else:
            single_threaded = single_threaded or found
    if single_threaded:
        return single_threaded
    raise EnvironmentLackError("; ".join(problems) or "no C++ compiler was found", mend=MEND)


def _commands() -> Iterator[tuple[str, ...]]:
    chosen = os.environ.get("CXX", "").strip()
    if chosen:
        try:
            words = shlex.split(chosen)
        except ValueError as error:
            raise EnvironmentLackError(f"CXX: expected a command, found {chosen!r} ({error})", mend=MEND) from error
        path = shutil.which(words[0])
        if path is None:
            raise EnvironmentLackError(f"CXX: expected a compiler, found {words[0]!r}, which does not exist", mend=MEND)
        yield (str(Path(path).absolute()), *words[1:])
        return
    for name in PATH_NAMES:
        path = shutil.which(name)
        if path is not None:
            yield (str(Path(path).absolute()),)
    spec = find_spec("ziglang")
    if spec is not None and spec.origin is not None:
        zig = Path(spec.origin).with_name("zig")
        if zig.exists():
            yield (str(zig), "c++")


def _examine(command: tuple[str, ...], gate: BuildGate) -> Toolchain | str:
    """What this command is and can do; one sentence if it does not work."""
    identity = _identity(command)
    ways = _openmp_ways(zig=Path(command[0]).name == "zig")
    remembered = home() / "cache" / "toolchains" / f"{_digest(command, identity, ways, os.environ.get('PATH'))}.json"
    try:
        return Toolchain.model_validate_json(remembered.read_bytes())
    except (OSError, ValidationError):
        pass
    with tempfile.TemporaryDirectory(prefix="kernelworks-") as folder:
        macros = _macros(command, gate, Path(folder))
        if isinstance(macros, str):
            return macros
        foreign = next((name for macro, name in _FOREIGN.items() if macro in macros), None)
        if foreign:
            return f"{command[0]}: expected g++ or clang++, found {foreign}"
        bare = _describe(command, macros, identity)
        found = _try_openmp(bare, ways, gate, Path(folder))
    # A lack is not remembered: it may be mended without a change of the compiler's file.
    if isinstance(found, Toolchain) and found.openmp:
        _remember(found, remembered)
    return found


def _identity(command: tuple[str, ...]) -> str:
    """Size and date of every file that the command names: of a wrapper and of the compiler behind it."""
    files = [path for word in command if (path := shutil.which(word)) is not None]
    return " ".join(f"{status.st_size}-{status.st_mtime_ns}" for status in map(os.stat, files))


def _macros(command: tuple[str, ...], gate: BuildGate, folder: Path) -> dict[str, str] | str:
    """The predefined macros: every compiler of the two families tells its version there."""
    argv = [*command, "-dM", "-E", "-x", "c++", "/dev/null"]
    env = compiler_environment(folder)
    finished = run_compiler(gate, argv, cwd=folder, env=env, limits=_TRIAL_LIMITS)
    matches = (_MACRO.fullmatch(line) for line in finished.output.splitlines())
    macros = {match[1]: match[2] for match in matches if match}
    if not finished.ok or "__GNUC__" not in macros:
        found = next((line for line in finished.output.splitlines() if line.strip()), "no answer")
        return f"{command[0]}: expected a C++ compiler that tells its version, found {found.strip()[:160]!r}"
    return macros


def _describe(command: tuple[str, ...], macros: Mapping[str, str], identity: str) -> Toolchain:
    family: Literal["gcc", "clang", "zig"] = "gcc"
    names = ("__GNUC__", "__GNUC_MINOR__", "__GNUC_PATCHLEVEL__")
    if "__clang_major__" in macros:
        family = "zig" if Path(command[0]).name == "zig" else "clang"
        names = ("__clang_major__", "__clang_minor__", "__clang_patchlevel__")
    version = ".".join(macros.get(name, "0") for name in names)
    return Toolchain(
        command=command,
        family=family,
        version=version,
        identity=identity,
        openmp=False,
        openmp_compile=(),
        openmp_link=(),
    )


def _try_openmp(bare: Toolchain, ways: tuple[_OpenMP, ...], gate: BuildGate, folder: Path) -> Toolchain | str:
    for way in ways:
        toolchain = bare.model_copy(
            update={"openmp": True, "openmp_compile": way.compile_flags, "openmp_link": way.link_flags}
        )
        trial = Compilation(_TRIAL, (*toolchain.base_flags, "-DKERNELWORKS_TRIAL_OPENMP"), _TRIAL_LIMITS)
        if compile_shared(toolchain, gate, trial, folder) is None:
            return toolchain
    single = bare.model_copy(update={"openmp_compile": ("-fopenmp-simd",)})
    failure = compile_shared(single, gate, Compilation(_TRIAL, single.base_flags, _TRIAL_LIMITS), folder)
    if failure is None:
        return single
    return f"{bare.command[0]}: expected a compiler that builds a small program, found: {failure.said.reason}"


def _openmp_ways(*, zig: bool) -> tuple[_OpenMP, ...]:
    """The compiler's own library first (zig has none), then the one of the ``intel-openmp`` wheel."""
    own = () if zig else (_OpenMP(("-fopenmp",), ("-fopenmp",)),)
    try:
        files = distribution("intel-openmp").files or []
    except PackageNotFoundError:
        return own
    headers = [Path(str(f.locate())).resolve().parent for f in files if f.name == "omp.h"]
    libraries = [Path(str(f.locate())).resolve() for f in files if f.name == "libiomp5.so"]
    if not headers or not libraries or not libraries[0].exists():
        return own
    folder = libraries[0].parent
    return (
        *own,
        _OpenMP(("-fopenmp", f"-I{headers[0]}"), (f"-L{folder}", "-liomp5", f"-Wl,-rpath,{folder}")),
    )


def _remember(toolchain: Toolchain, path: Path) -> None:
    """Keep a finding; a folder that cannot be written costs a second trial next time, no more."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(toolchain.model_dump_json())
        Path(file.name).replace(path)
    except OSError:
        return


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
