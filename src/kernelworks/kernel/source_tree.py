"""The syntax tree of a C++ kernel: functions that are reachable from the entry point, and the loops inside them.

Read with tree-sitter-cpp; import this module only where it is needed. Comments, code under ``#if 0`` and under
``if (false)``, and functions that nothing reachable mentions are never seen. Macros are not expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import tree_sitter
import tree_sitter_cpp

from kernelworks.errors import KernelError

_LOOPS = frozenset(("for_statement", "while_statement", "do_statement", "for_range_loop"))
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_CONSTANT = re.compile(r"\d+\Z")


@dataclass(frozen=True)
class LoopNode:
    """A loop: its variable, and what can be told about its trip count."""

    node: tree_sitter.Node
    variable: str
    """Empty where it is not a plain counting loop."""
    unit_step: bool
    trips: int
    """0 where the count is no literal."""
    pragmas: tuple[str, ...]

    @property
    def is_innermost(self) -> bool:
        """Whether no loop lies inside, apart from those with a literal trip count of at most 64."""
        body = self.node.child_by_field_name("body")
        inner = [] if body is None else [n for n in descend(body) if n.type in _LOOPS]
        return all(0 < read_loop(n, ()).trips <= 64 for n in inner)


@dataclass(frozen=True)
class Visit:
    """One node with its surroundings."""

    node: tree_sitter.Node
    loops: tuple[LoopNode, ...]
    pragmas: tuple[str, ...] = ()
    """OpenMP pragmas that stand before this statement."""


@dataclass
class Source:
    """A parsed kernel."""

    functions: dict[str, list[tree_sitter.Node]] = field(default_factory=dict[str, list[tree_sitter.Node]])
    reachable: list[str] = field(default_factory=list[str])
    """Names of reachable functions, the entry first."""
    arrays: set[str] = field(default_factory=set[str])
    """Names of arrays at file scope and in reachable functions."""

    def bodies(self) -> Iterator[tree_sitter.Node]:
        """Bodies of the reachable functions."""
        for name in self.reachable:
            for function in self.functions[name]:
                body = function.child_by_field_name("body")
                if body is not None:
                    yield body


def text_of(node: tree_sitter.Node | None) -> str:
    """Source text without comments, blanks collapsed."""
    if node is None or node.text is None:
        return ""
    return " ".join(_COMMENTS.sub(" ", node.text.decode("utf-8", "replace")).split())


def read_source(text: str, entry: str) -> Source:
    """Parse a kernel.

    Raises:
        KernelError: the source defines no such function.
    """
    language = tree_sitter.Language(tree_sitter_cpp.language())
    root = tree_sitter.Parser(language).parse(text.encode()).root_node
    source = Source()
    for node in descend(root):
        if node.type == "function_definition":
            source.functions.setdefault(_function_name(node), []).append(node)
        elif node.type == "array_declarator" and not _inside_function(node):
            source.arrays.add(_innermost_name(node))
    if entry not in source.functions:
        raise KernelError(f"source: expected a function {entry!r}, found {sorted(source.functions)}")
    source.reachable.append(entry)
    for name in source.reachable:  # grows while it is walked
        for function in source.functions[name]:
            for node in descend(function):
                if node.type in ("identifier", "field_identifier"):
                    mentioned = text_of(node)
                    if mentioned in source.functions and mentioned not in source.reachable:
                        source.reachable.append(mentioned)
                elif node.type == "array_declarator":
                    source.arrays.add(_innermost_name(node))
    return source


def descend(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    """The node and everything below it that can run, in order."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(_live_children(current)))


def visit(node: tree_sitter.Node) -> Iterator[Visit]:
    """Everything below a function's body, each node with its loops and the pragmas before it."""
    stack: list[Visit] = [Visit(node, ())]
    while stack:
        current = stack.pop()
        yield current
        loops = current.loops
        if current.node.type in _LOOPS:
            loops = (*loops, read_loop(current.node, current.pragmas))
        following: list[Visit] = []
        pragmas: tuple[str, ...] = ()
        for child in _live_children(current.node):
            pragma = pragma_of(child)
            if pragma:
                pragmas = (*pragmas, pragma)
                following.append(Visit(child, loops))
                continue
            following.append(Visit(child, loops, pragmas if child.is_named else ()))
            pragmas = () if child.is_named else pragmas
        stack.extend(reversed(following))


