"""Tensors in shared memory, with canaries: what the judge and a candidate both see of one argument.

One tensor lives in one sealed memory file::

    | canary, one page or more, less than two | data | canary, 0..63 bytes |
                                              ^ 64-byte aligned            ^ end of the last page

A candidate maps the file between pages without access, so a write past the end of the data hits a canary or faults at
once. The file is sealed against shrinking: a candidate holds a descriptor of it, and truncating the file would
otherwise kill the judge by SIGBUS at its next access.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from kernelworks.errors import EvaluationError

ALIGNMENT_BYTES = 64
"""Alignment of the first byte of every tensor and workspace."""

Side = Literal["before", "after"]
SIDES: tuple[Side, ...] = ("before", "after")


@dataclass(frozen=True)
class BufferLayout:
    """Where the data stands in the memory file. Plain numbers, JSON-able."""

    name: str
    size_bytes: int
    file_bytes: int
    data_offset: int

    @staticmethod
    def of(name: str, size_bytes: int) -> BufferLayout:
        """The layout for a tensor of ``size_bytes``; zero is a size too.

        Raises:
            EvaluationError: the size is negative.
        """
        if size_bytes < 0:
            raise EvaluationError(f"buffer {name}: expected a size of at least 0 bytes, found {size_bytes}")
        page = mmap.PAGESIZE
        file_bytes = page + -(-size_bytes // page) * page
        data_offset = file_bytes - -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return BufferLayout(name, size_bytes, file_bytes, data_offset)

    @property
    def data_end(self) -> int:
        """Offset of the first byte past the data."""
        return self.data_offset + self.size_bytes


@dataclass(frozen=True)
class CanaryDamage:
    """A write out of bounds that did not reach a guard page."""

    name: str
    side: Side
    distance_bytes: int
    """Of the lowest changed byte: ``after``, from the end (0 is the first byte past it); ``before``, down from the
    start (1 is the last byte before it)."""
    changed_bytes: int
    """Changed canary bytes on this side (a byte overwritten by its own value cannot be seen)."""


class SharedBuffer:
    """One tensor in one memory file, mapped into this process. Make it by ``create`` or ``attach``."""

    def __init__(self, layout: BufferLayout, fd: int, *, fresh: bool) -> None:
        self.layout = layout
        self.fd = fd
        """Descriptor of the memory file; -1 once closed."""
        self._map = mmap.mmap(fd, layout.file_bytes, flags=mmap.MAP_SHARED)
        self._view = memoryview(self._map)
        self.data: memoryview = self._view[layout.data_offset : layout.data_end]
        """The tensor's bytes, writable, exactly ``size_bytes``."""
        self._before = b""
        self._after = b""
        if fresh:
            self.reset_canaries()
        else:
            self._before, self._after = self._canaries()

    @classmethod
    def create(cls, name: str, size_bytes: int) -> SharedBuffer:
        """A new buffer, zero-filled, with a random canary.

        Raises:
            EvaluationError: the size is negative, or memory files do not work here.
        """
        layout = BufferLayout.of(name, size_bytes)
        try:
            fd = os.memfd_create(f"kernelworks-{name}"[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise EvaluationError(f"buffer {name}: no memory file of {size_bytes} bytes: {error}") from error
        try:
            os.ftruncate(fd, layout.file_bytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return cls(layout, fd, fresh=True)
        except OSError as error:
            os.close(fd)
            raise EvaluationError(f"buffer {name}: no memory file of {size_bytes} bytes: {error}") from error

    @classmethod
    def attach(cls, layout: BufferLayout, fd: int) -> SharedBuffer:
        """Map a buffer that another process made; the canary as found now counts as whole.

        Takes over ``fd`` unless it raises.

        Raises:
            EvaluationError: the descriptor is not a memory file of this layout.
        """
        found = os.fstat(fd).st_size
        if found != layout.file_bytes:
            raise EvaluationError(
                f"buffer {layout.name}: expected a file of {layout.file_bytes} bytes, found {found} bytes"
            )
        return cls(layout, fd, fresh=False)

    def reset_canaries(self, sides: Sequence[Side] = SIDES) -> None:
        """Write a new random pattern on these sides of the data, the old one elsewhere; ``damage`` compares."""
        if "before" in sides:
            self._before = os.urandom(self.layout.data_offset)
        if "after" in sides:
            self._after = os.urandom(self.layout.file_bytes - self.layout.data_end)
        self._view[: self.layout.data_offset] = self._before
        self._view[self.layout.data_end :] = self._after

    def damage(self) -> CanaryDamage | None:
        """The first changed canary byte, looked for after the data and then before it; ``None`` if all are whole."""
        before, after = self._canaries()
        if after != self._after:
            changed = _changed(self._after, after)
            return CanaryDamage(self.layout.name, "after", changed[0], len(changed))
        if before != self._before:
            changed = _changed(self._before, before)
            return CanaryDamage(self.layout.name, "before", self.layout.data_offset - changed[0], len(changed))
        return None

    def close(self) -> None:
        """Give the memory back; idempotent. Where views of ``data`` (arrays) still live, it goes with the last."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        try:
            self.data.release()
            self._view.release()
            self._map.close()
        except BufferError:
            pass  # exported to an array that is still alive: the mapping is unmapped with it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _canaries(self) -> tuple[bytes, bytes]:
        return bytes(self._view[: self.layout.data_offset]), bytes(self._view[self.layout.data_end :])


def _changed(expected: bytes, found: bytes) -> list[int]:
    return [at for at, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b]
