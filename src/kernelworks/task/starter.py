"""The starter that ``kernelworks task new NAME`` writes."""

from __future__ import annotations

import re
from string import Template

from kernelworks.errors import TaskError
from kernelworks.task.prototype import C_KEYWORDS

_TEXT = Template('''"""$name: say here what it computes.

Look at the prototype that a kernel must have, and check the task:  kernelworks task check $name.py
Find a fast kernel for it:                                         kernelworks optimize $name.py
"""

import torch
from jaxtyping import Float32
from torch import Tensor

from kernelworks.task import case, task

# The annotations name the dims: "rows cols" has two, "cols" is the same cols again, "rows 3" has a fixed size, ""
# is a scalar tensor. Dtypes: Float32, Float64, Float16, BFloat16, Int8 ... Int64, UInt8, Bool, Complex64.
# Plain float, int and bool are Python scalars; each case gives them a value (or leaves their default).
# Write numpy.ndarray in place of Tensor for a NumPy reference.


@task(
    cases=[
        # Measured. Every case gives every dim a size.
        case("main", "timed", rows=4096, cols=2048),
        # Must be right as well, and is hidden from whoever writes kernels. Choose other, awkward sizes.
        case("odd", "check", rows=37, cols=1000),
        case("small", "check", rows=5, cols=33),
        # Must be right where the kernel says that it covers it.
        case("one_row", "edge", rows=1, cols=2048),
        case("one_column", "edge", rows=64, cols=1),
    ],
    # Inputs are standard normal. Others: inputs={"x": uniform(0, 1)}, or a function (generator, sizes) -> {"x": ...}.
    # A bound of your own, RMS error over RMS of the exact answer: tolerance=1e-5. In-place results: mutates=["x"].
)
def $name(x: Float32[Tensor, "rows cols"], w: Float32[Tensor, "cols"]) -> Float32[Tensor, "rows cols"]:
    """The reference: plain, correct code. It is run in float64 to judge kernels, and as it is to compare speed."""
    return torch.relu(x) * w
''')


def starter_text(name: str) -> str:
    """A commented task file that loads and runs as it is.

    Raises:
        TaskError: the name cannot be that of a Python function and of a C identifier.
    """
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", name) or name in C_KEYWORDS or name in _TAKEN:
        raise TaskError(f"task new: expected a name of lower-case letters, digits and _, found {name!r}")
    return _TEXT.substitute(name=name)


_TAKEN = frozenset(
    "and as assert async await class def del elif except finally from global import in is lambda nonlocal not or pass"
    " raise with yield task case torch x w rows cols".split()
)
"""Python keywords that C allows, and names that the starter itself uses."""
