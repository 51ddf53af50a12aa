"""Layer norm over the last axis, then GELU in its exact form."""

from jaxtyping import Float32
from torch import Tensor
from torch.nn import functional

from kernelworks.task import case, task


@task(
    cases=[
        case("main", "timed", rows=8192, cols=1024),
        case("odd", "check", rows=37, cols=1000),
        case("tiny", "check", rows=5, cols=33),
        case("one_row", "edge", rows=1, cols=1024),
        case("one_column", "edge", rows=64, cols=1),
    ]
)
def layer_norm_gelu(
    x: Float32[Tensor, "rows cols"], weight: Float32[Tensor, "cols"], bias: Float32[Tensor, "cols"]
) -> Float32[Tensor, "rows cols"]:
    """Normalise each row, scale and shift it, and apply GELU."""
    normal = functional.layer_norm(x, (x.shape[-1],), weight, bias, eps=1e-5)
    return functional.gelu(normal)
