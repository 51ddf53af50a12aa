"""Where a fatal signal struck: the C shim that records it, and the translation of an address to a tensor."""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from kernelworks.errors import EnvironmentLackError
from kernelworks.evaluate.buffers import Side
from kernelworks.home import home
from kernelworks.targets.compile import LIBRARY_NAME, Compilation, compile_shared
from kernelworks.targets.compiler import find_toolchain
from kernelworks.targets.gate import process_gate

RECORD = struct.Struct("=iIQ")
"""signal, access (0 unknown, 1 read, 2 write), address: ``struct record`` of faults.cpp."""

Access = Literal["read", "write"]

_ACCESS: dict[int, Access] = {1: "read", 2: "write"}


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

    address: int
    access: Access | None = None
    """``None`` where the processor does not say."""
    buffer: str | None = None
    """The tensor or workspace that was missed; ``None`` when none is near (a null or wild pointer)."""
    side: Side | None = None
    distance_bytes: int = 0
    """``after``: from the end (0 is the first byte past it); ``before``: down from the start (1 is the last byte)."""

    def __str__(self) -> str:
        verb = self.access or "access"
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
        content = os.pread(self.fd, RECORD.size, 0)  # not mapped here: the candidate may have cut the file short
        if len(content) != RECORD.size:
            return None
        recorded, access, address = RECORD.unpack(content)
        if recorded != signal:
            return None
        return locate(address, _ACCESS.get(access), regions)

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
    text = files("kernelworks.evaluate").joinpath("faults.cpp").read_text(encoding="utf-8")
    try:
        toolchain = find_toolchain().model_copy(update={"openmp_link": ()})
    except EnvironmentLackError:
        return None
    key = hashlib.sha256(repr((text, toolchain)).encode()).hexdigest()[:24]
    folder = home() / "cache" / "shims"
    library = folder / f"faults-{key}.so"
    if library.exists():
        return library
    quiet = ("-fno-sanitize=undefined",) if toolchain.family == "zig" else ()
    build = Compilation(text, ("-O2", "-std=c++17", "-fPIC", *quiet))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            if compile_shared(toolchain, process_gate(), build, Path(scratch)) is not None:
                return None
            (Path(scratch) / LIBRARY_NAME).replace(library)  # whole or not at all, whoever else builds it
    except OSError:
        return None
    return library
