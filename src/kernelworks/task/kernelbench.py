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
- Cases: ``main`` (timed) and ``seed`` (check) with the published or overridden sizes; where sizes can be changed without changing the
  model's hyper-parameters, ``shape`` (check, other sizes, divisible like the published ones) and ``odd`` (edge, odd
  sizes): see ``kernelbench_cases``.
- The model stays in training mode, as KernelBench itself leaves it. Buffers that it updates are not outputs.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelworks.errors import TaskError
from kernelworks.task.checks import check_constant, check_names, check_scalar, check_task
from kernelworks.task.graph import Graph
from kernelworks.task.kernelbench_cases import Variant, choose_variants
from kernelworks.task.lazytorch import (
    data_dependent_errors,
    double_precision,
    fake_tensors,
    own_contiguous,
    seeded,
    to_double,
    to_dtype,
    torch_module,
)
from kernelworks.task.model import Case, DType, ScalarArgument, Task, TensorArgument
from kernelworks.task.modulefile import (
    Constant,
    constants,
    digest,
    execute,
    foreign_code,
    parse,
    parse_overrides,
    read_text,
)
from kernelworks.task.source import Arrays
from kernelworks.task.trace import trace_reference

_NEEDED = ("Model", "get_inputs", "get_init_inputs")


class KernelBenchSource:
    """Task source ``kernelbench``."""

    name = "kernelbench"

    def recognises(self, path: Path) -> bool:
        """Whether it is a Python file with a class ``Model`` and a function ``get_inputs``."""
        if path.suffix != ".py":
            return False
        body = parse(path).body
        classes = {s.name for s in body if isinstance(s, ast.ClassDef)}
        functions = {s.name for s in body if isinstance(s, ast.FunctionDef)}
        return "Model" in classes and "get_inputs" in functions

    def load(self, path: Path, overrides: Mapping[str, str], *, load_only: bool = False) -> LoadedKernelBenchTask:
        """Execute the file and derive the task.

        Shapes are found on tensors without memory. Only where the file looks at values is it run for real, and
        then not with ``load_only``.

        Raises:
            TaskError: the file fails, is incomplete, or the task breaks a rule.
        """
        file = _File(path, load_only)
        fixed = parse_overrides(overrides, file.constants)
        base = file.look(fixed)
        varied = choose_variants(
            {name: fixed.get(name, value) for name, value in file.constants.items()},
            base.variant,
            lambda changed, whole: file.look({**fixed, **changed}, whole=whole).variant,
        )
        looks = [("main", "timed", base, {}), ("seed", "check", base, {})]
        looks += [(name, role, file.look({**fixed, **changed}), changed) for name, role, changed in varied]
        task = _task(path, digest(read_text(path), overrides), looks)
        return LoadedKernelBenchTask(task, file, fixed, base.template)


@dataclass(frozen=True)
class Look:
    """What one run of the file showed."""

    variant: Variant
    inputs: tuple[tuple[str, DType | bool | int | float, tuple[int, ...]], ...]
    """Name, dtype (or a Python scalar's value) and shape of each input."""
    weights: tuple[tuple[str, DType, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, DType, tuple[int, ...]], ...]
    constants: dict[str, bool | int | float]
    template: tuple[Any, ...]
    """``forward``'s arguments, with ``Slot`` in place of tensors and scalars."""


@dataclass(frozen=True)
class Slot:
    """Place of input number ``index`` among ``forward``'s arguments."""

    index: int


