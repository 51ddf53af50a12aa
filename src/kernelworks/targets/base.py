"""The contract of a target: a language on a device. Plug-in point ``kernelworks.targets``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kernelworks.data import Frozen
from kernelworks.kernel.descriptor import Descriptor
from kernelworks.kernel.hardware import Hardware
from kernelworks.kernel.model import Kernel
from kernelworks.task.model import Task


class Probe(Frozen):
    """What ``doctor`` reports of one target after building, loading and running one tiny kernel."""

    usable: bool
    device: str = ""
    versions: dict[str, str] = {}
    problem: str = ""
    mend: str = ""


class Diagnostic(Frozen):
    """One message of a compiler."""

    file: str
    line: int
    column: int
    severity: str
    message: str


class BuildFailure(Frozen):
    """A build that gave no artefact: the candidate's fault unless ``environment``."""

    diagnostics: tuple[Diagnostic, ...] = ()
    log: str = ""
    reason: str
    """One sentence."""
    environment: bool = False


@dataclass(frozen=True)
class Artefact:
    """A loadable build. ``path`` stays valid while the evaluation holds it."""

    path: Path
    flags: tuple[str, ...]
    """The exact compile arguments, ``-D`` of params and constants included."""
    build_ms: float
    cached: bool
    descriptor: Descriptor
    code_digest: str


class Target(Protocol):
    """Builds kernels of one language for one device. Methods are safe to call from several threads."""

    name: str

    def probe(self) -> Probe:
        """Build, load and run one tiny kernel; never raises for what is missing, says it."""
        ...

    def build(self, task: Task, kernel: Kernel, *, timeout_s: float = 60.0) -> Artefact | BuildFailure:
        """Compile one kernel with its params within the time, or say why not.

        Raises:
            EnvironmentLackError: no compiler.
            KernelError: the kernel breaks a rule of the target.
        """
        ...

    def hardware(self) -> Hardware:
        """The device, with measured bandwidths (cached per machine)."""
        ...
