"""Softmax over the last axis."""

import torch
from jaxtyping import Float32
from torch import Tensor

from kernelworks.task import case, task


@task(
    cases=[
        case("main", "timed", rows=4096, cols=4096),
        case("odd", "check", rows=37, cols=1000),
        case("tiny", "check", rows=5, cols=33),
        case("one_row", "edge", rows=1, cols=4096),
        case("two_columns", "edge", rows=64, cols=2),
        case("one_column", "edge", rows=64, cols=1),
    ]
)
def softmax(x: Float32[Tensor, "rows cols"]) -> Float32[Tensor, "rows cols"]:
    """Exponentials of each row, divided by their sum."""
    return torch.softmax(x, dim=-1)