@dataclass
class _File:
    """A KernelBench file under different overrides, each executed once."""

    path: Path
    load_only: bool
    tree: ast.Module = field(init=False)
    constants: dict[str, Constant] = field(init=False)
    modules: dict[str, ModuleType] = field(init=False, default_factory=dict[str, ModuleType])
    models: dict[str, Any] = field(init=False, default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self.tree = parse(self.path)
        self.constants = constants(self.tree)

    def module(self, overrides: Mapping[str, Constant]) -> ModuleType:
        """The file, executed with these overrides."""
        key = repr(sorted(overrides.items()))
        if key not in self.modules:
            module = execute(self.path, self.tree, overrides)
            for name in _NEEDED:
                if not callable(getattr(module, name, None)):
                    raise TaskError(f"{self.path}: expected Model, get_inputs and get_init_inputs, found no {name}")
            self.modules[key] = module
        return self.modules[key]

    def model(self, overrides: Mapping[str, Constant]) -> Any:
        """The model for these overrides, made with seed 0 and kept."""
        key = repr(sorted(overrides.items()))
        if key not in self.models:
            with seeded(0):
                self.models[key] = self.build(self.module(overrides))
        return self.models[key]

    def build(self, module: ModuleType) -> Any:
        """A fresh model; tensors that it holds as plain attributes are made buffers."""
        with foreign_code(self.path, "making the model"):
            model = module.Model(*self.init_inputs(module))
            _make_buffers(model)
        return model

    def init_inputs(self, module: ModuleType) -> list[Any]:
        """What ``get_init_inputs`` returns."""
        with foreign_code(self.path, "get_init_inputs()"):
            found: Any = module.get_init_inputs()
        return self._sequence(found, "get_init_inputs()")

    def arguments(self, module: ModuleType) -> list[Any]:
        """What ``get_inputs`` returns."""
        with foreign_code(self.path, "get_inputs()"):
            found: Any = module.get_inputs()
        return self._sequence(found, "get_inputs()")

    def _sequence(self, found: Any, what: str) -> list[Any]:
        if not isinstance(found, list | tuple):
            raise TaskError(f"{self.path}: expected {what} to return a list, found {type(found).__name__}")
        items: Sequence[Any] = found
        return list(items)

    def look(self, overrides: Mapping[str, Constant], *, whole: bool = True) -> Look:
        """Names, shapes and dtypes for these overrides; with ``whole=False`` of the inputs alone.

        Raises:
            TaskError: the file fails with these overrides.
        """
        module = self.module(overrides)
        try:
            with fake_tensors():
                return self._look(module, lambda: self.build(module), whole)
        except TaskError as error:
            if not isinstance(error.__cause__, data_dependent_errors()):
                raise
        try:
            with fake_tensors():  # a model that looks at values while it is made can still run on fake inputs
                return self._look(module, lambda: self.model(overrides), whole)
        except TaskError as error:
            if self.load_only or not isinstance(error.__cause__, data_dependent_errors()):
                raise
        with seeded(0):
            return self._look(module, lambda: self.model(overrides), whole)

    def _look(self, module: ModuleType, build: Callable[[], Any], whole: bool) -> Look:
        torch = torch_module()
        flat: list[tuple[str, Any]] = []
        args = self.arguments(module)
        template = tuple(
            _template(value, name, flat, self.path)
            for name, value in zip(_parameter_names(module.Model.forward, len(args), self.path), args, strict=True)
        )
        inputs = tuple((name, *_described(name, value)) for name, value in flat)
        init = self.init_inputs(module)
        model: Any = None
        weights: list[tuple[str, DType, tuple[int, ...]]] = []
        outputs: list[tuple[str, DType, tuple[int, ...]]] = []
        if whole:
            model = build()
            weights = [(weight_name(name), to_dtype(w.dtype, name), tuple(w.shape)) for name, w in named_weights(model)]
            with torch.no_grad(), foreign_code(self.path, "forward()"):
                found: Any = model(*args)
            for k, output in enumerate(_flat_outputs(found, self.path)):
                outputs.append((f"out{k}", to_dtype(output.dtype, f"out{k}"), tuple(output.shape)))
        return Look(
            variant=Variant(
                init=repr(init),
                arguments=tuple((name, str(kind)) for name, kind, _ in inputs),
                input_shapes=tuple(shape for *_, shape in inputs),
                weight_shapes=tuple(shape for *_, shape in weights),
                output_ranks=tuple(len(shape) for *_, shape in outputs),
            ),
            inputs=inputs,
            weights=tuple(weights),
            outputs=tuple(outputs),
            constants=_hyper_parameters(module.Model, init, self.path),
            template=template,
        )


@dataclass(frozen=True)
class LoadedKernelBenchTask:
    """A KernelBench file as a task, with its model behind it."""

    task: Task
    file: _File
    fixed: dict[str, Constant]
    """The user's overrides, in force in every case."""
    template: tuple[Any, ...]

    def make_inputs(self, case: Case, seed: int) -> list[Any]:
        """Inputs and weights for a seed: the generators are seeded, then the model made, then ``get_inputs`` called.

        Tensors are contiguous, on the CPU and detached; scalars are the case's.
        """
        module = self.file.module({**self.fixed, **case.overrides})
        with seeded(seed):
            model = self.file.build(module)
            flat: list[tuple[str, Any]] = []
            for value in self.file.arguments(module):
                _template(value, "", flat, self.file.path)
        arrays: list[Any] = []
        for argument, (_, value) in zip(self.task.inputs, flat, strict=True):
            scalar = isinstance(argument, ScalarArgument)
            arrays.append(case.scalars[argument.name] if scalar else value.detach().contiguous())
        return arrays + [weight.detach().contiguous() for _, weight in named_weights(model)]

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
        args = tuple(_fill(item, own) for item in self.template)
        with torch.no_grad(), foreign_code(self.file.path, "forward()"):
            if double:
                with double_precision():
                    found: Any = torch.func.functional_call(model, weights, args)
            else:
                found = torch.func.functional_call(model, weights, args)
        outputs = _flat_outputs(found, self.file.path)
        if len(outputs) != len(self.task.outputs):
            expected = len(self.task.outputs)
            raise TaskError(f"task {self.task.name!r}: expected {expected} outputs, found {len(outputs)}")
        return [own_contiguous(output, []) for output in outputs]

    def program(self, arrays: Arrays) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A model of its own on these weights, and ``forward``'s arguments; buffers are copied, as models change them."""
        overrides = {**self.fixed, **self._overrides(arrays)}
        with seeded(0):
            model = self.file.build(self.file.module(overrides))
        parameters = len(list(model.parameters()))
        weights = arrays[len(self.task.inputs) :]
        for k, ((_, place), value) in enumerate(zip(named_weights(model), weights, strict=True)):
            place.data = value if k < parameters else value.clone()
        return model, tuple(_fill(item, arrays) for item in self.template)

    def trace(self, case: Case) -> Graph:
        """The model as ATen operators for a case's sizes; only weights take memory.

        Raises:
            TaskError: ``torch.export`` cannot follow it.
        """
        overrides = {**self.fixed, **case.overrides}
        module, model = self.file.module(overrides), self.file.model(overrides)
        flat: list[tuple[str, Any]] = []
        with fake_tensors():
            for value in self.file.arguments(module):
                _template(value, "", flat, self.file.path)
        named: list[tuple[str, Any]] = []
        for argument, (_, value) in zip(self.task.inputs, flat, strict=True):
            scalar = isinstance(argument, ScalarArgument)
            named.append((argument.name, case.scalars[argument.name] if scalar else value))
        return trace_reference(
            lambda values: model(*(_fill(item, values) for item in self.template)),
            named,
            sizes=case.sizes,
            model=model,
            weights={name: weight_name(name) for name, _ in named_weights(model)},
        )

    def _overrides(self, arrays: Arrays) -> dict[str, Any]:
        """Those of the case with these shapes: ``forward`` may read module-level sizes."""
        for case in self.task.cases:
            sizes = case.sizes
            for argument, array in zip((*self.task.inputs, *self.task.weights), arrays, strict=True):
                if isinstance(argument, TensorArgument):
                    shape = [sizes[axis] if isinstance(axis, str) else axis for axis in argument.shape]
                    if shape != list(array.shape):
                        break
            else:
                return dict(case.overrides)
        return {}


def weight_name(name: str) -> str:
    """``conv.weight`` -> ``w_conv_weight``."""
    return "w_" + name.replace(".", "_")


def named_weights(model: Any) -> list[tuple[str, Any]]:
    """Parameters, then buffers, each once, by qualified name."""
    return [*model.named_parameters(), *model.named_buffers()]


def _task(path: Path, fingerprint: str, looks: Sequence[tuple[str, str, Look, Mapping[str, Any]]]) -> Task:
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
            role=role,  # pyright: ignore[reportArgumentType]
            sizes={dim: across[k] for dim, across in sizes.items()},
            scalars={
                a: check_scalar(f"task {name!r}", _scalar(a, v), v)
                for a, v, _ in look.inputs
                if not isinstance(v, DType)
            },
            seed=k,
            overrides=dict(changed),
        )
        for k, (case, role, look, changed) in enumerate(looks)
    ]
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
    )
    return check_task(task)


