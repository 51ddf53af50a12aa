"""References traced by torch, kernels compiled by g++ and called in this process: all of them are our own."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import math
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kernelworks.kernel.hardware import Hardware
from kernelworks.kernel.model import Kernel
from kernelworks.propose.base import ProposalContext
from kernelworks.targets.flags import chosen_flags
from kernelworks.task.graph import Graph
from kernelworks.task.lazytorch import fake_mode, to_dtype
from kernelworks.task.model import Case, CaseRole, ScalarArgument, Task, TensorArgument
from kernelworks.task.trace import trace_reference

# torch has partial types only.
torch: Any = importlib.import_module("torch")

Reference = Callable[..., Any]
Lambda = Callable[[Any], Any] | Callable[[Any, Any], Any] | Callable[[Any, Any, Any], Any]
"""What a reference is written as: the types give parameters of lambdas theirs."""
Tensors = Mapping[str, Any]
"""Inputs by name: tensors and Python scalars, in the order of the prototype."""

HARDWARE = Hardware(name="test", kind="cpu", cores=2, simd_bits=512, l3_bytes=1 << 20)


@dataclass(frozen=True)
class Job:
    """A reference with its task and trace."""

    reference: Reference
    task: Task
    graph: Graph

    @property
    def context(self) -> ProposalContext:
        """What a proposer is told."""
        return ProposalContext(task=self.task, graph=self.graph, target="cpp", hardware=HARDWARE)


def make_job(reference: Reference, inputs: Tensors, name: str = "reference") -> Job:
    """Trace a function of tensors; dims are named ``<argument>_<axis>``."""
    arguments: list[TensorArgument | ScalarArgument] = []
    sizes: dict[str, int] = {}
    fakes: list[tuple[str, Any]] = []
    with fake_mode():
        for argument, value in inputs.items():
            if isinstance(value, torch.Tensor):
                fakes.append((argument, torch.empty(value.shape, dtype=value.dtype)))
                sizes.update({f"{argument}_{k}": size for k, size in enumerate(value.shape)})
                arguments.append(_tensor(argument, value, tuple(f"{argument}_{k}" for k in range(value.dim()))))
            else:
                fakes.append((argument, value))
                arguments.append(ScalarArgument(name=argument, type="float" if isinstance(value, float) else "int"))
    graph = trace_reference(lambda values: reference(*values), fakes, sizes=sizes)
    results = [graph.node(ref.ref).values[ref.index] for ref in graph.outputs]
    outputs = tuple(
        TensorArgument(name=f"out{k}", dtype=value.dtype, shape=value.shape, role="output")
        for k, value in enumerate(results)
    )
    task = Task(
        name=name,
        source="python",
        digest="0" * 64,
        framework="torch",
        inputs=tuple(arguments),
        outputs=outputs,
        dims=tuple(sizes),
        cases=(Case(name="timed", role=CaseRole.TIMED, sizes=sizes),),
    )
    return Job(reference, task, graph)


def _tensor(name: str, value: Any, shape: tuple[str, ...]) -> TensorArgument:
    return TensorArgument(name=name, dtype=to_dtype(value.dtype, name), shape=shape, role="input")


def golden(reference: Reference, inputs: Sequence[Any], *, double: bool) -> list[Any]:
    """Outputs of the reference, in float64 or as they are."""
    values = [v.double() if double and isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in inputs]
    found = reference(*values)
    return [found] if isinstance(found, torch.Tensor) else [*found]


class Workshop:
    """Builds and calls kernels; equal builds happen once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._built: dict[str, Path] = {}

    def build(self, kernel: Kernel) -> Path:
        """The library of a kernel at its point."""
        definitions = [f"-D{name}={value}" for name, value in kernel.params.items()]
        flags = [*chosen_flags(kernel), *definitions]
        key = hashlib.sha256("\0".join((kernel.text, *flags)).encode()).hexdigest()[:16]
        if key not in self._built:
            source, library = self._folder / f"{key}.cpp", self._folder / f"{key}.so"
            source.write_text(kernel.text)
            base = ["g++", "-O3", "-march=native", "-fopenmp", "-std=c++17", "-fPIC"]
            # Compiled with the kernel's flags, linked without: as the target does.
            for command in ([*base, *flags, "-c", str(source), "-o", f"{library}.o"], _linked(library)):
                done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
                assert done.returncode == 0, f"{done.stderr}\n{kernel.text}"
            self._built[key] = library
        return self._built[key]

    def run(self, kernel: Kernel, job: Job, inputs: Sequence[Any]) -> list[Any]:
        """Outputs for these inputs; they start as NaN or as a pattern, and nothing may be written beside them."""
        launch = ctypes.CDLL(str(self.build(kernel))).launch
        sizes: dict[str, int] = {}
        words: list[Any] = []
        for argument, value in zip(job.task.inputs, inputs, strict=True):
            if isinstance(argument, ScalarArgument):
                words.append(ctypes.c_double(value) if argument.type == "float" else ctypes.c_int64(value))
                continue
            assert value.is_contiguous()
            words.append(ctypes.c_void_p(value.data_ptr()))
            sizes.update({str(axis): int(size) for axis, size in zip(argument.shape, value.shape, strict=True)})
        outputs = [_Guarded(result) for result in golden(job.reference, inputs, double=False)]
        words += [ctypes.c_void_p(output.middle.data_ptr()) for output in outputs]
        assert launch(*words, *(ctypes.c_int64(sizes[dim]) for dim in job.task.dims)) == 0
        for argument, output in zip(job.task.outputs, outputs, strict=True):
            assert output.intact(), f"written beside {argument.name}\n{kernel.text}"
        return [output.middle for output in outputs]


