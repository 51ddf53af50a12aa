from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelworks.errors import TaskError
from kernelworks.task.derive import LARGE_ELEMENTS, Variant, derive_cases, derive_large
from kernelworks.task.model import CaseRole
from kernelworks.task.modulefile import Constant, is_int

sizes = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 2**20), min_size=1)


def shaped(values: Mapping[str, Constant], init: str = "") -> Variant:
    """A file whose one input has an axis for every constant."""
    flat: list[int] = []
    for value in values.values():
        flat.extend(n for n in (value if isinstance(value, tuple) else (value,)) if is_int(n))
    return Variant(init, (("x", "float32"),), (tuple(flat),), (), (tuple(flat),))


def test_every_kind_of_edge_is_there() -> None:
    values = {"rows": 4096, "cols": 2048}
    found = derive_cases(values, shaped(values), lambda changed, _: shaped({**values, **changed}))
    assert [(name, role) for name, role, _ in found.cases] == [
        ("shape", CaseRole.CHECK),
        ("odd", CaseRole.EDGE),
        ("rows_1", CaseRole.EDGE),
        ("cols_1", CaseRole.EDGE),
        ("rows_0", CaseRole.EDGE),
        ("cols_0", CaseRole.EDGE),
        ("rows_65", CaseRole.EDGE),
        ("cols_65", CaseRole.EDGE),
        ("rows_63", CaseRole.EDGE),
        ("cols_63", CaseRole.EDGE),
        ("rows_97", CaseRole.EDGE),
        ("cols_97", CaseRole.EDGE),
    ]
    shape, *edges = (overrides for _, _, overrides in found.cases)
    for edge in edges[1:]:
        assert sum(edge[name] != shape[name] for name in values) == 1, "one size at a time"
    assert not found.skipped


def test_what_the_reference_refuses_is_listed() -> None:
    values = {"rows": 4096, "cols": 2048}

    def look(changed: Mapping[str, Constant], _: bool) -> Variant:
        if changed.get("cols") == 0:
            raise TaskError("file.py, line 3: forward() failed: RuntimeError: a maximum over nothing")
        return shaped({**values, **changed})

    found = derive_cases(values, look({}, True), look)
    assert found.skipped == ["cols = 0: RuntimeError: a maximum over nothing"]
    assert "cols_0" not in {name for name, *_ in found.cases} and "rows_0" in {name for name, *_ in found.cases}


@pytest.mark.parametrize(("weights", "most"), [(0, 12), (100, 4)])
def test_the_number_of_edges_is_bounded(weights: int, most: int) -> None:
    values: dict[str, Constant] = dict.fromkeys("abcdefgh", 100)

    def look(changed: Mapping[str, Constant], _: bool) -> Variant:
        found = shaped({**values, **changed})
        return Variant("", found.arguments, found.input_shapes, ((3,),) * weights, found.output_shapes)

    found = derive_cases(values, look({}, True), look)
    assert sum(name not in ("shape", "odd") for name, *_ in found.cases) == most


def test_a_network_is_tried_a_few_times_only() -> None:
    tried: list[Mapping[str, Constant]] = []

    def look(changed: Mapping[str, Constant], whole: bool) -> Variant:
        if whole and changed.get("n") in (0, 1, 63, 65, 97):
            tried.append(changed)
            raise TaskError("takes long and fails")
        found = shaped({"n": 4096, "m": 4096, **changed})
        return Variant("", found.arguments, found.input_shapes, (), found.output_shapes, recurrent=True)

    derive_cases({"n": 4096, "m": 4096}, look({}, True), look)
    assert len(tried) <= 4


def test_edges_that_would_be_large_are_left_out() -> None:
    values = {"batch": 512, "side": 4096}

    def look(changed: Mapping[str, Constant], _: bool) -> Variant:
        batch = changed.get("batch", 512)
        assert is_int(batch)
        return Variant(str(changed.get("side")), (), ((batch, 1024, 64),), (), ((batch,),))

    found = derive_cases(values, look({}, True), look)
    names = {name for name, *_ in found.cases}
    assert {"batch_1", "batch_0", "batch_63"} <= names and "batch_97" not in names
    assert any(text.startswith("batch = 97: 6356992 elements are too many") for text in found.skipped)


