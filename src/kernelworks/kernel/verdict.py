"""The outcome of one evaluation as plain data. A validator ties status, measurements and findings."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import model_validator

from kernelworks.data import Frozen
from kernelworks.kernel.descriptor import Descriptor
from kernelworks.kernel.model import Contract, Params
from kernelworks.kernel.roofline import CaseBound


class Status(StrEnum):
    """How an evaluation ended, in the order of the ladder (docs/verification.md)."""

    UNSUPPORTED = "unsupported"
    SETUP_ERROR = "setup_error"
    DOES_NOT_FIT = "does_not_fit"
    INVALID = "invalid"
    BUILD_ERROR = "build_error"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    DISHONEST = "dishonest"
    WRONG = "wrong"
    CORRECT = "correct"


ENVIRONMENT_STATUSES = frozenset({Status.UNSUPPORTED, Status.SETUP_ERROR, Status.DOES_NOT_FIT})
"""Never counted as the candidate's failure."""


class Decision(StrEnum):
    """Outcome of a timing against a named opponent."""

    FASTER = "faster"
    SLOWER = "slower"
    UNDECIDED = "undecided"


class Finding(Frozen):
    """A structured statement of what is wrong or what limits the kernel."""

    kind: str
    message: str
    evidence: dict[str, Any] = {}


Policy = Literal["kernel", "as_called"]
"""Allocation policy: ``kernel``, outputs allocated before the clock; ``as_called``, everyone allocates."""


class Comparison(Frozen):
    """A timing of the candidate against one opponent under one policy. ``ratio`` above 1: candidate faster."""

    opponent: str
    """``eager``, ``compile``, ``reference`` or a kernel's id."""
    policy: Policy
    case: str
    time_ms: float
    """Median of the candidate's timed calls."""
    opponent_time_ms: float
    ratio: float
    """Median over blocks of opponent time / candidate time."""
    ratio_low: float
    ratio_high: float
    decision: Decision
    blocks: int
    cache: Literal["cold", "warm"]
    calls: int = 1
    """Calls behind one ring of the clock, each on inputs of its own; figures are per call."""
    page_faults: float = 0.0
    """Minor page faults per timed call of the candidate."""
    opponent_page_faults: float = 0.0
    samples_ms: tuple[tuple[float, float, float, float], ...] = ()
    """Per block: candidate, candidate, opponent, opponent (calls in the order of ``orders``)."""
    orders: str = ""
    """One letter a block: ``a`` for candidate first (A B B A), ``b`` for opponent first."""


class Baseline(Frozen):
    """The candidate against one baseline; ``speedup*`` is baseline time / candidate time."""

    name: str
    time_ms: float
    speedup: float
    speedup_low: float
    speedup_high: float
    policy: Policy = "kernel"


class Verdict(Frozen):
    """Everything that one evaluation says about a kernel."""

    kernel: str
    path: str = ""
    status: Status
    decision: Decision | None = None
    """Against the anchor, policy ``kernel``."""
    speedup: float | None = None
    """Over the anchor (torch eager, else the reference itself), policy ``kernel``."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    time_ms: float | None = None
    contract: Contract | None = None
    params: Params = {}
    flags: tuple[str, ...] = ()
    """The exact compile arguments."""
    host_ms: float | None = None
    """Time outside the kernel per call by the harness's clock, as calibrated and subtracted."""
    waited_ms: float = 0.0
    """For the device to be free and the machine quiet, before and between the timings."""
    setup_ms: float | None = None
    """Of a PyTorch submission: to import it and to make its model, compilers included."""
    own_share: float | None = None
    """Of a PyTorch submission: share of a call's time in native code of its own."""
    coverage: float | None = None
    """Share of edge cases inside the kernel's shape domain; 1.0 where there are none."""
    tested_elements: int | None = None
    """Elements of the largest tensor of the cases that were run and right; what lies beyond was not tested."""
    tolerance: float | None = None
    """The task's own bound, in place of the derived one: RMS error over RMS of the exact answer."""
    gates: dict[str, bool] = {}
    """Whether published gates accept the answer to the timed case (``evaluate.gates``); nothing is decided by them."""
    roofline: float | None = None
    """Bound / time; 1.0 is the bound, which is the larger of what memory and what arithmetic allow in each case."""
    roofline_detail: tuple[CaseBound, ...] = ()
    """The bound of every timed case: which side binds, and both figures."""
    cache: Literal["cold", "warm"] | None = None
    dropped_families: tuple[str, ...] = ()
    """Input families of a case that could not judge this task, with the reason each."""
    foreign_load_cores: float | None = None
    """Cores that other programs used during the timings, on average."""
    steal_cores: float | None = None
    """Cores that the host of a virtual machine took meanwhile."""
    sandbox: Literal["bubblewrap", "container", "landlock", "none"] = "none"
    sandbox_lacks: tuple[str, ...] = ()
    """What was missing of the full sandbox, one sentence each."""
    baselines: tuple[Baseline, ...] = ()
    findings: tuple[Finding, ...] = ()
    descriptor: Descriptor | None = None
    code_digest: str = ""
    """Hash of the machine code after masking registers and addresses; equal means duplicate."""
    comparisons: tuple[Comparison, ...] = ()
    stages_ms: dict[str, float] = {}
    """Wall time of each stage."""

    @model_validator(mode="after")
    def _ties(self) -> Verdict:
        measured = self.speedup is not None
        if measured and self.status is not Status.CORRECT:
            raise ValueError(f"verdict {self.kernel}: a speed-up goes with status correct only, found {self.status}")
        if measured != (self.decision is not None) or measured != (self.time_ms is not None):
            raise ValueError(f"verdict {self.kernel}: speedup, decision and time_ms come together or not at all")
        if not measured and (self.speedup_low is not None or self.speedup_high is not None):
            raise ValueError(f"verdict {self.kernel}: an interval goes with a speed-up only")
        if measured:
            low, high = self.speedup_low, self.speedup_high
            if low is None or high is None or not 0 < low <= high:
                raise ValueError(
                    f"verdict {self.kernel}: expected 0 < speedup_low <= speedup_high, found {low}, {high}"
                )
        if self.status is not Status.CORRECT and not self.findings:
            raise ValueError(f"verdict {self.kernel}: status {self.status} needs at least one finding")
        return self
