"""The few things that tasks need of torch, imported on first use.

``import kernelworks.task`` must stay light and NumPy tasks must work without torch, hence no torch types here:
tensors are ``Any``.
"""

from __future__ import annotations

import importlib
import logging
import random
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

from kernelworks.errors import EnvironmentLackError, TaskError
from kernelworks.task.model import DType


def torch_module() -> Any:
    """The torch package.

    Raises:
        EnvironmentLackError: it is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise EnvironmentLackError(
            "this task's reference needs torch, which is not installed", mend="pip install 'kernelworks[torch]'"
        ) from error


def is_sequence(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether a value is a list or tuple, of whatever."""
    return isinstance(value, list | tuple)


def to_dtype(dtype: Any, what: str) -> DType:
    """Our name of a torch dtype.

    Raises:
        TaskError: a type that no kernel can receive.
    """
    name = str(dtype).removeprefix("torch.")
    try:
        return DType(name)
    except ValueError:
        raise TaskError(f"{what}: expected one of {', '.join(DType)}, found {name}") from None


def to_torch(dtype: DType) -> Any:
    """The torch dtype of ours."""
    return getattr(torch_module(), dtype.value)


def fake_mode(*, symbols: bool = False) -> Any:
    """A mode (context manager) in which tensors have shapes and dtypes, but no memory; use it within ``quiet``.

    ``symbols``: a size that depends on values is a symbol there, where without it the operator raises.
    """
    torch_module()
    module: Any = importlib.import_module("torch._subclasses.fake_tensor")
    if not symbols:
        return module.FakeTensorMode(allow_non_fake_inputs=True)
    symbolic: Any = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    return module.FakeTensorMode(allow_non_fake_inputs=True, shape_env=symbolic.ShapeEnv())


def dynamic_operator(error: BaseException | None) -> str:
    """``aten.nonzero`` where a run without memory ended at an operator whose result has a size that depends on values;
    empty for any other error."""
    module: Any = importlib.import_module("torch._subclasses.fake_tensor")
    raised: Any = error
    if not isinstance(raised, module.DynamicOutputShapeException):
        return ""
    name = str(raised.func)
    return name.rpartition(".")[0] or name


def has_symbolic_size(outputs: Iterable[Any]) -> bool:
    """Whether an output of a run under ``fake_mode(symbols=True)`` has a size that depends on values."""
    torch = torch_module()
    return any(isinstance(n, torch.SymInt) for output in outputs for n in getattr(output, "shape", ()))


def refuse_dynamic_size(where: str, error: BaseException | None, run: Callable[[], Iterable[Any]]) -> None:
    """Refuse a reference whose output has a size that depends on values.

    Args:
        where: the task, for the message.
        error: why an ordinary run without memory ended.
        run: its outputs under ``fake_mode(symbols=True)``.

    Raises:
        TaskError: names the operator. A reference that uses such an operator on its way to an output of fixed size
            passes.
    """
    operator = dynamic_operator(error)
    if not operator:
        return
    try:
        with quiet():
            outputs = list(run())
    except TaskError as inner:
        if isinstance(inner.__cause__, data_dependent_errors()):
            return  # it looks at values further down; real runs have to show whether sizes agree
        raise
    if has_symbolic_size(outputs):
        raise TaskError(
            f"{where}: expected outputs of known sizes, found one whose size depends on values ({operator}):"
            " a kernel is handed outputs that are allocated before it runs"
        )


@contextmanager
def quiet() -> Generator[None]:
    """torch does not log what it also raises."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def fake_mode_of(arrays: Iterable[Any]) -> Any:
    """The mode that made the first tensor without memory among these; None if there is none."""
    return next((array.fake_mode for array in arrays if hasattr(array, "fake_mode")), None)


def data_dependent_errors() -> tuple[type[Exception], ...]:
    """What a fake run raises where code looks at values: nothing wrong with the code."""
    module: Any = importlib.import_module("torch._subclasses.fake_tensor")
    symbolic: Any = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    return (
        module.DataDependentOutputException,
        module.DynamicOutputShapeException,
        module.UnsupportedFakeTensorException,
        module.UnsupportedOperatorException,
        symbolic.GuardOnDataDependentSymNode,
    )


def to_double(array: Any) -> Any:
    """A tensor of real floating type in float64, a complex one in complex128, all else unchanged."""
    torch = torch_module()
    if not isinstance(array, torch.Tensor):
        return array
    if array.is_complex():
        return array.to(torch.complex128)
    return array.to(torch.float64) if array.is_floating_point() else array


def own_contiguous(output: Any, arrays: Sequence[Any]) -> Any:
    """An output as a contiguous tensor that shares no memory with any of ``arrays``; no tensor is returned as it is."""
    torch = torch_module()
    if not isinstance(output, torch.Tensor):
        return output
    held = {a.untyped_storage()._cdata for a in arrays if isinstance(a, torch.Tensor)}
    made: Any = output.contiguous()
    return made.clone() if made.untyped_storage()._cdata in held else made


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """Seed torch, ``random`` and NumPy's global generator; their states are restored afterwards."""
    import numpy as np

    torch = torch_module()
    python_state = random.getstate()
    numpy_state: Any = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@contextmanager
def double_precision() -> Generator[None]:
    """Everything inside computes in float64 (complex128).

    The default dtype is float64, and requests for a lower floating type (``x.float()``, ``x.to(torch.bfloat16)``,
    ``dtype=torch.float32``) give float64: code that widens bfloat16 to float32 by hand must not narrow float64.
    """
    torch = torch_module()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _widening_mode():
            yield
    finally:
        torch.set_default_dtype(before)


def _widening_mode() -> Any:
    torch = torch_module()
    overrides: Any = importlib.import_module("torch.overrides")
    wider = {
        torch.float32: torch.float64,
        torch.float16: torch.float64,
        torch.bfloat16: torch.float64,
        torch.complex64: torch.complex128,
    }
    methods = {
        torch.Tensor.float: torch.Tensor.double,
        torch.Tensor.half: torch.Tensor.double,
        torch.Tensor.bfloat16: torch.Tensor.double,
        torch.Tensor.cfloat: torch.Tensor.cdouble,
    }

    def widen(value: Any) -> Any:
        return wider.get(value, value) if isinstance(value, torch.dtype) else value

    class Widening(overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            changed = {name: widen(value) for name, value in (kwargs or {}).items()}
            return methods.get(func, func)(*(widen(value) for value in args), **changed)

    return Widening()


def enlivened(weight: Any, generator: Any) -> Any:
    """A floating weight that its initialisation left at one value, drawn anew; any other as it is.

    Ones of a norm become 0.5 to 1.5, zeros of a bias -0.5 to 0.5, running statistics likewise: a kernel that leaves out
    a parameter which a fresh model does not feel is wrong on these. What is positive stays positive.
    """
    torch = torch_module()
    if not weight.is_floating_point() or weight.numel() == 0:
        return weight
    first = weight.reshape(-1)[0]
    if not bool(torch.isfinite(first)) or not bool((weight == first).all()):
        return weight
    drawn = torch.rand(weight.shape, generator=generator, dtype=torch.float32)
    made = drawn - 0.5 if float(first) == 0 else (drawn + 0.5) * float(first)
    return made.to(weight.dtype)
