"""Recognition: from a traced reference to ``Program`` objects, or to one sentence that says what stood in the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from kernelworks.errors import ProposeError
from kernelworks.propose.experts.axes import ShapeError
from kernelworks.propose.experts.builder import Builder, Tensor
from kernelworks.propose.experts.call import Call, Operator, Result
from kernelworks.propose.experts.ir import Program
from kernelworks.propose.experts.nest import build_programs
from kernelworks.propose.experts.pointwise import POINTWISE
from kernelworks.propose.experts.rowwise import ROWWISE
from kernelworks.task.graph import Graph, Node
from kernelworks.task.model import DType, ScalarArgument, Task, TensorArgument

OTHER_WAYS = (
    "the other ways are a model (--model ID), an agent (--proposer agent) or your own kernel (--seed-kernel FILE)"
)

OPERATORS: Mapping[str, Operator] = {**POINTWISE, **ROWWISE}
"""Every ATen operator that the experts know, by overload or by name."""


def known_operator(op: str) -> Operator | None:
    """The expansion of an overload (``aten.max.dim``) or of its name (``aten.max``); None if no expert knows it."""
    return OPERATORS.get(op) or OPERATORS.get(op.rsplit(".", 1)[0])


def unknown_operators(graph: Graph) -> tuple[str, ...]:
    """ATen overloads of the graph that no expert knows, each once, in order."""
    missing = [n.op for n in graph.nodes if n.kind == "call" and known_operator(n.op) is None]
    return tuple(dict.fromkeys(missing))


def recognise(task: Task, graph: Graph) -> tuple[Program, ...]:
    """The loop nests that together compute a task's reference: one for each group of outputs that share axes.

    Raises:
        ProposeError: an operator or a shape that no expert knows; one sentence with the other ways.
    """
    _check_task(task, graph)
    missing = unknown_operators(graph)
    if missing:
        raise ProposeError(f"the experts do not know {', '.join(missing)}; {OTHER_WAYS}")
    reader = _Reader(task)
    for node in graph.nodes:
        try:
            reader.read(node)
        except ShapeError as error:
            where = node.op or node.name
            raise ProposeError(f"the experts cannot write {where} here, because of {error}; {OTHER_WAYS}") from error
    results: list[tuple[TensorArgument, Tensor]] = []
    for ref, argument in zip(graph.outputs, task.outputs, strict=True):
        made = reader.results[ref.ref]
        if ref.index >= len(made):
            raise ProposeError(
                f"the experts do not write result {ref.index} of {graph.node(ref.ref).op}, "
                f"which output {argument.name!r} is; {OTHER_WAYS}"
            )
        results.append((argument, made[ref.index]))
    try:
        return build_programs(reader.builder, results)
    except ShapeError as error:
        raise ProposeError(f"the experts cannot fuse this reference, because of {error}; {OTHER_WAYS}") from error


def _check_task(task: Task, graph: Graph) -> None:
    reason = ""
    if task.mutates:
        reason = f"it changes its argument {task.mutates[0]!r}"
    elif task.layout != "contiguous":
        reason = "its arguments are strided"
    elif graph.specialised:
        reason = f"the value of its scalar {graph.specialised[0]!r} decides what is computed"
    elif any(t.dtype is DType.COMPLEX64 for t in task.tensors):
        reason = "it has complex arguments"
    elif len(graph.outputs) != len(task.outputs):
        reason = f"it has {len(task.outputs)} outputs and its trace {len(graph.outputs)}"
    if reason:
        raise ProposeError(f"the experts cannot work on task {task.name!r}: {reason}; {OTHER_WAYS}")


class _Reader:
    """Reads nodes in order; ``results`` holds the values of each."""

    def __init__(self, task: Task) -> None:
        self.builder = Builder()
        self.results: dict[str, tuple[Tensor, ...]] = {}
        self._arguments = {argument.name: argument for argument in task.arguments}

    def read(self, node: Node) -> None:
        """Record the values of one node."""
        if node.kind == "placeholder":
            self.results[node.name] = (self._placeholder(node),)
        elif node.kind == "constant":
            made = self.builder.const(node.constant if node.constant is not None else 0, node.values[0].dtype)
            self.results[node.name] = (self.builder.expand(made, node.values[0].shape),)
        else:
            operator = known_operator(node.op)
            assert operator is not None
            args = tuple(self._decode(a) for a in node.args)
            kwargs = {name: self._decode(a) for name, a in node.kwargs.items()}
            made = operator(Call(node.op, self.builder, args, kwargs, node.values))
            self.results[node.name] = self._checked(node, made)

    def _placeholder(self, node: Node) -> Tensor:
        argument = self._arguments[node.argument]
        if isinstance(argument, ScalarArgument):
            return self.builder.scalar(argument.name, node.values[0].dtype)
        assert isinstance(argument, TensorArgument)
        return self.builder.load(argument, node.values[0].shape)

    def _checked(self, node: Node, made: Result) -> tuple[Tensor, ...]:
        """Results in the types and shapes that the trace says: an operator expanded wrongly must not go further."""
        results = made if isinstance(made, tuple) else (made,)
        found: list[Tensor] = []
        for result, value in zip(results, node.values, strict=False):
            if result.shape != value.shape:
                raise ShapeError(f"a result of shape {value.shape}, expanded to {result.shape}")
            found.append(self.builder.cast(result, value.dtype))
        return tuple(found)

    def _decode(self, found: Any) -> Any:
        if isinstance(found, dict):
            reference = cast(dict[str, Any], found)
            results = self.results[reference["ref"]]
            index = int(reference["index"])
            if index >= len(results):
                raise ShapeError(f"result {index} of {reference['ref']!r}, which no expert computes")
            return results[index]
        if isinstance(found, list | tuple):
            return [self._decode(item) for item in cast(list[Any], found)]
        return found
