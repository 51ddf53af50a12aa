"""Use case ``doctor``: what works on this machine, proven by a tiny kernel per target."""

from __future__ import annotations

from kernelworks.app.results import DoctorReport
from kernelworks.targets.registry import available_targets, get_target


def doctor() -> DoctorReport:
    """Build, load and run one tiny kernel per target."""
    return DoctorReport(targets={name: get_target(name).probe() for name in available_targets()})
