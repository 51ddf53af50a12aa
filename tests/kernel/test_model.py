"""Kernels as data: identity, languages by suffix."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kernelworks.errors import KernelFormatError
from kernelworks.kernel.expression import Scalar
from kernelworks.kernel.model import Contract, FrontMatter, Kernel, Language, Origin, language_of

FRONT = FrontMatter(lang=Language.CPP, contract=Contract.FUNCTION)
scalars = st.one_of(st.integers(-100, 100), st.booleans(), st.floats(-1, 1), st.sampled_from(("a", "b")))
params = st.dictionaries(st.sampled_from(("A", "B", "C")), scalars)


def kernel(text: str = "int x;", point: dict[str, Scalar] | None = None, proposer: str = "file") -> Kernel:
    return Kernel(text=text, front=FRONT, params=point or {}, origin=Origin(proposer=proposer))


@given(params, params)
def test_equal_content_has_equal_ids(one: dict[str, Scalar], other: dict[str, Scalar]) -> None:
    equal = repr(sorted(one.items())) == repr(sorted(other.items()))
    assert (kernel(point=one).id == kernel(point=other).id) is equal
    assert kernel(point=one).id == kernel(point=dict(reversed(one.items())), proposer="experts").id


def test_the_id_follows_text_params_and_flags() -> None:
    base = kernel()
    changed = [
        base.model_copy(update={"text": "int y;"}),
        base.model_copy(update={"params": {"A": 1}}),
        base.model_copy(update={"params": {"A": True}}),
        base.model_copy(update={"flags": {"MATH": "-ffast-math"}}),
    ]
    assert len({base.id, *(k.id for k in changed)}) == 5
    assert len(base.id) == 16 and int(base.id, 16) >= 0


@given(params)
def test_kernels_survive_json(point: dict[str, Scalar]) -> None:
    one = kernel(point=point)
    again = Kernel.model_validate_json(one.model_dump_json())
    assert again == one and again.id == one.id


def test_unknown_fields_and_changes_are_refused() -> None:
    with pytest.raises(ValidationError):
        Kernel.model_validate({**kernel().model_dump(), "score": 1})
    with pytest.raises(ValidationError):
        kernel().text = "int y;"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("a.cpp", Language.CPP),
        ("a.cc", Language.CPP),
        ("a.sycl.cpp", Language.SYCL),
        ("a.cl", Language.OPENCL),
        ("a.cu", Language.CUDA),
        ("a.py", Language.PYTHON),
    ],
)
def test_language_by_suffix(name: str, language: Language) -> None:
    assert language_of(Path("folder.py") / name) is language


def test_an_unknown_suffix_is_an_error() -> None:
    with pytest.raises(
        KernelFormatError, match=r"line 1: expected a file name that ends in one of \.sycl\.cpp, \.cpp"
    ) as e:
        language_of(Path("kernel.txt"))
    assert e.value.found == "'kernel.txt'"
