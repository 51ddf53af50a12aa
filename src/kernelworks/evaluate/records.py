"""What crosses the border between the harness and the judge, as plain data."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from kernelworks.data import Frozen
from kernelworks.evaluate.buffers import BufferLayout
from kernelworks.kernel.roofline import Work
from kernelworks.kernel.verdict import Policy
from kernelworks.task.model import DType
from kernelworks.task.source import Calling

Heap = Literal["warm", "default"]
"""Heap of the judge: ``warm`` keeps its pages (policy ``kernel``), ``default`` is glibc's (policy ``as_called``)."""

LANES = 2
"""Sets of output buffers of a prepared case: two candidates can be bound at once, and addresses rotate."""


class BufferSlot(Frozen):
    """A tensor argument in shared memory."""

    kind: Literal["buffer"] = "buffer"
    name: str
    role: Literal["input", "weight", "output"]
    dtype: DType
    shape: tuple[int, ...]
    writable: bool
    """An output, or an input that the task changes in place."""
    layout: BufferLayout
    strides: tuple[int, ...]
    """Per axis, in elements."""
    fd: int
    """Descriptor of the memory file in this process; owned by the ``Judge``, valid until the case is released."""


class ScalarSlot(Frozen):
    """A Python scalar among the inputs."""

    kind: Literal["scalar"] = "scalar"
    name: str
    type: Literal["bool", "int", "float"]
    value: bool | int | float


class DimSlot(Frozen):
    """The size of a dim or a stride, an ``int64_t`` after the tensors."""

    kind: Literal["dim"] = "dim"
    name: str
    value: int


Slot = Annotated[BufferSlot | ScalarSlot | DimSlot, Field(discriminator="kind")]


class PreparedCase(Frozen):
    """Inputs, golden values and buffers of one case, family and seed, ready in the judge."""

    key: str
    case: str
    family: str
    seed: int
    lanes: tuple[tuple[Slot, ...], ...] = ()
    """Per lane: the arguments in the order of the prototype. Inputs are the same buffers in every lane."""
    dropped: str = ""
    """Why this family cannot judge this task; empty if it can. A dropped case has no lanes."""
    two_fills: bool = False
    """Whether a run must be repeated with the other fill pattern: some output is of integers or bools."""


class PrecisionRecord(Frozen):
    """A narrow type whose roundings explain the errors of a result."""

    name: str
    relative_error: float


class ReferenceCalling(Frozen):
    """How the reference is made and called, and its weights for a seed that everyone may know."""

    calling: Calling
    seed: int
    weights: tuple[BufferSlot, ...]
    """Of a model made with this seed."""


class OutputReport(Frozen):
    """Errors of one result (an output, or an input changed in place)."""

    name: str
    rms_error: float
    rms_limit: float
    max_error: float
    worst_index: tuple[int, ...] = ()
    """Of the element that is worst in units of its limit."""
    worst_found: float = 0.0
    worst_expected: float = 0.0
    worst_limit: float = 0.0
    mismatches: int = 0
    """Elements beyond their limit; for integers and bools, unequal ones."""
    elements: int
    precision: PrecisionRecord | None = None
    """Where the errors look like those of a narrower type."""
    let_be: int = 0
    """Elements that are NaN beside an infinity of the inputs, where the right answer is finite; not wrong."""
    first_let_be: tuple[int, ...] = ()


ProblemKind = Literal["values", "nan_mask", "unwritten", "input_changed", "out_of_bounds", "stale"]


class CaseProblem(Frozen):
    """One thing that is wrong with an answer."""

    kind: ProblemKind
    tensor: str
    message: str
    evidence: dict[str, Any] = {}


class CaseReport(Frozen):
    """The comparison of one run of a candidate."""

    key: str
    outputs: tuple[OutputReport, ...]
    problems: tuple[CaseProblem, ...] = ()
    """Empty: the answer is right."""
    gates: dict[str, bool] = {}
    """Whether it passes published gates (``gates``), for a timed case on the task's own draw."""


class BaselineCalls(Frozen):
    """Timed calls of a baseline, one entry each."""

    elapsed_ns: tuple[int, ...]
    page_faults: tuple[int, ...]
    """Minor page faults of the process."""


class NecessaryBytes(Frozen):
    """What an operation must move in one case, shown by perturbation."""

    read_bytes: int
    written_bytes: int

    @property
    def total_bytes(self) -> int:
        """Read and written."""
        return self.read_bytes + self.written_bytes


class CountedWork(Frozen):
    """Bytes and operations of the reference in one case."""

    work: Work | None
    untraced: str = ""
    """Why there is none."""


class JudgeUsage(Frozen):
    """What a judge has done and holds."""

    runs: dict[str, int]
    """Runs of the reference: ``native`` and ``double`` ones, and ``blocks``, double ones by blocks of rows. Timed calls
    of the baselines are not among them."""
    prepared: int
    """Cases that are held: inputs, golden values, buffers."""


class BaselineNames(Frozen):
    """Baselines that work, and why others do not."""

    names: tuple[str, ...]
    """The first is the anchor: ``eager``, or ``reference`` for a task without torch."""
    missing: dict[str, str] = {}


class TaskProblem(Frozen):
    """What is wrong with a task."""

    kind: str
    message: str
    refuses: bool = True
    """False: a warning."""


class BaselineTime(Frozen):
    """A baseline's own time on the timed cases, or why it has none."""

    name: str
    policy: Policy
    time_ms: float | None
    """Median of its calls; over several timed cases the geometric mean (or the sum, aggregate ``total``)."""
    problem: str = ""
