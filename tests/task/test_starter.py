from __future__ import annotations

from typing import Any

import pytest

from kernelworks.errors import TaskError
from kernelworks.task.model import CaseRole
from kernelworks.task.resolve import load_task
from kernelworks.task.source import TaskReference
from kernelworks.task.starter import starter_text


def test_it_loads_and_runs_as_it_is(write_task: Any) -> None:
    path = write_task(starter_text("my_op"), name="my_op.py")
    loaded = load_task(TaskReference(target=str(path)))
    assert loaded.task.name == "my_op"
    assert {c.role for c in loaded.task.cases} == {CaseRole.TIMED, CaseRole.CHECK, CaseRole.EDGE}
    for case in loaded.task.cases[1:]:
        (out,) = loaded.run(loaded.make_inputs(case, 0))
        assert tuple(out.shape) == (case.sizes["rows"], case.sizes["cols"])
    assert loaded.trace(loaded.task.cases[0]).outputs


def test_it_fits_the_line_length() -> None:
    assert max(map(len, starter_text("a" * 20).splitlines())) <= 120


@pytest.mark.parametrize("name", ["", "1st", "My", "a-b", "é", "for", "lambda", "float", "task", "torch", "x", "rows"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(TaskError, match="task new: expected a name of lower-case letters"):
        starter_text(name)
