"""Kernel files: splitting front matter from code, parsing it with exact errors, choosing the point of the params.

The first comment of the file is YAML: ``/*--- ... ---*/``, in Python lines that start with ``#---`` to ``#---``. A
Python file may go without: it is a PyTorch submission then (contract ``module``).
"""

from __future__ import annotations

import itertools
import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from kernelworks.errors import ExpressionError, KernelError, KernelFormatError
from kernelworks.kernel.expression import FUNCTIONS, Scalar, parse_expression
from kernelworks.kernel.model import Contract, FrontMatter, Kernel, Language, Origin, Params, language_of

MAX_IDEA_CHARACTERS = 300
MAX_PARAM_VALUES = 4096
MAX_POINTS_TRIED = 100_000
"""Points that are tried against the constraints before a kernel counts as unsatisfiable."""
DEVICE_FACTS = ("sm_count", "max_shared", "max_block", "subgroup", "l2_bytes")
DEVICE_ONLY_KEYS = ("workspace", "tensormaps", "setup", "launch")
KEYS = (*FrontMatter.model_fields, *DEVICE_ONLY_KEYS)
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 120
_INT64 = range(-(2**63), 2**63)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def read_kernel(path: Path, shown: str | None = None) -> Kernel:
    """Read a kernel file; ``shown`` is the path as the user gave it.

    Raises:
        KernelFormatError: the file breaks a rule.
        KernelError: the file cannot be read.
    """
    try:
        text = path.read_bytes().decode("utf-8")  # line ends as they are
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


