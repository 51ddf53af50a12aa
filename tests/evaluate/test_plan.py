from __future__ import annotations

from support.references import numpy_task, tensor

from kernelworks.evaluate.families import FAMILIES
from kernelworks.evaluate.plan import (
    FULL_CASE_BYTES,
    MOST_PAIRS,
    SMALL_CASE_BYTES,
    TIMED_FAMILIES,
    families_by_case,
)
from kernelworks.task.model import Case, CaseRole, DType, Task


def task_of(*cases: tuple[CaseRole, int], dtype: DType = DType.FLOAT32) -> Task:
    """Cases with so many bytes of input, and as many of output."""
    x, y = tensor("x", "n", dtype=dtype), tensor("y", "n", dtype=dtype)
    loaded = numpy_task(lambda x: x, [x], [y], {"n": 1})
    made = tuple(
        Case(name=f"c{i}", role=role, sizes={"n": size_bytes // dtype.itemsize_bytes})
        for i, (role, size_bytes) in enumerate(cases)
    )
    return loaded.task.model_copy(update={"cases": made})


CHECK, EDGE, TIMED, LARGE = CaseRole.CHECK, CaseRole.EDGE, CaseRole.TIMED, CaseRole.LARGE


def test_the_largest_cheap_check_case_is_run_in_every_family() -> None:
    found = families_by_case(task_of((TIMED, 64), (CHECK, 64), (CHECK, 4096), (CHECK, FULL_CASE_BYTES), (EDGE, 8)))
    assert found["c0"] == ("normal", *TIMED_FAMILIES)
    assert found["c2"] == FAMILIES
    assert all(found[name][0] == "normal" for name in found)
    assert len(set(found["c1"]) | set(found["c3"])) == 1 + 3 + 3, "the other cases take turns"
    assert len(found["c4"]) == 3


def test_large_cases_are_run_on_the_draw_of_the_task() -> None:
    found = families_by_case(task_of((CHECK, SMALL_CASE_BYTES), (EDGE, SMALL_CASE_BYTES), (LARGE, 1 << 33)))
    assert found == {"c0": ("normal",), "c1": ("normal",)}


def test_without_check_cases_an_edge_case_has_every_family() -> None:
    assert families_by_case(task_of((TIMED, 64), (EDGE, 4096), (EDGE, 8)))["c1"] == FAMILIES


def test_timed_cases_are_run_in_some_families_where_that_is_cheap() -> None:
    half = FULL_CASE_BYTES // 2
    found = families_by_case(task_of((TIMED, half), (TIMED, half + 4), (TIMED, 0), (CHECK, 64)))
    assert found["c0"] == ("normal", "wide", "shifted", "specials")
    assert found["c1"] == found["c2"] == ("normal",)
    assert families_by_case(task_of((TIMED, 64), dtype=DType.INT32))["c0"] == ("normal",)


def test_the_number_of_pairs_is_bounded_with_timed_cases_too() -> None:
    for timed in (1, 9, 11, 20):
        found = families_by_case(task_of(*[(TIMED, 64)] * timed, *[(EDGE, 64)] * 8))
        pairs = sum(map(len, found.values())) - timed
        assert pairs <= MOST_PAIRS
        assert all(families[0] == "normal" for families in found.values())


def test_the_number_of_pairs_is_bounded() -> None:
    for count in (1, 5, 10, 20, 39):
        found = families_by_case(task_of(*[(EDGE if i else CHECK, 64) for i in range(count)]))
        assert sum(map(len, found.values())) <= max(MOST_PAIRS, count + len(FAMILIES) - 1)
        assert found["c0"] == FAMILIES
        assert all(found[f"c{i}"][0] == "normal" for i in range(count))


def test_what_has_no_floating_elements_has_one_family() -> None:
    assert families_by_case(task_of((CHECK, 64), dtype=DType.INT32)) == {"c0": ("normal",)}
    assert families_by_case(task_of((CHECK, 64), (EDGE, 0)))["c1"] == ("normal",)
