"""Kernel files: splitting front matter from code, parsing it with exact errors, choosing the point of the params.

The first comment of the file is YAML: ``/*--- ... ---*/``, in Python lines that start with ``#---`` to ``#---``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from kernelworks.errors import ExpressionError, KernelError, KernelFormatError
from kernelworks.kernel.expression import FUNCTIONS, Scalar, parse_expression
from kernelworks.kernel.model import Contract, FrontMatter, Kernel, Language, Origin, Params, language_of

MAX_IDEA_CHARACTERS = 300
MAX_PARAM_VALUES = 4096
DEVICE_FACTS = ("sm_count", "max_shared", "max_block", "subgroup", "l2_bytes")
DEVICE_ONLY_KEYS = ("workspace", "tensormaps", "setup", "launch")
KEYS = (*FrontMatter.model_fields, *DEVICE_ONLY_KEYS)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def read_kernel(path: Path, shown: str | None = None) -> Kernel:
    """Read a kernel file; ``shown`` is the path as the user gave it.

    Raises:
        KernelFormatError: the file breaks a rule.
        KernelError: the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise KernelFormatError(1, "UTF-8 text", f"byte {error.object[error.start]:#04x} at {error.start}") from error
    except OSError as error:
        raise KernelError(f"kernel {shown or path}: expected a readable file, found {error.strerror}") from error
    return parse_kernel(text, language_of(path), Origin(proposer="file", operator="file"), path=shown or str(path))


def parse_kernel(
    text: str, language: Language, origin: Origin, *, path: str = "", params: Params | None = None
) -> Kernel:
    """A kernel from its text; ``language`` holds unless the front matter says otherwise.

    Raises:
        KernelFormatError: line, expected and found.
    """
    return Kernel(text=text, front=parse_front_matter(text, language), origin=origin, path=path, params=params or {})


def split_front_matter(text: str, language: Language) -> tuple[str, int]:
    """The YAML between the markers and the line on which it starts (1-based).

    Raises:
        KernelFormatError: there is none, or it does not end.
    """
    lines = text.splitlines()
    is_python = language in (Language.PYTHON, Language.TRITON)
    opening, closing = ("#---", "#---") if is_python else ("/*---", "---*/")
    first = next((i for i, line in enumerate(lines) if line.strip()), None)
    if first is None or lines[first].strip() != opening:
        found = repr(lines[first].strip()[:40]) if first is not None else "an empty file"
        raise KernelFormatError((first or 0) + 1, f"front matter that starts with {opening}", found)
    for last in range(first + 1, len(lines)):
        if lines[last].strip() == closing:
            body = lines[first + 1 : last]
            if is_python:
                body = [re.sub(r"\A\s*# ?", "", line) for line in body]
            return "\n".join(body), first + 2
    raise KernelFormatError(len(lines), f"front matter that ends with {closing}", "the end of the file")


def parse_front_matter(text: str, language: Language) -> FrontMatter:
    """Parse and check the front matter of a kernel's text.

    Raises:
        KernelFormatError: line, expected and found.
    """
    body, start = split_front_matter(text, language)
    fields = _Fields(body, start)
    lang = Language(fields.word("lang", [x.value for x in Language], default=language.value))
    contract = Contract(fields.word("contract", [x.value for x in Contract], default=None))
    idea = fields.text("idea")
    params = fields.params()
    let = fields.expressions_by_name("let")
    front = FrontMatter(
        lang=lang,
        contract=contract,
        idea=idea,
        needs=fields.words("needs"),
        covers=fields.expressions("covers"),
        params=params,
        constraints=fields.expressions("constraints"),
        flags=fields.flags(),
        let=let,
    )
    clash = sorted(set(params) & set(let))
    if clash:
        raise KernelFormatError(fields.line("let"), "names that are not params", ", ".join(clash))
    return front


