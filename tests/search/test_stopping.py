from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kernelworks.search.stopping import StopRules

RULES = StopRules(evaluations=10, minutes=1.5, patience=5)


@pytest.mark.parametrize(
    ("evaluations", "elapsed_s", "barren", "none_left", "reason"),
    [
        (9, 89.9, 4, False, None),
        (10, 0.0, 0, False, "evaluations"),
        (9, 90.0, 0, False, "minutes"),
        (9, 0.0, 5, False, "exhausted"),
        (9, 0.0, 0, True, "exhausted"),
        (10, 90.0, 5, True, "evaluations"),
        (9, 90.0, 5, True, "minutes"),
    ],
)
def test_the_first_limit_that_is_reached_is_the_reason(
    evaluations: int, elapsed_s: float, barren: int, none_left: bool, reason: str | None
) -> None:
    found = RULES.reason(evaluations=evaluations, elapsed_s=elapsed_s, barren=barren, none_left=none_left)
    assert found == reason


def test_limits_that_are_not_given_do_not_bind() -> None:
    rules = StopRules()
    assert rules.reason(evaluations=10**6, elapsed_s=1e9, barren=0, none_left=False) is None
    assert rules.may_begin(evaluations=10**6, in_flight=10**6)


@given(st.integers(1, 20), st.lists(st.booleans(), max_size=100))
def test_evaluations_that_may_begin_never_pass_the_limit(limit: int, ends: list[bool]) -> None:
    rules = StopRules(evaluations=limit)
    done = in_flight = 0
    for end in ends:
        if end and in_flight:
            done, in_flight = done + 1, in_flight - 1
        elif rules.may_begin(evaluations=done, in_flight=in_flight):
            in_flight += 1
        assert done + in_flight <= limit


@pytest.mark.parametrize("field", ["evaluations", "minutes", "patience"])
def test_a_limit_of_zero_is_refused(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        StopRules.model_validate({field: 0})
