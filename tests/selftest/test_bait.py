from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelworks.selftest.bait import Bait


@pytest.fixture
def bait(tmp_path: Path) -> Iterator[Bait]:
    found = Bait(tmp_path, "task = 1\n")
    found.lay_out()
    yield found
    found.close()


def test_nothing_was_touched(bait: Bait) -> None:
    assert bait.touched() == ""


def test_reading_is_seen(bait: Bait) -> None:
    bait.golden.read_bytes()
    assert bait.touched() == "golden.bin was opened"


def test_writing_is_seen(bait: Bait) -> None:
    bait.tolerance.write_text("1e9\n")
    assert bait.touched() == "tolerance.txt was changed"


def test_what_was_changed_and_put_back_is_seen(bait: Bait) -> None:
    bait.task.write_text("task = 2\n")
    bait.task.write_text("task = 1\n")
    assert bait.touched() == "task.py was changed"


def test_what_was_removed_is_seen(bait: Bait) -> None:
    bait.golden.unlink()
    assert bait.touched() == "golden.bin was changed"


def test_a_connection_is_seen(bait: Bait) -> None:
    with socket.create_connection(("127.0.0.1", bait.port)):
        assert bait.touched() == "a connection was made"
