"""Front matter: what is read, and each refusal with its line, what was expected and what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kernelworks.errors import ExpressionError, KernelError, KernelFormatError
from kernelworks.kernel.expression import Scalar
from kernelworks.kernel.frontmatter import (
    MAX_IDEA_CHARACTERS,
    compile_time_names,
    default_point,
    holds,
    parse_front_matter,
    parse_kernel,
    points,
    read_kernel,
    split_front_matter,
)
from kernelworks.kernel.model import Contract, FrontMatter, Language, Origin

CODE = "int launch();\n"


def wrap(body: str) -> str:
    return f"/*---\n{body}\n---*/\n{CODE}"


def front(body: str) -> FrontMatter:
    return parse_front_matter(wrap("contract: function\n" + body), Language.CPP)


def test_everything_is_read() -> None:
    read = front(
        """idea: "rows first: then columns"
needs: [avx512]
covers: ["cols % VEC == 0"]
params:
  VEC: [1, 2, 4]
  ROWS: {range: [2, 8, 3]}
  MODE: [fast, safe]
  ALPHA: [0.5, 1.0]
  NT: [true, false]
constraints: ["ROWS * VEC <= cols", 1]
flags:
  MATH: [-O3, "-ffast-math"]
let: {STEP: VEC * ROWS, TWO: 2}"""
    )
    assert read.lang is Language.CPP and read.contract is Contract.FUNCTION
    assert read.idea == "rows first: then columns" and read.needs == ("avx512",)
    assert read.covers == ("cols % VEC == 0",) and read.constraints == ("ROWS * VEC <= cols", "1")
    assert read.params == {
        "VEC": (1, 2, 4),
        "ROWS": (2, 5, 8),
        "MODE": ("fast", "safe"),
        "ALPHA": (0.5, 1.0),
        "NT": (True, False),
    }
    assert read.flags == {"MATH": ("-O3", "-ffast-math")}
    assert read.let == {"STEP": "VEC * ROWS", "TWO": "2"}


def test_the_defaults_are_empty() -> None:
    assert front("") == FrontMatter(lang=Language.CPP, contract=Contract.FUNCTION)


def test_the_language_of_the_front_matter_wins() -> None:
    assert front("lang: cuda").lang is Language.CUDA


def test_python_front_matter_stands_in_comment_lines() -> None:
    text = "\n#---\n# contract: module\n# params:\n#   B: [1, 2]\n#---\nimport torch\n"
    read = parse_front_matter(text, Language.PYTHON)
    assert read.contract is Contract.MODULE and read.params == {"B": (1, 2)}
    assert split_front_matter(text, Language.PYTHON) == ("contract: module\nparams:\n  B: [1, 2]", 3)


names = st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True)
values = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5, unique=True),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=3, unique=True),
    st.lists(st.from_regex(r"w_[a-z]{1,5}", fullmatch=True), min_size=1, max_size=3, unique=True),
    st.just([True, False]),
)


@given(st.dictionaries(names, values, max_size=4), st.text(max_size=60))
def test_what_yaml_writes_is_read_back(params: dict[str, list[Any]], idea: str) -> None:
    whole = {"contract": "function", "params": params, "idea": idea}
    body = yaml.safe_dump(whole)  # pyright: ignore[reportUnknownMemberType]  (PyYAML's stubs are incomplete)
    read = parse_front_matter(f"/*---\n{body}---*/\n", Language.CPP)
    assert {name: list(listed) for name, listed in read.params.items()} == params
    assert read.idea == idea


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    for candidate in (text, wrap(text), wrap("contract: function\n" + text)):
        try:
            parse_front_matter(candidate, Language.CPP)
        except KernelFormatError as error:
            assert error.line >= 1 and error.expected and error.found


@given(st.text(alphabet="abAB:-[]{}#&*!|>'\",. \n01", max_size=80))
def test_text_that_resembles_yaml_is_read_or_refused(text: str) -> None:
    try:
        front(f"params:\n  {text}")
    except KernelFormatError as error:
        assert error.line >= 1


REFUSED: dict[str, tuple[str, int, str, str]] = {
    "empty file": ("", 1, "front matter that starts with /*---", "an empty file"),
    "no front matter": ("int x;\n", 1, "front matter that starts with /*---", "'int x;'"),
    "code before": ("\n\nint x;\n/*---\n---*/", 3, "front matter that starts with /*---", "'int x;'"),
    "no end": ("/*---\ncontract: function\n", 2, "front matter that ends with ---*/", "the end of the file"),
    "no mapping": (wrap("- a"), 2, "a YAML mapping", "list"),
    "nothing": (wrap(""), 2, "a YAML mapping", "nothing"),
    "broken yaml": (wrap("contract: function\nparams: [1, 2"), 3, "YAML", "expected ',' or ']'"),
    "no contract": (wrap("idea: x"), 2, "the key contract: one of device, function, module", "no such key"),
    "wrong contract": (wrap("\ncontract: kernel"), 3, "contract: one of device, function, module", "'kernel'"),
    "wrong language": (wrap("contract: function\nlang: rust"), 3, "lang: one of cpp, sycl", "'rust'"),
    "unknown key": (wrap("contract: function\nblock: 3"), 3, "one of lang, contract, idea", "'block'"),
    "number as key": (wrap("contract: function\n7: 3"), 3, "one of lang, contract, idea", "7"),
    "key twice": (wrap("contract: function\nidea: a\nidea: b"), 4, "each key once", "'idea' twice"),
    "key of devices": (wrap("contract: function\nlaunch: []"), 3, "keys of the function contract", "'launch', which"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    text, line, expected, found = REFUSED[name]
    with pytest.raises(KernelFormatError) as caught:
        parse_front_matter(text, Language.CPP)
    assert caught.value.line == line
    assert caught.value.expected.startswith(expected)
    assert caught.value.found.startswith(found)
    assert str(caught.value) == f"line {line}: expected {caught.value.expected}, found {caught.value.found}"


FIELDS: dict[str, tuple[str, int, str, str]] = {
    # lines count from the contract, which is line 2
    "idea no text": ("idea: [a]", 3, "idea: text", "['a']"),
    "idea long": (f"idea: {'x' * 301}", 3, f"idea: at most {MAX_IDEA_CHARACTERS} characters", "'301 characters'"),
    "needs no list": ("needs: avx512", 3, "needs: a list", "'avx512'"),
    "needs no word": ("needs:\n  - avx512\n  - 3", 5, "needs: words", "3"),
    "covers syntax": ("covers:\n  - a % 2 == 0\n  - a +", 5, "covers: an expression", "expression 'a +'"),
    "covers boolean": ("covers: [true]", 3, "covers: an expression", "True"),
    "constraints function": ("constraints: ['open(1)']", 3, "constraints: an expression", "expression 'open(1)'"),
    "let float": ("let:\n  A: 1\n  B: 0.5", 5, "let: an expression", "0.5"),
    "let clash": ("params: {A: [1]}\nlet:\n  A: 2", 4, "names that are not params", "A"),
    "params list": ("params: [A]", 3, "params: a mapping of names", "['A']"),
    "param twice": ("params:\n  A: [1]\n  A: [2]", 5, "each key once", "'A' twice"),
    "param name": ("params:\n  A: [1]\n  a-b: [2]", 5, "params: names that are identifiers", "'a-b'"),
    "param number": ("params: {1: [2]}", 3, "params: names that are identifiers", "1"),
    "param function": ("params: {min: [2]}", 3, "params: a name that is not a function or device fact", "'min'"),
    "param fact": ("params: {sm_count: [2]}", 3, "params: a name that is not a function or device fact", "'sm_count'"),
    "param scalar": ("params:\n  A: [1]\n  B: 2", 5, "params: B as a list or {range: [lo, hi, step]}", "2"),
    "param empty": ("params: {A: []}", 3, "params: at least one value for A", "[]"),
    "param text": ("params: {A: [1, 'a b']}", 3, "params: integers, floats, booleans or words for A", "'a b'"),
    "param null": ("params: {A: [null]}", 3, "params: integers, floats, booleans or words for A", "None"),
    "param nested": ("params: {A: [[1]]}", 3, "params: integers, floats, booleans or words for A", "[1]"),
    "param date": ("params: {A: [2024-01-01]}", 3, "params: integers, floats, booleans or words for A", "datetime"),
    "param infinite": ("params: {A: [.inf]}", 3, "params: finite values for A", "inf"),
    "param nan": ("params: {A: [.nan]}", 3, "params: finite values for A", "nan"),
    "param huge": (f"params: {{A: [{2**63}]}}", 3, "params: 64-bit integers for A", str(2**63)),
    "param repeated": ("params: {A: [1, 2, 1]}", 3, "params: distinct values for A", "[1, 2, 1]"),
    "param many": (f"params: {{A: {list(range(4097))}}}", 3, "params: at most 4096 values for A", "'4097 values'"),
    "range short": ("params: {A: {range: [1, 2]}}", 3, "params: A as range: [lo, hi, step] of integers", "[1, 2]"),
    "range float": ("params: {A: {range: [1, 2, 0.5]}}", 3, "params: A as range: [lo, hi, step] of integers", "[1, 2"),
    "range text": ("params: {A: {range: x}}", 3, "params: A as range: [lo, hi, step] of integers", "'x'"),
    "range backwards": ("params: {A: {range: [4, 2, 1]}}", 3, "params: A as a range with lo <= hi and step > 0", "[4"),
    "range zero": ("params: {A: {range: [1, 2, 0]}}", 3, "params: A as a range with lo <= hi and step > 0", "[1"),
    "range endless": ("params: {A: {range: [0, 1000000000000, 1]}}", 3, "params: at most 4096 values for A", "[0"),
    "flags scalar": ("flags: {MATH: -O3}", 3, "flags: MATH as a list of compiler flags", "'-O3'"),
    "flags number": ("flags: {MATH: [3]}", 3, "flags: MATH as a list of compiler flags", "[3]"),
    "flags empty": ("flags: {MATH: []}", 3, "flags: MATH as a list of compiler flags", "[]"),
    "explicit tag": ("idea: !!bool maybe", 2, "YAML", "'maybe'"),
    "python tag": ("idea: !!python/object:os.system x", 3, "YAML", "could not determine a constructor"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_refused_field(name: str) -> None:
    body, line, expected, found = FIELDS[name]
    with pytest.raises(KernelFormatError) as caught:
        front(body)
    assert (caught.value.line, caught.value.expected) == (line, expected)
    assert caught.value.found.startswith(found)


def test_aliases_cannot_inflate_a_message() -> None:
    lines = ["needs: [&a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"  ,&a{k} [{', '.join([f'*a{k - 1}'] * 8)}]" for k in range(1, 25)]
    with pytest.raises(KernelFormatError) as caught:
        front("\n".join([*lines, "]"]))
    assert len(str(caught.value)) < 5000


# points -------------------------------------------------------------------------------------------------------------


def test_points_are_listed_with_the_last_name_fastest() -> None:
    read = front("params: {A: [1, 2], B: [x, y]}")
    assert list(points(read)) == [{"A": 1, "B": "x"}, {"A": 1, "B": "y"}, {"A": 2, "B": "x"}, {"A": 2, "B": "y"}]
    assert list(points(read, {"B": "y"})) == [{"A": 1, "B": "y"}, {"A": 2, "B": "y"}]
    assert list(points(front(""))) == [{}]


@given(st.integers(1, 600), st.sampled_from(([], [2], [8])))
def test_the_default_is_the_first_point_that_satisfies_the_constraints(cols: int, fixed: list[int]) -> None:
    read = front("params: {A: [8, 2, 1], B: [4, 1]}\nconstraints: [A * B <= cols, cols % B == 0]")
    chosen: dict[str, Scalar] = {"A": fixed[0]} if fixed else {}
    expected = [
        {"A": a, "B": b}
        for a in (8, 2, 1)
        for b in (4, 1)
        if a * b <= cols and cols % b == 0 and (not fixed or a == fixed[0])
    ]
    if expected:
        assert default_point(read, {"cols": cols}, chosen) == expected[0]
    else:
        with pytest.raises(KernelError, match=r"found none for \{'cols': "):
            default_point(read, {"cols": cols}, chosen)


@pytest.mark.parametrize("fixed", [{"B": 1}, {"A": 3}, {"A": True}, {"A": 1.0}])
def test_a_fixed_param_must_be_listed(fixed: dict[str, Scalar]) -> None:
    with pytest.raises(KernelError, match="expected one of"):
        default_point(front("params: {A: [1, 2]}"), {}, fixed)


def test_a_boolean_is_not_the_number_one() -> None:
    point = default_point(front("params: {A: [1, true]}"), {}, {"A": True})
    assert point["A"] is True


def test_an_unknown_name_in_a_constraint_is_an_error() -> None:
    with pytest.raises(ExpressionError, match="unknown name 'colums', known are \\['A', 'cols'\\]"):
        default_point(front("params: {A: [1]}\nconstraints: [A <= colums]"), {"cols": 4}, {})


def test_an_unsatisfiable_space_ends() -> None:
    wide = front(
        "params:\n" + "\n".join(f"  P{k}: {{range: [1, 4000, 1]}}" for k in range(4)) + "\nconstraints: [P0 > 9999]"
    )
    with pytest.raises(KernelError, match=r"found none for \{\} among the first 100000 of 256000000000000 points"):
        default_point(wide, {}, {})


def test_a_number_is_neither_true_nor_false() -> None:
    with pytest.raises(ExpressionError, match="expected true or false, found 4"):
        holds(["a + 1"], {"a": 3})


def test_holds() -> None:
    assert holds(["a > 1", "a < 5"], {"a": 3}) and not holds(["a > 1", "a < 5"], {"a": 5}) and holds([], {})


def test_compile_time_names_are_params_and_what_follows_from_them() -> None:
    read = front(
        "params: {A: [2], NT: [true], MODE: [fast]}\nlet: {B: A * 2, C: B + 1, D: rows * 2, E: D + 1, F: A > 1}"
    )
    assert compile_time_names(read, {"A": 2, "NT": True, "MODE": "fast"}) == {
        "A": 2, "NT": 1, "MODE": "fast", "B": 4, "C": 5, "F": 1,
    }  # fmt: skip


# files --------------------------------------------------------------------------------------------------------------


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.cpp"
    path.write_text(wrap("contract: function"))
    kernel = read_kernel(path, "shown.cpp")
    assert kernel.path == "shown.cpp" and kernel.origin.proposer == "file"
    assert kernel.id == parse_kernel(path.read_text(), Language.CPP, Origin(proposer="experts")).id
    assert read_kernel(path).path == str(path)


def test_line_ends_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.cpp"
    path.write_bytes(wrap("contract: function").replace("\n", "\r\n").encode())
    kernel = read_kernel(path)
    assert kernel.text.encode() == path.read_bytes()
    assert kernel.front.contract is Contract.FUNCTION


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"kernel x\.cpp: expected a readable file, found No such file"):
        read_kernel(tmp_path / "absent.cpp", "x.cpp")
    with pytest.raises(KernelError, match="expected a readable file, found Is a directory"):
        read_kernel(tmp_path)
    binary = tmp_path / "b.cpp"
    binary.write_bytes(b"/*---\xff")
    with pytest.raises(KernelFormatError, match="expected UTF-8 text, found byte 0xff at 5"):
        read_kernel(binary)


def test_python_without_front_matter_is_a_submission() -> None:
    front = parse_front_matter("\n# a comment\nimport torch\n", Language.PYTHON)
    assert (front.lang, front.contract) == (Language.PYTHON, Contract.MODULE)


@pytest.mark.parametrize(("text", "language"), [("", Language.PYTHON), ("import triton\n", Language.TRITON)])
def test_other_files_need_theirs(text: str, language: Language) -> None:
    with pytest.raises(KernelFormatError, match="front matter that starts with #---"):
        parse_front_matter(text, language)
