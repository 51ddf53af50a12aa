from __future__ import annotations

import pytest
from support.builds import scale_task

from kernelworks.errors import DoesNotFitError
from kernelworks.evaluate.footprint import least_bytes, refuse_oversize
from kernelworks.task.model import DType


def test_the_least_is_inputs_twice_lanes_golden_and_the_larger_temporary() -> None:
    task = scale_task()
    case = task.case("large")
    size = 4 << 20
    assert least_bytes(task, case) == 2 * size + 2 * size + 2 * size + 2 * size
    assert least_bytes(task, case, blockwise=True) == 2 * size + 2 * size + 2 * size + size


def test_exact_results_stay_as_they_are_in_double_precision() -> None:
    task = scale_task()
    outputs = tuple(a.model_copy(update={"dtype": DType.INT8}) for a in task.outputs)
    task = task.model_copy(update={"outputs": outputs})
    count = 1 << 20
    assert least_bytes(task, task.case("large"), blockwise=True) == 8 * count + 2 * count + count + count


def test_a_case_that_cannot_fit_is_refused_with_the_estimate() -> None:
    task = scale_task()
    refuse_oversize(task, task.case("large"))
    case = task.case("large").model_copy(update={"sizes": {"n": 1 << 42}})
    with pytest.raises(DoesNotFitError, match=r"case large of task scale does not fit.*at least .* GiB") as caught:
        refuse_oversize(task, case)
    figures = caught.value.figures
    assert figures["need_bytes"] == least_bytes(task, case) > figures["left_bytes"] > 0
    assert caught.value.exit_code == 3
