from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from kernelworks.errors import TaskError
from kernelworks.task.kernelbench_cases import Variant, choose_variants
from kernelworks.task.model import CaseRole
from kernelworks.task.modulefile import Constant, is_int

sizes = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 2**20), min_size=1)


def shaped(values: Mapping[str, Constant], init: str = "") -> Variant:
    """A file whose one input has an axis for every constant."""
    flat: list[int] = []
    for value in values.values():
        flat.extend(n for n in (value if isinstance(value, tuple) else (value,)) if is_int(n))
    return Variant(init, (("x", "float32"),), (tuple(flat),), (), (len(flat),))


@given(sizes)
def test_derived_cases_are_small_and_different(values: dict[str, int]) -> None:
    found = choose_variants(values, shaped(values), lambda changed, _: shaped({**values, **changed}))
    for case, role, overrides in found:
        assert (case, role) in {("shape", CaseRole.CHECK), ("odd", CaseRole.EDGE)}
        assert all(overrides[name] != values[name] for name in overrides)
        product = 1
        for name in values:
            size = overrides.get(name, values[name])
            assert isinstance(size, int) and size >= 1
            assert case == "shape" or name not in overrides or size % 2 == 1
            product *= size
        assert product <= 1 << 24
    assert found


def test_check_sizes_keep_powers_of_two() -> None:
    values = {"rows": 4096, "cols": 393216}
    found = choose_variants(values, shaped(values), lambda changed, _: shaped({**values, **changed}))
    assert found[0] == ("shape", CaseRole.CHECK, {"rows": 64, "cols": 192})
    assert found[1][2] == {"rows": 37, "cols": 23}


def test_constants_of_the_model_stay() -> None:
    values = {"rows": 64, "dim": 1, "rate": 0.5}

    def look(changed: Mapping[str, Constant], _: bool) -> Variant:
        merged: dict[str, Constant] = {**values, **changed}
        return shaped({"rows": merged["rows"]}, init=str(merged["dim"]))

    found = choose_variants(values, look({}, True), look)
    assert [set(overrides) for *_, overrides in found] == [{"rows"}, {"rows"}]


def test_a_size_that_reaches_the_weights_stays() -> None:
    def look(changed: Mapping[str, Constant], whole: bool) -> Variant:
        n = changed.get("n", 8)
        assert is_int(n)
        return Variant("", (("x", "float32"),), ((n,),), ((n,),) if whole else (), (1,))

    assert choose_variants({"n": 8}, look({}, True), look) == []


def test_windows_that_do_not_fit_are_passed_over() -> None:
    def look(changed: Mapping[str, Constant], _: bool) -> Variant:
        n = changed.get("n", 4096)
        assert is_int(n)
        if n < 1000:
            raise TaskError("the window is larger than the input")
        return shaped({"n": n})

    found = choose_variants({"n": 4096}, look({}, True), look)
    assert [overrides for *_, overrides in found] == [{"n": 2048}, {"n": 2049}]


def test_equal_sizes_change_together_where_they_must() -> None:
    values: dict[str, Constant] = {"n": 4096, "shape": (4096,)}

    def look(changed: Mapping[str, Constant], whole: bool) -> Variant:
        merged = {**values, **changed}
        if whole and (merged["n"],) != merged["shape"]:
            raise TaskError("they do not broadcast")
        return shaped(merged)

    found = choose_variants(values, look({}, True), look)
    assert [overrides for *_, overrides in found] == [{"n": 64, "shape": (64,)}, {"n": 37, "shape": (37,)}]