def _axes(
    argument: str, rank: int, shapes: Sequence[tuple[int, ...]], sizes: dict[str, tuple[int, ...]]
) -> tuple[str, ...]:
    """New dims for every axis of an input or weight; adds their sizes in every case."""
    for axis in range(rank):
        sizes[f"{argument}_{axis}"] = tuple(shape[axis] for shape in shapes)
    return tuple(f"{argument}_{axis}" for axis in range(rank))


def _scalar(name: str, value: float) -> ScalarArgument:
    kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
    return ScalarArgument(name=name, type=kind)


def _described(name: str, value: Any) -> tuple[Any, tuple[int, ...]]:
    torch = torch_module()
    if isinstance(value, torch.Tensor):
        return to_dtype(value.dtype, f"input {name!r}"), tuple(int(n) for n in value.shape)
    return value, ()


def _template(value: Any, name: str, flat: list[tuple[str, Any]], path: Path) -> Any:
    """One argument of ``forward`` with slots in place of tensors and scalars, which are appended to ``flat``."""
    torch = torch_module()
    if value is None:
        return None
    if isinstance(value, list | tuple):
        items: Sequence[Any] = value
        made = [_template(item, f"{name}_item{k}", flat, path) for k, item in enumerate(items)]
        return made if isinstance(value, list) else tuple(made)
    if isinstance(value, torch.Tensor | bool | int | float):
        flat.append((name, value))
        return Slot(len(flat) - 1)
    raise TaskError(
        f"{path}: expected tensors, numbers and lists of them from get_inputs(), found {type(value).__name__}"
    )


