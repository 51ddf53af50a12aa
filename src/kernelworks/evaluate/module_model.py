"""From the text of a PyTorch submission to its model: executes it, checks signatures, finds parameters.

Loaded by ``module_child.py`` into the candidate's process: standard library and torch only.
"""

# ruff: noqa: PTH118, PTH119, PTH123

from __future__ import annotations

import inspect
import linecache
import os
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

NAME = "ModelNew"
FILE = "submission.py"
MESSAGE_CHARACTERS = 1500


class _Torch:
    """Imported by ``module_child.py`` before any of this is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules["torch"], name)


TORCH: Any = _Torch()


class Problem(Exception):  # noqa: N818  part of an answer, not an error of this program
    """What is wrong with a submission."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message

    def record(self) -> dict[str, str]:
        """JSON-able."""
        return {"kind": self.kind, "message": self.message[:MESSAGE_CHARACTERS]}


def flattened(answer: Any) -> list[Any]:
    """The tensors of an answer in order; tuples and lists are looked into."""
    if type(answer) in (tuple, list):
        return [item for part in answer for item in flattened(part)]
    return [] if answer is None else [answer]


def shown(value: Any) -> str:
    """What a value is, in words."""
    if type(value) in (tuple, list):
        return f"a {type(value).__name__} of {len(value)} items"
    return type(value).__name__ if value is not None else "None"


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def unpacked(item: Any) -> Any:
    """A value of the interface: ``{"tuple": [...]}`` becomes a tuple, ``{"slot": i}`` stays."""
    if _is_list(item):
        return [unpacked(part) for part in item]
    return tuple(unpacked(part) for part in item["tuple"]) if _is_mapping(item) and "tuple" in item else item


def fill(item: Any, values: list[Any]) -> Any:
    """A part of ``forward``'s arguments with the inputs in their slots."""
    if _is_mapping(item):
        return values[item["slot"]]
    if type(item) in (list, tuple):
        return type(item)(fill(part, values) for part in item)
    return item


def executed(text: str) -> dict[str, Any]:
    """The namespace of a submission.

    Raises:
        Problem: it raised.
    """
    path = os.path.join(os.environ["TMPDIR"], FILE)  # there for whoever asks for the source of a function
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    module = types.ModuleType("submission")
    module.__file__ = path
    sys.modules[module.__name__] = module
    try:
        exec(compile(text, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102  what this process is for
    except Exception as error:  # noqa: BLE001  the submission's code
        raise Problem(stage_of(error), described(error, "the file")) from None
    return module.__dict__


def stage_of(error: Exception) -> str:
    """``build`` where a compiler failed, else ``raised``."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    text = " ".join(f"{type(link).__name__}: {link}" for link in chain)
    marks = ("Error building extension", "CalledProcessError", "Ninja is required", "CompileError")
    return "build" if any(mark in text for mark in marks) else "raised"


def described(error: BaseException, where: str) -> str:
    """What was raised and on which line of the submission."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if os.path.basename(f.filename) == FILE]
    line = f", line {frames[-1].lineno}" if frames else ""
    text = str(error).strip() or "no message"
    output = getattr(error, "stderr", None) or getattr(error, "output", None)
    if isinstance(output, bytes):
        output = output.decode(errors="replace")
    more = f"; it said: {output.strip()[-MESSAGE_CHARACTERS // 2 :]}" if isinstance(output, str) and output else ""
    if len(text) > MESSAGE_CHARACTERS // 2:
        text = f"{text[: MESSAGE_CHARACTERS // 4]} ... {text[-MESSAGE_CHARACTERS // 4 :]}"
    return f"{where} raised {type(error).__name__}{line}: {text}{more}"


def check_signature(made: type, method: str, count: int, expected: str) -> None:
    """Whether a method takes so many positional arguments after ``self``.

    Raises:
        Problem: with both signatures.
    """
    function = getattr(made, method)
    try:
        signature = inspect.signature(function)
        signature.bind(None, *([None] * count))
    except (TypeError, ValueError):
        parameters = list(inspect.signature(function).parameters.values())[1:]
        own = [str(p.replace(annotation=p.empty)) for p in parameters]
        found = f"{NAME}.{method}({', '.join(own)})"
        raise Problem("signature", f"expected the signature of {expected}, found {found}") from None


def own_tensors(model: Any) -> dict[str, tuple[Any, Callable[[Any], None]]]:
    """Parameters, buffers and tensors held as plain attributes, by qualified name, with what replaces each."""
    found: dict[str, tuple[Any, Callable[[Any], None]]] = {}
    if not isinstance(model, TORCH.nn.Module):
        return found
    for prefix, module in model.named_modules():
        places = (module.__dict__.get("_parameters", {}), module.__dict__.get("_buffers", {}), module.__dict__)
        for place in places:
            for name, value in place.items():
                if is_tensor(value):
                    found[f"{prefix}.{name}" if prefix else name] = (value, setter_of(module, name, value))
    return found


def setter_of(module: Any, name: str, value: Any) -> Callable[[Any], None]:
    """What puts another tensor in the place of this one."""
    if isinstance(value, TORCH.nn.Parameter):

        def replace(tensor: Any) -> None:
            value.data = tensor

        return replace
    return lambda tensor: setattr(module, name, tensor)


def same_bits(own: Any, other: Any) -> bool:
    """Whether two tensors of as many elements hold the same bits, in order."""
    a, b = own.detach().contiguous().reshape(-1), other.reshape(-1)
    return bool(TORCH.equal(a.view(TORCH.uint8), b.view(TORCH.uint8))) if a.numel() else True


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of any kind."""
    return isinstance(value, TORCH.Tensor)
