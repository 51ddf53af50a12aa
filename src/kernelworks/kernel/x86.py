"""Descriptor and code digest of an x86-64 shared library (docs/descriptors.md says what each level means)."""

from __future__ import annotations

from pathlib import Path

from kernelworks.errors import EvaluationError
from kernelworks.kernel.describe import CodeReport
from kernelworks.kernel.elf import read_image
from kernelworks.kernel.x86_cfg import read_constructors, read_program
from kernelworks.kernel.x86_compute import read_compute
from kernelworks.kernel.x86_digest import code_digest
from kernelworks.kernel.x86_fma import walks
from kernelworks.kernel.x86_hot import find_sites
from kernelworks.kernel.x86_memory import read_memory
from kernelworks.kernel.x86_narrow import read_narrow
from kernelworks.kernel.x86_parallel import read_parallelism
from kernelworks.kernel.x86_rules import Rules


def describe_x86(library: Path, entry: str = "launch") -> CodeReport:
    """Read the code that is reachable from the entry point of an x86-64 ELF shared library.

    Nothing is executed. pyelftools and capstone are loaded on the first call.

    Raises:
        KernelError: there is no such entry point, or its code cannot be followed.
        EvaluationError: the file cannot be read or is no x86-64 ELF file.
    """
    image = read_image(library)
    if image.machine != "EM_X86_64":
        raise EvaluationError(f"library {library}: expected x86-64 code, found {image.machine}")
    program = read_program(image, entry)
    sites = find_sites(program)
    chains = [walk for site in sites.values() for walk in walks(site)]
    rules = Rules()
    read_memory(sites.values(), chains, rules)
    read_compute(sites.values(), chains, rules)
    read_parallelism(program, sites, rules)
    descriptor = rules.describe().model_copy(update={"narrow": read_narrow(sites.values())})
    return CodeReport(descriptor=descriptor, code_digest=code_digest(program, read_constructors(image)))
