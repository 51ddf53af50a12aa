"""The reference as ATen operators, through ``torch.export``, on tensors without memory.

Which form is produced
    ``torch.export`` (non-strict), made functional by ``run_decompositions({})``: no operator changes its arguments,
    and composite operators stay whole: ``aten.softmax.int``, ``aten.log_softmax.int``, ``aten.layer_norm.default``,
    ``aten.rms_norm.default``, ``aten.group_norm.default``, ``aten.gelu.default``, ``aten.silu.default``,
    ``aten.linear.default``, ``aten.matmul.default``, ``aten.conv2d.default``,
    ``aten.scaled_dot_product_attention.default``. A batch norm in training mode becomes
    ``aten._native_batch_norm_legit_functional.default`` (result 0 is the normalised tensor).

Nodes
    ``placeholder``: one for every input, scalar and weight of the task, in prototype order, used or not. A Python
    scalar is a placeholder with shape () and dtype float64, int64 or bool; where the reference needs its value while
    it is traced (``range(n)``, ``dim=n``), all scalars are baked in and named in ``Graph.specialised``.
    ``constant``: a tensor of one element that the reference made from a literal.
    ``call``: ``op`` is the overload's full name. ``args`` holds *every* positional argument of its schema, ``kwargs``
    every keyword-only one, defaults filled in; device, layout, memory format and pinning are dropped. Tensors are
    ``{"ref": NAME, "index": I}``, dtypes their name (``"float32"``), lists are lists, None is null, and a float that
    is not finite is ``"inf"``, ``"-inf"`` or ``"nan"``. ``values`` has one entry a result tensor.
    Nodes on which no output depends are left out (placeholders excepted).

Normalisation, so that one operation has one spelling
    - aliases of a name: ``divide`` -> ``div``, ``multiply`` -> ``mul``, ``clip`` -> ``clamp``, ... (``ALIASES``);
    - ``add``, ``sub``, ``mul``, ``div`` with overload ``Scalar`` have overload ``Tensor`` (a number may stand at any
      position); ``rsub(x, y)`` is ``sub.Tensor(y, x)``;
    - whatever only changes the shape (``reshape``, ``flatten``, ``squeeze``, ``unsqueeze``, ...) is
      ``aten.view.default(x, SHAPE)`` with the full result shape, on row-major order of elements;
    - whatever permutes axes (``transpose``, ``t``, ``mT``, ...) is ``aten.permute.default(x, DIMS)``, no DIMS negative;
    - ``expand_as``, ``broadcast_to``, and each result of ``broadcast_tensors``, are
      ``aten.expand.default(x, SHAPE, false)`` with the full result shape;
    - a change of dtype is ``aten.to.dtype(x, DTYPE)``;
    - what changes nothing (``clone``, ``contiguous``, ``detach``, ``alias``, dropout outside training, a view, expand,
      permutation or cast to what is there already) is removed.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

from kernelworks.errors import TaskError
from kernelworks.task.graph import Graph, Node, Ref, Value
from kernelworks.task.lazytorch import fake_mode_of, is_sequence, quiet, to_dtype, torch_module
from kernelworks.task.modulefile import one_sentence

ALIASES = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "clip": "clamp",
    "concat": "cat",
    "concatenate": "cat",
    "divide": "div",
    "fix": "trunc",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "special_erf": "erf",
    "special_expit": "sigmoid",
    "special_expm1": "expm1",
    "special_log1p": "log1p",
    "special_log_softmax": "log_softmax",
    "special_logsumexp": "logsumexp",
    "special_softmax": "softmax",
    "subtract": "sub",
    "true_divide": "div",
}
"""Names of one operator, to the one used here."""

_RESHAPES = frozenset(
    "view reshape flatten unflatten _unsafe_view squeeze unsqueeze view_as reshape_as ravel view_copy".split()
)
_EXPANDS = frozenset("expand expand_as broadcast_to expand_copy".split())
_CASTS = frozenset("to _to_copy type_as".split())
_IDENTITIES = frozenset("alias detach clone contiguous lift_fresh lift_fresh_copy positive".split())
_DROPOUTS = frozenset("dropout native_dropout feature_dropout alpha_dropout feature_alpha_dropout".split())
_DROPPED = frozenset("device layout memory_format pin_memory".split())
_ARITHMETIC = frozenset("add sub mul div".split())


def trace_reference(
    call: Callable[[Sequence[Any]], Any],
    inputs: Sequence[tuple[str, Any]],
    *,
    sizes: Mapping[str, int],
    model: Any = None,
    weights: Mapping[str, str] | None = None,
    mutates: Sequence[str] = (),
) -> Graph:
    """Trace ``call`` to a graph in the form that this module's docstring describes.

    Args:
        call: the reference; takes the values of ``inputs`` as one sequence.
        inputs: name and value of every input in prototype order: a tensor without memory, or a Python scalar.
        sizes: the dims with which the tensors were made.
        model: the ``nn.Module`` behind ``call``, if there is one; real or fake.
        weights: qualified name of each parameter and buffer to its argument's name.
        mutates: inputs whose changed value is an output, in order, after the returned ones.

    Raises:
        TaskError: it cannot be exported, or holds a constant tensor of more than one element.
    """
    torch = torch_module()

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            self.inner = model

        def forward(self, *values: Any) -> Any:
            return call(values)

    scalars = [name for name, value in inputs if not isinstance(value, torch.Tensor)]
    try:
        program = _export(Flat(), _with_scalar_tensors(inputs))
        specialised: list[str] = []
        if any(not _is_tensor(_value(node)) for node in program.graph.nodes if _makes_value(node)):
            raise _NeedsScalarsError("it computes with numbers taken out of tensors")
    except Exception as error:
        if not scalars:
            raise TaskError(f"the reference cannot be traced: {one_sentence(error)}") from error
        try:
            program = _export(Flat(), [value for _, value in inputs])
        except Exception as second:
            raise TaskError(f"the reference cannot be traced: {one_sentence(second)}") from second
        specialised = scalars
    names = {f"inner.{fqn}": argument for fqn, argument in (weights or {}).items()}
    return _Converter(program, [name for name, _ in inputs], names, specialised).graph(sizes, mutates)


class _NeedsScalarsError(Exception):
    """The trace holds a value that is no tensor: it looked into a scalar."""


def _with_scalar_tensors(inputs: Sequence[tuple[str, Any]]) -> list[Any]:
    """Tensors of shape () in place of Python scalars: float64, int64 or bool."""
    torch = torch_module()
    dtypes = {bool: torch.bool, int: torch.int64, float: torch.float64}
    with fake_mode_of(value for _, value in inputs) or nullcontext():
        return [
            value if isinstance(value, torch.Tensor) else torch.empty((), dtype=dtypes[type(value)])
            for _, value in inputs
        ]


def _export(module: Any, arguments: Sequence[Any]) -> Any:
    torch = torch_module()
    with warnings.catch_warnings(), quiet(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch warns about its own passes; nothing that a user could act on
        return torch.export.export(module, tuple(arguments), strict=False).run_decompositions({})


def _makes_value(node: Any) -> bool:
    return node.op == "call_function" and node.target is not operator.getitem and "val" in node.meta


def _is_tensor(value: Any) -> bool:
    torch = torch_module()
    if is_sequence(value):
        return all(_is_tensor(item) for item in value)
    return value is None or isinstance(value, torch.Tensor)


class _Converter:
    """One exported program to a ``Graph``."""

    def __init__(self, program: Any, inputs: Sequence[str], weights: Mapping[str, str], specialised: list[str]) -> None:
        self.program = program
        self.inputs = inputs
        self.weights = weights
        self.specialised = specialised
        self.refs: dict[str, Ref] = {}
        """Name of a torch.fx node to the tensor that it stands for; identities point through."""
        self.spread: dict[str, list[Ref]] = {}
        """Results of operators that were split into one node a result."""
        self.values: dict[str, tuple[Value, ...]] = {}
        self.nodes: list[Node] = []

    def graph(self, sizes: Mapping[str, int], mutates: Sequence[str]) -> Graph:
        """The whole graph, placeholders in prototype order, without what no output needs."""
        placeholders = {str(spec.arg.name): spec for spec in self.program.graph_signature.input_specs}
        users = iter(self.inputs)
        user_names: dict[str, str] = {}
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, placeholders[node.name], users, user_names)
            elif node.op == "call_function":
                self._call(node)
        outputs = self._outputs(mutates, user_names)
        order = {name: k for k, name in enumerate((*self.inputs, *dict.fromkeys(self.weights.values())))}
        arguments = sorted((n for n in self.nodes if n.kind == "placeholder"), key=lambda n: order[n.argument])
        rest = [n for n in self.nodes if n.kind != "placeholder"]
        kept = _needed(rest, outputs)
        return Graph(
            nodes=(*arguments, *kept), outputs=tuple(outputs), sizes=dict(sizes), specialised=tuple(self.specialised)
        )

    def _placeholder(self, node: Any, spec: Any, users: Any, user_names: dict[str, str]) -> None:
        if spec.kind.name == "USER_INPUT":
            argument = next(users)
            user_names[node.name] = argument
            if argument in self.specialised:
                return
        elif spec.target in self.weights:
            argument = self.weights[spec.target]
        else:
            self._constant(node, self.program.constants[spec.target])
            return
        self._add(Node(name=argument, kind="placeholder", values=_values(node), argument=argument), node)

    def _constant(self, node: Any, tensor: Any) -> None:
        if tensor.numel() != 1 or hasattr(tensor, "fake_mode"):
            shape = tuple(int(size) for size in tensor.shape)
            raise TaskError(f"the reference cannot be traced: it holds a constant tensor of shape {shape}")
        value: Any = tensor.item()
        if isinstance(value, complex):
            raise TaskError(f"the reference cannot be traced: it holds the complex constant {value}")
        self._add(Node(name=self._free_name(node.name), kind="constant", values=_values(node), constant=value), node)

    def _add(self, made: Node, node: Any) -> None:
        self.nodes.append(made)
        self.values[made.name] = made.values
        self.refs[node.name] = Ref(ref=made.name)

    def _free_name(self, name: str) -> str:
        while name in self.values:  # an argument may be called like an operator
            name = f"v_{name}"
        return name

    def _call(self, node: Any) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            spread = self.spread.get(source.name)
            self.refs[node.name] = spread[index] if spread else Ref(ref=self.refs[source.name].ref, index=int(index))
            return
        if node.target is torch_module().ops.aten.broadcast_tensors.default:
            self.spread[node.name] = [
                self._expanded(node, k, tensor, value)
                for k, (tensor, value) in enumerate(zip(node.args[0], _values(node), strict=True))
            ]
            return
        op, args, kwargs = _schema_arguments(node)
        if not node.target._schema.returns:  # an assertion that torch.export adds at casts
            return
        same = self._same(op, node, args)
        if same is not None:
            self.refs[node.name] = self.refs[same.name]
            return
        op, args, kwargs = _normalise(op, node, args, kwargs)
        self._add(
            Node(
                name=self._free_name(node.name),
                kind="call",
                op=op,
                args=tuple(self._encode(a) for a in args),
                kwargs={name: self._encode(a) for name, a in kwargs.items()},
                values=_values(node),
            ),
            node,
        )

    def _expanded(self, node: Any, index: int, tensor: Any, value: Value) -> Ref:
        """Result ``index`` of ``broadcast_tensors``: an expand of its own, or the tensor itself."""
        if value.shape == tuple(_value(tensor).shape):
            return self.refs[tensor.name]
        args = (self._encode(tensor), list(value.shape), False)
        name = self._free_name(f"{node.name}_{index}")
        made = Node(name=name, kind="call", op="aten.expand.default", args=args, values=(value,))
        self.nodes.append(made)
        self.values[name] = made.values
        return Ref(ref=name)

    def _same(self, op: str, node: Any, args: Sequence[Any]) -> Any:
        """The argument of which the result is a mere copy, or None."""
        base = op.split(".")[1]
        torch = torch_module()
        if base in _DROPOUTS and base != "native_dropout" and (not args[2] or args[1] == 0):
            return args[0]
        if base not in _IDENTITIES | _RESHAPES | _EXPANDS | _CASTS | {"permute", "transpose"}:
            return None
        source = args[0]
        before, after = _value(source), _value(node)
        if base == "view" and len(args) > 1 and isinstance(args[1], torch.dtype):  # reinterprets bits
            return None
        if base in {"permute", "transpose"}:
            rank = before.dim()
            return source if _permutation(base, args, rank) == list(range(rank)) else None
        return source if (before.shape, before.dtype) == (after.shape, after.dtype) else None

    def _encode(self, value: Any) -> Any:
        torch = torch_module()
        if isinstance(value, torch.fx.Node):
            ref = self.refs[value.name]
            return {"ref": ref.ref, "index": ref.index}
        if is_sequence(value):
            return [self._encode(item) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, torch.dtype):
            return str(value).removeprefix("torch.")
        raise TaskError(f"the reference cannot be traced: it passes {one_line(value)} to an operator")

    def _outputs(self, mutates: Sequence[str], user_names: Mapping[str, str]) -> list[Ref]:
        returned: list[Ref] = []
        mutated: dict[str, Ref] = {}
        for spec in self.program.graph_signature.output_specs:
            if spec.kind.name == "USER_OUTPUT":
                if spec.arg.name not in self.refs:
                    raise TaskError("the reference cannot be traced: it returns something that is no tensor")
                returned.append(self.refs[spec.arg.name])
            elif spec.kind.name == "USER_INPUT_MUTATION":
                mutated[user_names[spec.target]] = self.refs[spec.arg.name]
        return returned + [mutated.get(name, Ref(ref=name)) for name in mutates]


def _schema_arguments(node: Any) -> tuple[str, list[Any], dict[str, Any]]:
    """Name of the overload and all of its arguments by its schema, defaults filled in."""
    if not hasattr(node.target, "_schema"):
        raise TaskError(f"the reference cannot be traced: it calls {one_line(node.target)}, which is no ATen operator")
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name in _DROPPED:
            continue
        value = argument.default_value
        if position < len(node.args):
            value = node.args[position]
        elif argument.name in node.kwargs:
            value = node.kwargs[argument.name]
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return str(node.target), args, kwargs


def _normalise(op: str, node: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[str, list[Any], dict[str, Any]]:
    """The one spelling of an operation; see the module's docstring."""
    torch = torch_module()
    namespace, base, overload = op.split(".")
    base = ALIASES.get(base, base)
    if namespace != "aten" or (base == "view" and isinstance(args[1], torch.dtype)):
        return op, args, kwargs
    if base in _RESHAPES:
        return "aten.view.default", [args[0], _shape(node)], {}
    if base in _EXPANDS:
        return "aten.expand.default", [args[0], _shape(node), False], {}
    if base in _CASTS:
        return "aten.to.dtype", [args[0], _value(node).dtype], {}
    if base in {"softmax", "log_softmax"} and overload == "default":  # of torch.special
        return f"aten.{base}.int", [*args, *kwargs.values()], {}
    if base == "rsub":
        return "aten.sub.Tensor", [args[1], args[0]], {"alpha": args[2] if len(args) > 2 else kwargs.get("alpha", 1)}
    if base in _ARITHMETIC and overload == "Scalar":
        alpha = {"alpha": args[2]} if len(args) > 2 else {}
        return f"aten.{base}.Tensor", args[:2], {**alpha, **kwargs}
    dims = _permutation(base, args, _value(args[0]).dim()) if base in _PERMUTES else None
    if dims is not None:
        return "aten.permute.default", [args[0], dims], {}
    return f"{namespace}.{base}.{overload}", args, kwargs


