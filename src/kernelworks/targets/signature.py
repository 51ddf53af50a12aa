"""Whether a C++ source defines ``launch`` as its task's prototype says: before the compiler, and in the library.

A C function carries no types into the library, so a wrong parameter would only show as a crash or wrong values. The
source is therefore parsed (tree-sitter): number, order and types of the parameters must agree; their names,
``__restrict`` and ``const`` are free. A type that cannot be resolved (a template, a macro with arguments) is not
judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kernelworks.targets.base import BuildFailure, Diagnostic
from kernelworks.task.model import Task
from kernelworks.task.prototype import parameters, prototype

if TYPE_CHECKING:
    from tree_sitter import Node

ENTRY = "launch"

_SAME_TYPE = {
    "long": "int64_t",
    "long int": "int64_t",
    "long long": "int64_t",
    "long long int": "int64_t",
    "signed long": "int64_t",
    "ptrdiff_t": "int64_t",
    "ssize_t": "int64_t",
    "intptr_t": "int64_t",
    "unsigned long": "uint64_t",
    "unsigned long long": "uint64_t",
    "unsigned long int": "uint64_t",
    "unsigned long long int": "uint64_t",
    "size_t": "uint64_t",
    "uintptr_t": "uint64_t",
    "int": "int32_t",
    "signed": "int32_t",
    "signed int": "int32_t",
    "unsigned": "uint32_t",
    "unsigned int": "uint32_t",
    "short": "int16_t",
    "short int": "int16_t",
    "unsigned short": "uint16_t",
    "unsigned short int": "uint16_t",
    "signed char": "int8_t",
    "unsigned char": "uint8_t",
    "char8_t": "uint8_t",
}
"""Spellings of one type on 64-bit Linux."""
_KNOWN = frozenset(_SAME_TYPE.values()) | {"float", "double", "_Float16", "__bf16", "bool", "char", "void"}
_QUALIFIERS = re.compile(r"\b(?:const|volatile|struct)\b|(?:\bstd)?::")
_RESTRICT_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(?:__restrict(?:__)?|restrict)[ \t]*$", re.M)
_ALIASES = (
    re.compile(r"\btypedef\s+([\w: ]+?)\s+(?P<name>\w+)\s*;"),
    re.compile(r"\busing\s+(?P<name>\w+)\s*=\s*([\w: ]+?)\s*;"),
    re.compile(r"^[ \t]*#[ \t]*define[ \t]+(?P<name>\w+)[ \t]+([\w: ]+?)[ \t]*$", re.M),
)


@dataclass(frozen=True)
class _Type:
    """A parameter's type without constness: canonical name of what is pointed to, and how many pointers."""

    name: str
    pointers: int

    def agrees(self, other: _Type) -> bool:
        return self.pointers == other.pointers and (self.name == other.name or self.name not in _KNOWN)


@dataclass(frozen=True)
class _Launch:
    line: int
    column: int
    text: str
    """The prototype as written, on one line."""
    returns: _Type
    parameters: tuple[tuple[str, _Type], ...]


def check_signature(text: str, task: Task, names: Mapping[str, object]) -> BuildFailure | None:
    """Compare every ``extern "C"`` definition or declaration of ``launch`` with the task's prototype.

    Args:
        text: the whole source.
        task: gives the prototype.
        names: compile-time names of the kernel, which may name types.

    Returns:
        None if one agrees, or none can be read (the library's symbols decide then).
    """
    found = tuple(_launches(text, names))
    if not found:
        return None
    expected = tuple((p.declaration, _parse_c_type(p.c_type)) for p in parameters(task))
    mismatches = [_mismatch(launch, expected) for launch in found]
    if None in mismatches:
        return None
    launch = found[0]
    reason = f"{mismatches[0]}; expected `{prototype(task)}`, found `{launch.text}`"
    place = Diagnostic(file="kernel.cpp", line=launch.line, column=launch.column, severity="error", message=reason)
    return BuildFailure(diagnostics=(place,), reason=reason)


def check_exported(library: Path, task: Task) -> BuildFailure | None:
    """Whether a built library exports the function ``launch``."""
    if ENTRY in _exported_functions(library):
        return None
    expected = prototype(task)
    return BuildFailure(reason=f"the library exports no function {ENTRY}: expected a definition of `{expected}`")


def _mismatch(launch: _Launch, expected: tuple[tuple[str, _Type], ...]) -> str | None:
    if not launch.returns.agrees(_Type("int32_t", 0)):
        return f"{ENTRY} must return int"
    if len(launch.parameters) != len(expected):
        return f"{ENTRY} must have {len(expected)} parameters and has {len(launch.parameters)}"
    for number, ((wanted, wanted_type), (written, written_type)) in enumerate(
        zip(expected, launch.parameters, strict=True), 1
    ):
        if not written_type.agrees(wanted_type):
            return f"parameter {number} of {ENTRY} must be `{wanted}` and is `{written}`"
    return None


