from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernelworks.targets.base import Diagnostic
from kernelworks.targets.diagnostics import MAX_DIAGNOSTICS, first_error, parse_diagnostics

GCC = """\
kernel.cpp: In function 'int launch(const float*, float*, int64_t)':
kernel.cpp:5:34: error: cannot convert 'const char*' to 'float' in initialization
    5 |   const char* s = "é"; float z = "é";
      |                                  ^~~
      |                                  |
      |                                  const char*
kernel.cpp:8:17: warning: division by zero [-Wdiv-by-zero]
    8 |   int unused = 1/0;
      |                ~^~
kernel.cpp: In instantiation of 'T twice(T) [with T = float]':
kernel.cpp:6:15:   required from here
kernel.cpp:3:42: error: request for member 'foo' in 'x', which is of non-class type 'float'
    3 | template<class T> T twice(T x){ return x.foo() + x; }
      |                                        ~~^~~~
"""
CLANG = """\
kernel.cpp:5:31: error: cannot initialize a variable of type 'float' with an lvalue of type 'const char[3]'
  const char* s = "é"; float z = "é";
                             ^   ~~~
kernel.cpp:3:41: error: member reference base type 'float' is not a structure or union
template<class T> T twice(T x){ return x.foo() + x; }
                                       ~^~~~
kernel.cpp:6:10: note: in instantiation of function template specialization 'twice<float>' requested here
  y[0] = twice(x[0]);
         ^
1 warning and 4 errors generated.
"""


def places(output: str) -> list[tuple[int, int, str]]:
    return [(d.line, d.column, d.severity) for d in parse_diagnostics(output)]


def test_gcc_messages_have_their_places() -> None:
    assert places(GCC) == [(5, 34, "error"), (8, 17, "warning"), (3, 42, "error")]
    assert parse_diagnostics(GCC)[1].message == "division by zero [-Wdiv-by-zero]"
    assert {d.file for d in parse_diagnostics(GCC)} == {"kernel.cpp"}


def test_clang_messages_have_their_places() -> None:
    assert places(CLANG) == [(5, 31, "error"), (3, 41, "error"), (6, 10, "note")]


def test_the_linkers_of_both_families_name_the_missing_symbol() -> None:
    gnu = (
        "/usr/bin/ld: kernel.o: in function `launch':\n"
        "kernel.cpp:(.text+0x5): undefined reference to `foo(int)'\n"
        "collect2: error: ld returned 1 exit status\n"
    )
    lld = "ld.lld: error: undefined symbol: foo(int)\n>>> referenced by kernel.cpp:1\n>>>  kernel.o:(launch)\n"
    expected = (Diagnostic(file="", line=0, column=0, severity="error", message="undefined symbol foo(int)"),)
    assert parse_diagnostics(gnu) == parse_diagnostics(lld) == expected


def test_messages_of_the_driver_have_no_place() -> None:
    output = "g++: error: unrecognized command-line option '-fzzz'\nerror: unknown clang option: \"-fzzz\"\n"
    found = parse_diagnostics(output)
    assert [d.message for d in found] == ["unrecognized command-line option '-fzzz'", 'unknown clang option: "-fzzz"']
    assert {(d.line, d.column) for d in found} == {(0, 0)}


def test_the_first_error_is_not_a_warning_before_it() -> None:
    found = first_error(parse_diagnostics("k.cpp:1:1: warning: a\nk.cpp:2:2: fatal error: b\nk.cpp:3:3: error: c\n"))
    assert found is not None
    assert found.message == "b"
    assert first_error(parse_diagnostics("k.cpp:1:1: warning: a\n")) is None


def test_a_location_without_column_is_read() -> None:
    assert places("kernel.cpp:7: error: unterminated #if\n") == [(7, 0, "error")]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 10**6),
            st.integers(1, 10**4),
            st.sampled_from(["error", "warning", "note", "fatal error"]),
            st.from_regex(r"[a-zé0-9'<>]{1,30}", fullmatch=True),
        ),
        max_size=MAX_DIAGNOSTICS,
        unique=True,
    )
)
def test_every_message_is_read_back(messages: list[tuple[int, int, str, str]]) -> None:
    output = "".join(f"a/b.cpp:{line}:{column}: {severity}: {text}\n" for line, column, severity, text in messages)
    found = [(d.line, d.column, d.severity, d.message) for d in parse_diagnostics(output)]
    assert found == messages


@given(st.text(alphabet=":\n '`error123warning()", max_size=400))
def test_any_text_is_survived(output: str) -> None:
    for diagnostic in parse_diagnostics(output):
        assert diagnostic.severity in ("error", "warning", "note")


def test_a_flood_of_messages_is_cut() -> None:
    output = "".join(f"k.cpp:{line}:1: error: no\n" for line in range(1, 500))
    assert len(parse_diagnostics(output)) == MAX_DIAGNOSTICS
