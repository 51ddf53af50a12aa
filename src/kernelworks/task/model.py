"""What must be computed, as plain data: dims, arguments, cases, tolerance.

A ``Task`` carries no callable; the code behind it is a ``LoadedTask`` (``task.source``) and lives in the
judge's process alone. A ``Task`` can therefore be stored, sent to a worker and hashed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from kernelworks.data import Frozen


class DType(StrEnum):
    """Element types that a kernel can receive."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    BOOL = "bool"
    COMPLEX64 = "complex64"

    @property
    def itemsize_bytes(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE_BYTES[self]

    @property
    def is_floating(self) -> bool:
        """Whether values are rounded (real or complex floating point)."""
        return self in _UNIT_ROUNDOFF

    @property
    def unit_roundoff(self) -> float:
        """Unit roundoff u of a floating type; 0.0 for exact types."""
        return _UNIT_ROUNDOFF.get(self, 0.0)


_ITEMSIZE_BYTES = {
    DType.FLOAT32: 4,
    DType.FLOAT64: 8,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
    DType.INT8: 1,
    DType.INT16: 2,
    DType.INT32: 4,
    DType.INT64: 8,
    DType.UINT8: 1,
    DType.BOOL: 1,
    DType.COMPLEX64: 8,
}
_UNIT_ROUNDOFF = {
    DType.FLOAT32: 2.0**-24,
    DType.FLOAT64: 2.0**-53,
    DType.FLOAT16: 2.0**-11,
    DType.BFLOAT16: 2.0**-8,
    DType.COMPLEX64: 2.0**-24,
}

Axis = str | int
"""One axis of a shape: the name of a dim, or a fixed size."""


class TensorArgument(Frozen):
    """A tensor that crosses the border. ``shape`` mixes dim names and fixed sizes; () is a scalar tensor."""

    kind: Literal["tensor"] = "tensor"
    name: str
    """Name in the prototype (already a C identifier, weights with ``w_``)."""
    dtype: DType
    shape: tuple[Axis, ...]
    role: Literal["input", "weight", "output"]


class ScalarArgument(Frozen):
    """A Python scalar in its place among the inputs; its value belongs to the case."""

    kind: Literal["scalar"] = "scalar"
    name: str
    type: Literal["bool", "int", "float"]


Argument = Annotated[TensorArgument | ScalarArgument, Field(discriminator="kind")]


class CaseRole(StrEnum):
    """What a case is for: ``timed`` and ``check`` must pass; ``check`` is hidden from proposers.

    ``large`` has a tensor of more than 2^31 elements and is run on request only.
    """

    TIMED = "timed"
    CHECK = "check"
    EDGE = "edge"
    LARGE = "large"


class Case(Frozen):
    """One set of sizes and scalars, with the seed of its inputs."""

    name: str
    role: CaseRole
    sizes: dict[str, int]
    """Size of every dim of the task."""
    scalars: dict[str, bool | int | float] = {}
    seed: int = 0
    overrides: dict[str, int | tuple[int, ...]] = {}
    """Module-level constants that the loader replaces for this case (KernelBench files)."""
    derived: bool = False
    """Found by changing the sizes of another case, not written by the task's author: one that turns out to be of no
    use is left out, and the task is not to blame."""


class Tolerance(Frozen):
    """A task's own bound; ``None`` keeps the default bound (docs/verification.md)."""

    relative_rms: float | None = None
    """RMS error over RMS of the golden output; replaces the derived bound."""


class Task(Frozen):
    """What must be computed. Order of arguments is that of the prototype."""

    name: str
    source: str
    """Loader that made it: ``python`` or ``kernelbench``."""
    digest: str
    """SHA-256 of everything that defines it: text, overrides, loader version."""
    framework: Literal["torch", "numpy"]
    inputs: tuple[Argument, ...]
    weights: tuple[TensorArgument, ...] = ()
    outputs: tuple[TensorArgument, ...]
    dims: tuple[str, ...]
    """Each dim once, in order of first appearance."""
    constants: dict[str, bool | int | float] = {}
    """``H_<NAME>``: hyper-parameters of a model's constructor, compile-time constants of every kernel."""
    cases: tuple[Case, ...]
    large: Case | None = None
    """The case with role ``large``, which stands apart: who walks through all cases must not meet it."""
    tolerance: Tolerance = Tolerance()
    mutates: tuple[str, ...] = ()
    layout: Literal["contiguous", "strided"] = "contiguous"
    deterministic: bool | None = None
    """True: a kernel must give the same bits on every call. None: the reference does, and a kernel may vary within the
    bound. False: the reference varies too."""
    aggregate: Literal["geomean", "total"] = "geomean"
    precision: Literal["strict", "relaxed"] = "strict"
    instructions: str = ""
    skipped: tuple[str, ...] = ()
    """Sizes that were tried for further cases and that the reference refuses, with the reason each."""

    @model_validator(mode="after")
    def _check(self) -> Task:
        if not self.cases:
            raise ValueError(f"task {self.name!r}: expected at least one case, found none")
        names = [a.name for a in self.arguments] + list(self.dims)
        names += [stride_name(a, axis) for a in self.strided for axis in range(len(a.shape))]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"task {self.name!r}: expected distinct argument and dim names, found {twice} twice")
        if any(case.role is CaseRole.LARGE for case in self.cases):
            raise ValueError(f"task {self.name!r}: expected the large case apart, found it among the cases")
        for case in (*self.cases, *filter(None, [self.large])):
            if set(case.sizes) != set(self.dims):
                raise ValueError(
                    f"case {case.name!r}: expected sizes for {sorted(self.dims)}, found {sorted(case.sizes)}"
                )
        return self

    @property
    def arguments(self) -> tuple[TensorArgument | ScalarArgument, ...]:
        """Inputs, weights, outputs, in the order of the prototype."""
        return (*self.inputs, *self.weights, *self.outputs)

    @property
    def tensors(self) -> tuple[TensorArgument, ...]:
        """All tensors of the prototype, in order."""
        return tuple(a for a in self.arguments if isinstance(a, TensorArgument))

    @property
    def strided(self) -> tuple[TensorArgument, ...]:
        """Tensors whose strides kernels are given: all inputs and weights of a task with ``layout: strided``."""
        if self.layout == "contiguous":
            return ()
        return tuple(a for a in (*self.inputs, *self.weights) if isinstance(a, TensorArgument) and a.shape)

    def cases_of(self, *roles: CaseRole) -> tuple[Case, ...]:
        """Cases with one of these roles, in order."""
        return tuple(c for c in self.cases if c.role in roles)

    def case(self, name: str) -> Case:
        """The case of this name, the large one included; KeyError if there is none."""
        for case in (*self.cases, *filter(None, [self.large])):
            if case.name == name:
                return case
        raise KeyError(name)


def stride_name(argument: TensorArgument, axis: int) -> str:
    """Name of the parameter that holds an axis's stride, in elements."""
    return f"{argument.name}_stride_{axis}"


def concrete_shape(argument: TensorArgument, case: Case) -> tuple[int, ...]:
    """The sizes of a tensor's axes in a case."""
    return tuple(case.sizes[axis] if isinstance(axis, str) else axis for axis in argument.shape)


def element_count(argument: TensorArgument, case: Case) -> int:
    """Number of elements of a tensor in a case."""
    count = 1
    for size in concrete_shape(argument, case):
        count *= size
    return count


def size_bytes(argument: TensorArgument, case: Case) -> int:
    """Bytes of a tensor in a case."""
    return element_count(argument, case) * argument.dtype.itemsize_bytes
