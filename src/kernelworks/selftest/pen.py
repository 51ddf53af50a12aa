"""Writes the text of one generated file: no two seeds give the same names, constants, order or way of hiding.

Templates use ``$name`` for an identifier, which is replaced by a random one, the same throughout a file, and
``${part}`` for text that is put in.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Sequence
from typing import TypeVar

_Item = TypeVar("_Item")

_IDENTIFIER = re.compile(r"\$([a-zA-Z]\w*)")
_PART = re.compile(r"\$\{(\w+)\}")
_SYLLABLES = (
    "ba ce di fo gu ha je ki lo mu na pe qui ro su ta ve wi xo yu zen tor mal rin pol gar lis ken dov fay".split()
)
_COMMENTS = (
    "one pass over the row",
    "kept simple on purpose",
    "see the notes on blocking",
    "the order of terms matters here",
    "sizes are small enough for one core",
    "the compiler unrolls this",
    "accumulate first, scale afterwards",
)


class Pen:
    """Randomness and identifiers of one file.

    Args:
        seed: of all that varies.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._names: dict[str, str] = {}
        self._helpers: list[str] = []

    @classmethod
    def of(cls, seed: int, *labels: str) -> Pen:
        """The pen of one file of a suite: the same seed and labels give the same text."""
        return cls(zlib.crc32("\0".join((str(seed), *labels)).encode()))

    def name(self, key: str) -> str:
        """The identifier that stands for ``key`` in this file."""
        if key not in self._names:
            taken = set(self._names.values())
            while True:
                made = "".join(self._rng.choice(_SYLLABLES) for _ in range(self._rng.randint(2, 3)))
                made += self._rng.choice(("", "_", str(self._rng.randint(2, 99)), "_" + self._rng.choice(_SYLLABLES)))
                if made not in taken and len(made) > 4:
                    break
            self._names[key] = made
        return self._names[key]

    def write(self, template: str, **parts: str) -> str:
        """Fill in the parts (which may hold identifiers themselves), then replace all identifiers."""
        while _PART.search(template):
            template = _PART.sub(lambda match: parts[match[1]], template)
        return _IDENTIFIER.sub(lambda match: self.name(match[1]), template)

    def pick(self, *options: _Item) -> _Item:
        """One of them."""
        return self._rng.choice(options)

    def number(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self._rng.randint(low, high)

    def shuffled(self, items: Sequence[_Item]) -> list[_Item]:
        """All of them in some order."""
        return self._rng.sample(list(items), len(items))

    def statements(self, *lines: str) -> str:
        """Statements whose order does not matter, in some order."""
        return "\n".join(self.shuffled(lines))

    def comment(self) -> str:
        """A remark that says nothing about what the file does."""
        return self._rng.choice(_COMMENTS)

    def cstring(self, text: str) -> str:
        """A C++ expression for a string: plain, in pieces, or decoded when it runs (by what ``helpers`` returns)."""
        way = self._rng.randrange(3)
        if way == 0:
            return _quoted(text)
        if way == 1:
            cut = self._rng.randint(1, max(1, len(text) - 1))
            return f"{_quoted(text[:cut])} {_quoted(text[cut:])}"
        key = self._rng.randint(1, 31)
        codes = ",".join(str(byte ^ key) for byte in text.encode())
        if not self._helpers:
            self._helpers.append(_DECODER)
        return f"$decode({{{codes}}}, {key})"

    def python_string(self, text: str) -> str:
        """A Python expression for a string: plain, reversed, or from its codes."""
        way = self._rng.randrange(3)
        if way == 0:
            return repr(text)
        if way == 1:
            return f"{text[::-1]!r}[::-1]"
        return f"bytes({list(text.encode())}).decode()"

    def helpers(self) -> str:
        """C++ helpers that the expressions so far need."""
        return "\n".join(self._helpers)

    def counter(self) -> tuple[str, str]:
        """A C++ counter of calls: text at namespace level, and an expression that counts and gives 0, 1, 2, ..."""
        return self._rng.choice(
            (
                ("static int $count;", "$count++"),
                ("static long* $count = new long(0);", "(*$count)++"),
                ("static thread_local unsigned $count;", "(int)$count++"),
                ("static std::atomic<int> $count;", "$count.fetch_add(1)"),
                (
                    "struct $Tally { int $seen = 0; int $next() { return $seen++; } };\nstatic $Tally $count;",
                    "$count.$next()",
                ),
            )
        )


_DECODER = """
static const char* $decode(std::initializer_list<int> $codes, int $key) {
  std::string* $plain = new std::string;
  for (int $code : $codes) $plain->push_back((char)($code ^ $key));
  return $plain->c_str();
}
"""


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
