"""Which kernels and which machine codes are known, so that none is evaluated twice."""

from __future__ import annotations


class Seen:
    """Registry of kernel ids and code digests. Not safe for threads: one coordinator owns it."""

    def __init__(self) -> None:
        self._kernels: set[str] = set()
        self._codes: dict[str, str] = {}

    def claim(self, kernel_id: str) -> bool:
        """Enter a proposed kernel; False if it was known."""
        if kernel_id in self._kernels:
            return False
        self._kernels.add(kernel_id)
        return True

    def claim_code(self, digest: str, kernel_id: str) -> str:
        """Enter built machine code; the id of the kernel that owns it: ``kernel_id``, or the first that had it.

        An empty digest (no disassembler) belongs to whoever asks.
        """
        return self._codes.setdefault(digest, kernel_id) if digest else kernel_id

    def is_known_kernel(self, kernel_id: str) -> bool:
        """Whether a kernel with this text and params was claimed."""
        return kernel_id in self._kernels

    def known_code(self, digest: str) -> str | None:
        """Id of the kernel that owns this code."""
        return self._codes.get(digest)

    def state(self) -> list[object]:
        """Everything, as plain data in a fixed order."""
        return [sorted(self._kernels), sorted(self._codes.items())]