class _Fields:
    """Typed access to the YAML mapping; every error carries the key's line."""

    def __init__(self, body: str, start: int) -> None:
        self._start = start
        try:
            node = yaml.compose(body, Loader=yaml.SafeLoader)
            data: Any = yaml.safe_load(body)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line = start + (mark.line if mark is not None else 0)
            raise KernelFormatError(line, "YAML", str(getattr(error, "problem", None) or error)) from error
        if not isinstance(node, yaml.MappingNode) or not isinstance(data, dict):
            raise KernelFormatError(start, "a YAML mapping", "nothing" if data is None else type(data).__name__)
        self._data = cast(dict[Any, Any], data)
        self._lines: dict[str, int] = {}
        for key, _ in node.value:
            name = str(key.value)
            if name in self._lines:
                raise KernelFormatError(start + key.start_mark.line, "each key once", f"{name!r} twice")
            self._lines[name] = start + key.start_mark.line
        for key in self._data:
            if key not in KEYS:
                raise KernelFormatError(self.line(str(key)), f"one of {', '.join(KEYS)}", repr(key))
            if key in DEVICE_ONLY_KEYS:
                raise KernelFormatError(
                    self.line(key), "keys of the function contract", f"{key!r}, which no target of this version honours"
                )

    def line(self, key: str) -> int:
        return self._lines.get(key, self._start)

    def _fail(self, key: str, expected: str, found: object) -> KernelFormatError:
        return KernelFormatError(self.line(key), f"{key}: {expected}", repr(found))

    def word(self, key: str, allowed: list[str], default: str | None) -> str:
        value = self._data.get(key, default)
        if value is None:
            raise KernelFormatError(self._start, f"the key {key}: one of {', '.join(allowed)}", "no such key")
        if value not in allowed:
            raise self._fail(key, f"one of {', '.join(allowed)}", value)
        return str(value)

    def text(self, key: str) -> str:
        value = self._data.get(key, "")
        if not isinstance(value, str):
            raise self._fail(key, "text", value)
        if len(value) > MAX_IDEA_CHARACTERS:
            raise self._fail(key, f"at most {MAX_IDEA_CHARACTERS} characters", f"{len(value)} characters")
        return value

    def _list(self, key: str) -> list[Any]:
        value = self._data.get(key, [])
        if not isinstance(value, list):
            raise self._fail(key, "a list", value)
        return cast(list[Any], value)

    def _mapping(self, key: str) -> dict[str, Any]:
        value = self._data.get(key, {})
        if not isinstance(value, dict):
            raise self._fail(key, "a mapping of names", value)
        for name in cast(dict[Any, Any], value):
            if not isinstance(name, str) or not _IDENTIFIER.match(name):
                raise self._fail(key, "names that are identifiers", name)
            if name in FUNCTIONS or name in DEVICE_FACTS:
                raise self._fail(key, "a name that is not a function or device fact", name)
        return cast(dict[str, Any], value)

    def words(self, key: str) -> tuple[str, ...]:
        for value in self._list(key):
            if not isinstance(value, str):
                raise self._fail(key, "words", value)
        return tuple(self._list(key))

    def expressions(self, key: str) -> tuple[str, ...]:
        return tuple(self._expression(key, value) for value in self._list(key))

    def expressions_by_name(self, key: str) -> dict[str, str]:
        return {name: self._expression(key, value) for name, value in self._mapping(key).items()}

    def _expression(self, key: str, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise self._fail(key, "an expression", value)
        try:
            parse_expression(str(value))
        except ExpressionError as error:
            raise KernelFormatError(self.line(key), f"{key}: an expression", error.message) from error
        return str(value)

    def params(self) -> dict[str, tuple[Scalar, ...]]:
        return {name: self._values(name, value) for name, value in self._mapping("params").items()}

    def _values(self, name: str, value: Any) -> tuple[Scalar, ...]:
        listed: Iterable[Any]
        if isinstance(value, dict) and list(cast(dict[Any, Any], value)) == ["range"]:
            listed = self._range(name, cast(dict[str, Any], value)["range"])
        elif isinstance(value, list):
            listed = cast(list[Any], value)
        else:
            raise self._fail("params", f"{name} as a list or {{range: [lo, hi, step]}}", value)
        values = tuple(listed)
        if not values:
            raise self._fail("params", f"at least one value for {name}", [])
        if len(values) > MAX_PARAM_VALUES:
            raise self._fail("params", f"at most {MAX_PARAM_VALUES} values for {name}", f"{len(values)} values")
        for item in values:
            if not isinstance(item, (int, float, bool, str)) or (isinstance(item, str) and not _IDENTIFIER.match(item)):
                raise self._fail("params", f"integers, floats, booleans or words for {name}", item)
            if isinstance(item, float) and item - item != 0:
                raise self._fail("params", f"finite values for {name}", item)
        if len({(type(v), v) for v in values}) != len(values):
            raise self._fail("params", f"distinct values for {name}", list(values))
        return values

    def _range(self, name: str, bounds: Any) -> Iterable[int]:
        if not (
            isinstance(bounds, list)
            and len(cast(list[Any], bounds)) == 3
            and all(type(b) is int for b in cast(list[Any], bounds))
        ):
            raise self._fail("params", f"{name} as range: [lo, hi, step] of integers", bounds)
        low, high, step = cast(list[int], bounds)
        if step <= 0 or high < low:
            raise self._fail("params", f"{name} as a range with lo <= hi and step > 0", bounds)
        return range(low, high + 1, step)

    def flags(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for name, value in self._mapping("flags").items():
            if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in cast(list[Any], value)):
                raise self._fail("flags", f"{name} as a list of compiler flags", value)
            found[name] = tuple(cast(list[str], value))
        return found


def points(front: FrontMatter) -> Iterator[Params]:
    """Every point of the params in listing order (the last name varies fastest), constraints not applied."""
    names = list(front.params)
    for values in itertools.product(*(front.params[n] for n in names)):
        yield dict(zip(names, values, strict=True))


def holds(expressions: Iterable[str], names: Mapping[str, Scalar]) -> bool:
    """Whether every expression is true with these names.

    Raises:
        ExpressionError: an expression uses a name that is not known.
    """
    return all(bool(parse_expression(text).evaluate(names)) for text in expressions)


def default_point(front: FrontMatter, names: Mapping[str, Scalar], fixed: Params) -> Params:
    """The first point, in listing order, that agrees with ``fixed`` and satisfies the constraints for these sizes.

    Raises:
        KernelError: a fixed param is unknown or not listed, or no point satisfies the constraints.
        ExpressionError: a constraint uses an unknown name.
    """
    for name, value in fixed.items():
        if name not in front.params or not any(type(v) is type(value) and v == value for v in front.params[name]):
            raise KernelError(f"param {name}: expected one of {list(front.params.get(name, ()))}, found {value!r}")
    for point in points(front):
        if all(point[name] == value for name, value in fixed.items()) and holds(front.constraints, {**names, **point}):
            return point
    raise KernelError(
        f"constraints: expected a point that satisfies {list(front.constraints)}, found none for {dict(names)}"
    )


def compile_time_names(front: FrontMatter, point: Params) -> Params:
    """Params and those ``let`` names that use params only: what is bound as ``-D``. Booleans become 1 and 0."""
    bound: Params = dict(point)
    for name, text in front.let.items():
        expression = parse_expression(text)
        if expression.names <= set(bound):
            bound[name] = expression.evaluate(bound)
    return {name: int(value) if isinstance(value, bool) else value for name, value in bound.items()}
