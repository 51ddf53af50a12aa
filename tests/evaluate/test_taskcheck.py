from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.references import NumpyTask, numpy_task, reference_of, tensor

from kernelworks.errors import TaskError
from kernelworks.evaluate.bound import reduction_lengths
from kernelworks.evaluate.records import TaskProblem
from kernelworks.evaluate.taskcheck import check_task
from kernelworks.task.model import Case, CaseRole, DType

Array = NDArray[Any]
X, W = tensor("x", "m", "n"), tensor("w", "n")
Y = tensor("y", "m", "n")
SIZES = {"m": 200, "n": 300}


def problems(loaded: NumpyTask) -> list[TaskProblem]:
    return check_task(reference_of(loaded), lambda case: reduction_lengths(loaded.task, case, None), lambda case: [])


def refusals(loaded: NumpyTask) -> set[tuple[str, str]]:
    return {(p.kind, p.message) for p in problems(loaded) if p.refuses}


def kinds(loaded: NumpyTask) -> set[str]:
    return {p.kind for p in problems(loaded) if p.refuses}


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


SOUND: dict[str, NumpyTask] = {
    "softmax": numpy_task(softmax, [X], [Y], SIZES),
    "scale": numpy_task(lambda x, w: x * w, [X, W], [Y], SIZES),
    "relu": numpy_task(lambda x: np.maximum(x, 0), [X], [Y], SIZES),
    "matmul": numpy_task(
        lambda a, b: a @ b, [tensor("a", "m", "n"), tensor("b", "n", "m")], [tensor("y", "m", "m")], SIZES
    ),
    "row maximum": numpy_task(lambda x: x.max(-1), [X], [tensor("y", "m")], SIZES),
    "argmax": numpy_task(lambda x: x.argmax(-1), [X], [tensor("y", "m", dtype=DType.INT64)], SIZES),
    "total": numpy_task(lambda x: x.sum(), [X], [tensor("y")], SIZES),
    "lookup": numpy_task(
        lambda x, i: x[i],
        [X, tensor("i", "k", dtype=DType.INT64)],
        [tensor("y", "k", "n")],
        {**SIZES, "k": 500},
        low=0,
        high=200,
    ),
    "clipped": numpy_task(lambda x, w: np.minimum(x, 50 + w), [X, W], [tensor("y", "m", "n")], SIZES),
    "weight of ones": numpy_task(
        lambda x, w: softmax(x) * w, [X, W], [Y], SIZES, fixed={"w": np.ones(300, np.float32)}
    ),
    "mask": numpy_task(
        lambda x, m: np.where(m, x, 0),
        [X, tensor("k", "m", "n", dtype=DType.BOOL)],
        [Y],
        SIZES,
        fixed={"k": np.tri(200, 300) > 0},
    ),
}


def accumulate(x: Array, y: Array) -> None:
    y += x


SOUND["in place"] = numpy_task(accumulate, [X, Y], [], SIZES, mutates=("y",))


@pytest.mark.parametrize("name", SOUND)
def test_sound_tasks_pass(name: str) -> None:
    assert not refusals(SOUND[name])


def two_outputs(x: Array) -> tuple[Array, Array]:
    return x * 2, x - x


counter = itertools.count()


def noisy(x: Array) -> Array:
    return x * 2 + next(counter)


calls = 0
SEEN: dict[bytes, Array] = {}


def count_calls() -> int:
    global calls
    calls += 1
    return calls


def remember(y: Array) -> Array:
    return SEEN.setdefault(y.tobytes(), y)


