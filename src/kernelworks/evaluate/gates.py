"""Published acceptance gates, computed beside ours so that tables can be compared. Nothing is decided by them.

- ``kernelbench``: every element within ``atol + rtol |b|``; 1e-4 in float32 and wider, 1e-2 in 16 bits (KernelBench,
  main; Ouyang et al. 2025, arXiv 2502.10517). ``kernelbench_v0``: 1e-2 throughout, as in its first releases.
- ``kernelfoundry``: at least 99% of the elements with ``|a - b| / (|b| + 1e-7)`` below 1%, and a cosine of at least
  0.99985 (KernelFoundry, arXiv 2603.12440).

``b`` is the exact answer here, where the originals take torch's own; the two differ by rounding, far below the gates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kernelworks.evaluate.compare import CHUNK_ELEMENTS
from kernelworks.evaluate.numbers import Raw, decode
from kernelworks.task.model import DType

_ATOL_V0 = 1e-2
_RELATIVE, _EPSILON, _SHARE, _COSINE = 0.01, 1e-7, 0.99, 0.99985


@dataclass
class Gates:
    """Whether an answer passes each, over all outputs."""

    kernelbench: bool = True
    kernelbench_v0: bool = True
    kernelfoundry: bool = True

    def add(self, found: Raw, golden: Raw, dtype: DType) -> None:
        """One output: its raw plane, and golden values of the same size."""
        atol = 1e-2 if dtype in (DType.FLOAT16, DType.BFLOAT16) else 1e-4
        slack = 0
        dot = found_square = golden_square = 0.0
        for start in range(0, found.size, CHUNK_ELEMENTS):
            have = decode(found[start : start + CHUNK_ELEMENTS], dtype).astype(np.float64, copy=False)
            want = golden[start : start + CHUNK_ELEMENTS].astype(np.float64, copy=False)
            with np.errstate(invalid="ignore", over="ignore"):
                error, size = np.abs(have - want), np.abs(want)
                error[have == want] = 0.0  # equal infinities
                if self.kernelbench_v0:
                    self.kernelbench_v0 = bool((error <= _ATOL_V0 * (1 + size)).all())
                if self.kernelbench:
                    self.kernelbench = bool((error <= atol * (1 + size)).all())
                slack += int(np.count_nonzero(error < _RELATIVE * (size + _EPSILON)))
                dot += float((have * want).sum())
                found_square += float((have * have).sum())
                golden_square += float((want * want).sum())
        if found.size == 0:
            return
        norms = math.sqrt(found_square) * math.sqrt(golden_square)
        cosine = dot / norms if norms > 0 else float(found_square == golden_square)
        self.kernelfoundry &= slack >= _SHARE * found.size and cosine >= _COSINE