def _parse_c_type(c_type: str) -> _Type:
    return _Type(_canonical(c_type.replace("*", ""), {}), c_type.count("*"))


def _canonical(name: str, aliases: Mapping[str, str]) -> str:
    for _ in range(8):  # A chain of aliases longer than this is not followed.
        name = " ".join(_QUALIFIERS.sub(" ", name).split())
        name = _SAME_TYPE.get(name, name)
        if name in _KNOWN or name not in aliases:
            break
        name = aliases[name]
    return name


def _launches(text: str, names: Mapping[str, object]) -> Iterator[_Launch]:
    import tree_sitter_cpp
    from tree_sitter import Language, Parser

    # Macros for restrict are no C++ to a parser; blanks of the same length keep every place as it is.
    for macro in _RESTRICT_MACRO.findall(text):
        text = re.sub(rf"(?<!define )\b{macro}\b", " " * len(macro), text)
    aliases = {name: str(value) for name, value in names.items()}
    for pattern in _ALIASES:
        for match in pattern.finditer(text):
            aliases.setdefault(match["name"], next(g for g in match.groups() if g != match["name"]))
    tree = Parser(Language(tree_sitter_cpp.language())).parse(text.encode("utf-8"))
    for node in _linkage_declarators(tree.root_node, inside=False):
        launch = _read_launch(node, aliases)
        if launch is not None:
            yield launch


def _linkage_declarators(node: Node, *, inside: bool) -> Iterator[Node]:
    """Declarations and definitions that stand in a linkage specification and declare ``launch``."""
    if inside and node.type in ("declaration", "function_definition"):
        declarator = _function_declarator(node)
        if declarator is not None and _text(declarator.child_by_field_name("declarator")) == ENTRY:
            yield node
        return
    enters = node.type == "linkage_specification"
    if node.type == "translation_unit" or enters or node.type in ("declaration_list", "namespace_definition"):
        descend = True
    else:
        descend = node.type.startswith("preproc_")
    if descend:
        for child in node.named_children:
            yield from _linkage_declarators(child, inside=inside or enters)


def _function_declarator(node: Node) -> Node | None:
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type in ("pointer_declarator", "reference_declarator"):
        declarator = declarator.child_by_field_name("declarator")
    return declarator if declarator is not None and declarator.type == "function_declarator" else None


def _read_launch(node: Node, aliases: Mapping[str, str]) -> _Launch | None:
    declarator = _function_declarator(node)
    listed = declarator.child_by_field_name("parameters") if declarator is not None else None
    if declarator is None or listed is None or declarator.has_error:
        return None  # The compiler will say what is wrong with it.
    found: list[tuple[str, _Type]] = []
    for child in listed.named_children:
        if child.type in ("parameter_declaration", "optional_parameter_declaration"):
            found.append((_one_line(child), _type_of(child, aliases)))
        elif child.type != "comment":
            found.append((_one_line(child), _Type(child.type, 0)))
    if len(found) == 1 and found[0][1] == _Type("void", 0):
        found = []
    body = _text(node.child_by_field_name("body"))
    text = " ".join(_text(node).removesuffix(body).split())
    row, column = declarator.start_point
    return _Launch(
        line=row + 1,
        column=column + 1,
        text='extern "C" ' + text.rstrip("; "),
        returns=_return_type(node, declarator, aliases),
        parameters=tuple(found),
    )


def _return_type(node: Node, declarator: Node, aliases: Mapping[str, str]) -> _Type:
    trailing = next((c for c in declarator.named_children if c.type == "trailing_return_type"), None)
    if trailing is not None:
        return _Type(_canonical(_text(trailing).removeprefix("->"), aliases), 0)
    return _Type(_canonical(_text(node.child_by_field_name("type")), aliases), 0)


def _type_of(parameter: Node, aliases: Mapping[str, str]) -> _Type:
    pointers = 0
    declarator = parameter.child_by_field_name("declarator")
    while declarator is not None:
        pointers += any(word in declarator.type for word in ("pointer_declarator", "array_declarator"))
        if "reference" in declarator.type:
            return _Type("void", -1)  # A reference agrees with nothing in a C interface.
        declarator = declarator.child_by_field_name("declarator")
    return _Type(_canonical(_text(parameter.child_by_field_name("type")), aliases), pointers)


def _text(node: Node | None) -> str:
    return node.text.decode("utf-8") if node is not None and node.text is not None else ""


def _one_line(node: Node) -> str:
    return " ".join(_text(node).split())


def _exported_functions(library: Path) -> frozenset[str]:
    from importlib import import_module

    # pyelftools ships no types.
    elf_module = cast(Any, import_module("elftools.elf.elffile"))
    with library.open("rb") as file:
        table = elf_module.ELFFile(file).get_section_by_name(".dynsym")
        symbols = list(table.iter_symbols()) if table is not None else []
        return frozenset(
            str(s.name) for s in symbols if s["st_shndx"] != "SHN_UNDEF" and s["st_info"]["type"] == "STT_FUNC"
        )
