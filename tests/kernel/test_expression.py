"""Expressions of the front matter against Python's own arithmetic, and every refusal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelworks.errors import ExpressionError
from kernelworks.kernel.expression import (
    INT64_MAX,
    INT64_MIN,
    MAX_DEPTH,
    MAX_LENGTH,
    Expression,
    Scalar,
    parse_expression,
)

NAMES = {"rows": 7, "cols": 12, "B": 3}


def value(text: str, **names: Scalar) -> Scalar:
    return parse_expression(text).evaluate(names)


atoms = st.one_of(st.integers(-20, 20).map(lambda n: f"({n})"), st.sampled_from(sorted(NAMES)))


def _combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.builds("({} {} {})".format, inner, st.sampled_from(("+", "-", "*", "//", "%")), inner)
    compare = st.builds("({} {} {})".format, inner, st.sampled_from(("<", "<=", ">", ">=", "==", "!=")), inner)
    boolean = st.builds("({} {} {})".format, inner, st.sampled_from(("and", "or")), inner)
    choice = st.builds("({} if {} else {})".format, inner, inner, inner)
    called = st.builds("{}({}, {})".format, st.sampled_from(("min", "max")), inner, inner)
    return st.one_of(binary, compare, boolean, choice, called, inner.map("(-{})".format), inner.map("(not {})".format))


@given(st.recursive(atoms, _combine, max_leaves=12))
def test_agrees_with_python(text: str) -> None:
    try:
        expected = eval(text, {}, dict(NAMES))
    except ZeroDivisionError:
        with pytest.raises(ExpressionError, match="division by zero"):
            Expression(text).evaluate(NAMES)
        return
    if "and" in text or "or" in text:
        # boolean operators give a boolean, where Python gives an operand
        assert bool(Expression(f"({text}) == ({text})").evaluate(NAMES))
    else:
        assert Expression(text).evaluate(NAMES) == expected


@given(st.booleans(), st.booleans(), st.booleans())
def test_boolean_logic(a: bool, b: bool, c: bool) -> None:
    names: dict[str, Scalar] = {"a": a, "b": b, "c": c}
    assert Expression("a and b or not c").evaluate(names) is ((a and b) or not c)
    assert Expression("a or b and c").evaluate(names) is (a or (b and c))


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        expression = Expression(text)
    except ExpressionError:
        return
    try:
        expression.evaluate(dict.fromkeys(expression.names, 1))
    except ExpressionError:
        return


@given(st.integers(0, 2**40), st.integers(1, 2**20))
def test_functions(a: int, b: int) -> None:
    assert value("ceildiv(a, b)", a=a, b=b) == -(-a // b)
    power = value("next_pow2(a)", a=a)
    assert isinstance(power, int) and power >= a and power & (power - 1) == 0 and (power == 1 or power // 2 < a)
    logarithm = value("log2(b)", b=b)
    assert isinstance(logarithm, int) and 2**logarithm <= b < 2 ** (logarithm + 1)
    assert value("min(a, b, 5)", a=a, b=b) == min(a, b, 5)


def test_names_are_those_to_bind() -> None:
    assert parse_expression("min(rows, B) * cols + rows").names == {"rows", "cols", "B"}


def test_words_are_compared() -> None:
    assert value("MODE == 'fast'", MODE="fast") is True
    assert value("'a' if MODE != 'fast' else 'b'", MODE="fast") == "b"


def test_floats_are_compared_and_chosen() -> None:
    assert value("ALPHA < 0.5", ALPHA=0.25) is True
    assert value("ALPHA if True else 0.0", ALPHA=0.25) == 0.25


def test_chained_comparison_stops_early() -> None:
    assert value("1 < 2 < 3") is True
    assert value("3 < 2 < 1 // 0") is False


def test_only_the_chosen_branch_is_evaluated() -> None:
    assert value("1 if n == 0 else 8 // n", n=0) == 1
    assert value("n == 0 or 8 // n > 1", n=0) is True


@pytest.mark.parametrize("text", ["n + 1", "n * 2", "-low", "low - 1", "low // (0 - 1)", "next_pow2(n)"])
def test_overflow_is_an_error(text: str) -> None:
    with pytest.raises(ExpressionError, match="overflows int64"):
        value(text, n=INT64_MAX, low=INT64_MIN)


@pytest.mark.parametrize("text", [str(INT64_MAX + 1), "n"])
def test_numbers_that_do_not_fit_are_an_error(text: str) -> None:
    with pytest.raises(ExpressionError, match="overflows int64"):
        value(text, n=INT64_MAX + 1)


REFUSED = {
    "": "expected int arithmetic",
    "a b": "expected int arithmetic",
    "a / b": "expected one of \\+ - \\* // %, found Div",
    "a ** b": "found Pow",
    "a << b": "found LShift",
    "~a": "UnaryOp is not allowed",
    "a in b": "expected a comparison, found In",
    "a is b": "expected a comparison, found Is",
    "None": "expected a number or word, found None",
    "1j": "expected a number or word",
    "...": "expected a number or word",
    "b'x'": "expected a number or word",
    "a.b": "Attribute is not allowed",
    "a[0]": "Subscript is not allowed",
    "[a]": "List is not allowed",
    "lambda: 1": "Lambda is not allowed",
    "f'{a}'": "JoinedStr is not allowed",
    "(a := 1)": "NamedExpr is not allowed",
    "open('x')": "expected one of \\['ceildiv', 'log2', 'max', 'min', 'next_pow2'\\], found 'open'",
    "__import__('os').system('x')": "is not allowed",
    "min(a, b, key=c)": "Call is not allowed",
    "min(*a, b)": "Starred is not allowed",
    "min()": "expected two or more arguments of min, found 0",
    "max(a)": "expected two or more arguments of max, found 1",
    "ceildiv(a)": "expected 2 arguments of ceildiv, found 1",
    "log2(a, b)": "expected 1 arguments of log2, found 2",
    "min < 5": "expected arguments after min, found none",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused_when_parsed(text: str) -> None:
    with pytest.raises(ExpressionError, match=REFUSED[text]):
        Expression(text)


FAILS = {
    "missing + 1": "unknown name 'missing', known are \\['f', 'n', 'w'\\]",
    "1 // 0": "division by zero",
    "1 % 0": "division by zero",
    "ceildiv(n, 0)": "division by zero",
    "log2(0)": "expected a positive number, found 0",
    "next_pow2(-3)": "expected a number of at least 0, found -3",
    "w + 1": "expected an integer, found the word 'fast'",
    "-w": "found the word 'fast'",
    "min(w, 1)": "found the word 'fast'",
    "w < 1": "cannot compare 'fast' with 1",
    "f * 2": "expected an integer, found the float 0.5",
    "log2(f)": "found the float 0.5",
    "next_pow2(1.5)": "found the float 1.5",
}


@pytest.mark.parametrize("text", FAILS)
def test_refused_when_evaluated(text: str) -> None:
    with pytest.raises(ExpressionError, match=FAILS[text]):
        value(text, n=4, w="fast", f=0.5)


def test_length_and_nesting_are_bounded() -> None:
    with pytest.raises(ExpressionError, match=f"expected at most {MAX_LENGTH} characters, found {MAX_LENGTH + 2}"):
        Expression("1+" * (MAX_LENGTH // 2) + "10")
    with pytest.raises(ExpressionError, match=f"expected at most {MAX_DEPTH} levels"):
        Expression("-" * 200 + "1")
    with pytest.raises(ExpressionError):
        Expression("(" * 400 + "1" + ")" * 400)
    assert value("-" * 90 + "1") == 1
