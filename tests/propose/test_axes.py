from __future__ import annotations

import pytest

from kernelworks.propose.experts.axes import Axes, ShapeError


def test_unified_axes_become_one_and_leave_a_guard() -> None:
    axes = Axes()
    a, b = axes.new(8, "rows"), axes.new(8, "z_0")
    assert axes.unify((a,), (b,)) == axes.resolve((b,)) == (a,)
    assert axes.guards == ("rows == z_0",)


def test_equal_names_need_no_guard() -> None:
    axes = Axes()
    axes.unify((axes.new(8, "rows"),), (axes.new(8, "rows"),))
    assert axes.guards == ()


def test_a_named_axis_of_size_one_broadcasts_and_is_required_to_stay_so() -> None:
    axes = Axes()
    one, many = axes.new(1, "b_1"), axes.new(8, "cols")
    assert axes.unify((one,), (many,)) == (many,)
    assert axes.resolve((one,)) == ()
    assert axes.guards == ("b_1 == 1",)


def test_a_split_follows_constants_and_divides_dims() -> None:
    axes = Axes()
    channels = axes.new(12, "c")
    (batch, group, rest) = axes.regroup(((), (channels,)), (1, 12), (1, 4, 3))
    assert batch == ()
    assert [axes.text(a) for a in (*group, *rest)] == ["4", "(c // 4)"]
    assert axes.resolve((channels,)) == (*group, *rest)
    assert axes.guards == ("c % 4 == 0",)
    assert [axes.text(a) for a in axes.split(axes.new(12, "12"), 4)] == ["4", "3"]


def test_unifying_with_a_split_axis_splits_the_other_one() -> None:
    axes = Axes()
    channels, weights = axes.new(12, "c"), axes.new(12, "w_0")
    axes.split(channels, 4)
    axes.unify((channels,), (weights,))
    assert axes.resolve((weights,)) == axes.resolve((channels,))


def test_merging_keeps_atoms() -> None:
    axes = Axes()
    a, b = axes.new(3, "a"), axes.new(5, "b")
    assert axes.regroup(((a,), (b,)), (3, 5), (15,)) == ((a, b),)


@pytest.mark.parametrize("target", [(7, 2), (4, 3)])
def test_reshapes_that_do_not_factor_are_refused(target: tuple[int, ...]) -> None:
    axes = Axes()
    with pytest.raises(ShapeError):
        axes.regroup(((axes.new(7, "a"),),), (7,), target)


def test_sizes_that_differ_are_refused() -> None:
    axes = Axes()
    with pytest.raises(ShapeError):
        axes.unify((axes.new(6, "a"),), (axes.new(4, "b"),))


def test_reshaping_an_expanded_tensor_is_refused() -> None:
    axes = Axes()
    with pytest.raises(ShapeError, match="expanded"):
        axes.regroup(((axes.new(3, "a"),), ()), (3, 4), (12,))
