"""What a PyTorch submission's text suggests: hints for the reader, never a reason to refuse.

The text is parsed, not matched: names in comments and strings do not count, an honest ``pass``, ``try`` or a variable
called ``stream`` is nothing. Whoever wants to hide something from this module can; proof is what is seen when the
submission runs (``module_proof``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from kernelworks.kernel.verdict import Finding

ALLOWED_IMPORTS = frozenset(
    "__future__ abc array collections contextlib ctypes dataclasses enum functools hashlib inspect itertools logging"
    " math numbers numpy operator os pathlib re shutil struct subprocess sys sysconfig tempfile textwrap time torch"
    " triton types typing typing_extensions uuid warnings weakref".split()
)
"""What a kernel and its build need. Others are named."""
THREADS = frozenset("threading multiprocessing concurrent asyncio _thread".split())
NETWORK = frozenset("socket urllib http requests httpx ssl ftplib".split())
INSPECTION = frozenset("gc atexit faulthandler".split())
_MOST = 12


@dataclass(frozen=True)
class Hint:
    """One place in the text."""

    line: int
    what: str


def module_hints(text: str) -> tuple[Finding, ...]:
    """At most one finding, kind ``hint``, that lists what stands out, line by line.

    Args:
        text: of the submission; what cannot be parsed has no hints.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    found = sorted(set(_hints(tree)), key=lambda hint: hint.line)
    if not found:
        return ()
    shown = "; ".join(f"line {hint.line}: {hint.what}" for hint in found[:_MOST])
    more = f"; and {len(found) - _MOST} more" if len(found) > _MOST else ""
    evidence = {"hints": [{"line": hint.line, "what": hint.what} for hint in found]}
    return (Finding(kind="hint", message=f"worth a look, no fault by itself: {shown}{more}", evidence=evidence),)


def _hints(tree: ast.Module) -> Iterator[Hint]:
    torch_names = _names_of_torch(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from _imports(node)
            case ast.ClassDef():
                yield from _class(node)
            case ast.Try():
                yield from _fallback(node)
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
                yield from _patches(node, torch_names)
            case ast.Call():
                yield from _calls(node, torch_names)
            case _:
                pass


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[Hint]:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    for name in names:
        root = name.partition(".")[0]
        if root in THREADS:
            yield Hint(node.lineno, f"imports {name}: a thread or process that outlives a call is dishonest")
        elif root in NETWORK:
            yield Hint(node.lineno, f"imports {name}: there is no network")
        elif root in INSPECTION:
            yield Hint(node.lineno, f"imports {name}: a kernel has no use for it")
        elif root and root not in ALLOWED_IMPORTS:
            yield Hint(node.lineno, f"imports {name}, which may not be there elsewhere")


def _class(node: ast.ClassDef) -> Iterator[Hint]:
    bases = [ast.unparse(base) for base in node.bases]
    if "Model" in bases:
        yield Hint(node.lineno, f"{node.name} inherits from Model")
    tensors = [base for base in bases if base in ("torch.Tensor", "Tensor", "torch.nn.Parameter", "nn.Parameter")]
    if tensors:
        yield Hint(node.lineno, f"{node.name} is a subclass of {tensors[0]}")
    if node.name == "Model":
        yield Hint(node.lineno, "holds a class Model of its own")


def _fallback(node: ast.Try) -> Iterator[Hint]:
    """A handler that computes: what runs when the kernel fails."""
    for handler in node.handlers:
        if any(isinstance(inner, ast.Return) and inner.value is not None for inner in ast.walk(handler)):
            yield Hint(handler.lineno, "an exception is answered by another computation")


def _patches(node: ast.Assign | ast.AugAssign | ast.AnnAssign, torch_names: frozenset[str]) -> Iterator[Hint]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        if not isinstance(target, ast.Attribute):
            continue
        name = ast.unparse(target)
        root = name.partition(".")[0]
        if (root in torch_names and ".backends." not in name) or root in ("time", "builtins", "sys"):
            yield Hint(node.lineno, f"replaces {name}")


def _calls(node: ast.Call, torch_names: frozenset[str]) -> Iterator[Hint]:
    name = ast.unparse(node.func) if isinstance(node.func, (ast.Name, ast.Attribute)) else ""
    if name == "setattr" and node.args and ast.unparse(node.args[0]).partition(".")[0] in torch_names:
        yield Hint(node.lineno, f"replaces an attribute of {ast.unparse(node.args[0])}")
    elif name in ("open", "os.open", "io.open") or name.endswith((".read_text", ".read_bytes")):
        yield Hint(node.lineno, f"opens a file ({name})")
    elif name in ("gc.get_objects", "gc.get_referrers", "sys._getframe", "sys._current_frames"):
        yield Hint(node.lineno, f"looks at what is not its own ({name})")
    elif name in ("eval", "exec", "__import__", "importlib.import_module"):
        yield Hint(node.lineno, f"runs text ({name})")
    elif name.endswith(("_make_subclass", "_make_wrapper_subclass")):
        yield Hint(node.lineno, "makes a tensor of another kind")


def _names_of_torch(tree: ast.Module) -> frozenset[str]:
    """Names under which torch and its modules are known."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "torch":
                    found.add(alias.asname or "torch")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            found.update(alias.asname or alias.name for alias in node.names)
    return frozenset(found)
