"""The reference's trace as plain data: ATen operators with shapes and dtypes, no torch objects.

Made by ``task.trace`` (``torch.export``) in the judge's process, read by the experts in the controller's.
"""

from __future__ import annotations

from typing import Any, Literal

from kernelworks.data import Frozen
from kernelworks.task.model import DType


class Value(Frozen):
    """Shape and dtype of one tensor of the graph."""

    shape: tuple[int, ...]
    dtype: DType


class Ref(Frozen):
    """Use of an earlier node's tensor (``index`` for one of several results)."""

    ref: str
    index: int = 0


class Node(Frozen):
    """One node. ``placeholder`` nodes name a task argument; ``call`` nodes name an ATen overload."""

    name: str
    kind: Literal["placeholder", "call", "constant"]
    op: str = ""
    """``aten.mul.Tensor`` for a call; empty otherwise."""
    args: tuple[Any, ...] = ()
    """Positional arguments as JSON; a tensor is ``{"ref": NAME, "index": I}``."""
    kwargs: dict[str, Any] = {}
    values: tuple[Value, ...] = ()
    argument: str = ""
    """Placeholder: name of the task's argument. Constant: empty."""
    constant: float | int | bool | None = None
    """A lifted scalar constant's value."""


class Graph(Frozen):
    """The traced reference for one case's sizes, in execution order."""

    nodes: tuple[Node, ...]
    outputs: tuple[Ref, ...]
    """One per output of the task, in order."""
    sizes: dict[str, int]
    """The dims with which it was traced."""

    def node(self, name: str) -> Node:
        """The node of this name; KeyError if there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)
