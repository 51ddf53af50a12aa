from __future__ import annotations

import numpy as np
import pytest

from kernelworks.evaluate.bound import Bound
from kernelworks.evaluate.compare import compare_floats, reference_error
from kernelworks.evaluate.numbers import Doubles, decode, encode
from kernelworks.evaluate.precision import precision_class
from kernelworks.task.model import DType

RNG = np.random.default_rng(2)
A, B = RNG.standard_normal((64, 1024)), RNG.standard_normal((1024, 64))
EXACT = (A @ B).reshape(-1)


def rounded(values: Doubles, bits: int) -> Doubles:
    """To so many significant bits."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.rint(mantissa * 2.0**bits), exponent - bits)


def class_of(answer: Doubles, dtype: DType = DType.FLOAT32) -> str:
    found = encode(answer.reshape(-1), dtype)
    native = encode(EXACT, dtype)
    own, _ = reference_error(native, EXACT, dtype)
    figures = compare_floats(found, EXACT, dtype, Bound(1.0, 1.0, 0.0), poison=-1)
    made = precision_class(figures.rms_error, figures.max_error, own, dtype, 1024)
    return "" if made is None else made.name


@pytest.mark.parametrize(
    ("bits", "name"), [(8, "bfloat16"), (11, "float16 or tf32"), (24, ""), (17, "")], ids=["8", "11", "24", "17"]
)
def test_errors_tell_the_bits_of_the_factors(bits: int, name: str) -> None:
    assert class_of(rounded(A, bits) @ rounded(B, bits)) == name
    assert class_of(rounded(A, bits) @ B) == name


def test_float32_shows_in_float64() -> None:
    assert class_of((A.astype(np.float32).astype(np.float64) @ B), DType.FLOAT64) == "float32"


def test_one_wrong_element_is_no_precision() -> None:
    wrong = EXACT.copy()
    wrong[7] += 0.3 * np.sqrt(np.square(EXACT).mean())
    assert class_of(wrong) == ""
    half = EXACT.copy()
    half[: half.size // 2] = 0
    assert class_of(half) == ""


def test_a_narrow_output_has_its_own_errors() -> None:
    assert decode(encode(EXACT, DType.BFLOAT16), DType.BFLOAT16).size == EXACT.size
    assert class_of(EXACT, DType.BFLOAT16) == ""
    assert class_of(rounded(EXACT, 11), DType.FLOAT16) == ""
