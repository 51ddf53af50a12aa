from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from support.references import NumpyTask, numpy_task, prepared, reference_of, tensor

from kernelworks.evaluate.casestate import CaseState, poison, view
from kernelworks.evaluate.perturb import DRAW_BYTES, SAMPLES, VARIANTS, Perturbation, make_patch
from kernelworks.task.model import DType

Array = NDArray[Any]


def row_softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_task() -> NumpyTask:
    return numpy_task(row_softmax, [tensor("x", "m", "n")], [tensor("y", "m", "n")], {"m": 400, "n": 96})


TASKS: dict[str, NumpyTask] = {
    "rows": softmax_task(),
    "total": numpy_task(lambda x: x.sum(), [tensor("x", "m", "n")], [tensor("y")], {"m": 300, "n": 100}),
    "columns": numpy_task(
        lambda x: np.cumsum(x, 0), [tensor("x", "m", "n")], [tensor("y", "m", "n")], {"m": 99, "n": 7}
    ),
    "matmul": numpy_task(
        lambda a, b: a @ b,
        [tensor("a", "m", "k"), tensor("b", "k", "n")],
        [tensor("y", "m", "n")],
        {"m": 64, "k": 80, "n": 72},
    ),
    "integers": numpy_task(
        lambda x: x * np.int32(3),
        [tensor("x", "n", dtype=DType.INT32)],
        [tensor("y", "n", dtype=DType.INT32)],
        {"n": 5000},
    ),
    "two outputs": numpy_task(
        lambda x: (x * 2, x.max(-1)),
        [tensor("x", "m", "n")],
        [tensor("y", "m", "n"), tensor("z", "m")],
        {"m": 60, "n": 50},
    ),
}


def run(state: CaseState, lane: int, function: Callable[..., Any]) -> None:
    """A kernel: reads what stands in the shared inputs, writes its outputs."""
    tensors = [a for a in state.task.inputs if a.kind == "tensor"]
    sizes = state.case.sizes
    inputs = [
        view(state.shared[a.name], a.dtype).reshape([sizes[s] if isinstance(s, str) else s for s in a.shape])
        for a in tensors
    ]
    found: Any = function(*inputs)
    outputs: tuple[Any, ...] = cast("tuple[Any, ...]", found) if isinstance(found, tuple) else (found,)
    for argument, value in zip(state.task.outputs, outputs, strict=True):
        view(state.lanes[lane][argument.name], argument.dtype)[...] = np.asarray(value).reshape(-1)


@pytest.mark.parametrize("name", TASKS)
def test_a_kernel_that_computes_passes_and_a_replay_is_stale(name: str) -> None:
    loaded = TASKS[name]
    state = prepared(loaded)
    perturbation = Perturbation(state, reference_of(loaded))
    run(state, 0, loaded.function)
    replay = {key: bytes(buffer.data) for key, buffer in state.lanes[0].items()}
    for number in range(2 * VARIANTS):
        perturbation.apply(number)
        perturbation.poison(1)
        run(state, 1, loaded.function)
        assert perturbation.check(1) is None
        perturbation.poison(0)
        for key, content in replay.items():
            state.lanes[0][key].data[:] = content
        problem = perturbation.check(0)
        assert problem is not None
        assert problem.kind == "stale", problem.message
    state.close()


def test_inputs_are_restored_bit_for_bit() -> None:
    loaded = softmax_task()
    state = prepared(loaded)
    pristine = state.drawn[0].copy()
    perturbation = Perturbation(state, reference_of(loaded))
    shared = view(state.shared["x"], DType.FLOAT32)
    seen: set[bytes] = set()
    for number in range(VARIANTS):
        perturbation.apply(number)
        changed = np.count_nonzero(shared != pristine.reshape(-1))
        assert 0.001 <= changed / shared.size <= 0.01
        seen.add(shared.tobytes())
    assert len(seen) == VARIANTS
    perturbation.apply(None)
    assert np.array_equal(shared, pristine.reshape(-1))
    assert np.array_equal(state.drawn[0], pristine), "the pristine copy is as it was"
    state.close()


