"""The operations as KernelBench files: the same work and parameters as under the function contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernelworks.selftest import hosts
from kernelworks.selftest.model import Host, PythonSide
from kernelworks.selftest.pen import Pen

_FILE = '''"""An operation of the attack suite."""

import torch
from torch import nn

{sizes}


class Model(nn.Module):
{init}    def forward(self, {forward}):
        return {answer}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [{init_inputs}]
'''


def _task(
    sizes: Callable[[Pen], dict[str, int]], side: PythonSide, inputs: str, init: str = ""
) -> Callable[[Pen], str]:
    def write(pen: Pen) -> str:
        given = "\n".join(f"{name} = {value}" for name, value in sizes(pen).items())
        own = "".join(f"    {line}\n" for line in side.init.splitlines()) + "\n" if side.init else ""
        return _FILE.format(
            sizes=given, init=own, forward=side.forward, answer=side.by_torch, inputs=inputs, init_inputs=init
        )

    return write


def _host(base: Host, side: PythonSide, sizes: Callable[[Pen], dict[str, int]], inputs: str, init: str = "") -> Host:
    return replace(base, task=_task(sizes, side, inputs, init), python=side)


_ROWS = ("x.shape[0]", "x.shape[1]")
_RMS_INIT = """def __init__(self, features):
    super().__init__()
    self.weight = nn.Parameter(torch.ones(features))
"""
_LINEAR_INIT = """def __init__(self, depth, features):
    super().__init__()
    self.weight = nn.Parameter(torch.randn(depth, features) * 0.05)
    self.bias = nn.Parameter(torch.zeros(features))
"""
_LAYERS_INIT = """def __init__(self, depth, hidden, features):
    super().__init__()
    self.first = nn.Parameter(torch.randn(depth, hidden) * 0.05)
    self.second = nn.Parameter(torch.randn(hidden, features) * 0.05)
"""
_NEWTON_INIT = """def __init__(self, steps):
    super().__init__()
    self.steps = steps

def run(self, x):
    y = torch.ones_like(x)
    for _ in range(self.steps):
        y = 0.5 * (y + x / y)
    return y
"""

SOFTMAX = _host(
    hosts.SOFTMAX,
    PythonSide(
        forward="x",
        allocate="torch.empty_like(x)",
        arguments=("x.data_ptr()", "y.data_ptr()", *_ROWS),
        by_torch="torch.softmax(x, dim=-1)",
    ),
    lambda pen: {"rows": pen.number(17, 20), "cols": pen.number(12_000, 13_000)},
    "torch.randn(rows, cols)",
)
RMS_NORM = _host(
    hosts.RMS_NORM,
    PythonSide(
        forward="x",
        allocate="torch.empty_like(x)",
        arguments=("x.data_ptr()", "self.weight.data_ptr()", "y.data_ptr()", *_ROWS),
        init=_RMS_INIT,
        by_torch="x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-5) * self.weight",
    ),
    lambda pen: {"rows": pen.number(40, 56), "features": pen.number(4100, 5000)},
    "torch.randn(rows, features)",
    "features",
)
LINEAR = _host(
    hosts.LINEAR,
    PythonSide(
        forward="x",
        allocate="x.new_empty(x.shape[0], self.weight.shape[1])",
        arguments=(
            "x.data_ptr()",
            "self.weight.data_ptr()",
            "self.bias.data_ptr()",
            "y.data_ptr()",
            *_ROWS,
            "self.weight.shape[1]",
        ),
        init=_LINEAR_INIT,
        by_torch="torch.relu(x @ self.weight + self.bias)",
    ),
    lambda pen: {"rows": pen.number(60, 72), "depth": pen.number(64, 70) * 4, "features": pen.number(90, 110)},
    "torch.rand(rows, depth)",
    "depth, features",
)
TWO_LAYERS = _host(
    hosts.TWO_LAYERS,
    PythonSide(
        forward="x",
        allocate="x.new_empty(x.shape[0], self.second.shape[1])",
        arguments=(
            "x.data_ptr()",
            "self.first.data_ptr()",
            "self.second.data_ptr()",
            "y.data_ptr()",
            *_ROWS,
            "self.first.shape[1]",
            "self.second.shape[1]",
        ),
        init=_LAYERS_INIT,
        by_torch="(x @ self.first) @ self.second",
    ),
    lambda pen: {"rows": pen.number(60, 80), "depth": 64, "hidden": pen.number(60, 70) * 8, "features": 32},
    "torch.randn(rows, depth)",
    "depth, hidden, features",
)
NEWTON = _host(
    hosts.NEWTON,
    PythonSide(
        forward="x",
        allocate="torch.empty_like(x)",
        arguments=("x.data_ptr()", "self.steps", "y.data_ptr()", "x.shape[0]"),
        init=_NEWTON_INIT,
        by_torch="self.run(x)",
    ),
    lambda pen: {"n": pen.number(50_000, 70_000), "steps": pen.number(14, 16)},
    "torch.rand(n) * 1.5 + 0.5",
    "steps",
)
DAMPED = _host(
    hosts.DAMPED,
    PythonSide(
        forward="x",
        allocate="torch.empty_like(x)",
        arguments=("x.data_ptr()", "y.data_ptr()", "x.shape[0]"),
        by_torch="x - 0.0015 * torch.sin(x)",
    ),
    lambda pen: {"n": pen.number(5600, 7400) * 16},
    "torch.randn(n)",
)
TINY = _host(
    hosts.TINY,
    PythonSide(
        forward="x",
        allocate="torch.empty_like(x)",
        arguments=("x.data_ptr()", "y.data_ptr()", "x.shape[0]"),
        by_torch="x * x",
    ),
    lambda pen: {"n": pen.number(64, 200)},
    "torch.randn(n)",
)
MODULE_HOSTS: dict[str, Host] = {
    host.name: host for host in (SOFTMAX, RMS_NORM, LINEAR, TWO_LAYERS, NEWTON, DAMPED, TINY)
}
