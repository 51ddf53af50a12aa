from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builds import kernel_text, make_kernel, scale_task

from kernelworks.errors import KernelError, TaskError
from kernelworks.targets.flags import bound_point, chosen_flags, compile_time_bindings, definitions

PARAMS = 'params: {VEC: [16, 8], FAST: [true, false]}\nconstraints: ["VEC * 1000000 <= n"]\nlet: {LANES: VEC * 2}\n'


def test_the_first_listed_flag_holds_unless_another_is_chosen() -> None:
    kernel = make_kernel(kernel_text("y[i] = x[i];", front='flags: {MATH: ["", "-ffast-math -O2"], OPT: ["-O3"]}\n'))
    assert chosen_flags(kernel) == ("-O3",)
    assert chosen_flags(kernel.model_copy(update={"flags": {"MATH": "-ffast-math -O2"}})) == (
        "-ffast-math",
        "-O2",
        "-O3",
    )


@pytest.mark.parametrize(
    "flag", ["-fplugin=x.so", "-I/etc", "-Ofast", "@file", "-Wl,-z,now", "-include x", "x.cpp", "-ffast-math -w"]
)
def test_flags_beyond_the_list_are_named_even_where_not_chosen(flag: str) -> None:
    kernel = make_kernel(kernel_text("y[i] = x[i];", front=f'flags: {{MATH: ["", "{flag}"]}}\n'))
    with pytest.raises(KernelError, match=f"found '{flag.split()[-1]}'|found '{flag.split()[0]}'"):
        chosen_flags(kernel)


def test_a_choice_that_is_not_listed_is_refused() -> None:
    kernel = make_kernel(kernel_text("y[i] = x[i];", front='flags: {MATH: [""]}\n'))
    for choice in ({"MATH": "-O2"}, {"OTHER": "-O2"}):
        with pytest.raises(KernelError, match=next(iter(choice))):
            chosen_flags(kernel.model_copy(update={"flags": choice}))


def test_the_default_point_is_that_of_the_first_timed_case() -> None:
    kernel = make_kernel(
        kernel_text("y[i] = x[i];", front="params: {VEC: [2, 1]}\nconstraints: ['VEC * 1000000 < n']\n")
    )
    assert bound_point(scale_task(), kernel) == {"VEC": 1}


def test_params_lets_and_constants_are_bound_together() -> None:
    front = "params: {VEC: [8, 16], FAST: [true, false]}\nlet: {LANES: VEC * 2}\n"
    kernel = make_kernel(kernel_text("y[i] = x[i];", front=front), params={"VEC": 16})
    bindings = compile_time_bindings(scale_task({"H_EPS": 1e-5, "H_BIAS": True}), kernel)
    assert definitions(bindings) == ("-DFAST=1", "-DH_BIAS=1", "-DH_EPS=1e-05", "-DLANES=32", "-DVEC=16")


def test_a_let_that_needs_sizes_is_refused_by_name() -> None:
    kernel = make_kernel(kernel_text("y[i] = x[i];", front="let: {HALF: n // 2}\n"))
    with pytest.raises(KernelError, match="HALF = n // 2"):
        compile_time_bindings(scale_task(), kernel)


@pytest.mark.parametrize("name", ["n", "x", "H_EPS"])
def test_a_param_may_not_take_a_name_of_the_task(name: str) -> None:
    kernel = make_kernel(kernel_text("y[i] = x[i];", front=f"params: {{'{name}': [1]}}\n"))
    with pytest.raises(KernelError, match=f"found {name}"):
        compile_time_bindings(scale_task({"H_EPS": 1e-5}), kernel)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1 << 63, -(1 << 63) - 1])
def test_constants_that_no_c_literal_can_hold_are_refused(value: float) -> None:
    with pytest.raises(TaskError, match="constant H_X"):
        compile_time_bindings(scale_task({"H_X": value}), make_kernel(kernel_text("y[i] = x[i];")))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_keeps_every_bit(value: float) -> None:
    (argument,) = definitions({"X": value})
    assert float(argument.removeprefix("-DX=").strip("()")) == value
    assert any(mark in argument for mark in ".e"), "an integer literal would divide differently"


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_an_integer_keeps_its_value(value: int) -> None:
    (argument,) = definitions({"X": value})
    text = argument.removeprefix("-DX=")
    assert eval(text) == value
    assert text.lstrip("(-").split("-")[0].strip(")") != str(1 << 63), "C has no such literal"


@pytest.mark.parametrize("name", ["int", "launch", "__LINE__"])
def test_a_param_may_not_take_a_name_that_cpp_reserves(name: str) -> None:
    with pytest.raises(KernelError, match=f"names that C\\+\\+ does not reserve, found {name}"):
        compile_time_bindings(
            scale_task(), make_kernel(kernel_text("y[i] = x[i];", front=f"params: {{{name}: [1]}}\n"))
        )
