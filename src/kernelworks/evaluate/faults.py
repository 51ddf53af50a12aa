"""Where a fatal signal struck: the C shim that records it, and the translation of an address to a tensor."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from signal import SIGSYS
from typing import Literal

from kernelworks.evaluate.buffers import Side
from kernelworks.evaluate.shims import build_shim

RECORD = struct.Struct("=iIQ")
"""signal, access (0 unknown, 1 read, 2 write, 3 no address), address or number of a system call: ``struct Record`` of
faults.cpp."""

Access = Literal["read", "write"]

_ACCESS: dict[int, Access] = {1: "read", 2: "write"}
_WITHOUT_ADDRESS = 3


@dataclass(frozen=True)
class Region:
    """One mapping of a tensor or workspace in the candidate's process, without its guards."""

    name: str
    start: int
    """Address of the first byte of the data."""
    size_bytes: int
    reach_bytes: int
    """How far from the data an address is still taken as meant for it."""


@dataclass(frozen=True)
class Fault:
    """Where a signal struck."""

    address: int | None
    """``None`` where the processor gives none, which is no null pointer."""
    access: Access | None = None
    """``None`` where the processor does not say."""
    buffer: str | None = None
    """The tensor or workspace that was missed; ``None`` when none is near (a null or wild pointer)."""
    side: Side | None = None
    distance_bytes: int = 0
    """``after``: from the end (0 is the first byte past it); ``before``: down from the start (1 is the last byte)."""

    def __str__(self) -> str:
        verb = self.access or "access"
        if self.address is None:
            return "a misaligned vector load or store, or a pointer beyond the address space"
        if self.buffer is None:
            return f"{verb} at address {self.address:#x}" + (" (null pointer)" if self.address < mmap.PAGESIZE else "")
        if self.side is None:
            return f"{verb} inside {self.buffer}"
        where = "past the end" if self.side == "after" else "before the start"
        return f"{verb} {self.distance_bytes} bytes {where} of {self.buffer}"


def locate(address: int, access: Access | None, regions: Iterable[Region]) -> Fault:
    """The fault at an address, told by the nearest region within reach."""
    found = Fault(address, access)
    for region in regions:
        end = region.start + region.size_bytes
        if region.start <= address < end:
            return Fault(address, access, region.name)
        side: Side = "after" if address >= end else "before"
        distance = address - end if side == "after" else region.start - address
        if distance <= region.reach_bytes and (found.buffer is None or distance < found.distance_bytes):
            found = Fault(address, access, region.name, side, distance)
    return found


class FaultPage:
    """The page that the shim writes into. The candidate can write there too: trust it for wording only."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("kernelworks-faults")
        os.ftruncate(self.fd, mmap.PAGESIZE)

    def read(self, signal: int, regions: Iterable[Region]) -> Fault | None:
        """The fault behind a death by ``signal``; ``None`` when nothing was recorded for it."""
        found = self._record(signal)
        if found is None:
            return None
        access, address = found
        return Fault(None) if access == _WITHOUT_ADDRESS else locate(address, _ACCESS.get(access), regions)

    def read_call(self) -> int | None:
        """Number of the system call that a filter refused; ``None`` when nothing was recorded."""
        found = self._record(SIGSYS)
        return found[1] if found is not None else None

    def _record(self, signal: int) -> tuple[int, int] | None:
        content = os.pread(self.fd, RECORD.size, 0)  # not mapped here: the candidate may have cut the file short
        if len(content) != RECORD.size:
            return None
        recorded, access, address = RECORD.unpack(content)
        return (access, address) if recorded == signal else None

    def close(self) -> None:
        """Give the page back; idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@cache
def fault_shim() -> Path | None:
    """The compiled shim, built once per text and compiler; ``None`` where it cannot be built (less detail then).

    The build waits for timings to end: have it done before the first of them.
    """
    return build_shim("faults")