def pragma_of(node: tree_sitter.Node) -> str:
    """The text of an OpenMP pragma after ``omp``, else empty."""
    if node.type == "preproc_call" and text_of(node.child_by_field_name("directive")) == "#pragma":
        argument = text_of(node.child_by_field_name("argument")).replace("\\", " ")
    elif node.type == "expression_statement" and text_of(node).startswith("_Pragma"):
        literal = re.search(r'"(.*)"', text_of(node))
        argument = literal[1] if literal else ""
    else:
        return ""
    words = " ".join(argument.split())
    return words[4:] if words.startswith("omp ") else ""


def read_loop(node: tree_sitter.Node, pragmas: tuple[str, ...]) -> LoopNode:
    """What a loop's header says."""
    if node.type != "for_statement":
        return LoopNode(node, "", False, 0, pragmas)
    update = text_of(node.child_by_field_name("update")).replace(" ", "")
    match = re.match(r"(?:\+\+(\w+)|(\w+)\+\+|(\w+)\+=1|(\w+)\+=.+)\Z", update)
    if match is None:
        return LoopNode(node, "", False, 0, pragmas)
    variable = next(name for name in match.groups() if name)
    unit_step = match[4] is None
    begin = re.search(rf"\b{variable}\s*(?:=|\{{|\()\s*(\d+)\b", text_of(node.child_by_field_name("initializer")))
    bound = re.match(rf"{variable}\s*<\s*(\d+)\Z", text_of(node.child_by_field_name("condition")))
    trips = int(bound[1]) - int(begin[1]) if begin and bound and unit_step else 0
    return LoopNode(node, variable, unit_step, max(trips, 0), pragmas)


def has_unit_stride(index: str, variable: str) -> bool:
    """Whether an index grows by exactly one with the variable: ``i``, ``base + i``, ``r * n + i``."""
    plain = re.sub(r"\([^()]*\)", lambda m: m[0] if variable not in re.findall(r"\w+", m[0]) else m[0][1:-1], index)
    terms = [term.strip() for term in re.split(r"[+-]", plain)]
    mentioning = [term for term in terms if variable in re.findall(r"\w+", term)]
    return mentioning == [variable]


def _live_children(node: tree_sitter.Node) -> list[tree_sitter.Node]:
    children = [child for child in node.children if child.type != "comment"]
    if node.type in ("preproc_if", "preproc_elif"):
        condition = node.child_by_field_name("condition")
        alternative = node.child_by_field_name("alternative")
        value = text_of(condition)
        if value == "0":
            return [alternative] if alternative is not None else []
        if _CONSTANT.match(value):
            return [c for c in children if c != alternative]
    if node.type == "if_statement":
        value = text_of(node.child_by_field_name("condition")).strip("() ")
        consequence = node.child_by_field_name("consequence")
        alternative = node.child_by_field_name("alternative")
        if value in ("false", "0"):
            return [c for c in children if c != consequence]
        if value in ("true", "1"):
            return [c for c in children if c != alternative]
    return children


def _function_name(function: tree_sitter.Node) -> str:
    declarator = function.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "function_declarator":
        declarator = declarator.child_by_field_name("declarator") or next(iter(declarator.named_children), None)
    return _innermost_name(declarator) if declarator is not None else ""


def _innermost_name(declarator: tree_sitter.Node) -> str:
    current = declarator
    while True:
        following = current.child_by_field_name("declarator") or current.child_by_field_name("name")
        if following is None:
            return text_of(current)
        current = following


def _inside_function(node: tree_sitter.Node) -> bool:
    above = node.parent
    while above is not None:
        if above.type == "function_definition":
            return True
        above = above.parent
    return False
