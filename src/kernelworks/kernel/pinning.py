"""A kernel's text with its chosen point as the default: what a winner is written down as."""

from __future__ import annotations

from typing import Any, cast

import yaml

from kernelworks.kernel.expression import Scalar
from kernelworks.kernel.frontmatter import split_front_matter
from kernelworks.kernel.model import Kernel, Language

_WIDTH = 1 << 30


def pinned_text(kernel: Kernel) -> str:
    """The text with the chosen value of each param and flag listed first; everything else as the author wrote it.

    The default of a param is the first value that satisfies the constraints, so the text alone builds the same code.
    """
    if not kernel.front.params and not kernel.front.flags:
        return kernel.text
    body, start = split_front_matter(kernel.text, kernel.front.lang)
    root = cast(yaml.MappingNode, yaml.compose(body, Loader=yaml.SafeLoader))
    edits: list[tuple[int, int, str]] = []
    for section, chosen, listed in (
        ("params", kernel.params, kernel.front.params),
        ("flags", kernel.flags, kernel.front.flags),
    ):
        for name, node in _children(_children(root).get(section)).items():
            if name in chosen:
                first, last = node.start_mark.index, node.end_mark.index
                last -= len(body[first:last]) - len(body[first:last].rstrip())
                edits.append((first, last, _flow([chosen[name], *_others(listed[name], chosen[name])])))
    changed = body
    for first, last, text in sorted(edits, reverse=True):
        changed = changed[:first] + text + changed[last:]
    return _replaced(kernel, body, start, changed)


def _children(node: yaml.Node | None) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    pairs = cast(list[tuple[yaml.ScalarNode, yaml.Node]], node.value)
    return {str(key.value): value for key, value in pairs}


def _others(listed: tuple[Scalar, ...], chosen: Scalar) -> list[Scalar]:
    return [value for value in listed if type(value) is not type(chosen) or value != chosen]


def _flow(values: list[Any]) -> str:
    text: str = yaml.safe_dump(values, default_flow_style=True, width=_WIDTH)  # pyright: ignore[reportUnknownMemberType]
    return text.strip()


def _replaced(kernel: Kernel, body: str, start: int, changed: str) -> str:
    """The text with another front matter; in Python its lines carry a comment sign."""
    prefix = "# " if kernel.front.lang in (Language.PYTHON, Language.TRITON) else ""
    lines = kernel.text.splitlines(keepends=True)
    ending = "\r\n" if lines[0].endswith("\r\n") else "\n"
    first, last = start - 1, start - 1 + len(body.split("\n"))
    return "".join([*lines[:first], *(prefix + line + ending for line in changed.split("\n")), *lines[last:]])
