from __future__ import annotations

import json
import mmap
import os
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelworks.errors import EvaluationError
from kernelworks.evaluate.buffers import BufferLayout, CanaryDamage, SharedBuffer


@given(st.integers(0, 4 * mmap.PAGESIZE))
def test_layout_is_aligned_and_ends_at_the_end_of_a_page(size_bytes: int) -> None:
    layout = BufferLayout.of("x", size_bytes)
    assert layout.file_bytes % mmap.PAGESIZE == 0
    assert layout.data_offset % 64 == 0
    assert layout.data_offset >= mmap.PAGESIZE
    assert 0 <= layout.file_bytes - layout.data_end < 64
    assert BufferLayout(**json.loads(json.dumps(asdict(layout)))) == layout


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(EvaluationError, match="at least 0 bytes, found -1"):
        SharedBuffer.create("x", -1)


@given(st.sampled_from([0, 1, 60, 64, 100, 4096, 5000]), st.binary(min_size=1, max_size=8))
def test_data_is_shared_and_canaries_stay_whole(size_bytes: int, content: bytes) -> None:
    with SharedBuffer.create("x", size_bytes) as buffer:
        assert bytes(buffer.data) == bytes(size_bytes)
        content = content[:size_bytes]
        with SharedBuffer.attach(buffer.layout, os.dup(buffer.fd)) as other:
            other.data[: len(content)] = content
            assert other.damage() is None
        assert bytes(buffer.data[: len(content)]) == content
        assert len(buffer.data) == size_bytes
        assert buffer.damage() is None


def _flip(buffer: SharedBuffer, offset: int) -> None:
    """Change one byte, counted from the start of the tensor."""
    at = buffer.layout.data_offset + offset
    os.pwrite(buffer.fd, bytes([os.pread(buffer.fd, 1, at)[0] ^ 0xFF]), at)


@pytest.mark.parametrize(
    ("offsets", "side", "distance", "changed"),
    [((100,), "after", 0, 1), ((103, 110), "after", 3, 2), ((-1,), "before", 1, 1), ((-4096, -1), "before", 4096, 2)],
)
def test_damage_names_side_and_distance(offsets: tuple[int, ...], side: str, distance: int, changed: int) -> None:
    with SharedBuffer.create("y", 100) as buffer, SharedBuffer.attach(buffer.layout, os.dup(buffer.fd)) as other:
        for offset in offsets:
            _flip(buffer, offset)
        damage = buffer.damage()
        assert damage is not None
        assert damage == other.damage()
        assert damage == CanaryDamage("y", "after" if side == "after" else "before", distance, changed)
        buffer.reset_canaries()
        assert buffer.damage() is None


def test_canaries_differ_between_buffers_and_resets() -> None:
    def canary(buffer: SharedBuffer) -> bytes:
        return os.pread(buffer.fd, buffer.layout.data_offset, 0)

    with SharedBuffer.create("a", 8) as first, SharedBuffer.create("a", 8) as second:
        seen = {canary(first), canary(second)}
        first.reset_canaries()
        assert len(seen | {canary(first)}) == 3


def test_the_file_cannot_be_cut_short() -> None:
    with SharedBuffer.create("x", 4096) as buffer:
        for size_bytes in (0, 1 << 20):
            with pytest.raises(PermissionError):
                os.ftruncate(buffer.fd, size_bytes)


def test_attach_refuses_another_layout() -> None:
    with (
        SharedBuffer.create("x", 4096) as buffer,
        pytest.raises(EvaluationError, match="expected a file of 12288 bytes, found 8192 bytes"),
    ):
        SharedBuffer.attach(BufferLayout.of("x", 8192), buffer.fd)


def test_close_gives_descriptors_back_and_arrays_stay_readable() -> None:
    before = len(os.listdir("/proc/self/fd"))
    buffer = SharedBuffer.create("x", 16)
    array = np.frombuffer(buffer.data, dtype=np.float32)
    array[:] = 2
    buffer.close()
    buffer.close()
    assert array.sum() == 8
    del array, buffer
    assert len(os.listdir("/proc/self/fd")) == before