def test_only_wanted_roles() -> None:
    values = {"rows": 64}
    found = derive_cases(
        values, shaped(values), lambda changed, _: shaped({**values, **changed}), roles=[CaseRole.CHECK]
    )
    assert [role for _, role, _ in found.cases] == [CaseRole.CHECK]


def test_the_large_case_has_offsets_beyond_32_bits_and_no_more_elements_than_it_must() -> None:
    values = {"rows": 4096, "cols": 8192}
    large = derive_large(values, shaped(values), lambda changed, _: shaped({**values, **changed}))
    assert large == {"rows": 4096 * 65}
    square = derive_large({"n": 4096}, Variant("", (), ((4096, 4096),), (), ()), lambda c, _: squared(c["n"]))
    assert square is not None and is_int(square["n"])
    assert square["n"] % 4096 == 0 and LARGE_ELEMENTS < square["n"] ** 2 < 2 * LARGE_ELEMENTS
    assert derive_large({}, shaped({"n": 5}), lambda changed, _: shaped({"n": 5})) is None


def squared(n: Constant) -> Variant:
    """A square input."""
    assert is_int(n)
    return Variant("", (), ((n, n),), (), ())


@given(sizes)
def test_derived_cases_are_small_and_different(values: dict[str, int]) -> None:
    found = derive_cases(values, shaped(values), lambda changed, _: shaped({**values, **changed}))
    seen: list[Mapping[str, Constant]] = []
    for case, role, overrides in found.cases:
        assert role is (CaseRole.CHECK if case == "shape" else CaseRole.EDGE)
        assert any(overrides[name] != values[name] for name in overrides)
        assert overrides not in seen
        seen.append(overrides)
        merged = [size for size in {**values, **overrides}.values() if is_int(size)]
        assert len(merged) == len(values)
        assert case != "odd" or all(size % 2 for size in overrides.values() if is_int(size))
        assert math.prod(merged) <= 1 << 24
    assert found.cases


def test_check_sizes_keep_powers_of_two() -> None:
    values = {"rows": 4096, "cols": 393216}
    found = derive_cases(values, shaped(values), lambda changed, _: shaped({**values, **changed})).cases
    assert found[0] == ("shape", CaseRole.CHECK, {"rows": 64, "cols": 192})
    assert found[1][2] == {"rows": 37, "cols": 23}


def test_constants_of_the_model_stay() -> None:
    values = {"rows": 64, "dim": 1, "rate": 0.5}

    def look(changed: Mapping[str, Constant], _: bool) -> Variant:
        merged: dict[str, Constant] = {**values, **changed}
        return shaped({"rows": merged["rows"]}, init=str(merged["dim"]))

    found = derive_cases(values, look({}, True), look).cases
    assert found and all(set(overrides) == {"rows"} for *_, overrides in found)


def test_a_size_that_reaches_the_weights_stays() -> None:
    def look(changed: Mapping[str, Constant], whole: bool) -> Variant:
        n = changed.get("n", 8)
        assert is_int(n)
        return Variant("", (("x", "float32"),), ((n,),), ((n,),) if whole else (), ((1,),))

    found = derive_cases({"n": 8}, look({}, True), look)
    assert found.cases == [] and found.skipped == [], "the reference refused nothing"


def test_windows_that_do_not_fit_are_passed_over() -> None:
    def look(changed: Mapping[str, Constant], _: bool) -> Variant:
        n = changed.get("n", 4096)
        assert is_int(n)
        if n < 1000:
            raise TaskError("the window is larger than the input")
        return shaped({"n": n})

    found = derive_cases({"n": 4096}, look({}, True), look)
    assert [overrides for *_, overrides in found.cases] == [{"n": 2048}, {"n": 2049}]
    assert "n = 1: the window is larger than the input" in found.skipped


def test_equal_sizes_change_together_where_they_must() -> None:
    values: dict[str, Constant] = {"n": 4096, "shape": (4096,)}

    def look(changed: Mapping[str, Constant], whole: bool) -> Variant:
        merged = {**values, **changed}
        if whole and (merged["n"],) != merged["shape"]:
            raise TaskError("they do not broadcast")
        return shaped(merged)

    found = derive_cases(values, look({}, True), look).cases
    assert [overrides for *_, overrides in found[:2]] == [{"n": 64, "shape": (64,)}, {"n": 37, "shape": (37,)}]
