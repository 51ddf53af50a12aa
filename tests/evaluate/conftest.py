"""Fixtures for tests that run a candidate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.candidates import SOURCE, Bench, bench, build


@pytest.fixture
def library(shared_caches: Path) -> Path:
    folder = shared_caches / "misbehaviour"
    if not folder.exists():
        folder.mkdir()
        build(SOURCE.read_text(), folder)
    return folder / "library.so"


@pytest.fixture
def running(library: Path) -> Iterator[Bench]:
    with bench(library) as found:
        yield found
