"""The C prototype of the ``function`` contract, derived from a task."""

from __future__ import annotations

from dataclasses import dataclass

from kernelworks.task.model import DType, ScalarArgument, Task, stride_name

C_TYPES: dict[DType, str] = {
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.FLOAT16: "_Float16",
    DType.BFLOAT16: "uint16_t",
    DType.INT8: "int8_t",
    DType.INT16: "int16_t",
    DType.INT32: "int32_t",
    DType.INT64: "int64_t",
    DType.UINT8: "uint8_t",
    DType.BOOL: "uint8_t",
    DType.COMPLEX64: "float",
}
SCALAR_TYPES = {"bool": "uint8_t", "int": "int64_t", "float": "double"}

C_KEYWORDS = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const consteval"
    " constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do double"
    " dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable namespace"
    " new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires"
    " restrict return short signed sizeof static static_assert static_cast struct switch template this thread_local"
    " throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq"
    " launch main".split()
)
"""Words that no argument or dim may use: C and C++ keywords, and the entry points."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of ``launch``: its C type without qualifiers of pointee constness, and its name."""

    name: str
    c_type: str
    role: str
    """``input``, ``weight``, ``output``, ``scalar``, ``workspace``, ``dim`` or ``stride``."""

    @property
    def declaration(self) -> str:
        """As it stands in the prototype."""
        return f"{self.c_type} {self.name}"


def parameters(task: Task, workspaces: dict[str, DType] | None = None) -> tuple[Parameter, ...]:
    """The parameters of ``launch`` in order: inputs, weights, outputs, workspaces, dims and strides as ``int64_t``."""
    found: list[Parameter] = []
    for argument in task.arguments:
        if isinstance(argument, ScalarArgument):
            found.append(Parameter(argument.name, SCALAR_TYPES[argument.type], "scalar"))
            continue
        writable = argument.role == "output" or argument.name in task.mutates
        c_type = C_TYPES[argument.dtype]
        found.append(Parameter(argument.name, f"{c_type}*" if writable else f"const {c_type}*", argument.role))
    for name, dtype in (workspaces or {}).items():
        found.append(Parameter(name, f"{C_TYPES[dtype]}*", "workspace"))
    found.extend(Parameter(dim, "int64_t", "dim") for dim in task.dims)
    for argument in task.strided:
        found.extend(Parameter(stride_name(argument, axis), "int64_t", "stride") for axis in range(len(argument.shape)))
    return tuple(found)


def prototype(task: Task, workspaces: dict[str, DType] | None = None) -> str:
    """The prototype as C text, one line, without a trailing semicolon."""
    declarations = ", ".join(p.declaration for p in parameters(task, workspaces))
    return f'extern "C" int launch({declarations})'
