"""Source text for the report: colours for C and C++, and the difference between two texts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup, escape

_KEYWORDS = (
    "alignas auto bool break case char class const constexpr continue default delete do double else enum extern false"
    " float for goto if inline int long namespace new nullptr operator register return short signed sizeof static"
    " static_assert static_cast struct switch template this true typedef typename union unsigned using void volatile"
    " while int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t"
).split()
_TOKEN = re.compile(
    r"(?P<remark>/\*.*?\*/|//[^\n]*)"
    r"|(?P<directive>^[ \t]*\#(?:[^\n\\]|\\\n|\\.)*)"
    r"""|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')"""
    r"|(?P<number>\b(?:0[xX][0-9a-fA-F.pP+-]+|\d[\w.]*(?:(?<=[eE])[+-]\d+\w*)?))"
    rf"|(?P<keyword>\b(?:{'|'.join(_KEYWORDS)})\b)",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class DiffLine:
    """One line of a difference; ``kind`` is ``added``, ``removed``, ``hunk`` or ``same``."""

    kind: str
    text: str


def coloured(text: str) -> Markup:
    """C or C++ as escaped HTML in which remarks, directives, strings, numbers and keywords have a class."""
    parts: list[str] = []
    position = 0
    for match in _TOKEN.finditer(text):
        parts.append(str(escape(text[position : match.start()])))
        parts.append(f'<span class="{match.lastgroup}">{escape(match.group())}</span>')
        position = match.end()
    parts.append(str(escape(text[position:])))
    return Markup("".join(parts))  # noqa: S704  every piece is escaped above


def difference(before: str, after: str) -> Iterator[DiffLine]:
    """The lines of a unified difference with three lines of context; nothing if the texts are equal."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3)
    for number, line in enumerate(lines):
        if number < 2:  # the two lines that name the files
            continue
        kind = {"+": "added", "-": "removed", "@": "hunk"}.get(line[:1], "same")
        yield DiffLine(kind, line)