_PERMUTES = frozenset("permute transpose swapaxes swapdims t mT mH numpy_T adjoint".split())


def _permutation(base: str, args: Sequence[Any], rank: int) -> list[int] | None:
    """The order of axes of an operator that permutes them; None for one that also does something else."""
    dims = list(range(rank))
    if base == "permute":
        return [int(d) % rank for d in args[1]]
    if base in {"transpose", "swapaxes", "swapdims"} and rank:
        a, b = int(args[1]) % rank, int(args[2]) % rank
        dims[a], dims[b] = dims[b], dims[a]
        return dims
    if base in {"t", "numpy_T"}:
        return dims[::-1]
    if base == "mT":
        return [*dims[:-2], rank - 1, rank - 2]
    return None


def _value(node: Any) -> Any:
    """What a node makes, as torch.fx knows it: a tensor or several."""
    if "val" not in node.meta:
        raise TaskError(f"the reference cannot be traced: {one_line(node.target)} gives no tensor")
    return node.meta["val"]


def _shape(node: Any) -> list[int]:
    return [int(size) for size in _value(node).shape]


def _values(node: Any) -> tuple[Value, ...]:
    found: Any = _value(node)
    tensors = found if is_sequence(found) else [found]
    return tuple(
        Value(
            shape=tuple(int(size) for size in tensor.shape),
            dtype=to_dtype(tensor.dtype, f"the reference cannot be traced: dtype of {node.name!r}"),
        )
        for tensor in tensors
        if tensor is not None
    )


def _needed(nodes: Sequence[Node], outputs: Sequence[Ref]) -> list[Node]:
    """Nodes on which an output depends, in order."""
    wanted = {ref.ref for ref in outputs}
    kept: list[Node] = []
    for node in reversed(nodes):
        if node.name in wanted:
            kept.append(node)
            wanted |= set(_references([*node.args, *node.kwargs.values()]))
    return kept[::-1]


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [str(cast("dict[str, Any]", value)["ref"])]
    return [name for item in value for name in _references(item)] if is_sequence(value) else []


def one_line(value: object) -> str:
    """A foreign value for a message, on one line of bounded length."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."
