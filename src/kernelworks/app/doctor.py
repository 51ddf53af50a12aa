"""Use case ``doctor``: what works here, proven by a tiny kernel per target."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from kernelworks.app.results import DoctorReport
from kernelworks.errors import KernelworksError
from kernelworks.targets.base import Probe
from kernelworks.targets.registry import available_targets, get_target


def doctor() -> DoctorReport:
    """Build, load and run one tiny kernel per target; what cannot even be opened has its line too."""
    return DoctorReport(targets={name: _probe(name) for name in available_targets()}, torch=_torch_version())


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def _probe(name: str) -> Probe:
    try:
        return get_target(name).probe()
    except KernelworksError as error:
        return Probe(usable=False, problem=error.message, mend=error.mend)
