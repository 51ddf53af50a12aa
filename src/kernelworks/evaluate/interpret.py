"""Values inside the reference: tensors of its traced graph, computed in native or double precision by ATen itself.

An index output is judged by the value that it selects, and that value may be an intermediate one, which neither the
inputs nor the results hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from kernelworks.task.graph import Graph, Node, Ref
from kernelworks.task.lazytorch import is_sequence, to_double, torch_module
from kernelworks.task.model import DType

_WIDER = {
    DType.FLOAT16: DType.FLOAT64,
    DType.BFLOAT16: DType.FLOAT64,
    DType.FLOAT32: DType.FLOAT64,
}
_UNSAID = frozenset("device layout memory_format pin_memory".split())
"""Arguments that a trace leaves out."""


def tensors_of(graph: Graph, wanted: Sequence[Ref], arguments: Mapping[str, Any], *, double: bool) -> list[Any]:
    """Tensors of a graph.

    Args:
        graph: of the case's sizes.
        wanted: which.
        arguments: native tensors and Python scalars of all inputs and weights, by name.
        double: floating tensors are widened to float64, and requests for a lower precision inside the graph too.

    Raises:
        KeyError, AttributeError: an operator that this torch does not have.
        RuntimeError: it does not run.
    """
    torch = torch_module()
    made: dict[str, Any] = {}
    needed = _ancestors(graph, wanted)
    with torch.no_grad():
        for node in graph.nodes:
            if node.name in needed:
                made[node.name] = _value(node, made, arguments, double=double)
    return [_pick(made, ref) for ref in wanted]


def _ancestors(graph: Graph, wanted: Sequence[Ref]) -> set[str]:
    found = {ref.ref for ref in wanted}
    for node in reversed(graph.nodes):
        if node.name in found:
            found.update(ref.ref for ref in refs_of([*node.args, *node.kwargs.values()]))
    return found


def refs_of(values: Any) -> Iterator[Ref]:
    """The tensors that arguments of a node name, in order."""
    if isinstance(values, dict):
        mapping = cast("dict[str, Any]", values)
        if isinstance(mapping.get("ref"), str):
            yield Ref.model_validate(mapping)
    elif is_sequence(values):
        for value in values:
            yield from refs_of(value)


def _value(node: Node, made: Mapping[str, Any], arguments: Mapping[str, Any], *, double: bool) -> Any:
    torch = torch_module()
    if node.kind == "constant":
        return torch.tensor(node.constant, dtype=_dtype(node.values[0].dtype, double=double))
    if node.kind == "placeholder":
        given = arguments[node.argument]
        if not isinstance(given, torch.Tensor):
            return torch.tensor(given, dtype=_dtype(node.values[0].dtype, double=double))
        return to_double(given) if double else given
    args = [_decoded(value, made) for value in node.args]
    if node.op == "aten.to.dtype":
        return args[0].to(_dtype(DType(args[1]), double=double))
    if node.op == "aten.view.default" and is_sequence(args[1]):
        return args[0].reshape(args[1])
    space, name, overload = node.op.split(".")
    operator = getattr(getattr(getattr(torch.ops, space), name), overload)
    named = [a for a in operator._schema.arguments if not a.kwarg_only and a.name not in _UNSAID]
    typed = [_typed(a.name, value, double=double) for a, value in zip(named, args, strict=False)]
    keywords = {
        key: _typed(key, _decoded(value, made), double=double)
        for key, value in node.kwargs.items()
        if value is not None
    }
    return operator(*typed, **keywords)


def _dtype(dtype: DType, *, double: bool) -> Any:
    torch = torch_module()
    if double and dtype is DType.COMPLEX64:
        return torch.complex128
    return getattr(torch, _WIDER.get(dtype, dtype) if double else dtype)


def _typed(name: str, value: Any, *, double: bool) -> Any:
    """A dtype from its name, a number that is not finite from its word."""
    if not isinstance(value, str):
        return value
    if "dtype" in name:
        return _dtype(DType(value), double=double)
    return float(value) if value in ("inf", "-inf", "nan") else value


def _decoded(value: Any, made: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return _pick(made, Ref.model_validate(value))
    return [_decoded(item, made) for item in value] if is_sequence(value) else value


def _pick(made: Mapping[str, Any], ref: Ref) -> Any:
    value = made[ref.ref]
    return value[ref.index] if is_sequence(value) else value
