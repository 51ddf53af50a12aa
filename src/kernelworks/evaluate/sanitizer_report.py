"""What AddressSanitizer and UndefinedBehaviorSanitizer print, as data.

The text comes from the candidate's process, which can print whatever it likes there: it can only accuse itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Literal

from kernelworks.targets.compile import SOURCE_NAME

MOST_SITES = 8
"""Places in the kernel that are kept of each sort."""

_ERROR = re.compile(
    r"==\d+==ERROR: AddressSanitizer: (?P<kind>[\w-]+)(?: on (?:unknown )?address (?P<address>0x[0-9a-f]+))?"
)
_ACCESS = re.compile(r"(?P<access>READ|WRITE) of size (?P<size>\d+) at ")
_SIGNAL_ACCESS = re.compile(r"The signal is caused by a (?P<access>READ|WRITE) memory access")
_FRAME = re.compile(r"\s+#\d+ 0x[0-9a-f]+ .*?(?P<file>[^\s(:]+):(?P<line>\d+)(?::\d+)?$")
_REGION = re.compile(
    r"0x[0-9a-f]+ is located (?P<distance>\d+) bytes (?P<where>to the right of|to the left of|inside of|after|before)"
    r" (?:a )?(?P<what>.+)"
)
_VARIABLE = re.compile(
    r"\s+\[\d+, \d+\) '(?P<name>[^']+)'(?: \(line (?P<line>\d+)\))? <== Memory access at offset \d+ (?P<how>\w+)"
)
_UNDEFINED = re.compile(r"(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?P<column>\d+): runtime error: (?P<message>.+)")
_ADDRESSES = re.compile(r" 0x[0-9a-f]{6,}")

Access = Literal["read", "write"]


@dataclass(frozen=True)
class MemoryError_:  # noqa: N801  not Python's
    """One report of AddressSanitizer."""

    kind: str
    """Its own word, such as ``heap-buffer-overflow``."""
    access: Access | None = None
    size_bytes: int = 0
    address: int | None = None
    line: int = 0
    """In the kernel's text; 0 where it is not known."""
    near: str = ""
    """What was missed, in words."""


@dataclass(frozen=True)
class Undefined:
    """One report of UndefinedBehaviorSanitizer."""

    message: str
    line: int
    """In the kernel's text; 0 where it is not known."""
    column: int = 0


def memory_errors(text: str) -> tuple[MemoryError_, ...]:
    """Reports of AddressSanitizer in the order in which they came, one for each line of the kernel and kind."""
    found: dict[tuple[str, str | None, int], MemoryError_] = {}
    blocks = re.split(r"(?m)^(?==+\d*=*\d*==ERROR: AddressSanitizer)", text)
    for block in blocks:
        start = _ERROR.match(block)
        if start is None:
            continue
        error = _memory_error(start, block)
        found.setdefault((error.kind, error.access, error.line), error)
    return tuple(found.values())[:MOST_SITES]


def _memory_error(start: re.Match[str], block: str) -> MemoryError_:
    access = _ACCESS.search(block) or _SIGNAL_ACCESS.search(block)
    address = start["address"]
    error = MemoryError_(
        kind=start["kind"],
        access=None if access is None else "read" if access["access"] == "READ" else "write",
        size_bytes=int(access["size"]) if access is not None and "size" in access.groupdict() else 0,
        address=int(address, 16) if address else None,
        line=_first_line(block),
    )
    variable, region = _VARIABLE.search(block), _REGION.search(block)
    if variable is not None:
        declared = f" of line {variable['line']}" if variable["line"] else ""
        return replace(error, near=f"{variable['how']} the variable {variable['name']}{declared}")
    if region is not None:
        return replace(error, near=_near(region, block))
    return error


def _near(region: re.Match[str], block: str) -> str:
    where = {
        "to the right of": "past the end of",
        "after": "past the end of",
        "to the left of": "before the start of",
        "before": "before the start of",
    }.get(region["where"], "inside")
    what = re.sub(r"\[0x.*|\(0x.*", "", region["what"]).strip()
    what = re.sub(r"global variable '([^']+)' defined in '[^']*?:(\d+)(?::\d+)?'.*", r"the table \1 of line \2", what)
    what = re.sub(r"^(\d+)-byte region.*", r"a block of \1 bytes", what)
    allocated = block.partition("allocated by thread")[2]
    if what.startswith("a block") and allocated and (line := _first_line(allocated)):
        what += f" from line {line}"
    distance = f"{region['distance']} bytes " if where != "inside" else ""
    return f"{distance}{where} {what}"


def _first_line(block: str) -> int:
    """The innermost frame in the kernel's own text."""
    for line in block.splitlines():
        frame = _FRAME.match(line)
        if frame is not None and PurePath(frame["file"]).name == SOURCE_NAME:
            return int(frame["line"])
    return 0


def undefined(text: str) -> tuple[Undefined, ...]:
    """Reports of UndefinedBehaviorSanitizer, one for each line of the kernel and kind."""
    found: dict[tuple[int, str], Undefined] = {}
    for report in _undefined(text):
        found.setdefault((report.line, re.sub(r"[-\d.]+", "", report.message)), report)
    return tuple(found.values())[:MOST_SITES]


def _undefined(text: str) -> Iterator[Undefined]:
    lines = text.splitlines()
    for number, line in enumerate(lines):
        match = _UNDEFINED.match(line)
        if match is None:
            continue
        message = _ADDRESSES.sub("", match["message"])
        if PurePath(match["file"]).name == SOURCE_NAME:
            yield Undefined(message, int(match["line"]), int(match["column"]))
        else:  # in a header: the caller stands in the stack below
            rest = lines[number + 1 :]
            end = next((k for k, below in enumerate(rest) if _UNDEFINED.match(below)), len(rest))
            yield Undefined(message, _first_line("\n".join(rest[:end])))
