"""The judge's heap: what the timed baselines allocate stays warm, what golden values need goes back to the system.

With glibc's defaults every block of 32 MiB and more is mapped afresh, and three quarters of torch's time on an
operation of that size are page faults. The ``warm`` heap never maps a block by itself and never gives a page back, so
that timed calls take no faults. Float64 runs would leave their temporaries in it for ever; they run ``scratch``, with
large blocks mapped. The ``default`` heap is left alone, as a user's program finds it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from contextlib import contextmanager

from kernelworks.evaluate.records import Heap

_MMAP_THRESHOLD, _MMAP_MAX = -3, -4  # mallopt(3)
_LARGE_BYTES = 1 << 20


def heap_environment(heap: Heap) -> dict[str, str]:
    """Environment in which a process has this heap from its start (glibc; other C libraries ignore it)."""
    if heap == "default":
        return {}
    return {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 46),
        "MALLOC_TOP_PAD_": str(1 << 26),
        "MALLOC_ARENA_MAX": "1",
    }


@contextmanager
def scratch(heap: Heap) -> Generator[None]:
    """Large blocks allocated inside are mapped by themselves, and unmapped when they are freed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if heap == "warm" else None
    if mallopt is None:
        yield
        return
    mallopt(_MMAP_MAX, 1 << 16)
    mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
    try:
        yield
    finally:
        mallopt(_MMAP_MAX, 0)
