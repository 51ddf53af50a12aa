"""One candidate: text with front matter, where it came from, and the point of its parameters."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from pathlib import Path
from typing import Any

from kernelworks.data import Frozen
from kernelworks.errors import KernelFormatError
from kernelworks.kernel.expression import Scalar


class Language(StrEnum):
    """Languages of kernel files."""

    CPP = "cpp"
    SYCL = "sycl"
    OPENCL = "opencl"
    CUDA = "cuda"
    TRITON = "triton"
    PYTHON = "python"


class Contract(StrEnum):
    """How a kernel is called (docs/kernel-files.md)."""

    DEVICE = "device"
    FUNCTION = "function"
    MODULE = "module"


SUFFIXES: dict[str, Language] = {
    ".sycl.cpp": Language.SYCL,
    ".cpp": Language.CPP,
    ".cc": Language.CPP,
    ".cl": Language.OPENCL,
    ".cu": Language.CUDA,
    ".py": Language.PYTHON,
}

Params = dict[str, Scalar]
"""A point: a value for each param."""


class FrontMatter(Frozen):
    """The parsed front matter (docs/kernel-files.md has the table of keys)."""

    lang: Language
    contract: Contract
    idea: str = ""
    needs: tuple[str, ...] = ()
    covers: tuple[str, ...] = ()
    params: dict[str, tuple[Scalar, ...]] = {}
    constraints: tuple[str, ...] = ()
    flags: dict[str, tuple[str, ...]] = {}
    let: dict[str, str] = {}


class Origin(Frozen):
    """Who made the kernel, from what, and by which move."""

    proposer: str
    """``experts``, ``llm``, ``agent``, ``replay`` or ``file``."""
    parents: tuple[str, ...] = ()
    """Ids of kernels."""
    operator: str = ""
    """``seed``, ``mutate``, ``crossover`` or ``file``."""
    move: str = ""
    """What was changed against the first parent, in words."""
    recipe: dict[str, Any] = {}
    """The proposer's own notes: for the experts the knob settings, from which mutations start."""


class Kernel(Frozen):
    """One candidate. Equal text and params are the same kernel, whoever wrote it."""

    text: str
    front: FrontMatter
    params: Params = {}
    """Values chosen; a param that is missing takes its default for the case."""
    flags: dict[str, str] = {}
    """Compiler flags chosen; a missing one takes the first value listed."""
    origin: Origin
    path: str = ""
    """As the user gave it; empty for proposed kernels."""

    @property
    def id(self) -> str:
        """Content hash: 16 hex digits over text, params and flags."""
        point = repr((sorted(self.params.items()), sorted(self.flags.items())))
        return hashlib.sha256(f"{self.text}\0{point}".encode()).hexdigest()[:16]


def language_of(path: Path) -> Language:
    """Language by suffix.

    Raises:
        KernelFormatError: no language has this suffix.
    """
    for suffix, language in SUFFIXES.items():
        if path.name.endswith(suffix):
            return language
    raise KernelFormatError(1, f"a file name that ends in one of {', '.join(SUFFIXES)}", repr(path.name))
