"""The descriptor and the code digest of a built kernel, from its machine code or, on other CPUs, its source."""

from __future__ import annotations

import platform
from pathlib import Path

from kernelworks.data import Frozen
from kernelworks.kernel.descriptor import Descriptor
from kernelworks.kernel.model import Language

X86_MACHINES = frozenset(("x86_64", "amd64", "AMD64"))


class CodeReport(Frozen):
    """What a built kernel is."""

    descriptor: Descriptor
    code_digest: str
    """32 hex digits; kernels with equal digests compute the same and are not evaluated twice."""


def describe(
    library: Path, text: str, machine: str | None = None, *, language: Language = Language.CPP, entry: str = "launch"
) -> CodeReport:
    """Describe a kernel that was built for the ``function`` contract.

    Args:
        library: The shared library.
        text: The kernel's source, read where ``machine`` has no disassembler here.
        machine: As ``platform.machine()`` says; the local one by default.
        language: Of ``text``.
        entry: The entry point.

    Raises:
        KernelError: the library has no such entry point, or the source no such function.
        EvaluationError: the library cannot be read.
    """
    if (machine or platform.machine()) in X86_MACHINES:
        from kernelworks.kernel.x86 import describe_x86

        return describe_x86(library, entry)
    from kernelworks.kernel.elf import sections_digest
    from kernelworks.kernel.source_descriptor import describe_source

    return CodeReport(descriptor=describe_source(text, language, entry), code_digest=sections_digest(library))
