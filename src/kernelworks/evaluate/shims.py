"""Small pieces of C++ that the harness builds for itself: once per text and compiler, kept in the user's home."""

from __future__ import annotations

import hashlib
import tempfile
from importlib.resources import files
from pathlib import Path

from kernelworks.errors import EnvironmentLackError
from kernelworks.home import home
from kernelworks.targets.compile import LIBRARY_NAME, Compilation, compile_shared
from kernelworks.targets.compiler import find_toolchain
from kernelworks.targets.gate import process_gate


def build_shim(name: str) -> Path | None:
    """The library of ``<name>.cpp`` beside this file; ``None`` where it cannot be built.

    The build waits for timings to end: have it done before the first of them.
    """
    text = files("kernelworks.evaluate").joinpath(f"{name}.cpp").read_text(encoding="utf-8")
    try:
        toolchain = find_toolchain().model_copy(update={"openmp_link": ("-pthread",)})
    except EnvironmentLackError:
        return None
    key = hashlib.sha256(repr((text, toolchain)).encode()).hexdigest()[:24]
    folder = home() / "cache" / "shims"
    library = folder / f"{name}-{key}.so"
    if library.exists():
        return library
    quiet = ("-fno-sanitize=undefined",) if toolchain.family == "zig" else ()
    build = Compilation(text, ("-O2", "-std=c++17", "-fPIC", *quiet))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            if compile_shared(toolchain, process_gate(), build, Path(scratch)) is not None:
                return None
            (Path(scratch) / LIBRARY_NAME).replace(library)  # whole or not at all, whoever else builds it
    except OSError:
        return None
    return library
