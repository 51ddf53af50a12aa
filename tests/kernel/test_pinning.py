"""A winner's text alone must build what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelworks.kernel.frontmatter import default_point, parse_kernel, points
from kernelworks.kernel.model import Language, Origin, Params
from kernelworks.kernel.pinning import pinned_text

CPP = """/*---
contract: function
idea: "keep: this"   # and this
params:
  LANES: [16, 8, 4]
  STEP: {range: [0, 12, 4]}
  FAST: [true, 1, false]
  WORD:
    - one
    - two
covers: ["cols % LANES == 0"]
flags:
  MATH: ["", "-ffast-math"]
---*/
extern "C" int launch() { return LANES; }
"""
PYTHON = "#---\n# contract: module\n# params:\n#   A: [1, 2]\n#---\nclass ModelNew: pass\n"


def pinned(text: str, language: Language, params: Params, flags: dict[str, str]) -> str:
    kernel = parse_kernel(text, language, Origin(proposer="file"), params=params)
    return pinned_text(kernel.model_copy(update={"flags": flags}))


CPP_POINTS = list(points(parse_kernel(CPP, Language.CPP, Origin(proposer="file")).front))


@given(st.sampled_from(CPP_POINTS), st.sampled_from(["", "-ffast-math"]))
def test_the_chosen_point_is_the_default_and_all_else_stands(point: Params, flag: str) -> None:
    text = pinned(CPP, Language.CPP, point, {"MATH": flag})
    before = parse_kernel(CPP, Language.CPP, Origin(proposer="file")).front
    after = parse_kernel(text, Language.CPP, Origin(proposer="file")).front
    found = default_point(after, {"cols": 64}, {})
    assert found == point and [type(v) for v in found.values()] == [type(v) for v in point.values()]
    assert after.flags["MATH"][0] == flag
    assert {n: set(map(repr, v)) for n, v in after.params.items()} == {
        n: set(map(repr, v)) for n, v in before.params.items()
    }
    assert text.split("---*/")[1] == CPP.split("---*/")[1]
    assert '"keep: this"   # and this' in text
    assert after.covers == before.covers


def test_nothing_chosen_changes_nothing() -> None:
    assert pinned(CPP, Language.CPP, {}, {}) == CPP


@pytest.mark.parametrize("value", [1, 2])
def test_python_front_matter_stays_a_comment(value: int) -> None:
    text = pinned(PYTHON, Language.PYTHON, {"A": value}, {})
    front = parse_kernel(text, Language.PYTHON, Origin(proposer="file")).front
    assert default_point(front, {}, {}) == {"A": value}
    assert text.endswith("class ModelNew: pass\n") and all(line.startswith("#") for line in text.split("\n")[:5])