def test_nothing_written_is_seen() -> None:
    loaded = softmax_task()
    state = prepared(loaded)
    perturbation = Perturbation(state, reference_of(loaded))
    perturbation.apply(0)
    perturbation.poison(0)
    problem = perturbation.check(0)
    assert problem is not None
    assert problem.kind == "unwritten"
    state.close()


def test_a_part_of_the_answer_is_seen() -> None:
    loaded = softmax_task()
    state = prepared(loaded)
    perturbation = Perturbation(state, reference_of(loaded))
    poison(state, 0, 0, np.random.default_rng(0))
    perturbation.apply(1)
    run(state, 0, loaded.function)
    perturbation.poison(0)
    out = view(state.lanes[0]["y"], DType.FLOAT32).reshape(400, 96)
    fresh = row_softmax(view(state.shared["x"], DType.FLOAT32).reshape(400, 96))
    out[::2] = fresh[::2]  # every other row is left as it was
    problem = perturbation.check(0)
    assert problem is not None
    assert problem.kind == "unwritten"
    state.close()


def test_inputs_changed_in_place_are_written_anew() -> None:
    def scale(x: Array, y: Array) -> None:
        y *= x

    inputs = [tensor("x", "n"), tensor("y", "n")]
    loaded = numpy_task(scale, inputs, [], {"n": 3000}, mutates=("y",))
    state = prepared(loaded)
    perturbation = Perturbation(state, reference_of(loaded))
    for number in range(VARIANTS):
        perturbation.apply(number)
        perturbation.poison(0)
        y = view(state.lanes[0]["y"], DType.FLOAT32)
        y *= view(state.shared["x"], DType.FLOAT32)
        assert perturbation.check(0) is None
        y *= view(state.shared["x"], DType.FLOAT32)
        assert perturbation.check(0) is not None
    state.close()


