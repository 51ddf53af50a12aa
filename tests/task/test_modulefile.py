from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelworks.errors import TaskError, UsageError
from kernelworks.task.modulefile import (
    Constant,
    constants,
    digest,
    execute,
    foreign_code,
    one_sentence,
    override,
    parse,
    parse_overrides,
    parse_value,
    read_text,
)

FILE = """
N = 2048 * 2
M: int = -3
SHIFTED = 1 << 20
RATE = 1 / 4
FLAG = True
shape = (N, 2)
fixed = (8, 16)
half = N // 2
twice = 1
twice = 2
mixed = 1
mixed = [1]
name = "text"
one = two = 3
huge = 9 ** 9 ** 9
nothing = 1 / 0
endless = 1e999
"""


def test_constants_are_numbers_and_tuples_of_numbers() -> None:
    found = constants(ast.parse(FILE))
    assert found == {"N": 4096, "M": -3, "SHIFTED": 2**20, "RATE": 0.25, "FLAG": True, "fixed": (8, 16), "twice": 2}


def test_override_reaches_derived_constants(tmp_path: Path) -> None:
    path = tmp_path / "sizes.py"
    path.write_text(FILE.replace("huge = 9 ** 9 ** 9", "").replace("nothing = 1 / 0", ""))
    tree = parse(path)
    module = execute(path, tree, {"N": 10, "M": 4, "fixed": (1, 2)})
    assert (module.N, module.half, module.shape, module.M, module.fixed) == (10, 5, (10, 2), 4, (1, 2))
    untouched = execute(path, tree)
    assert (untouched.N, untouched.half) == (4096, 2048)


def test_a_path_that_is_no_text_can_be_executed(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.py")  # what an accent in another encoding becomes
    path.write_text("N = 4\n")
    assert execute(path, parse(path)).N == 4


def test_override_keeps_lines() -> None:
    tree = ast.parse("a = 1\n\n\nb = 2\n")
    changed = override(tree, {"b": -7})
    assert [s.lineno for s in changed.body] == [1, 4]
    assert ast.unparse(changed) == "a = 1\nb = -7"
    assert ast.unparse(tree) == "a = 1\nb = 2"


@pytest.mark.parametrize(
    ("text", "current", "value"),
    [
        ("128", 4, 128),
        ("-3", 4, -3),
        (" 2*64 ", 4, 128),
        ("0.5", 1.0, 0.5),
        ("2", 1.0, 2.0),
        ("1e-3", 1.0, 0.001),
        ("(64,)", (32768,), (64,)),
        ("False", True, False),
    ],
)
def test_value_of_an_override(text: str, current: Constant, value: Constant) -> None:
    found = parse_value("N", text, current)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "current", "message"),
    [
        ("x", 4, "expected a finite numeric literal, found 'x'"),
        ("nan", 1.0, "expected a finite numeric literal, found 'nan'"),
        ("1e999", 1.0, "expected a finite numeric literal"),
        ("", 4, "expected a finite numeric literal, found ''"),
        ("__import__('os')", 4, "expected a finite numeric literal"),
        ("0.5", 4, "expected int (the file has 4), found '0.5'"),
        ("True", 4, "expected int (the file has 4), found 'True'"),
        ("4", (1, 2), "expected a tuple of 2 (the file has (1, 2)), found '4'"),
        ("(4,)", (1, 2), "expected a tuple of 2"),
        (str(2**63), 4, f"expected a number that fits int64, found {2**63}"),
    ],
)
def test_refused_value_of_an_override(text: str, current: Constant, message: str) -> None:
    with pytest.raises(TaskError) as caught:
        parse_value("N", text, current)
    assert str(caught.value).startswith("--set N: ")
    assert message in str(caught.value)


def test_unknown_override_lists_those_that_exist() -> None:
    with pytest.raises(TaskError, match=r"--set Q: expected the name of a .* constant \(M, N\)"):
        parse_overrides({"Q": "1"}, {"N": 1, "M": 2})
    with pytest.raises(TaskError, match=r"\(none\)"):
        parse_overrides({"Q": "1"}, {})


@given(st.text(max_size=40), st.sampled_from([4, 0.5, True, (1, 2)]))
def test_any_text_gives_a_value_or_a_task_error(text: str, current: Constant) -> None:
    try:
        value = parse_value("N", text, current)
    except TaskError:
        return
    assert type(value) is type(current)


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c"]),
        st.one_of(
            st.integers(-(2**62), 2**62),
            st.floats(allow_nan=False, allow_infinity=False),
            st.booleans(),
            st.tuples(st.integers(0, 99), st.integers(0, 99)),
        ),
        min_size=1,
    )
)
def test_overrides_read_back_as_constants(values: dict[str, Constant]) -> None:
    tree = ast.parse("a = 1\nb = 2\nc = 3\n")
    assert constants(override(tree, values)) == {"a": 1, "b": 2, "c": 3, **values}


def test_syntax_error_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("a = 1\ndef f(:\n    pass\n")
    with pytest.raises(TaskError, match=r"bad\.py, line 2: expected Python, found a syntax error"):
        parse(path)


def test_null_bytes_and_foreign_encodings(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_bytes(b"a = 1\x00\n")
    with pytest.raises(TaskError, match="expected Python"):
        parse(path)
    path.write_bytes(b"a = '\xff'\n")
    with pytest.raises(TaskError, match="expected UTF-8 text, found byte 0xff"):
        read_text(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="expected a readable file, found: No such file"):
        read_text(tmp_path / "none.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nimport absent_module_of_no_one\n", r"line 2: the task file failed: ModuleNotFoundError: No module"),
        ("\n\nraise SystemExit(3)\n", r"line 3: the task file failed: SystemExit: 3"),
        ("def f():\n    return 1 / 0\n\nf()\n", r"line 2: the task file failed: ZeroDivisionError: division by zero"),
    ],
)
def test_what_a_file_raises_has_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    before = set(sys.modules)
    search = list(sys.path)
    with pytest.raises(TaskError, match=message):
        execute(path, parse(path))
    assert not {m for m in set(sys.modules) - before if m.startswith("_kernelworks_task")}
    assert sys.path == search


def test_files_beside_it_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "sizes_of_neighbour.py").write_text("N = 5\n")
    path = tmp_path / "uses.py"
    path.write_text("from sizes_of_neighbour import N\n")
    assert execute(path, parse(path)).N == 5


def test_missing_torch_has_a_mend(tmp_path: Path) -> None:
    with pytest.raises(TaskError) as caught, foreign_code(tmp_path / "x.py", "the task file"):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    assert caught.value.mend == "pip install 'kernelworks[torch]'"


def test_own_errors_pass_the_border(tmp_path: Path) -> None:
    with pytest.raises(UsageError), foreign_code(tmp_path / "x.py", "it"):
        raise UsageError("ours")


def test_foreign_messages_are_one_bounded_line() -> None:
    assert one_sentence(ValueError("a\n  b")) == "ValueError: a b"
    assert one_sentence(ValueError()) == "ValueError"
    assert len(one_sentence(ValueError("x" * 1000))) < 330


def test_digest_changes_with_text_and_overrides() -> None:
    assert digest("a", {}) == digest("a", {})
    assert len({digest("a", {}), digest("b", {}), digest("a", {"N": "1"}), digest("a", {"N": "2"})}) == 4
    assert digest("a", {"N": "1", "M": "2"}) == digest("a", {"M": "2", "N": "1"})
