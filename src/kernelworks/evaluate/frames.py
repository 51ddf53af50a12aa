"""Native arrays of a task's framework from raw ones and back, without copies where memory allows it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from kernelworks.errors import TaskError
from kernelworks.evaluate.numbers import Raw, storage
from kernelworks.task.lazytorch import torch_module
from kernelworks.task.model import DType, Task


class Frame(Protocol):
    """What the judge needs of a framework."""

    def native(self, raw: Raw, dtype: DType) -> Any:
        """The framework's array on the same memory."""
        ...

    def raw(self, array: Any, dtype: DType) -> Raw:
        """Contiguous raw array of a native one; the same memory if that is contiguous.

        Raises:
            TaskError: it is no array of this dtype.
        """
        ...

    def golden(self, array: Any) -> Raw:
        """A float64 (complex128) or integer result of the reference as a contiguous NumPy array."""
        ...


class NumpyFrame:
    """NumPy arrays."""

    def native(self, raw: Raw, dtype: DType) -> Any:
        """The array itself.

        Raises:
            TaskError: NumPy has no such dtype.
        """
        if dtype is DType.BFLOAT16:
            raise TaskError("a NumPy task cannot have bfloat16 arguments: expected a torch reference")
        return raw

    def raw(self, array: Any, dtype: DType) -> Raw:
        """The array, made contiguous."""
        found = np.asarray(array)
        if found.dtype != storage(dtype):
            raise TaskError(f"expected an array of {dtype}, found {found.dtype}")
        return np.ascontiguousarray(found).reshape(found.shape)

    def golden(self, array: Any) -> Raw:
        """The array, made contiguous."""
        found = np.asarray(array)
        return np.ascontiguousarray(found).reshape(found.shape)


class TorchFrame:
    """torch tensors on the CPU.

    Raises:
        EnvironmentLackError: torch is not installed.
    """

    def __init__(self, threads: int) -> None:
        self._torch: Any = torch_module()
        self._torch.set_num_threads(threads)
        self._torch.set_grad_enabled(False)

    def native(self, raw: Raw, dtype: DType) -> Any:
        """A tensor on the memory of the raw array."""
        tensor = self._torch.from_numpy(raw)
        return tensor.view(self._torch.bfloat16) if dtype is DType.BFLOAT16 else tensor

    def raw(self, array: Any, dtype: DType) -> Raw:
        """The memory of a tensor, made contiguous."""
        if not isinstance(array, self._torch.Tensor):
            raise TaskError(f"expected a tensor of {dtype}, found {type(array).__name__}")
        found = str(array.dtype).removeprefix("torch.")
        if found != dtype:
            raise TaskError(f"expected a tensor of {dtype}, found {found}")
        tensor = array.detach().contiguous()
        if dtype is DType.BFLOAT16:
            tensor = tensor.view(self._torch.uint16)
        return tensor.resolve_conj().resolve_neg().numpy()

    def golden(self, array: Any) -> Raw:
        """The memory of a result, made contiguous."""
        if not isinstance(array, self._torch.Tensor):
            return np.asarray(array)
        return array.detach().contiguous().resolve_conj().resolve_neg().numpy()


def frame_of(task: Task, threads: int) -> Frame:
    """The frame of the task's framework.

    Raises:
        EnvironmentLackError: the framework is not installed.
    """
    return TorchFrame(threads) if task.framework == "torch" else NumpyFrame()
