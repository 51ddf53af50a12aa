"""The reference in double precision by blocks of rows: the same answers as whole, and only where that is certain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelworks.evaluate import blocks
from kernelworks.evaluate.frames import frame_of
from kernelworks.evaluate.numbers import Raw
from kernelworks.evaluate.reference import Reference
from kernelworks.task.resolve import load_task
from kernelworks.task.source import TaskReference

TASK = """
import torch
from jaxtyping import Float32
from torch import Tensor

from kernelworks.task import case, task


@task(cases=[case("main", "timed", rows=301, cols=64), case("odd", "check", rows=7, cols=9)])
def gated(
    x: Float32[Tensor, "rows cols"], z: Float32[Tensor, "rows cols"], w: Float32[Tensor, "cols"]
) -> Float32[Tensor, "rows cols"]:
    BODY
"""
RIGHT = "y = x * torch.sigmoid(z)\n    return y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-5) * w"


def reference_of(folder: Path, body: str) -> Reference:
    path = folder / "gated.py"
    path.write_text(TASK.replace("BODY", body))
    loaded = load_task(TaskReference(target=str(path)))
    return Reference(loaded, frame_of(loaded.task, 2))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the timed case were large."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 64 << 10)


def whole(reference: Reference, drawn: Sequence[Any]) -> Raw:
    """What the reference itself gives in double precision."""
    (found,) = reference.loaded.run(reference.natives(drawn), double=True)
    return found.numpy().reshape(-1)


def test_a_large_case_goes_by_blocks_and_gives_the_same(tmp_path: Path) -> None:
    reference = reference_of(tmp_path, RIGHT)
    case = reference.task.case("main")
    drawn = reference.draw(case, 3)
    (found,) = reference.double(drawn, case)
    assert reference.blockwise(case)
    assert (reference.runs["blocks"], reference.runs["double"]) == (1, 1), "and once whole, on the small case"
    np.testing.assert_allclose(found, whole(reference, drawn), rtol=1e-13)
    reference.double(drawn, case)
    assert (reference.runs["blocks"], reference.runs["double"]) == (2, 1)


def test_a_small_case_runs_whole(tmp_path: Path) -> None:
    reference = reference_of(tmp_path, RIGHT)
    case = reference.task.case("odd")
    reference.double(reference.draw(case, 3), case)
    assert not reference.blockwise(case)
    assert (reference.runs["blocks"], reference.runs["double"]) == (0, 1)


@pytest.mark.parametrize(
    "body",
    [
        "return torch.softmax(x * z, 0) * w",  # mixes rows
        "return (x * z * w).sort(-1).values",  # an operator without a rule
        # Traced as an ordinary product; in double precision it computes something else.
        "return x * z * w * (2 if x.dtype is torch.float64 else 1)",
    ],
)
def test_what_is_not_certain_runs_whole(tmp_path: Path, body: str) -> None:
    reference = reference_of(tmp_path, body)
    case = reference.task.case("main")
    drawn = reference.draw(case, 3)
    (found,) = reference.double(drawn, case)
    assert not reference.blockwise(case)
    assert reference.runs["blocks"] == 0
    np.testing.assert_array_equal(found, whole(reference, drawn))


def test_a_size_that_the_reference_computes_with_is_that_of_the_whole_case(tmp_path: Path) -> None:
    reference = reference_of(tmp_path, "return x * z * w / x.shape[0]")
    case = reference.task.case("main")
    drawn = reference.draw(case, 3)
    (found,) = reference.double(drawn, case)
    assert reference.blockwise(case)
    np.testing.assert_allclose(found, whole(reference, drawn), rtol=1e-13)
