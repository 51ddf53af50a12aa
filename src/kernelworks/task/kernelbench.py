"""KernelBench files exactly as published: ``Model``, ``get_inputs``, ``get_init_inputs``, module-level sizes.

The format: https://github.com/ScalingIntelligence/KernelBench (Ouyang et al. 2025, arXiv 2502.10517). What a file
does not say is derived:

- Arguments are ``forward``'s parameters in order; a list among them becomes ``<arg>_item<k>``; a Python scalar stays
  one. Parameters and buffers become ``w_<name>``, dots as underscores; so do tensors that a module merely holds as
  attributes. Outputs are ``out0``, ``out1``, ...
- Dims are ``<arg>_<axis>`` for every axis of every input and weight. An output's axis reuses the first of them that
  has its size in all cases; else it is a dim ``<out>_<axis>``.
- Numbers and bools among ``__init__``'s arguments, defaults included, become constants ``H_<NAME>`` in upper case; a
  tuple of numbers becomes ``H_<NAME>_0``, ``H_<NAME>_1``, ...
- Cases: ``main`` (timed) and ``seed`` (check) with the published or overridden sizes; where sizes can be changed
  without changing the model's hyper-parameters, further check and edge cases (``derive``).
- Weights are the model's own in the timed case. In all others those that its initialisation leaves at one value (a
  norm's ones, a bias of zeros, running statistics) are drawn anew.
- The model stays in training mode, as KernelBench itself leaves it. Buffers that it updates are not outputs.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelworks.errors import TaskError
from kernelworks.task.checks import check_names, check_scalar, check_task
from kernelworks.task.derive import derive_cases, derive_large
from kernelworks.task.graph import Graph
from kernelworks.task.kernelbench_file import (
    Look,
    ModelFile,
    fill,
    flat_outputs,
    make_template,
    named_weights,
    packed,
    weight_name,
)
from kernelworks.task.lazytorch import (
    double_precision,
    enlivened,
    fake_mode,
    own_contiguous,
    quiet,
    seeded,
    to_double,
    torch_module,
)
from kernelworks.task.model import Case, CaseRole, DType, ScalarArgument, Task, TensorArgument
from kernelworks.task.modulefile import Constant, digest, foreign_code, parse, parse_overrides, read_text
from kernelworks.task.source import Arrays, Calling
from kernelworks.task.trace import trace_reference


class KernelBenchSource:
    """Task source ``kernelbench``."""

    name = "kernelbench"

    def recognises(self, path: Path) -> bool:
        """Whether it is a Python file with two of ``Model``, ``get_inputs`` and ``get_init_inputs``: what is missing is
        said when it is loaded."""
        if path.suffix != ".py":
            return False
        named = {s.name for s in parse(path).body if isinstance(s, ast.ClassDef | ast.FunctionDef)}
        return len(named & {"Model", "get_inputs", "get_init_inputs"}) >= 2

    def load(self, path: Path, overrides: Mapping[str, str], *, load_only: bool = False) -> LoadedKernelBenchTask:
        """Execute the file and derive the task.

        Shapes are found on tensors without memory. Only where the file looks at values is it run for real, and
        then not with ``load_only``.

        Raises:
            TaskError: the file fails, is incomplete, or the task breaks a rule.
        """
        file = ModelFile(path, load_only)
        fixed = parse_overrides(overrides, file.constants)
        base = file.look(fixed)
        sizes = {name: fixed.get(name, value) for name, value in file.constants.items()}
        derived = derive_cases(
            sizes, base.variant, lambda changed, whole: file.look({**fixed, **changed}, whole=whole).variant
        )
        looks: list[tuple[str, CaseRole, Look, Mapping[str, Any]]] = [
            ("main", CaseRole.TIMED, base, {}),
            ("seed", CaseRole.CHECK, base, {}),
        ]
        looks += [(name, role, file.look({**fixed, **changed}), changed) for name, role, changed in derived.cases]
        large = derive_large(
            sizes, base.variant, lambda changed, whole: file.look({**fixed, **changed}, whole=whole, real=False).variant
        )
        if large is not None:
            looks.append(("large", CaseRole.LARGE, file.look({**fixed, **large}), large))
        task = _task(path, digest(read_text(path), overrides), looks)
        task = task.model_copy(update={"skipped": tuple(derived.skipped)})
        return LoadedKernelBenchTask(task, file, fixed, base.template)


@dataclass(frozen=True)
class LoadedKernelBenchTask:
    """A KernelBench file as a task, with its model behind it."""

    task: Task
    file: ModelFile
    fixed: dict[str, Constant]
    """The user's overrides, in force in every case."""
    template: tuple[Any, ...]

    def make_inputs(self, case: Case, seed: int) -> list[Any]:
        """Inputs and weights for a seed: the generators are seeded, then the model made, then ``get_inputs`` called.

        Tensors are contiguous, on the CPU and detached; scalars are the case's. Outside the timed case no floating
        weight has one value throughout.
        """
        module = self.file.module({**self.fixed, **case.overrides})
        with seeded(seed):
            model = self.file.build(module)
            flat: list[tuple[str, Any]] = []
            for value in self.file.arguments(module):
                make_template(value, "", flat, self.file.path)
        arrays: list[Any] = []
        for argument, (_, value) in zip(self.task.inputs, flat, strict=True):
            scalar = isinstance(argument, ScalarArgument)
            arrays.append(case.scalars[argument.name] if scalar else value.detach().contiguous())
        weights = [weight.detach().contiguous() for _, weight in named_weights(model)]
        if case.role is not CaseRole.TIMED:
            generator = torch_module().Generator().manual_seed(seed)
            weights = [enlivened(weight, generator) for weight in weights]
        return arrays + weights

    def run(self, arrays: Arrays, *, double: bool = False) -> list[Any]:
        """Outputs of the model with these inputs and weights; the arrays given are never changed.

        Raises:
            TaskError: the model raises or returns something else than when it was loaded.
        """
        torch = torch_module()
        model = self.file.model({**self.fixed, **self._overrides(arrays)})
        wide = [to_double(a) for a in arrays] if double else list(arrays)
        own = [a.clone() if isinstance(a, torch.Tensor) and a is b else a for a, b in zip(wide, arrays, strict=True)]
        count = len(self.task.inputs)
        weights = {name: value for (name, _), value in zip(named_weights(model), own[count:], strict=True)}
        args = tuple(fill(item, own) for item in self.template)
        with torch.no_grad(), foreign_code(self.file.path, "forward()"):
            if double:
                with double_precision():
                    found: Any = torch.func.functional_call(model, weights, args)
            else:
                found = torch.func.functional_call(model, weights, args)
        outputs = flat_outputs(found, self.file.path)
        if len(outputs) != len(self.task.outputs):
            expected = len(self.task.outputs)
            raise TaskError(f"task {self.task.name!r}: expected {expected} outputs, found {len(outputs)}")
        return [own_contiguous(output, []) for output in outputs]

    def program(self, arrays: Arrays) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A model of its own on these weights (copies of buffers: models change them), and ``forward``'s arguments."""
        overrides = {**self.fixed, **self._overrides(arrays)}
        with seeded(0):
            model = self.file.build(self.file.module(overrides))
        parameters = len(list(model.parameters()))
        weights = arrays[len(self.task.inputs) :]
        for k, ((_, place), value) in enumerate(zip(named_weights(model), weights, strict=True)):
            place.data = value if k < parameters else value.clone()
        return model, tuple(fill(item, arrays) for item in self.template)

    def trace(self, case: Case) -> Graph:
        """The model as ATen operators for a case's sizes, on tensors without memory.

        Raises:
            TaskError: ``torch.export`` cannot follow it.
        """
        overrides = {**self.fixed, **case.overrides}
        mode = fake_mode()
        model = self.file.model_without_memory(overrides, mode)
        flat: list[tuple[str, Any]] = []
        with quiet(), mode:
            for value in self.file.arguments(self.file.module(overrides)):
                make_template(value, "", flat, self.file.path)
        named: list[tuple[str, Any]] = []
        for argument, (_, value) in zip(self.task.inputs, flat, strict=True):
            scalar = isinstance(argument, ScalarArgument)
            named.append((argument.name, case.scalars[argument.name] if scalar else value))
        return trace_reference(
            lambda values: model(*(fill(item, values) for item in self.template)),
            named,
            sizes=case.sizes,
            model=model,
            weights={name: weight_name(name) for name, _ in named_weights(model)},
        )

    def calling(self) -> Calling:
        """``get_init_inputs`` and ``forward``, in the sizes of the timed case.

        Raises:
            TaskError: the constructor takes something that cannot be written down (a tensor).
        """
        module = self.file.module(self.fixed)
        init = self.file.init_inputs(module)
        return Calling(
            init=tuple(packed(value, self.file.path) for value in init),
            init_signature=f"Model({_parameters(module.Model.__init__)})",
            forward=tuple(packed(item, self.file.path) for item in self.template),
            forward_signature=f"Model.forward({_parameters(module.Model.forward)})",
            weights=tuple(name for name, _ in named_weights(self.file.model(self.fixed))),
        )

    def _overrides(self, arrays: Arrays) -> dict[str, Any]:
        """Those of the case with these shapes: ``forward`` may read module-level sizes."""
        for case in (*self.task.cases, *filter(None, [self.task.large])):
            sizes = case.sizes
            for argument, array in zip((*self.task.inputs, *self.task.weights), arrays, strict=True):
                if isinstance(argument, TensorArgument):
                    shape = [sizes[axis] if isinstance(axis, str) else axis for axis in argument.shape]
                    if shape != list(array.shape):
                        break
            else:
                return dict(case.overrides)
        return {}