def _linked(library: Path) -> list[str]:
    return ["g++", "-shared", "-fopenmp", "-Wl,-z,defs", f"{library}.o", "-o", str(library)]


class _Guarded:
    """Memory like a tensor's between two guards, each a multiple of a cache line; all of it starts poisoned."""

    _GUARD = 64

    def __init__(self, like: Any) -> None:
        size = 2 * self._GUARD + like.numel()
        self._whole = torch.full((size,), math.nan if like.is_floating_point() else 1, dtype=like.dtype)
        self.middle = self._whole[self._GUARD : size - self._GUARD].view(like.shape)

    def intact(self) -> bool:
        """Whether the guards are as they were."""
        guards = torch.cat((self._whole[: self._GUARD], self._whole[-self._GUARD :]))
        return bool(guards.isnan().all() if guards.is_floating_point() else (guards == 1).all())


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A workshop for the whole session."""
    return Workshop(tmp_path_factory.mktemp("kernels"))


ROUNDOFF = {torch.float32: 2.0**-24, torch.float64: 2.0**-53, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


class ErrorPool:
    """Errors of one output over several inputs, in units of roundoff times the golden output's RMS."""

    def __init__(self) -> None:
        self.ours: list[Any] = []
        self.native: list[Any] = []
        self.bound = 0.0

    def add(self, found: Any, native: Any, wanted: Any, length: int) -> None:
        """One output; ``length`` is that of the longest reduction behind it."""
        assert found.dtype == native.dtype
        assert torch.equal(found.isnan(), native.isnan())
        if not wanted.isfinite().all() or not wanted.numel():
            return
        unit = ROUNDOFF[native.dtype] * max(float(wanted.double().pow(2).mean().sqrt()), 1e-20)
        self.ours.append(((found.double() - wanted) / unit).flatten())
        self.native.append(((native.double() - wanted) / unit).flatten())
        self.bound = max(self.bound, 4.0 + math.sqrt(length) / 2.0)

    def check(self) -> None:
        """Honest arithmetic of that precision, or as good as torch itself."""
        if not self.ours:
            return
        ours, native = (float(torch.cat(errors).pow(2).mean().sqrt()) for errors in (self.ours, self.native))
        assert ours <= max(2.0 * native, self.bound), (ours, native, self.bound)
