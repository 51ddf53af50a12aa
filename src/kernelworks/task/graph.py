"""The reference's trace as plain data: ATen operators with shapes and dtypes, no torch objects.

Made by ``task.trace`` (``torch.export``) in the judge's process, read by the experts in the controller's. The
docstring of ``task.trace`` says which operators occur and in which spelling.
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
    """All positional arguments of the overload's schema as JSON, defaults filled in; a tensor is
    ``{"ref": NAME, "index": I}``, a dtype its name, a float that is not finite ``"inf"``, ``"-inf"`` or ``"nan"``."""
    kwargs: dict[str, Any] = {}
    """All keyword-only arguments, likewise; device, layout, memory format and pinning are left out."""
    values: tuple[Value, ...] = ()
    """One entry a result tensor; a placeholder or constant has one."""
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
    specialised: tuple[str, ...] = ()
    """Python scalars whose values of this case are baked into the nodes; they have no placeholder."""

    def node(self, name: str) -> Node:
        """The node of this name; KeyError if there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)
