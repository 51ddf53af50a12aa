from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from kernelworks.errors import TaskError
from kernelworks.task.lazytorch import double_precision, own_contiguous, seeded, to_double, to_dtype, to_torch
from kernelworks.task.model import DType


def test_every_dtype_has_a_torch_one() -> None:
    assert [to_dtype(to_torch(dtype), "it") for dtype in DType] == list(DType)
    with pytest.raises(TaskError, match=r"^it: expected one of float32, .*, found float8_e5m2$"):
        to_dtype(torch.float8_e5m2, "it")


def test_seeding_all_generators_and_restoring_them() -> None:
    def draw() -> tuple[Any, ...]:
        return torch.rand(1).item(), random.random(), np.random.rand()

    state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    outside = draw()
    torch.set_rng_state(state)
    random.setstate(python_state)
    np.random.set_state(numpy_state)
    with seeded(2**40):
        first = draw()
    with seeded(2**40):
        assert draw() == first
    assert draw() == outside != first


def test_double_precision_reaches_every_request() -> None:
    x: Any = torch.ones(2, dtype=torch.float64) / 3
    with double_precision():
        for y in (
            x.float(),
            x.half(),
            x.bfloat16(),
            x.to(torch.float32),
            x.to(dtype=torch.float16),
            x.type(torch.bfloat16),
            torch.softmax(x, 0, dtype=torch.float32) * 2 / 3,
            torch.full((2,), 1 / 3),
            torch.full((2,), 1 / 3, dtype=torch.float32),
        ):
            assert torch.equal(y, x)
        assert x.cfloat().dtype == torch.complex128
        assert torch.arange(3).dtype == torch.int64
        assert x.to(torch.int32).dtype == torch.int32
    assert x.float().dtype == torch.float32
    assert torch.ones(1).dtype == torch.float32


def test_to_double_widens_floats_alone() -> None:
    assert to_double(torch.ones(1, dtype=torch.bfloat16)).dtype == torch.float64
    assert to_double(torch.ones(1, dtype=torch.complex64)).dtype == torch.complex128
    assert to_double(torch.ones(1, dtype=torch.int8)).dtype == torch.int8
    assert to_double(3) == 3


def test_own_contiguous() -> None:
    x = torch.rand(3, 4)
    fresh = x + 1
    assert own_contiguous(fresh, [x, 3]) is fresh
    for view in (x, x[1:], x.t()):
        made = own_contiguous(view, [x])
        assert torch.equal(made, view) and made.is_contiguous()
        assert made.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert own_contiguous("text", [x]) == "text"
