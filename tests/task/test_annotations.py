from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import BFloat16, Bool, Complex64, Float, Float8e4m3fn, Float32, Int64, Num, UInt8

from kernelworks.errors import TaskError
from kernelworks.task.annotations import parse_axes, read_signature
from kernelworks.task.model import DType, ScalarArgument, TensorArgument

Hints = dict[str, Any]


def annotated(returns: Any, defaults: tuple[Any, ...] = (), **hints: Any) -> Callable[..., Any]:
    """A function with these annotations, made at run time."""
    names = ", ".join(hints)
    scope: dict[str, Any] = {}
    exec(f"def f({names}): ...", scope)
    function = scope["f"]
    function.__annotations__ = {**hints, "return": returns}
    function.__defaults__ = defaults
    return function


Matrix = Float32[torch.Tensor, "rows 3 cols"]
Turned = Float32[torch.Tensor, "cols rows"]
Counts = Int64[torch.Tensor, "k"]


def test_tensors_scalars_and_dims_in_order() -> None:
    function = annotated(
        tuple[Turned, Counts],
        (0.5, True),
        x=Matrix,
        mask=Bool[torch.Tensor, "rows"],
        n=int,
        eps=float,
        flag=bool,
    )
    found = read_signature(function, "t")
    assert found.framework == "torch"
    assert found.inputs == (
        TensorArgument(name="x", dtype=DType.FLOAT32, shape=("rows", 3, "cols"), role="input"),
        TensorArgument(name="mask", dtype=DType.BOOL, shape=("rows",), role="input"),
        ScalarArgument(name="n", type="int"),
        ScalarArgument(name="eps", type="float"),
        ScalarArgument(name="flag", type="bool"),
    )
    assert [(a.name, a.dtype, a.shape) for a in found.outputs] == [
        ("out0", DType.FLOAT32, ("cols", "rows")),
        ("out1", DType.INT64, ("k",)),
    ]
    assert found.dims == ("rows", "cols", "k")
    assert found.defaults == {"eps": 0.5, "flag": True}


def test_dtypes_names_and_scalar_tensors() -> None:
    function = annotated(Complex64[torch.Tensor, ""], a=BFloat16[torch.Tensor, "n"], b=UInt8[torch.Tensor, "n"])
    found = read_signature(function, "t", ("y",))
    assert [a.dtype for a in found.inputs if isinstance(a, TensorArgument)] == [DType.BFLOAT16, DType.UINT8]
    assert found.outputs == (TensorArgument(name="y", dtype=DType.COMPLEX64, shape=(), role="output"),)


def test_numpy_and_no_output() -> None:
    found = read_signature(annotated(None, x=Float32[np.ndarray, "n"]), "t")
    assert (found.framework, found.outputs) == ("numpy", ())


def test_annotations_as_text() -> None:
    scope: dict[str, Any] = {}
    code = (
        "from __future__ import annotations\n"
        "import numpy as np\nfrom jaxtyping import Float32\n"
        "def f(x: Float32[np.ndarray, 'a b'], s: float) -> Float32[np.ndarray, 'b']: ...\n"
    )
    exec(code, scope)
    found = read_signature(scope["f"], "t")
    assert found.dims == ("a", "b")
    assert [a.kind for a in found.inputs] == ["tensor", "scalar"]


VECTOR = Float32[torch.Tensor, "n"]


@pytest.mark.parametrize(
    ("returns", "hints", "message"),
    [
        (VECTOR, {"x": torch.Tensor}, "argument 'x': expected Float32[Tensor, 'rows cols'] or similar, float, int"),
        (VECTOR, {"x": list[int]}, "argument 'x': expected Float32[Tensor, 'rows cols'] or similar"),
        (VECTOR, {"x": str}, "found <class 'str'>"),
        (VECTOR, {"x": Float[torch.Tensor, "n"]}, "expected one exact dtype such as Float32, found unsupported"),
        (VECTOR, {"x": Num[torch.Tensor, "n"]}, "expected one exact dtype such as Float32, found unsupported"),
        (VECTOR, {"x": Float8e4m3fn[torch.Tensor, "n"]}, "found unsupported annotation float8_e4m3fn"),
        (VECTOR, {"x": Float32[torch.Tensor, "... n"]}, "found unsupported annotation '...'"),
        (VECTOR, {"x": Float32[torch.Tensor, "*batch n"]}, "found unsupported annotation '*batch'"),
        (VECTOR, {"x": Float32[torch.Tensor, "n+1"]}, "found unsupported annotation 'n+1'"),
        (VECTOR, {"x": Float32[torch.Tensor, "_"]}, "found unsupported annotation '_'"),
        (VECTOR, {"x": Float32[torch.Tensor, "0"]}, "expected a fixed size from 1 to 2**63-1, found 0"),
        (VECTOR, {"x": Float32[np.ndarray, "n"]}, "expected tensors of one framework, found numpy and torch"),
        (VECTOR, {"x": Float32[Any, "n"]}, "expected torch.Tensor or numpy.ndarray, found unsupported annotation"),
        (None, {"s": float}, "expected tensors of one framework, found no tensor"),
        (float, {"x": VECTOR}, "output 'out0': expected Float32[Tensor, 'rows cols'] or similar, found"),
        (tuple[VECTOR, ...], {"x": VECTOR}, "output 'out1': expected Float32[Tensor, 'rows cols'] or similar"),
        (
            Float32[np.ndarray, "n"],
            {"x": BFloat16[np.ndarray, "n"]},
            "expected a dtype that NumPy has, found bfloat16 ('x')",
        ),
        (VECTOR, {"x": "Nowhere[n]"}, "expected annotations that can be evaluated, found NameError"),
    ],
)
def test_refused_annotations(returns: Any, hints: Hints, message: str) -> None:
    with pytest.raises(TaskError) as caught:
        read_signature(annotated(returns, **hints), "t")
    assert str(caught.value).startswith("task 't'")
    assert message in str(caught.value)


def test_refused_parameters() -> None:
    def variadic(*x: Any) -> None: ...
    def by_name(*, x: Any) -> None: ...

    bare: Callable[..., Any] = eval("lambda x: None")

    def endless(x: float): ...

    refused: tuple[tuple[Callable[..., Any], str], ...] = (
        (variadic, "expected a positional parameter, found variadic positional"),
        (by_name, "expected a positional parameter, found keyword-only"),
        (bare, "argument 'x': expected a jaxtyping annotation or float, int, bool, found none"),
        (endless, "expected a return annotation, found none"),
    )
    for function, message in refused:
        with pytest.raises(TaskError) as caught:
            read_signature(function, "t")
        assert message in str(caught.value)


def test_names_of_outputs_must_fit() -> None:
    with pytest.raises(TaskError, match="expected 1 names of outputs, found 2"):
        read_signature(annotated(VECTOR, x=VECTOR), "t", ("a", "b"))


names = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True)


@given(st.lists(st.one_of(names, st.integers(1, 2**63 - 1)), max_size=6))
def test_axes_read_back(axes: list[str | int]) -> None:
    assert parse_axes("  ".join(map(str, axes)), "here") == tuple(axes)


@given(st.text(max_size=30))
def test_any_text_gives_axes_or_a_task_error(text: str) -> None:
    try:
        axes = parse_axes(text, "here")
    except TaskError as error:
        assert str(error).startswith("here: expected")
        return
    assert all(axis.isidentifier() if isinstance(axis, str) else axis >= 1 for axis in axes)