@pytest.mark.parametrize("shape", [(1,), (3,), (1000,), (100_000,), (1, 1), (5, 3000), (1, 50_000), (2, 3, 4, 5)])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16, DType.INT64, DType.BOOL, DType.COMPLEX64])
def test_patches_fit_every_shape(shape: tuple[int, ...], dtype: DType) -> None:
    loaded = numpy_task(lambda x: x, [tensor("x", *shape, dtype=dtype)], [tensor("y", *shape, dtype=dtype)], {})
    (raw,) = loaded.make_inputs(loaded.task.cases[0], 0)
    if dtype is DType.BFLOAT16:
        raw = (np.random.default_rng(0).standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(
            np.uint16
        )
    patch = make_patch(tensor("x", *shape, dtype=dtype), raw, np.random.default_rng(0))
    assert patch.new.dtype == raw.dtype
    assert patch.where.size == np.unique(patch.where).size
    assert 0 <= patch.where.min() <= patch.where.max() < raw.size
    assert patch.new.shape == patch.where.shape


def test_patches_keep_triangles_and_symmetry() -> None:
    rng = np.random.default_rng(0)
    square = rng.standard_normal((2, 300, 300)).astype(np.float32)
    for drawn in (np.triu(square), np.tril(square), square + square.swapaxes(-1, -2)):
        patched = drawn.copy()
        patch = make_patch(tensor("x", 2, 300, 300), drawn, rng)
        assert patch.where.size == np.unique(patch.where).size
        patched.reshape(-1)[patch.where] = patch.new
        assert not np.array_equal(patched, drawn)
        assert not patched[drawn == 0].any()
        assert np.array_equal(drawn, drawn.swapaxes(-1, -2)) == np.array_equal(patched, patched.swapaxes(-1, -2))


def test_integers_that_must_not_be_moved_stay() -> None:
    def segments(x: Array, ends: Array) -> Array:
        if (np.diff(ends) < 0).any():
            raise ValueError("not ascending")
        return np.add.reduceat(x, ends)

    ends = np.arange(0, 5000, 10)
    inputs = [tensor("x", "n"), tensor("ends", "k", dtype=DType.INT64)]
    loaded = numpy_task(segments, inputs, [tensor("y", "k")], {"n": 5000, "k": 500}, fixed={"ends": ends})
    state = prepared(loaded)
    perturbation = Perturbation(state, reference_of(loaded))
    perturbation.apply(0)
    assert np.array_equal(view(state.shared["ends"], DType.INT64), ends)
    perturbation.poison(0)
    run(state, 0, segments)
    assert perturbation.check(0) is None
    state.close()


def test_the_sample_is_bounded_and_holds_what_changed() -> None:
    size = {"m": 1000, "n": 200}
    loaded = numpy_task(lambda x: x * 2, [tensor("x", "m", "n")], [tensor("y", "m", "n")], size)
    state = prepared(loaded)
    perturbation = Perturbation(state, reference_of(loaded))
    perturbation.apply(0)
    shared = view(state.shared["x"], DType.FLOAT32)
    changed = np.count_nonzero(shared != state.drawn[0].reshape(-1))
    perturbation.poison(0)
    poisoned = np.count_nonzero(np.isnan(view(state.lanes[0]["y"], DType.FLOAT32)))
    assert changed < poisoned <= SAMPLES
    state.close()


def test_an_answer_that_is_computed_once_the_inputs_are_back_is_stale() -> None:
    loaded = softmax_task()
    state = prepared(loaded)
    perturbation = Perturbation(state, reference_of(loaded))
    for late in (False, True):
        perturbation.apply(0)
        perturbation.poison(0)
        if not late:
            run(state, 0, row_softmax)
        perturbation.withdraw()
        if late:
            run(state, 0, row_softmax)
        problem = perturbation.check(0)
        assert (problem.kind if problem is not None else None) == ("stale" if late else None)


def test_stirred_inputs_are_new_every_time_and_go_without_a_trace() -> None:
    loaded = softmax_task()
    state = prepared(loaded)
    x = view(state.shared["x"], DType.FLOAT32)
    base = x.copy()
    perturbation = Perturbation(state, reference_of(loaded))
    seen: list[bytes] = [base.tobytes()]
    for _ in range(3):
        perturbation.stir()
        assert x.tobytes() not in seen
        seen.append(x.tobytes())
    perturbation.apply(None)
    np.testing.assert_array_equal(x, base)


def test_integers_are_not_stirred() -> None:
    loaded = TASKS["integers"]
    state = prepared(loaded)
    x = view(state.shared["x"], DType.INT32)
    base = x.copy()
    Perturbation(state, reference_of(loaded)).stir()
    np.testing.assert_array_equal(x, base)


@pytest.mark.parametrize("name", ["rows", "integers"])
def test_who_computes_where_poison_stands_leaves_old_answers(name: str) -> None:
    loaded = TASKS[name]
    state = prepared(loaded)
    perturbation = Perturbation(state, reference_of(loaded))
    run(state, 0, loaded.function)
    y = view(state.lanes[0]["y"], loaded.task.outputs[0].dtype)
    old = y.copy()
    perturbation.apply(0)
    seen: list[NDArray[np.bool_]] = []
    for _ in range(2):
        y[...] = old
        perturbation.poison(0)
        poisoned = y.view(np.uint32) != old.view(np.uint32)
        assert 0 < np.count_nonzero(poisoned) < y.size
        seen.append(poisoned)
        right, kept = np.empty_like(y), y.copy()
        run(state, 0, loaded.function)
        right[...] = y
        assert not np.array_equal(kept.view(np.uint32)[poisoned] ^ 1, right.view(np.uint32)[poisoned])
        y[...] = np.where(poisoned, right, kept)
        problem = perturbation.check(0)
        assert problem is not None
        assert problem.kind == "stale", problem.message
    assert not np.array_equal(seen[0], seen[1]), "other positions every time"
    state.close()


def test_nan_that_a_kernel_wrote_is_no_poison() -> None:
    loaded = softmax_task()
    state = prepared(loaded)
    perturbation = Perturbation(state, reference_of(loaded))
    perturbation.apply(0)
    perturbation.poison(0)
    view(state.lanes[0]["y"], DType.FLOAT32)[...] = np.nan
    problem = perturbation.check(0)
    assert problem is not None
    assert problem.kind == "values", problem.message
    state.close()


def product(x: Array, w: Array) -> Array:
    return x * w


def test_weights_are_stirred_too() -> None:
    inputs = [tensor("x", "n"), tensor("w", "n").model_copy(update={"role": "weight"})]
    state = prepared(loaded := numpy_task(product, inputs, [tensor("y", "n")], {"n": 5000}))
    w = view(state.shared["w"], DType.FLOAT32)
    base = w.copy()
    perturbation = Perturbation(state, reference_of(loaded))
    perturbation.stir()
    assert 0 < np.count_nonzero(w != base) < w.size // 10
    perturbation.apply(None)
    np.testing.assert_array_equal(w, base)
    state.close()


@pytest.mark.parametrize("name", ["rows", "integers", "matmul"])
def test_inputs_are_drawn_anew_throughout_and_put_back(name: str) -> None:
    loaded = TASKS[name]
    state = prepared(loaded)
    perturbation = Perturbation(state, reference_of(loaded))
    held = {key: bytes(buffer.data) for key, buffer in state.shared.items()}
    seen: set[bytes] = set()
    for _ in range(2):
        perturbation.redraw()
        for key, buffer in state.shared.items():
            now, old = (np.frombuffer(data, np.uint32) for data in (bytes(buffer.data), held[key]))
            assert np.count_nonzero(now != old) > 0.9 * now.size
            seen.add(now.tobytes())
        perturbation.poison(0)
        perturbation.apply(0)
        perturbation.poison(0)
        run(state, 0, loaded.function)
        assert perturbation.check(0) is None, "a variant of the case as it was drawn"
    assert len(seen) == 2 * len(held)
    perturbation.redraw()
    perturbation.apply(None)
    assert {key: bytes(buffer.data) for key, buffer in state.shared.items()} == held
    state.close()


def test_large_inputs_are_rolled_and_structure_stays() -> None:
    size = DRAW_BYTES // 4 + 1000
    mask = np.triu(np.ones((64, 64), np.float32)) * np.arange(1, 65, dtype=np.float32)

    def scaled(x: Array, mask: Array) -> Array:
        return x * mask[0, 0]

    inputs = [tensor("x", "n"), tensor("mask", "k", "k")]
    loaded = numpy_task(scaled, inputs, [tensor("y", "n")], {"n": size, "k": 64}, fixed={"mask": mask})
    state = prepared(loaded)
    perturbation = Perturbation(state, reference_of(loaded))
    x = view(state.shared["x"], DType.FLOAT32)
    base = x.copy()
    perturbation.redraw()
    assert np.count_nonzero(x != base) > 0.99 * size
    np.testing.assert_array_equal(np.sort(x), np.sort(base))
    np.testing.assert_array_equal(view(state.shared["mask"], DType.FLOAT32), mask.reshape(-1))
    perturbation.apply(None)
    np.testing.assert_array_equal(x, base)
    state.close()


def test_inputs_changed_in_place_are_new_too() -> None:
    def scale(x: Array, y: Array) -> None:
        y *= x

    loaded = numpy_task(scale, [tensor("x", "n"), tensor("y", "n")], [], {"n": 3000}, mutates=("y",))
    state = prepared(loaded)
    perturbation = Perturbation(state, reference_of(loaded))
    y = view(state.lanes[1]["y"], DType.FLOAT32)
    base = y.copy()
    perturbation.redraw()
    perturbation.poison(1)
    assert np.count_nonzero(y != base) > 0.9 * y.size
    perturbation.apply(0)
    perturbation.poison(1)
    assert np.count_nonzero(y != base) < 0.1 * y.size
    state.close()


@pytest.mark.parametrize("withdrawn", [False, True])
def test_an_input_that_was_changed_in_a_timed_call_is_seen(withdrawn: bool) -> None:
    loaded = softmax_task()
    state = prepared(loaded)
    perturbation = Perturbation(state, reference_of(loaded))
    perturbation.apply(0)
    perturbation.poison(0)
    run(state, 0, row_softmax)
    if withdrawn:
        perturbation.withdraw()
    assert perturbation.check(0) is None
    view(state.shared["x"], DType.FLOAT32)[::8] = 1e30
    problem = perturbation.check(0)
    assert problem is not None
    assert (problem.kind, problem.tensor) == ("input_changed", "x")
    state.close()