def has_front_matter(text: str, language: Language) -> bool:
    """Whether the first line that is not empty opens front matter."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first == _markers(language)[0]


def _markers(language: Language) -> tuple[str, str]:
    return ("#---", "#---") if language in (Language.PYTHON, Language.TRITON) else ("/*---", "---*/")


def split_front_matter(text: str, language: Language) -> tuple[str, int]:
    """The YAML between the markers and the line on which it starts (1-based).

    Raises:
        KernelFormatError: there is none, or it does not end.
    """
    lines = text.splitlines()
    is_python = language in (Language.PYTHON, Language.TRITON)
    opening, closing = _markers(language)
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

    Python without front matter is a submission of the contract ``module``.

    Raises:
        KernelFormatError: line, expected and found.
    """
    if language is Language.PYTHON and text.strip() and not has_front_matter(text, language):
        return FrontMatter(lang=Language.PYTHON, contract=Contract.MODULE)
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
        except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
            # all but the first and last: explicit tags on text that does not fit them
            mark = getattr(error, "problem_mark", None)
            line = start + (mark.line if mark is not None else 0)
            raise KernelFormatError(line, "YAML", str(getattr(error, "problem", None) or error)) from error
        if not isinstance(node, yaml.MappingNode) or not isinstance(data, dict):
            raise KernelFormatError(start, "a YAML mapping", "nothing" if data is None else type(data).__name__)
        self._data = cast(dict[Any, Any], data)
        self._lines: dict[str, int] = {}
        self._note_lines(node, "")
        for key, value in _pairs(node):
            prefix = f"{key.value}."
            if isinstance(value, yaml.MappingNode):
                self._note_lines(value, prefix)
            elif isinstance(value, yaml.SequenceNode):
                for position, item in enumerate(cast(list[yaml.Node], value.value)):
                    self._lines[f"{prefix}{position}"] = start + item.start_mark.line
        for key in self._data:
            if key not in KEYS:
                raise KernelFormatError(self.line(str(key)), f"one of {', '.join(KEYS)}", _SHOWN.repr(key))
            if key in DEVICE_ONLY_KEYS:
                raise KernelFormatError(
                    self.line(key), "keys of the function contract", f"{key!r}, which no target of this version honours"
                )

    def _note_lines(self, mapping: yaml.MappingNode, prefix: str) -> None:
        for key, _ in _pairs(mapping):
            name, line = f"{prefix}{key.value}", self._start + key.start_mark.line
            if name in self._lines:
                raise KernelFormatError(line, "each key once", f"{key.value!r} twice")
            self._lines[name] = line

    def line(self, key: str, item: str | int = "") -> int:
        return self._lines.get(f"{key}.{item}", self._lines.get(key, self._start))

    def _fail(self, key: str, expected: str, found: object, item: str | int = "") -> KernelFormatError:
        return KernelFormatError(self.line(key, item), f"{key}: {expected}", _SHOWN.repr(found))

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
                raise self._fail(key, "names that are identifiers", name, str(name))
            if name in FUNCTIONS or name in DEVICE_FACTS:
                raise self._fail(key, "a name that is not a function or device fact", name, name)
        return cast(dict[str, Any], value)

    def words(self, key: str) -> tuple[str, ...]:
        for position, value in enumerate(self._list(key)):
            if not isinstance(value, str):
                raise self._fail(key, "words", value, position)
        return tuple(self._list(key))

    def expressions(self, key: str) -> tuple[str, ...]:
        return tuple(self._expression(key, value, position) for position, value in enumerate(self._list(key)))

    def expressions_by_name(self, key: str) -> dict[str, str]:
        return {name: self._expression(key, value, name) for name, value in self._mapping(key).items()}

    def _expression(self, key: str, value: Any, item: str | int) -> str:
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise self._fail(key, "an expression", value, item)
        try:
            parse_expression(str(value))
        except ExpressionError as error:
            raise KernelFormatError(self.line(key, item), f"{key}: an expression", error.message) from error
        return str(value)

    def params(self) -> dict[str, tuple[Scalar, ...]]:
        return {name: self._values(name, value) for name, value in self._mapping("params").items()}

    def _values(self, name: str, value: Any) -> tuple[Scalar, ...]:
        listed: Sequence[object]
        if isinstance(value, dict) and list(cast(dict[Any, Any], value)) == ["range"]:
            listed = self._range(name, cast(object, value["range"]))
        elif isinstance(value, list):
            listed = cast(list[object], value)
        else:
            raise self._fail("params", f"{name} as a list or {{range: [lo, hi, step]}}", cast(object, value), name)
        if not listed:
            raise self._fail("params", f"at least one value for {name}", [], name)
        if len(listed) > MAX_PARAM_VALUES:
            raise self._fail("params", f"at most {MAX_PARAM_VALUES} values for {name}", f"{len(listed)} values", name)
        values: list[Scalar] = []
        for item in listed:
            if not isinstance(item, (int, float, bool, str)) or (isinstance(item, str) and not _IDENTIFIER.match(item)):
                raise self._fail("params", f"integers, floats, booleans or words for {name}", item, name)
            if isinstance(item, float) and not math.isfinite(item):
                raise self._fail("params", f"finite values for {name}", item, name)
            if isinstance(item, int) and item not in _INT64:
                raise self._fail("params", f"64-bit integers for {name}", item, name)
            values.append(item)
        if len({(type(v).__name__, v) for v in values}) != len(values):
            raise self._fail("params", f"distinct values for {name}", values, name)
        return tuple(values)

    def _range(self, name: str, bounds: object) -> range:
        shown, listed = bounds, cast(list[object], bounds) if isinstance(bounds, list) else list[object]()
        numbers = [b for b in listed if isinstance(b, int) and not isinstance(b, bool) and b in _INT64]
        if len(numbers) != 3 or len(listed) != 3:
            raise self._fail("params", f"{name} as range: [lo, hi, step] of integers", shown, name)
        low, high, step = numbers
        if step <= 0 or high < low:
            raise self._fail("params", f"{name} as a range with lo <= hi and step > 0", shown, name)
        if (high - low) // step >= MAX_PARAM_VALUES:
            raise self._fail("params", f"at most {MAX_PARAM_VALUES} values for {name}", shown, name)
        return range(low, high + 1, step)

    def flags(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for name, value in self._mapping("flags").items():
            listed = cast(list[object], value) if isinstance(value, list) else []
            words = tuple(v for v in listed if isinstance(v, str))
            if not words or len(words) != len(listed):
                raise self._fail("flags", f"{name} as a list of compiler flags", cast(object, value), name)
            found[name] = words
        return found


def _pairs(mapping: yaml.MappingNode) -> list[tuple[yaml.Node, yaml.Node]]:
    return cast(list[tuple[yaml.Node, yaml.Node]], mapping.value)


def points(front: FrontMatter, fixed: Params | None = None) -> Iterator[Params]:
    """Points that agree with ``fixed``, in listing order (the last name varies fastest), constraints not applied."""
    chosen = fixed or {}
    values = [(chosen[name],) if name in chosen else listed for name, listed in front.params.items()]
    for point in itertools.product(*values):
        yield dict(zip(front.params, point, strict=True))


def holds(expressions: Iterable[str], names: Mapping[str, Scalar]) -> bool:
    """Whether every expression is true with these names.

    Raises:
        ExpressionError: an expression uses a name that is not known, or is neither true nor false.
    """
    for text in expressions:
        value = parse_expression(text).evaluate(names)
        if not isinstance(value, bool):
            raise ExpressionError(f"expression {text!r}: expected true or false, found {value!r}")
        if not value:
            return False
    return True


def default_point(front: FrontMatter, names: Mapping[str, Scalar], fixed: Params) -> Params:
    """The first point, in listing order, that agrees with ``fixed`` and satisfies the constraints for these sizes.

    Raises:
        KernelError: a fixed param is unknown or not listed, or none of the first 100,000 points satisfies the
            constraints.
        ExpressionError: a constraint uses an unknown name.
    """
    for name, value in fixed.items():
        if name not in front.params or not any(type(v) is type(value) and v == value for v in front.params[name]):
            raise KernelError(f"param {name}: expected one of {list(front.params.get(name, ()))}, found {value!r}")
    for point in itertools.islice(points(front, fixed), MAX_POINTS_TRIED):
        if holds(front.constraints, {**names, **compile_time_names(front, point)}):
            return point
    total = math.prod(len(values) for name, values in front.params.items() if name not in fixed)
    among = f" among the first {MAX_POINTS_TRIED} of {total} points" if total > MAX_POINTS_TRIED else ""
    raise KernelError(
        f"constraints: expected a point that satisfies {list(front.constraints)}, found none for {dict(names)}{among}"
    )


def compile_time_names(front: FrontMatter, point: Params) -> Params:
    """Params and those ``let`` names that use params only: what is bound as ``-D``. Booleans become 1 and 0."""
    bound: Params = dict(point)
    for name, text in front.let.items():
        expression = parse_expression(text)
        if expression.names <= set(bound):
            bound[name] = expression.evaluate(bound)
    return {name: int(value) if isinstance(value, bool) else value for name, value in bound.items()}
