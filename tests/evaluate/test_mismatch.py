"""A right answer with one injected fault is explained as that fault."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernelworks.evaluate.manners import Known
from kernelworks.evaluate.mismatch import Answer, Explanation, Mismatch
from kernelworks.evaluate.numbers import decode, encode, plane
from kernelworks.evaluate.places import MESH_ELEMENTS, mesh_of, place_of
from kernelworks.task.model import Axis, DType, TensorArgument

Array = NDArray[Any]
POISON = 0x7FC12345


def argument(name: str, axes: tuple[Axis, ...], dtype: DType = DType.FLOAT32) -> TensorArgument:
    return TensorArgument(name=name, dtype=dtype, shape=axes, role="output")


def mismatch(
    golden: Array,
    found: Array,
    axes: tuple[Axis, ...] = ("rows", "cols"),
    *,
    dtype: DType = DType.FLOAT32,
    known: Known | None = None,
    tolerance: float = 1e-6,
) -> Mismatch:
    """Of ``found`` (float64 values, or integers) against ``golden``, as the judge sees it."""
    floating = dtype.is_floating
    raw = encode(found.astype(np.float64).reshape(-1), dtype) if floating else found
    words = plane(np.ascontiguousarray(raw), dtype)
    right = plane(np.ascontiguousarray(golden), dtype) if not floating else golden.astype(np.float64).reshape(-1)
    rms = float(np.sqrt(np.mean(np.square(right[np.isfinite(right)])))) if floating else 0.0
    error = np.abs(decode(words, dtype).astype(np.float64) - right)
    worst = int(np.argmax(np.where(np.isfinite(error), error, -1)))
    answer = Answer(
        argument=argument("y", axes, dtype),
        shape=golden.shape,
        found=words,
        golden=right,
        poison=POISON,
        worst=worst,
        floor=8 * tolerance * rms,
        relative=8 * tolerance,
        rms_limit=tolerance * rms,
    )
    return Mismatch(answer, known or Known())


def explained(golden: Array, found: Array, axes: tuple[Axis, ...] = ("rows", "cols"), **options: Any) -> Explanation:
    return mismatch(golden, found, axes, **options).values()


def draw(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def spoilt(golden: Array, where: Any, seed: int = 1) -> Array:
    """Unrelated values in one place."""
    found = golden.copy()
    found[where] += 1 + np.random.default_rng(seed).random(found[where].shape)
    return found


def every(period: int, low: int, high: int, size: int) -> NDArray[np.bool_]:
    residues = np.arange(size) % period
    return (residues >= low) & (residues <= high)


PLACES: dict[str, tuple[tuple[int, ...], Callable[[Array], Any], dict[str, Any], str]] = {
    "tail of the last dim": (
        (40, 1003),
        lambda y: (slice(None), slice(1000, None)),
        {"pattern": "tail", "dim": "cols", "first": 1000, "last": 1002, "size": 1003},
        "only in the last 3 of cols (1000..1002 of 1003), all along rows: the tail of dim cols",
    ),
    "last row": (
        (40, 100),
        lambda y: (39, slice(None)),
        {"pattern": "tail", "dim": "rows", "first": 39},
        "only in the last of rows (39 of 40), all along cols",
    ),
    "first column": (
        (40, 100),
        lambda y: (slice(None), 0),
        {"pattern": "head", "dim": "cols", "last": 0},
        "only in the first of cols (0 of 100), all along rows: the start of dim cols",
    ),
    "end of a flat loop": (
        (37, 27),
        lambda y: np.arange(y.size).reshape(y.shape) >= y.size - 7,
        {"pattern": "tail", "flat": True, "first": 992, "last": 998},
        "only in the last 7 elements (992..998 of 999): the tail of a flat loop",
    ),
    "one row": (
        (40, 100),
        lambda y: (17, slice(None)),
        {"pattern": "index", "dim": "rows"},
        "where rows is 17 (of 40)",
    ),
    "start of each tile": (
        (64, 512),
        lambda y: (slice(None), every(32, 0, 0, 512)),
        {"pattern": "tile", "dim": "cols", "period": 32, "residues": [0, 0]},
        "where cols % 32 is 0 (the start of every 32)",
    ),
    "end of each tile": (
        (64, 512),
        lambda y: (slice(None), every(16, 14, 15, 512)),
        {"pattern": "tile", "period": 16, "residues": [14, 15]},
        "where cols % 16 is in 14..15 (the end of every 16)",
    ),
    "every seventh row": ((70, 9), lambda y: slice(3, None, 7), {"period": 7, "dim": "rows"}, "rows % 7 is 3"),
    "every eighth of a flat loop": (
        (33, 35),
        lambda y: (np.arange(y.size) % 8 == 7).reshape(y.shape),
        {"pattern": "tile", "flat": True, "period": 8},
        "only where the flat index % 8 is 7",
    ),
    "share of one thread": (
        (400, 30),
        lambda y: slice(100, 200),
        {"pattern": "share", "dim": "rows", "threads": 4, "thread": 1},
        "where rows is in 100..199 (of 400), the share of thread 1 of 4",
    ),
    "share of the last thread": ((400, 30), lambda y: slice(200, 400), {"dim": "rows", "threads": 2}, "thread 1 of 2"),
    "block": (
        (100, 100),
        lambda y: (slice(20, 33), slice(41, 60)),
        {"pattern": "range", "and": [{"pattern": "range", "dim": "cols", "first": 41, "last": 59, "size": 100}]},
        "only where rows is in 20..32 (of 100) and where cols is in 41..59 (of 100)",
    ),
    "borders": (
        (3, 50, 60),
        lambda y: np.pad(np.zeros((3, 48, 58), np.bool_), ((0, 0), (1, 1), (1, 1)), constant_values=True),
        {"pattern": "border", "dims": ["h", "w"], "width": 1},
        "only at the first and last of h and w: the borders",
    ),
    "above the diagonal": (
        (60, 60),
        lambda y: np.triu(np.ones((60, 60), np.bool_), 1),
        {"pattern": "triangle"},
        "above",
    ),
    "on the diagonal": ((60, 60), lambda y: np.eye(60, dtype=np.bool_), {"pattern": "diagonal"}, "on the diagonal"),
    "negative values": ((50, 50), lambda y: y < 0, {"pattern": "sign", "expected": "negative"}, "value is negative"),
    "large values": ((50, 50), lambda y: np.abs(y) > 2, {"pattern": "magnitude"}, "is beyond 2."),
    "anywhere": (
        (50, 50),
        lambda y: np.random.default_rng(5).random(y.shape) < 0.1,
        {"pattern": "scattered"},
        "scattered over 0.1",
    ),
    "one element": ((50, 50), lambda y: (3, 4), {"pattern": "one", "index": (3, 4)}, "at one element, (3, 4)"),
    "two elements": (
        (50, 50),
        lambda y: ([3, 40], [4, 6]),
        {"pattern": "few", "indices": [(3, 4), (40, 6)]},
        "at (3, 4), (40, 6)",
    ),
    "everywhere": ((50, 50), lambda y: slice(None), {"pattern": "everywhere"}, "everywhere"),
}


@pytest.mark.parametrize("name", PLACES)
def test_where(name: str) -> None:
    shape, where, record, text = PLACES[name]
    golden = draw(shape)
    axes: tuple[Axis, ...] = ("rows", "cols") if len(shape) == 2 else ("n", "h", "w")
    found = explained(golden, spoilt(golden, where(golden)), axes)
    assert text in found.text, found
    assert record.items() <= found.evidence["where"].items(), found


@given(
    rows=st.integers(3, 60),
    whole=st.integers(2, 40),
    width=st.sampled_from([4, 8, 16, 32]),
    data=st.data(),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_any_tail_is_named_with_its_first_index(
    rows: int, whole: int, width: int, data: st.DataObject, seed: int
) -> None:
    rest = data.draw(st.integers(1, width - 1))
    golden = draw((rows, whole * width + rest), seed)
    found = explained(golden, spoilt(golden, (slice(None), slice(whole * width, None)), seed))
    where = found.evidence["where"]
    assert (where["dim"], where["first"]) == ("cols", whole * width)
    assert where["pattern"] == "tail"


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=40)
def test_scattered_errors_are_given_no_meaning(seed: int) -> None:
    rng = np.random.default_rng(seed)
    golden = rng.standard_normal((int(rng.integers(2, 70)), int(rng.integers(2, 70))))
    mask = rng.random(golden.shape) < rng.uniform(0.05, 0.6)
    if np.count_nonzero(mask) == 0:
        return
    found = explained(golden, spoilt(golden, mask, seed))
    assert found.evidence["where"]["pattern"] in ("scattered", "few", "one", "everywhere"), found
    assert "how" not in found.evidence, found


def known_of(**inputs: Array) -> Known:
    return Known(
        inputs={
            name: (argument(name, ("rows", "cols")[2 - a.ndim :]), a.astype(np.float32)) for name, a in inputs.items()
        }
    )


Y = draw((64, 100))
BIAS = draw((100,), 7)
SCALE = 1 + np.abs(draw((100,), 8))
X = draw((64, 100), 9)
ROW = 1 + np.random.default_rng(3).random((64, 1))
MANNERS: dict[str, tuple[Array, str, str, Known]] = {
    "twice": (Y * 2, "doubled", "found is 2 x expected: something is accumulated twice", Known()),
    "half": (Y * 0.5, "factor", "found is 0.5 x expected", Known()),
    "no division by cols": (Y * 100, "factor", "found is 100 x expected (cols)", Known()),
    "no square root": (Y / 8, "factor", "(1/sqrt(rows))", Known()),
    "log2 for log": (Y * math.log2(math.e), "factor", "(log2(e): base 2 where base e is meant)", Known()),
    "sign": (-Y, "sign", "the sign is flipped", Known()),
    "offset": (Y + 0.25, "offset", "found is expected + 0.25", Known()),
    "zeros": (Y * 0, "zeros", "found is 0 there", Known()),
    "constant": (Y * 0 + 3, "constant", "found is 3 throughout", Known()),
    "shifted columns": (np.roll(Y, 1, 1), "shifted", "found at cols i is expected at cols i - 1", Known()),
    "shifted rows": (np.roll(Y, -1, 0), "shifted", "found at rows i is expected at rows i + 1", Known()),
    "reversed": (Y[:, ::-1], "reversed", "the order along cols is reversed", Known()),
    "transposed": (np.ascontiguousarray(Y.T).reshape(Y.shape), "transposed", "rows and cols are transposed", Known()),
    "permuted": (Y[np.random.default_rng(2).permutation(64)], "permuted", "rows are permuted: row", Known()),
    "bias ignored": (Y - BIAS, "missing_term", "as if b were not added", known_of(b=BIAS)),
    "bias twice": (Y + BIAS, "missing_term", "added twice", known_of(b=BIAS)),
    "residual ignored": (Y - X, "missing_term", "as if x were not added", known_of(x=X)),
    "half of the residual": (Y - 0.5 * X, "missing_term", "found - expected is -0.5 x x", known_of(x=X)),
    "scale ignored": (Y / SCALE, "missing_factor", "as if not multiplied by w", known_of(w=SCALE)),
    "scale twice": (Y * SCALE, "extra_factor", "as if multiplied by w once too often", known_of(w=SCALE)),
    "copy": (X, "copy", "found is the input x as it is", known_of(x=X)),
    "swapped": (X, "swapped", "right answer for z: outputs are swapped", Known(others={"z": X.reshape(-1)})),
    "stale": (X, "stale", "right answer for other inputs", Known(earlier={"other inputs": X.reshape(-1)})),
    "denominators": (Y * ROW, "row_factor", "differs from row to row", Known()),
    "means": (Y + ROW, "row_offset", "found - expected is the same all along cols, but differs", Known()),
    "rounded to bfloat16": (
        decode(encode(Y.reshape(-1), DType.BFLOAT16), DType.BFLOAT16).reshape(Y.shape),
        "precision",
        "every value found is a number of bfloat16",
        Known(),
    ),
    "rounded to float16": (Y.astype(np.float16), "precision", "a number of float16 or tf32", Known()),
}


@pytest.mark.parametrize("name", MANNERS)
def test_how(name: str) -> None:
    wrong, pattern, text, known = MANNERS[name]
    found = explained(Y, wrong, known=known)
    assert text in found.text, found
    assert found.evidence["how"]["pattern"] == pattern
    assert found.evidence["pattern"] in (pattern, "sign")


@pytest.mark.parametrize(("bits", "said"), [(8, "bfloat16"), (11, "float16 or tf32")])
def test_products_of_rounded_inputs_show_their_class(bits: int, said: str) -> None:
    def rounded(values: Array) -> Array:
        mantissa, exponent = np.frexp(values)
        return np.ldexp(np.round(mantissa * 2.0**bits) / 2.0**bits, exponent)

    a, b = draw((48, 256), 1), draw((256, 64), 2)
    found = explained(a @ b, rounded(a) @ rounded(b))
    assert found.evidence["how"]["pattern"] == "precision"
    assert f"as of arithmetic in {said}" in found.text, found


def test_unrelated_values_are_explained_by_nothing() -> None:
    found = explained(Y, draw(Y.shape, 50), known=known_of(x=X, b=BIAS))
    assert "how" not in found.evidence
    assert found.text == ", everywhere"


def test_the_manner_is_found_in_a_part_too() -> None:
    wrong = Y.copy()
    wrong[:, 96:] *= 2
    found = explained(Y, wrong)
    assert found.evidence["pattern"] == "tail"
    assert found.evidence["how"] == {"pattern": "doubled", "factor": pytest.approx(2)}


def integers(golden: Array, found: Array, dtype: DType = DType.INT32) -> Explanation:
    return explained(golden, found, dtype=dtype)


def test_integers() -> None:
    golden = np.random.default_rng(0).integers(-(2**20), 2**20, (64, 100)).astype(np.int32)
    assert "cut to 16 bits (signed)" in integers(golden, golden.astype(np.int16).astype(np.int32)).text
    assert "found is expected + 1" in integers(golden, golden + np.int32(1)).text
    near = golden + np.random.default_rng(1).integers(-1, 2, golden.shape).astype(np.int32)
    assert "off by one: another rounding" in integers(golden, near).text
    flags = golden > 0
    assert "the opposite of expected" in integers(flags, ~flags, DType.BOOL).text
    tail = golden.copy()
    tail[:, 96:] = 0
    assert integers(golden, tail).evidence["where"]["first"] == 96


def test_sixteen_bits_and_complex() -> None:
    found = explained(Y, Y * 2, dtype=DType.BFLOAT16, tolerance=2.0**-7)
    assert found.evidence["how"]["pattern"] == "doubled"
    values = Y[:, :50] + 1j * Y[:, 50:]
    golden = np.stack([values.real, values.imag], -1)
    wrong = golden.copy()
    wrong[..., 1] *= -1
    answer = Answer(
        argument=argument("y", ("rows", "cols"), DType.COMPLEX64),
        shape=values.shape,
        found=wrong.astype(np.float32).reshape(-1),
        golden=golden.reshape(-1),
        poison=POISON,
        worst=1,
        floor=1e-5,
    )
    conjugated = Mismatch(answer, Known()).values()
    assert "only in the last of real/imaginary (1 of 2), all along rows and cols" in conjugated.text
    assert "the sign is flipped" in conjugated.text


def test_elements_that_were_not_written_are_located() -> None:
    words = Y.astype(np.float32).reshape(-1)
    words.reshape(Y.shape)[:, 97:] = np.array(POISON, np.uint32).view(np.float32)
    answer = Answer(
        argument("y", ("rows", "cols")), Y.shape, words, Y.reshape(-1), POISON, 97, floor=1e-5, rms_limit=1e-5
    )
    found = Mismatch(answer, Known())
    assert (
        found.unwritten().text == ", only in the last 3 of cols (97..99 of 100), all along rows: the tail of dim cols"
    )
    assert found.values() == found.specials() == Explanation()


def test_nan_and_infinity() -> None:
    golden = Y.copy()
    golden[5, 7] = np.nan
    spread = Y.copy()
    spread[5] = np.nan
    found = mismatch(golden, spread).specials()
    assert "where rows is 5 (of 64)" in found.text and "spreads over its whole row" in found.text
    lost = mismatch(golden, Y).specials()
    assert "at one element, (5, 7); finite values stand where NaN or infinity belongs" in lost.text
    large = Y * 1e5
    over = mismatch(large, np.where(np.abs(large) > 65504, np.inf, large)).specials()
    assert (
        "infinity where expected values reach" in over.text and "beyond the range of float16: an overflow" in over.text
    )
    assert over.evidence["where"]["pattern"] == "magnitude"


def test_an_answer_whose_errors_are_wrong_together_alone() -> None:
    rng = np.random.default_rng(77)
    found = explained(Y, Y + 3e-6 * rng.standard_normal(Y.shape), tolerance=2e-6)
    assert "too many roundings" in found.text


def test_large_tensors_are_sampled_where_it_matters() -> None:
    shape = (3000, 4003)
    golden = draw(shape).astype(np.float32).astype(np.float64)
    mesh = mesh_of(shape, 5)
    assert math.prod(p.size for p in mesh.picked) <= MESH_ELEMENTS
    assert not mesh.whole
    wrong = golden.copy()
    wrong[:, 4000:] *= 3
    found = explained(golden, wrong)
    assert "only in the last 3 of cols (4000..4002 of 4003), all along rows" in found.text
    assert "found is 3 x expected" in found.text
    single = golden.copy()
    single[1234, 2345] += 1
    assert "at one element, (1234, 2345)" in explained(golden, single).text


def test_a_scalar_and_a_vector() -> None:
    assert "at one element, (0,)" in explained(np.array(2.0), np.array(3.0), ()).text
    found = explained(draw((1003,)), spoilt(draw((1003,)), slice(1000, None)), ("n",))
    assert found.text == ", only in the last 3 of n (1000..1002 of 1003): the tail of dim n"


@given(st.lists(st.integers(1, 70), min_size=1, max_size=4).map(tuple), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_a_mesh_alone_makes_no_pattern(shape: tuple[int, ...], seed: int) -> None:
    """What is wrong everywhere, or anywhere, is so through any mesh."""
    rng = np.random.default_rng(seed)
    mesh = mesh_of(shape, int(rng.integers(0, math.prod(shape))), budget=4096)
    assert all(np.array_equal(p, np.unique(p)) and p[-1] < size for p, size in zip(mesh.picked, shape, strict=True))
    axes = tuple("abcd"[: len(shape)])
    size = tuple(p.size for p in mesh.picked)
    everywhere = place_of(np.ones(size, np.bool_), mesh, axes)
    assert everywhere.pattern in ("everywhere", "one"), everywhere
    scattered = rng.random(size) < 0.4
    if np.count_nonzero(scattered) > 16:
        assert place_of(scattered, mesh, axes).pattern in ("scattered", "few", "one", "everywhere")
