"""The gated RMS norm of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060): ``rmsnorm(x * silu(z)) * w`` by rows."""

import torch
from jaxtyping import Float32
from torch import Tensor
from torch.nn import functional

from kernelworks.task import case, task

EPS = 1e-5


@task(
    cases=[
        case("main", "timed", rows=4096, cols=2048),
        case("odd", "check", rows=37, cols=1000),
        case("tiny", "check", rows=5, cols=33),
        case("one_row", "edge", rows=1, cols=2048),
        case("one_column", "edge", rows=64, cols=1),
    ]
)
def gated_rms_norm(
    x: Float32[Tensor, "rows cols"], z: Float32[Tensor, "rows cols"], w: Float32[Tensor, "cols"]
) -> Float32[Tensor, "rows cols"]:
    """Gate ``x`` with ``z``, then normalise each row by its root mean square."""
    gated = x * functional.silu(z)
    scale = torch.rsqrt(gated.pow(2).mean(dim=-1, keepdim=True) + EPS)
    return gated * scale * w
