"""Timings on one device take turns, also those of several runs: a file lock that dies with its holder."""

from __future__ import annotations

import fcntl
import hashlib
import time
from collections.abc import Generator
from contextlib import contextmanager

from kernelworks.home import home

LEASE_LIMIT_S = 300.0
"""A timed part takes seconds; after so long its holder must have been stopped."""
_LOOK_S = 0.02


class LeaseHeldError(Exception):
    """Another timing has held the device for too long."""


@contextmanager
def device_lease(device: str, limit_s: float = LEASE_LIMIT_S) -> Generator[float]:
    """Hold the device for a timing; gives the seconds that were waited for it.

    The lock is flock(2) on a file of the user's home: Linux drops it when the holder ends, however it ends, and no
    process below the holder inherits it.

    Args:
        device: name of the device.
        limit_s: to wait at most.

    Raises:
        LeaseHeldError: it did not become free in time.
    """
    folder = home() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"device-{hashlib.sha256(device.encode()).hexdigest()[:16]}.lock"
    begun_s = time.monotonic()
    with path.open("a", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited_s = time.monotonic() - begun_s
                if waited_s > limit_s:
                    raise LeaseHeldError(f"device {device}: another timing has held it for {waited_s:.0f} s") from None
            time.sleep(_LOOK_S)
        yield time.monotonic() - begun_s