@pytest.mark.parametrize(
    ("loaded", "kind", "says"),
    [
        (numpy_task(lambda x: np.full_like(x, 3), [X], [Y], SIZES), "constant_output", "output y is constant"),
        (numpy_task(two_outputs, [X], [Y, tensor("z", "m", "n")], SIZES), "constant_output", "output z is constant"),
        (numpy_task(lambda x, w: x * 2, [X, W], [Y], SIZES), "independent_of_input", "depends on input w"),
        (
            numpy_task(lambda x, i: x * 2, [X, tensor("i", "m", dtype=DType.INT64)], [Y], SIZES),
            "independent_of_input",
            "depends on input i",
        ),
        (numpy_task(noisy, [X], [Y], SIZES), "not_deterministic", "output y differs between two runs"),
        (numpy_task(lambda x: x / (x * 0), [X], [Y], SIZES), "non_finite", "60000 of 60000 elements of output y"),
        (numpy_task(lambda x: x * 1, [X], [Y], SIZES), "accepts_wrong_answer", "a copy of x would pass"),
        (numpy_task(lambda x, w: x + w * 1e-9, [X, W], [Y], SIZES), "accepts_wrong_answer", "a copy of x would pass"),
        (
            numpy_task(lambda x: np.tanh(x / 1000), [X], [Y], SIZES, tolerance=1.5),
            "accepts_wrong_answer",
            "an output of zeros would pass",
        ),
        (
            numpy_task(lambda x: 1 + x * 1e-3, [X], [Y], SIZES, tolerance=0.1),
            "accepts_wrong_answer",
            "an output of ones would pass",
        ),
        (
            numpy_task(lambda x: 3 + np.tanh(x) * 1e-2, [X], [Y], SIZES, tolerance=8e-3),
            "accepts_wrong_answer",
            "in place of each element would pass as right under the task's own tolerance of 0.008",
        ),
        (
            numpy_task(softmax, [X], [Y], SIZES, tolerance=0.02),
            "accepts_wrong_answer",
            "the output, too large by a hundredth or more, would pass",
        ),
        (
            numpy_task(lambda x: x + np.float32(count_calls()), [X], [Y], SIZES),
            "changes_state",
            "the reference changes module-level state whenever it runs: calls",
        ),
        (
            numpy_task(lambda x: remember(x * 2), [X], [Y], SIZES),
            "changes_state",
            "the reference changes module-level state whenever it runs: SEEN",
        ),
        (
            numpy_task(lambda x: x * (np.arange(200) < 100)[:, None], [X], [Y], SIZES),
            "accepts_wrong_answer",
            "an output whose second half is zeros would pass",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_unsound_tasks_are_refused(loaded: NumpyTask, kind: str, says: str) -> None:
    found = refusals(loaded)
    assert any(k == kind and says in message for k, message in found), found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_memory_that_was_never_written_is_no_answer() -> None:
    found = kinds(numpy_task(lambda x: np.empty_like(x), [X], [Y], SIZES))
    assert found & {"not_deterministic", "non_finite", "constant_output"}


def test_a_weight_that_nothing_reads_is_a_warning() -> None:
    loaded = SOUND["scale"]
    weight = tensor("w", "n").model_copy(update={"role": "weight"})
    task = loaded.task.model_copy(update={"inputs": loaded.task.inputs[:1], "weights": (weight,)})

    class WithWeight(NumpyTask):
        def make_inputs(self, case: Case, seed: int) -> list[Any]:
            return [*super().make_inputs(case, seed), np.ones(case.sizes["n"], np.float32)]

    found = problems(WithWeight(task, lambda x, w: x * 2))
    assert [(p.kind, p.refuses) for p in found if p.kind != "launch_overhead"] == [("independent_of_weight", False)]


def test_tiny_sizes_are_a_warning() -> None:
    found = problems(numpy_task(lambda x: x * 2, [X], [Y], {"m": 2, "n": 3}))
    assert [(p.kind, p.refuses) for p in found] == [("launch_overhead", False)]


def test_every_case_is_run() -> None:
    loaded = numpy_task(lambda x: np.where(x.shape[0] == 7, np.inf, x * 2), [X], [Y], SIZES)
    bad = Case(name="seven", role=CaseRole.EDGE, sizes={"m": 7, "n": 5})
    task = loaded.task.model_copy(update={"cases": (*loaded.task.cases, bad)})
    found = refusals(NumpyTask(task, lambda x: np.where(x.shape[0] == 7, np.float32(np.inf), x * 2)))
    assert any(k == "non_finite" and "case seven" in message for k, message in found)


def test_a_reference_that_raises() -> None:
    def broken(x: Array) -> Array:
        raise KeyError("missing")

    with pytest.raises(TaskError, match="raised KeyError"):
        problems(numpy_task(broken, [X], [Y], SIZES))


def test_the_timed_case_runs_once_where_there_is_a_check_case() -> None:
    seen: list[tuple[int, ...]] = []

    def slow(x: Array) -> Array:
        seen.append(x.shape)
        time.sleep(0.002)
        return x + 1

    loaded = numpy_task(slow, [X], [Y], SIZES)
    sizes = {"timed": SIZES, "check": {"m": 20, "n": 30}, "edge": {"m": 1, "n": 1}}
    cases = tuple(Case(name=role, role=CaseRole(role), sizes=size) for role, size in sizes.items())
    problems(NumpyTask(loaded.task.model_copy(update={"cases": cases}), slow))
    assert seen.count((200, 300)) == seen.count((1, 1)) == 1
    assert seen.count((20, 30)) > 3


def fill_once(x: Array) -> Array:
    TABLE.setdefault("twos", np.full(300, 2, np.float32))
    return x * TABLE["twos"]


TABLE: dict[str, Array] = {}


def test_a_cache_that_the_first_run_fills_for_good_is_no_state() -> None:
    assert not refusals(numpy_task(fill_once, [X], [Y], SIZES))


def test_a_sensible_tolerance_is_accepted() -> None:
    assert not refusals(numpy_task(softmax, [X], [Y], SIZES, tolerance=1e-3))


def test_random_operators_are_named() -> None:
    loaded = numpy_task(noisy, [X], [Y], SIZES)
    operators = ["aten.mul.Tensor", "aten.dropout.default", "aten.rand_like.default", "aten.dropout.default"]
    found = check_task(reference_of(loaded), lambda case: (1,), lambda case: operators)
    (problem,) = (p for p in found if p.kind == "not_deterministic")
    assert problem.message.endswith("on the same inputs (aten.dropout.default, aten.rand_like.default)")


def test_a_derived_case_that_the_reference_refuses_is_left_out() -> None:
    loaded = numpy_task(lambda x: x.max(-1), [X], [tensor("y", "m")], SIZES)
    empty = Case(name="n_0", role=CaseRole.EDGE, sizes={"m": 7, "n": 0}, derived=True)

    def on(case: Case) -> list[TaskProblem]:
        update = {"cases": (*loaded.task.cases, case), "skipped": ("k = 0: it raised",)}
        return problems(NumpyTask(loaded.task.model_copy(update=update), loaded.function))

    left_out = [p for p in on(empty) if p.kind == "case_left_out"]
    assert [p.refuses for p in left_out] == [False, False]
    assert (
        left_out[0].message == "k = 0: it raised" and "case n_0: the reference does not allow it" in left_out[1].message
    )
    with pytest.raises(TaskError, match="zero-size array"):
        on(empty.model_copy(update={"derived": False}))


def test_a_derived_case_without_finite_answers_is_left_out() -> None:
    loaded = numpy_task(lambda x: x.mean(-1), [X], [tensor("y", "m")], SIZES)
    empty = Case(name="n_0", role=CaseRole.EDGE, sizes={"m": 7, "n": 0}, derived=True)
    update = {"cases": (*loaded.task.cases, empty)}
    with np.errstate(all="ignore"), pytest.warns(RuntimeWarning, match="Mean of empty slice"):
        found = problems(NumpyTask(loaded.task.model_copy(update=update), loaded.function))
    assert [(p.kind, p.refuses) for p in found if "n_0" in p.message] == [("case_left_out", False)]
