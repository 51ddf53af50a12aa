"""Use case ``doctor``: what works here, proven by a tiny kernel per target."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from kernelworks.app.results import DoctorReport, TargetReport
from kernelworks.errors import KernelworksError
from kernelworks.evaluate.sandbox import MEND, find_sandbox
from kernelworks.targets.base import Probe
from kernelworks.targets.registry import available_targets, get_target


def doctor() -> DoctorReport:
    """Build, load and run one tiny kernel per target; what cannot even be opened has its line too."""
    return DoctorReport(targets={name: _report(name) for name in available_targets()}, torch=_torch_version())


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def _report(name: str) -> TargetReport:
    try:
        probe = get_target(name).probe()
    except KernelworksError as error:
        probe = Probe(usable=False, problem=error.message, mend=error.mend)
    sandbox = find_sandbox()  # every target's kernels are host code
    return TargetReport(
        **probe.model_dump(),
        sandbox=sandbox.kind,
        sandbox_lacks=sandbox.lacking,
        sandbox_mend=MEND if sandbox.lacking else "",
    )
