"""Task files written on the spot."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

WriteTask = Callable[..., Path]
"""(text, name="task_file.py") -> path; the text is dedented."""


@pytest.fixture
def write_task(tmp_path: Path) -> WriteTask:
    """Writes a task file into the test's folder."""

    def write(text: str, name: str = "task_file.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write