def _task(path: Path, fingerprint: str, looks: Sequence[tuple[str, CaseRole, Look, Mapping[str, Any]]]) -> Task:
    """The task from what the file showed in every case."""
    base = looks[0][2]
    name = path.stem
    sizes: dict[str, tuple[int, ...]] = {}
    inputs: list[TensorArgument | ScalarArgument] = []
    for k, (argument, kind, shape) in enumerate(base.inputs):
        if isinstance(kind, DType):
            axes = _axes(argument, len(shape), [look.inputs[k][2] for _, _, look, _ in looks], sizes)
            inputs.append(TensorArgument(name=argument, dtype=kind, shape=axes, role="input"))
        else:
            inputs.append(_scalar(argument, kind))
    weights: list[TensorArgument] = []
    for k, (argument, dtype, shape) in enumerate(base.weights):
        axes = _axes(argument, len(shape), [look.weights[k][2] for _, _, look, _ in looks], sizes)
        weights.append(TensorArgument(name=argument, dtype=dtype, shape=axes, role="weight"))
    outputs: list[TensorArgument] = []
    reusable = dict(sizes)
    for k, (argument, dtype, shape) in enumerate(base.outputs):
        axes_found: list[str] = []
        for axis in range(len(shape)):
            across = tuple(look.outputs[k][2][axis] for _, _, look, _ in looks)
            dim = next((d for d, found in reusable.items() if found == across), f"{argument}_{axis}")
            sizes.setdefault(dim, across)
            axes_found.append(dim)
        outputs.append(TensorArgument(name=argument, dtype=dtype, shape=tuple(axes_found), role="output"))
    check_names(name, [*inputs, *weights, *outputs], list(sizes), base.constants)
    cases = [
        Case(
            name=case,
            role=role,
            sizes={dim: across[k] for dim, across in sizes.items()},
            scalars={
                a: check_scalar(f"task {name!r}", _scalar(a, v), v)
                for a, v, _ in look.inputs
                if not isinstance(v, DType)
            },
            seed=k,
            overrides=dict(changed),
            derived=case not in ("main", "seed"),
        )
        for k, (case, role, look, changed) in enumerate(looks)
    ]
    large = cases.pop() if cases[-1].role is CaseRole.LARGE else None
    task = Task(
        name=name,
        source="kernelbench",
        digest=fingerprint,
        framework="torch",
        inputs=tuple(inputs),
        weights=tuple(weights),
        outputs=tuple(outputs),
        dims=tuple(sizes),
        constants=base.constants,
        cases=tuple(cases),
        large=large,
    )
    return check_task(task)


def _axes(
    argument: str, rank: int, shapes: Sequence[tuple[int, ...]], sizes: dict[str, tuple[int, ...]]
) -> tuple[str, ...]:
    """New dims for every axis of an input or weight; adds their sizes in every case."""
    for axis in range(rank):
        sizes[f"{argument}_{axis}"] = tuple(shape[axis] for shape in shapes)
    return tuple(f"{argument}_{axis}" for axis in range(rank))


def _parameters(method: Callable[..., Any]) -> str:
    """As a person reads them, without ``self`` and annotations."""
    found = list(inspect.signature(method).parameters.values())[1:]
    return ", ".join(str(parameter.replace(annotation=parameter.empty)) for parameter in found)


def _scalar(name: str, value: float) -> ScalarArgument:
    kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
    return ScalarArgument(name=name, type=kind)
