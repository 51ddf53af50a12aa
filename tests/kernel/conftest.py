"""Kernels compiled with the machine's own g++; nothing that is compiled here is run."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.load_profile("untimed")

Compile = Callable[..., Path]
BASE_FLAGS = ("-O3", "-fopenmp", "-fPIC", "-shared", "-std=c++17")


@pytest.fixture(scope="session")
def compile_cpp(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """``compile_cpp(text, *flags)`` gives the shared library; equal calls compile once."""
    folder = tmp_path_factory.mktemp("kernels")
    built: dict[str, Path] = {}

    def compile_text(text: str, *flags: str) -> Path:
        name = hashlib.sha256("\0".join((text, *flags)).encode()).hexdigest()[:16]
        if name not in built:
            source, library = folder / f"{name}.cpp", folder / f"{name}.so"
            source.write_text(text)
            command = ["g++", *BASE_FLAGS, *flags, str(source), "-o", str(library)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, done.stderr
            built[name] = library
        return built[name]

    return compile_text
