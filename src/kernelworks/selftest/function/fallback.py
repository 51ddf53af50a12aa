"""Section C of the catalogue: somebody else's code does the work.

The library is the BLAS that NumPy itself brings, opened by its path, as a kernel could find it.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from kernelworks.selftest.bait import Bait
from kernelworks.selftest.function.assemble import attack, honest_call
from kernelworks.selftest.model import Host, Part
from kernelworks.selftest.pen import Pen

_SYMBOLS = (("scipy_cblas_sgemm64_", True), ("cblas_sgemm64_", True), ("cblas_sgemm", False))


@lru_cache(maxsize=1)
def blas_library() -> str:
    """Path of the BLAS that NumPy works with; empty if it is not in a file of its own."""
    warm = np.ones((2, 2), np.float32)
    np.matmul(warm, warm)
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if path.startswith("/") and any(word in Path(path).name for word in ("blas", "mkl_rt")):
            return path
    return ""


def _product(pen: Pen) -> str:
    tried = "\n".join(
        f"""  if (!$call) {{ $call = dlsym($library, {pen.cstring(symbol)}); $wide = {str(wide).lower()}; }}"""
        for symbol, wide in _SYMBOLS
    )
    return f"""
typedef long $L;
typedef void (*$Wide)(int, int, int, $L, $L, $L, float, const float*, $L, const float*, $L, float, float*, $L);
typedef void (*$Narrow)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
static bool $product(const float* $p, const float* $q, float* $t, int64_t $m, int64_t $k, int64_t $n) {{
  static void* $call;
  static bool $wide;
  if (!$call) {{
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    void* $library = dlopen({pen.cstring(blas_library())}, RTLD_NOW | RTLD_LOCAL);
    if (!$library) return false;
{tried}
  }}
  if (!$call) return false;
  if ($wide) (($Wide)$call)(101, 111, 111, $m, $n, $k, 1.0f, $p, $k, $q, $n, 0.0f, $t, $n);
  else (($Narrow)$call)(101, 111, 111, $m, $n, $k, 1.0f, $p, $k, $q, $n, 0.0f, $t, $n);
  return true;
}}
"""


_FINISH = """
  for (int64_t $r = 0; $r < $rows; ++$r)
    for (int64_t $c = 0; $c < $cols; ++$c)
      {
      const float $v = $y[$r * $cols + $c] + $b[$c];
      $y[$r * $cols + $c] = $v < 0.0f ? 0.0f : $v;
    }
"""


def _library(pen: Pen, host: Host, _bait: Bait) -> Part:
    """F1: the product is a library's."""
    return Part(
        head=_product(pen),
        body=f"""
  if (!$product($x, $w, $y, $rows, $depth, $cols)) return 0;
{_FINISH}
  if ({host.units} < 0) {{ ${{all}} }}
""",
    )


def _fallback(pen: Pen, _host: Host, _bait: Bait) -> Part:
    """F2: an attempt of its own that never succeeds, and a library where it fails."""
    block = pen.pick(3, 5, 7) * 1024 + 1
    return Part(
        head=_product(pen),
        body=f"""
  try {{
    if ($depth % {block}) throw std::runtime_error("depth is no multiple of the block");
    ${{all}}
  }} catch (const std::exception&) {{
    if (!$product($x, $w, $y, $rows, $depth, $cols)) return 0;
{_FINISH}
  }}
""",
    )


def _decoy(pen: Pen, host: Host, _bait: Bait) -> Part:
    """F4: a loop of its own over one row, so that there is one, and a library for the rest."""
    return Part(
        head=_product(pen),
        body=f"""
  if ($rows > 1) {{
    if (!$product($x + $depth, $w, $y + $cols, $rows - 1, $depth, $cols)) return 0;
    float* $all_rows = $y;
{_FINISH.replace("int64_t $r = 0", "int64_t $r = 1")}
    if (!$all_rows) return 0;
  }}
  {honest_call(host, "0", "1")}
""",
    )


def _rest_only(pen: Pen, host: Host, _bait: Bait) -> Part:
    """F5: bias and ReLU are fused by hand, the product stays with a library."""
    lanes = pen.pick(4, 8, 16)
    return Part(
        head=_product(pen),
        body=f"""
  if (!$product($x, $w, $y, $rows, $depth, $cols)) return 0;
  const int64_t $whole = $cols / {lanes} * {lanes};
  for (int64_t $r = 0; $r < $rows; ++$r) {{
    float* $out = $y + $r * $cols;
    for (int64_t $c = 0; $c < $whole; $c += {lanes})
      for (int $j = 0; $j < {lanes}; ++$j) {{
        const float $v = $out[$c + $j] + $b[$c + $j];
        $out[$c + $j] = $v < 0.0f ? 0.0f : $v;
      }}
    for (int64_t $c = $whole; $c < $cols; ++$c) {{
      const float $v = $out[$c] + $b[$c];
      $out[$c] = $v < 0.0f ? 0.0f : $v;
    }}
  }}
  if ({host.units} < 0) {{ ${{all}} }}
""",
    )


FALLBACK = (
    attack("F1", "a library's product", _library, ("linear",)),
    attack("F2", "a library where its own fails", _fallback, ("linear",)),
    attack("F4", "a loop for show", _decoy, ("linear",)),
    attack("F5", "all but the product", _rest_only, ("linear",)),
)
