"""What a KernelBench file says about itself under different module-level sizes: names, shapes, dtypes, constants.

Used by ``kernelbench`` alone, whose docstring describes the format.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelworks.errors import TaskError
from kernelworks.task.checks import check_constant
from kernelworks.task.derive import Variant
from kernelworks.task.lazytorch import (
    data_dependent_errors,
    fake_mode,
    is_sequence,
    quiet,
    refuse_dynamic_size,
    seeded,
    to_dtype,
    torch_module,
)
from kernelworks.task.model import DType
from kernelworks.task.modulefile import Constant, constants, execute, foreign_code, parse

_NEEDED = ("Model", "get_inputs", "get_init_inputs")


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
class ModelFile:
    """A KernelBench file under different overrides, each executed once."""

    path: Path
    load_only: bool
    tree: ast.Module = field(init=False)
    constants: dict[str, Constant] = field(init=False)
    modules: dict[str, ModuleType] = field(init=False, default_factory=dict[str, ModuleType])
    models: dict[str, Any] = field(init=False, default_factory=dict[str, Any])
    looks: dict[tuple[str, bool], Look] = field(init=False, default_factory=dict[tuple[str, bool], Look])

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
            if not isinstance(model, torch_module().nn.Module):
                found = type(model).__name__
                raise TaskError(f"{self.path}: expected Model to be a torch.nn.Module, found {found}")
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
        if not is_sequence(found):
            raise TaskError(f"{self.path}: expected {what} to return a list, found {type(found).__name__}")
        return list(found)

    def model_without_memory(self, overrides: Mapping[str, Constant], mode: Any) -> Any:
        """The model in a mode of tensors without memory; the real one where making it looks at values."""
        try:
            with quiet(), mode:
                return self.build(self.module(overrides))
        except TaskError as error:
            if not isinstance(error.__cause__, data_dependent_errors()):
                raise
        return self.model(overrides)

    def look(self, overrides: Mapping[str, Constant], *, whole: bool = True, real: bool = True) -> Look:
        """Names, shapes and dtypes for these overrides; with ``whole=False`` of the inputs alone.

        ``real``: where the file looks at values, it is run with memory.

        Raises:
            TaskError: the file fails with these overrides, or has an output whose size depends on values.
        """
        key = (repr(sorted(overrides.items())), whole)
        if key not in self.looks:
            self.looks[key] = self._fresh_look(overrides, whole=whole, real=real)
        return self.looks[key]

    def _fresh_look(self, overrides: Mapping[str, Constant], *, whole: bool, real: bool) -> Look:
        module = self.module(overrides)
        mode = fake_mode()
        try:
            model = self.model_without_memory(overrides, mode) if whole else None
            with quiet(), mode:
                return self._look(module, model)
        except TaskError as error:
            if not isinstance(error.__cause__, data_dependent_errors()):
                raise
            if whole:
                refuse_dynamic_size(str(self.path), error.__cause__, lambda: self._symbolic_outputs(overrides))
            if self.load_only or not real:
                raise
        with seeded(0):  # the inputs or forward() look at values
            return self._look(module, self.model(overrides) if whole else None)

    def _symbolic_outputs(self, overrides: Mapping[str, Constant]) -> list[Any]:
        """Outputs of a run without memory, in which sizes that depend on values are symbols."""
        module, mode = self.module(overrides), fake_mode(symbols=True)
        model = self.model_without_memory(overrides, mode)
        with mode, torch_module().no_grad(), foreign_code(self.path, "forward()"):
            found: Any = model(*self.arguments(module))
        return flat_outputs(found, self.path)

    def _look(self, module: ModuleType, model: Any) -> Look:
        torch = torch_module()
        flat: list[tuple[str, Any]] = []
        args = self.arguments(module)
        template = tuple(
            make_template(value, name, flat, self.path)
            for name, value in zip(_parameter_names(module.Model.forward, len(args), self.path), args, strict=True)
        )
        inputs = tuple((name, *_described(name, value)) for name, value in flat)
        init = self.init_inputs(module)
        weights: list[tuple[str, DType, tuple[int, ...]]] = []
        outputs: list[tuple[str, DType, tuple[int, ...]]] = []
        if model is not None:
            weights = [(weight_name(name), to_dtype(w.dtype, name), tuple(w.shape)) for name, w in named_weights(model)]
            with torch.no_grad(), foreign_code(self.path, "forward()"):
                found: Any = model(*args)
            for k, output in enumerate(flat_outputs(found, self.path)):
                outputs.append((f"out{k}", to_dtype(output.dtype, f"out{k}"), tuple(output.shape)))
        return Look(
            variant=Variant(
                init=repr(init),
                arguments=tuple((name, str(kind)) for name, kind, _ in inputs),
                input_shapes=tuple(shape for *_, shape in inputs),
                weight_shapes=tuple(shape for *_, shape in weights),
                output_shapes=tuple(shape for *_, shape in outputs),
                recurrent=any("_weight_hh" in name for name, *_ in weights),
            ),
            inputs=inputs,
            weights=tuple(weights),
            outputs=tuple(outputs),
            constants=_hyper_parameters(module.Model, init, self.path),
            template=template,
        )


def weight_name(name: str) -> str:
    """``conv.weight`` -> ``w_conv_weight``."""
    return "w_" + name.replace(".", "_")


def named_weights(model: Any) -> list[tuple[str, Any]]:
    """Parameters, then buffers, each once, by qualified name."""
    return [*model.named_parameters(), *model.named_buffers()]


def _described(name: str, value: Any) -> tuple[Any, tuple[int, ...]]:
    torch = torch_module()
    if isinstance(value, torch.Tensor):
        return to_dtype(value.dtype, f"input {name!r}"), tuple(int(n) for n in value.shape)
    return value, ()


def make_template(value: Any, name: str, flat: list[tuple[str, Any]], path: Path) -> Any:
    """One argument of ``forward`` with slots in place of tensors and scalars, which are appended to ``flat``."""
    torch = torch_module()
    if value is None:
        return None
    if is_sequence(value):
        made = [make_template(item, f"{name}_item{k}", flat, path) for k, item in enumerate(value)]
        return made if isinstance(value, list) else tuple(made)
    if isinstance(value, torch.Tensor | bool | int | float):
        flat.append((name, value))
        return Slot(len(flat) - 1)
    raise TaskError(
        f"{path}: expected tensors, numbers and lists of them from get_inputs(), found {type(value).__name__}"
    )


def fill(item: Any, values: Sequence[Any]) -> Any:
    """A part of ``forward``'s arguments with the values in their slots."""
    if isinstance(item, Slot):
        return values[item.index]
    if is_sequence(item):
        made = [fill(part, values) for part in item]
        return made if isinstance(item, list) else tuple(made)
    return item


