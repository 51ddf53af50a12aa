"""PyTorch submissions for one small task: honest ones, and one for each way to do without the work."""

from __future__ import annotations

from kernelworks.kernel.frontmatter import parse_kernel
from kernelworks.kernel.model import Kernel, Language, Origin

TASK = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        return torch.relu(self.linear(x))

batch = 192
inputs = 256
outputs = 128

def get_inputs():
    return [torch.randn(batch, inputs)]

def get_init_inputs():
    return [inputs, outputs]
"""
"""A KernelBench file: a layer with weights."""

HEAD = '''
import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

SOURCE = r"""
#include <cstdint>
#include <thread>
#include <unistd.h>
extern "C" void linear_relu(const float* x, const float* w, const float* b, float* y, int64_t m, int64_t k, int64_t n) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t t = 0; t < k; t++) sum += x[i * k + t] * w[j * k + t];
      sum += b[j];
      y[i * n + j] = sum < 0 ? 0 : sum;
    }
}
extern "C" void relu(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] < 0 ? 0 : x[i];
}
extern "C" void later(const float* x, const float* w, const float* b, float* y, int64_t m, int64_t k, int64_t n) {
  std::thread([=] { usleep(300); linear_relu(x, w, b, y, m, k, n); }).detach();
}
"""


def build():
    folder = tempfile.mkdtemp()
    source, library = os.path.join(folder, "kernel.cpp"), os.path.join(folder, "kernel.so")
    with open(source, "w") as file:
        file.write(SOURCE)
    subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", source, "-o", library], check=True)
    return ctypes.CDLL(library)


LIBRARY = build()
POINTER, SIZE = ctypes.c_void_p, ctypes.c_int64
for name in ("linear_relu", "later"):
    getattr(LIBRARY, name).argtypes = [POINTER] * 4 + [SIZE] * 3
LIBRARY.relu.argtypes = [POINTER] * 2 + [SIZE]


def own(layer, x, function=LIBRARY.linear_relu, y=None):
    y = torch.empty(x.shape[0], layer.out_features) if y is None else y
    sizes = x.shape[0], x.shape[1], y.shape[1]
    function(x.data_ptr(), layer.weight.data_ptr(), layer.bias.data_ptr(), y.data_ptr(), *sizes)
    return y


def own_relu(x):
    y = torch.empty_like(x)
    LIBRARY.relu(x.data_ptr(), y.data_ptr(), x.numel())
    return y
'''
"""A kernel of its own, compiled while the file is imported."""

TORCH_HEAD = "import torch\nimport torch.nn as nn\n"


def submission(forward: str, *, head: str = HEAD, init: str = "pass", after: str = "") -> str:
    """A file whose ``forward(self, x)`` has this body."""
    lines = "\n".join(f"        {line}" for line in forward.strip().splitlines())
    more = "\n".join(f"        {line}" for line in init.strip().splitlines())
    return f"""{head}

class ModelNew(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
{more}

    def forward(self, x):
{lines}

{after}
"""


def kernel(text: str) -> Kernel:
    """A submission as the front matter module reads it."""
    return parse_kernel(text, Language.PYTHON, Origin(proposer="file"))


HONEST = submission(
    """
stream = None  # a word, no more
try:
    return own(self.linear, x)
except ValueError:
    pass
raise RuntimeError("no answer")
"""
)
OTHER_NAMES = submission("return own(self, x)", init="pass").replace(
    "self.linear = nn.Linear(inputs, outputs)",
    "layer = nn.Linear(inputs, outputs)\n        self.weight, self.bias = layer.weight, layer.bias\n"
    "        self.out_features = outputs",
)
"""The same parameters, drawn alike, under other names."""
PARTIAL = submission("return own_relu(self.linear(x))")
TORCH_ALONE = submission(
    "return torch.clamp(torch.addmm(self.linear.bias, x, self.linear.weight.t()), min=0)", head=TORCH_HEAD
)
INLINE_HEAD = '''
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
torch::Tensor whole(torch::Tensor x, torch::Tensor w, torch::Tensor b) { return at::relu(at::addmm(b, x, w.t())); }
torch::Tensor own(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
  auto y = torch::empty({x.size(0), w.size(0)});
  const float *px = x.data_ptr<float>(), *pw = w.data_ptr<float>(), *pb = b.data_ptr<float>();
  float* py = y.data_ptr<float>();
  const int64_t m = x.size(0), k = x.size(1), n = w.size(0);
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      float sum = pb[j];
      for (int64_t t = 0; t < k; t++) sum += px[i * k + t] * pw[j * k + t];
      py[i * n + j] = sum < 0 ? 0 : sum;
    }
  return y;
}
"""
EXTENSION = load_inline("linear_extension", SOURCE, functions=["whole", "own"], extra_cflags=["-O1"])
'''
