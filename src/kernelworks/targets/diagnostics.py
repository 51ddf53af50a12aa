"""Messages of compilers and linkers as data: file, line, column, severity, message.

One parser for g++, clang++ and zig: all write ``file:line:column: severity: message`` when colours are off, whatever
else (source lines, carets, instantiation notes) stands between. A text that was cut can still be parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernelworks.targets.base import Diagnostic

MAX_DIAGNOSTICS = 50

_SEVERITY = r"(?P<severity>fatal error|internal compiler error|error|warning|note)"
_LOCATED = re.compile(rf"(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:(?P<column>\d+):)? {_SEVERITY}: (?P<message>.*)")
_DRIVER = re.compile(rf"(?:(?P<file>[\w.+/-]+): )?{_SEVERITY}: (?P<message>.*)")
_UNDEFINED = re.compile(r".*(?:undefined reference to [`'](?P<gnu>[^']+)'|undefined symbol: (?P<lld>.+))")
_NO_ERROR = re.compile(r"linker command failed|ld returned \d+ exit status|undefined symbol: ")


def parse_diagnostics(output: str) -> tuple[Diagnostic, ...]:
    """The messages in order of appearance, at most ``MAX_DIAGNOSTICS``.

    Messages without a place have line 0 and column 0; symbols that the linker misses become one error each. Lines count
    from 1; columns are as the compiler counts them (g++ display columns, clang bytes).
    """
    found: list[Diagnostic] = []
    for diagnostic in _messages(output):
        if diagnostic not in found:
            found.append(diagnostic)
        if len(found) == MAX_DIAGNOSTICS:
            break
    return tuple(found)


def first_error(diagnostics: tuple[Diagnostic, ...]) -> Diagnostic | None:
    """The first message that made the build fail."""
    return next((d for d in diagnostics if d.severity.endswith("error")), None)


def _messages(output: str) -> Iterator[Diagnostic]:
    for line in output.splitlines():
        undefined = _UNDEFINED.fullmatch(line)
        if undefined:
            symbol = undefined["gnu"] or undefined["lld"]
            yield Diagnostic(file="", line=0, column=0, severity="error", message=f"undefined symbol {symbol}")
            continue
        located = _LOCATED.fullmatch(line)
        if located:
            yield Diagnostic(
                file=located["file"],
                line=int(located["line"]),
                column=int(located["column"] or 0),
                severity=located["severity"],
                message=located["message"].strip(),
            )
            continue
        driver = _DRIVER.fullmatch(line)
        if driver and not _NO_ERROR.search(line):
            yield Diagnostic(file="", line=0, column=0, severity=driver["severity"], message=driver["message"].strip())
