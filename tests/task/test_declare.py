from __future__ import annotations

from typing import Any

import pytest

from kernelworks.errors import TaskError
from kernelworks.task import TaskFunction, case, integers, normal, task, uniform
from kernelworks.task.model import CaseRole

MAIN = case("main", rows=4)


def test_a_declared_function_can_still_be_called() -> None:
    @task(cases=[MAIN, case("odd", "check", rows=3)], name="other", outputs=["y"], mutates=["x"])
    def double(x: int) -> int:
        return 2 * x

    assert isinstance(double, TaskFunction)
    assert double(3) == 6
    assert [(c.name, c.role, c.values) for c in double.declaration.cases] == [
        ("main", CaseRole.TIMED, {"rows": 4}),
        ("odd", CaseRole.CHECK, {"rows": 3}),
    ]
    assert (double.declaration.name, double.declaration.outputs, double.declaration.mutates) == (
        "other",
        ("y",),
        ("x",),
    )


def test_dims_may_be_called_like_the_arguments_of_case() -> None:
    assert case("main", "timed", name=3, role=4).values == {"name": 3, "role": 4}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cases": []}, "@task: expected at least one case, found none"),
        ({"cases": [MAIN, MAIN]}, "@task: expected distinct case names, found 'main' twice"),
        ({"cases": [case("c", "check", rows=1)]}, "@task: expected at least one case with role 'timed', found none"),
        ({"cases": [MAIN], "tolerance": 0.0}, "@task: expected a positive tolerance, found 0.0"),
        ({"cases": [MAIN], "tolerance": float("nan")}, "@task: expected a positive tolerance, found nan"),
        ({"cases": [MAIN], "layout": "nchw"}, "@task: expected layout 'contiguous' or 'strided', found 'nchw'"),
        ({"cases": [MAIN], "precision": "loose"}, "@task: expected precision 'strict' or 'relaxed', found 'loose'"),
        (
            {"cases": [MAIN, case("a", "large", rows=1), case("b", "large", rows=1)]},
            "@task: expected at most one case with role 'large', found several",
        ),
        (
            {"cases": [MAIN], "workspace_limit": 1},
            "@task: expected no workspace_limit, since no target",
        ),
        ({"cases": [MAIN], "aggregate": "median", "name": "t"}, "task 't': expected aggregate 'geomean' or 'total'"),
    ],
)
def test_refused_declarations(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError) as caught:
        task(**options)
    assert message in str(caught.value)


def test_unknown_role() -> None:
    with pytest.raises(TaskError, match="case 'c': expected role timed, check, edge, large, found 'hidden'"):
        case("c", "hidden", rows=1)


def test_refused_distributions() -> None:
    for make in (lambda: uniform(1, 1), lambda: normal(0, 0), lambda: integers(3, 2), lambda: uniform(0, float("inf"))):
        with pytest.raises(TaskError, match="expected finite numbers, a positive spread"):
            make()