def packed(item: Any, path: Path) -> Any:
    """A constructor's argument, or a part of ``forward``'s, as ``Calling`` writes it.

    Raises:
        TaskError: it is neither a number, a word, None, a slot nor a list of these.
    """
    if isinstance(item, Slot):
        return {"slot": item.index}
    if is_sequence(item):
        parts = [packed(part, path) for part in item]
        return parts if isinstance(item, list) else {"tuple": parts}
    if item is None or isinstance(item, bool | int | float | str):
        return item
    raise TaskError(
        f"{path}: expected numbers, words and lists of them from get_init_inputs(), found {type(item).__name__}: it"
        " cannot be handed to a ModelNew in another process"
    )


def flat_outputs(found: Any, path: Path) -> list[Any]:
    """The tensors that ``forward`` returned, in order.

    Raises:
        TaskError: something among them is no tensor.
    """
    torch = torch_module()
    if isinstance(found, torch.Tensor):
        return [found]
    if is_sequence(found) and found:
        return [output for item in found for output in flat_outputs(item, path)]
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
    bound = inspect.signature(model).bind(*init)
    bound.apply_defaults()
    found: dict[str, bool | int | float] = {}
    for name, value in bound.arguments.items():
        numbers: dict[str, Any] = {f"H_{name.upper()}": value}
        if is_sequence(value):
            numbers = {f"H_{name.upper()}_{k}": item for k, item in enumerate(value)}
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
        attributes: dict[str, Any] = module.__dict__
        held = {name: value for name, value in attributes.items() if isinstance(value, torch.Tensor)}
        for name, value in held.items():
            delattr(module, name)
            module.register_buffer(name, value.detach(), persistent=False)