def _fill(item: Any, values: Sequence[Any]) -> Any:
    if isinstance(item, Slot):
        return values[item.index]
    if isinstance(item, list | tuple):
        items: Sequence[Any] = item
        made = [_fill(part, values) for part in items]
        return made if isinstance(item, list) else tuple(made)
    return item


def _flat_outputs(found: Any, path: Path) -> list[Any]:
    torch = torch_module()
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, list | tuple) and found:
        items: Sequence[Any] = found
        return [output for item in items for output in _flat_outputs(item, path)]
    raise TaskError(f"{path}: expected forward() to return tensors, found {type(found).__name__}")


def _parameter_names(function: Any, count: int, path: Path) -> list[str]:
    """Names of the first ``count`` arguments of ``forward``, without ``self``."""
    names: list[str] = []
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_item{k}" for k in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    if len(names) < count:
        raise TaskError(f"{path}: expected at most {len(names)} inputs for forward(), found {count} from get_inputs()")
    return names[:count]


def _hyper_parameters(model: Any, init: Sequence[Any], path: Path) -> dict[str, bool | int | float]:
    """``H_<NAME>`` for numbers and bools among the constructor's arguments."""
    try:
        bound = inspect.signature(model).bind(*init)
    except TypeError as error:
        raise TaskError(f"{path}: expected get_init_inputs() to fit Model.__init__, found: {error}") from error
    bound.apply_defaults()
    found: dict[str, bool | int | float] = {}
    for name, value in bound.arguments.items():
        numbers: dict[str, Any] = {f"H_{name.upper()}": value}
        if isinstance(value, list | tuple):
            items: Sequence[Any] = value
            numbers = {f"H_{name.upper()}_{k}": item for k, item in enumerate(items)}
        for constant, number in numbers.items():
            if isinstance(number, bool | int | float):
                if constant in found:
                    raise TaskError(f"{path}: expected distinct constants, found {constant} twice")
                found[constant] = check_constant(str(path), constant, number)
    return found


def _make_buffers(model: Any) -> None:
    """Register tensors that modules hold as plain attributes, so that they are arguments like any weight."""
    torch = torch_module()
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                delattr(module, name)
                module.register_buffer(name, value.detach(), persistent=False)
