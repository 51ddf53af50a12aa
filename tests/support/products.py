"""A matrix product as a task, right kernels for it, and kernels that fail in one way each."""

from __future__ import annotations

TASK = """
import numpy as np
from jaxtyping import Float32

from kernelworks.task import case, task

A = np.ndarray


@task(
    cases=[
        case("main", "timed", m=64, k=64, n=32),
        case("odd", "check", m=100, k=99, n=101),
        case("even", "check", m=30, k=80, n=101),
        case("thin", "check", m=3, k=7, n=64),
        case("few", "edge", m=2, k=3, n=5),
        case("huge", "large", m=2**21, k=2**21, n=2**21),
    ],
    outputs=["c"],
)
def product(a: Float32[A, "m k"], b: Float32[A, "k n"]) -> Float32[A, "m n"]:
    with np.errstate(all="ignore"):
        return a @ b
"""
"""Its large case fits nowhere: 16 TiB a tensor."""

ROW = """
      for (int64_t j = 0; j < n; j++) c[i * n + j] = 0;
      for (int64_t l = 0; l < DEPTH; l++)
        for (int64_t j = 0; j < n; j++) c[i * n + j] += a[i * k + l] * b[l * n + j];
"""
PRODUCT = f"#pragma omp parallel for\n    for (int64_t i = 0; i < m; i++) {{{ROW.replace('DEPTH', 'k')}    }}"
"""The whole product, row by row."""
BACKWARDS = PRODUCT.replace("int64_t i = 0; i < m; i++", "int64_t i = m - 1; i >= 0; i--")
"""The same in another order."""
WHOLE_TILES = f"for (int64_t i = 0; i < m; i++) {{{ROW.replace('DEPTH', 'k / 16 * 16')}    }}"
"""No guard on the last tile: terms beyond a multiple of 16 are left out."""


def kernel_text(body: str, head: str = "", front: str = "") -> str:
    """A file of which ``launch`` has this body."""
    return f"""/*---
contract: function
{front}---*/
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
{head}
extern "C" int launch(const float* a, const float* b, float* c, int64_t m, int64_t k, int64_t n) {{
    {body}
    return 0;
}}
"""
