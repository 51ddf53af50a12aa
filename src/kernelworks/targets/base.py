"""The contract of a target: a language on a device. Plug-in point ``kernelworks.targets``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from kernelworks.data import Frozen
from kernelworks.kernel.descriptor import Descriptor
from kernelworks.kernel.hardware import Hardware
from kernelworks.kernel.model import Contract, Kernel
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
    descriptor: Descriptor | None
    """None where there is no machine code to read: a Python submission."""
    code_digest: str
    contract: Contract = Contract.FUNCTION


@dataclass(frozen=True)
class SanitizedBuild:
    """A build that watches itself (``sanitize``). ``path`` is valid for as long as its folder is there."""

    path: Path
    flags: tuple[str, ...]
    runtime: Path
    """Library that its process loads first."""
    environment: Mapping[str, str]
    """Of its process, ``LD_PRELOAD`` with the runtime included."""


@runtime_checkable
class SanitizingTarget(Protocol):
    """A target whose kernels can be built to watch themselves."""

    def build_sanitized(
        self, task: Task, kernel: Kernel, folder: Path, *, timeout_s: float = 60.0
    ) -> SanitizedBuild | str:
        """Compile a kernel that was built before with sanitizers, into ``folder``, or say in a sentence why not.

        Raises:
            EnvironmentLackError: no compiler.
        """
        ...


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
        """The device, with measured rates (cached per machine)."""
        ...

    def measure_again(self) -> Hardware:
        """The device with rates that were measured once more and are no lower than before.

        Asked before a kernel that seems faster than the device can be is called dishonest.
        """
        ...
