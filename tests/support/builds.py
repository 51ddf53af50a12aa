"""Small tasks and kernels for tests that build."""

from __future__ import annotations

from kernelworks.kernel.frontmatter import parse_kernel
from kernelworks.kernel.model import Kernel, Language, Origin, Params
from kernelworks.task.model import Case, CaseRole, DType, Task, TensorArgument


def scale_task(constants: dict[str, bool | int | float] | None = None) -> Task:
    """``y = f(x)`` over n float32 elements: ``launch(const float* x, float* y, int64_t n)``."""
    return Task(
        name="scale",
        source="python",
        digest="00",
        framework="numpy",
        inputs=(TensorArgument(name="x", dtype=DType.FLOAT32, shape=("n",), role="input"),),
        outputs=(TensorArgument(name="y", dtype=DType.FLOAT32, shape=("n",), role="output"),),
        dims=("n",),
        constants=constants or {},
        cases=(
            Case(name="small", role=CaseRole.CHECK, sizes={"n": 7}),
            Case(name="large", role=CaseRole.TIMED, sizes={"n": 1 << 20}),
        ),
    )


def kernel_text(body: str, *, front: str = "", head: str = "") -> str:
    """A kernel file for ``scale_task`` with this body of the loop."""
    return f"""/*---
contract: function
{front}---*/
#include <cstdint>
{head}
extern "C" int launch(const float* __restrict x, float* __restrict y, int64_t n) {{
#pragma omp parallel for
    for (int64_t i = 0; i < n; ++i) {body}
    return 0;
}}
"""


def make_kernel(text: str, *, params: Params | None = None, path: str = "") -> Kernel:
    """A kernel from a text that begins with front matter."""
    return parse_kernel(text, Language.CPP, Origin(proposer="file"), params=params, path=path)
