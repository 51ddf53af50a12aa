"""What follows a linear layer in a transformer's MLP: add the bias, GELU (tanh form), scale, add the residual."""

from jaxtyping import Float32
from torch import Tensor
from torch.nn import functional

from kernelworks.task import case, task


@task(
    cases=[
        case("main", "timed", rows=4096, cols=3072, scale=0.5),
        case("odd", "check", rows=37, cols=1000, scale=-1.25),
        case("tiny", "check", rows=5, cols=33, scale=2.0),
        case("one_row", "edge", rows=1, cols=3072, scale=0.5),
        case("one_column", "edge", rows=64, cols=1, scale=0.5),
    ]
)
def bias_gelu_residual(
    x: Float32[Tensor, "rows cols"],
    bias: Float32[Tensor, "cols"],
    residual: Float32[Tensor, "rows cols"],
    scale: float,
) -> Float32[Tensor, "rows cols"]:
    """``residual + scale * gelu(x + bias)``."""
    return residual + scale * functional.gelu(x + bias, approximate="tanh")
