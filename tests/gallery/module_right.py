"""Softmax over rows as a PyTorch submission: a kernel of its own, compiled while the file is imported."""

import ctypes
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

SOURCE = r"""
#include <cmath>
#include <cstdint>
extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t cols) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; r++) {
    const float* in = x + r * cols;
    float* out = y + r * cols;
    float top = in[0];
    for (int64_t c = 1; c < cols; c++)
      if (!(in[c] <= top)) top = in[c];
    float sum = 0;
    for (int64_t c = 0; c < cols; c++) sum += out[c] = std::exp(in[c] - top);
    for (int64_t c = 0; c < cols; c++) out[c] /= sum;
  }
}
"""


def build() -> Any:
    folder = Path(tempfile.mkdtemp())
    (folder / "softmax.cpp").write_text(SOURCE)
    flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
    subprocess.run(["g++", *flags, str(folder / "softmax.cpp"), "-o", str(folder / "softmax.so")], check=True)
    function = ctypes.CDLL(str(folder / "softmax.so")).softmax
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    return function


SOFTMAX = build()


class ModelNew(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        SOFTMAX(x.data_ptr(), y.data_ptr(), *x.shape)
        return y
