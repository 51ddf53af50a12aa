"""The judge's heap: what the timed baselines allocate stays warm, what golden values need goes back to the system.

With glibc's defaults every block of 32 MiB and more is mapped afresh, and three quarters of torch's time on an
operation of that size are page faults. The ``warm`` heap never maps a block by itself and never gives a page back, so
that timed calls take no faults; torch's tensors come from ``pages.cpp``, which does the same without leaving gaps.
Float64 runs would leave their temporaries in it for ever; they run ``scratch``, with large blocks mapped. The
``default`` heap is left alone, as a user's program finds it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from kernelworks.evaluate.records import Heap
from kernelworks.evaluate.shims import build_shim

_MMAP_THRESHOLD, _MMAP_MAX = -3, -4  # mallopt(3)
_LARGE_BYTES = 1 << 20


def heap_environment(heap: Heap) -> dict[str, str]:
    """Environment in which a process has this heap from its start (glibc; other C libraries ignore it)."""
    if heap == "default":
        return {}
    shim = pages_shim()
    preloaded = [*filter(None, [os.environ.get("LD_PRELOAD")]), *([str(shim)] if shim is not None else [])]
    return {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 46),
        "MALLOC_TOP_PAD_": str(1 << 26),
        "MALLOC_ARENA_MAX": "1",
        **({"LD_PRELOAD": ":".join(preloaded)} if preloaded else {}),
    }


@cache
def pages_shim() -> Path | None:
    """What keeps the pages of large aligned blocks; ``None`` where it cannot be built: the heap is larger then."""
    return build_shim("pages")


def trim() -> None:
    """Give free pages back, wherever they lie: not while a timed baseline counts on them."""
    process = ctypes.CDLL(None)
    for name in ("malloc_trim", "kernelworks_release_pages"):
        release = getattr(process, name, None)
        if release is not None:
            release(0)


@contextmanager
def scratch(heap: Heap) -> Generator[None]:
    """Large blocks allocated inside are mapped by themselves, and unmapped when they are freed."""
    process = ctypes.CDLL(None)
    mallopt = getattr(process, "mallopt", None) if heap == "warm" else None
    if mallopt is None:
        yield
        return
    keep_pages: Callable[[int], object] = getattr(process, "kernelworks_keep_pages", lambda _keep: None)
    keep_pages(0)
    mallopt(_MMAP_MAX, 1 << 16)
    mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
    try:
        yield
    finally:
        mallopt(_MMAP_MAX, 0)
        keep_pages(1)
