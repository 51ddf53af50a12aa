"""Whose time is it, and whose answer: torch's operators and native code of the submission's own, in one call.

Loaded by ``module_child.py`` into the candidate's process: standard library and torch only. Three things are seen:

- **operators** that reach torch's dispatcher in the calling thread, by a ``TorchDispatchMode``; those that C++ code
  calls (``at::matmul``) as well. Views and allocations are no work. Operators of a namespace that the submission
  registered itself are its own, and what they call is looked into.
- **native functions of its own**: of libraries that ``ctypes`` opens from outside the system, and of extension modules
  that are imported from there (``load_inline``, Triton's launchers).
- the rest: Python, NumPy, whatever else. It is nobody's kernel.

In a call of its own each of the first two can be made to fail: operators answer with NaN; native functions are left
out, and where they have to run, what they return is spoilt. While nobody watches, a function of ctypes costs nothing
more, and a function of an extension one more indirection in C (``functools.partial``).
"""

# ruff: noqa: PTH110, PTH119

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import os
import sys
import sysconfig
import time
import types
from typing import Any, Literal, Self


class _Torch:
    """Imported by ``module_child.py`` before any of this is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules["torch"], name)


TORCH: Any = _Torch()

CALL_OVERHEAD_NS = 15_000
"""Taken off each call of a function of its own: what one that does nothing takes while it is watched ..."""
NESTED_OVERHEAD_NS = 60_000
"""... and off for each operator of torch that it calls: the watching of that takes so long."""
OPERATORS = 24
"""Operators that are listed; times are of all."""

Without = Literal["", "torch", "own"]
"""Who is made to fail."""

_ALLOCATIONS = frozenset(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided new_zeros new_ones new_full zeros"
    " zeros_like ones ones_like full full_like fill fill_ zero_ scalar_tensor lift_fresh lift_fresh_copy detach alias"
    " set_ resize_ _local_scalar_dense item is_pinned _unsafe_view _reshape_alias as_strided".split()
)
"""By name, whatever the overload; views are known by their schema."""


class Libraries:
    """What is native and its own. Made before the submission is executed: it opens libraries through it."""

    def __init__(self) -> None:
        self.pointers: list[type[Any]] = []
        """Classes of ctypes functions."""
        self.functions: list[tuple[Any, Any]] = []
        """Functions of extensions: as the submission has them, and themselves."""
        self._namespaces = {name.partition("::")[0] for name in TORCH._C._dispatch_get_all_op_names()}
        paths = sysconfig.get_paths()
        self._system = tuple(
            os.path.realpath(path) + os.sep
            for path in {"/usr", "/lib", "/lib64", sys.base_prefix, paths["stdlib"], *_package_folders()}
        )
        self._watch_ctypes()
        self._watch_extensions()

    def is_own_namespace(self, name: str) -> bool:
        """Whether operators of this namespace came with the submission."""
        return name not in self._namespaces

    def _is_own(self, name: Any) -> bool:
        """Whether a file came with the submission."""
        if name is None or isinstance(name, int):
            return False
        path = os.path.realpath(os.fsdecode(name))
        return os.path.exists(path) and not path.startswith(self._system)

    def _watch_ctypes(self) -> None:
        """Have every library from outside the system use function classes that can be watched."""
        opened, made = ctypes.CDLL.__init__, ctypes.CFUNCTYPE

        def init(library: Any, name: Any, *args: Any, **kwargs: Any) -> None:
            opened(library, name, *args, **kwargs)
            if self._is_own(name):
                library._FuncPtr = _watchable(library._FuncPtr, self.pointers)

        def prototype(*args: Any, **kwargs: Any) -> Any:
            return _watchable(made(*args, **kwargs), self.pointers)

        library_class: Any = ctypes.CDLL
        library_class.__init__ = init
        ctypes.CFUNCTYPE = prototype

    def _watch_extensions(self) -> None:
        """Have every extension module from outside the system hold functions that can be watched."""
        loader: Any = importlib.machinery.ExtensionFileLoader
        execute = loader.exec_module

        def exec_module(this: Any, module: types.ModuleType) -> None:
            execute(this, module)
            if self._is_own(getattr(module, "__file__", None)):
                for name, value in list(vars(module).items()):
                    if isinstance(value, types.BuiltinFunctionType):
                        held = functools.partial(value)
                        self.functions.append((held, value))
                        setattr(module, name, held)

        loader.exec_module = exec_module


class Accountant:
    """A context manager around one call of ``forward``.

    Args:
        libraries: what is its own.
        without: who is made to fail.
        kept: addresses of memory (first byte, bytes) that must not be spoilt: inputs and weights.
    """

    def __init__(self, libraries: Libraries, without: Without, kept: list[tuple[int, int]]) -> None:
        self._libraries = libraries
        self.without = without
        self._kept = kept
        self._mode = _mode(self, libraries)
        self._own: list[tuple[int, int, int]] = []
        """Running calls of its own: when each began, and by then torch's time and operators."""
        self.operators: dict[str, list[int]] = {}
        """Count and nanoseconds."""
        self.torch_ns = 0
        self.torch_calls = 0
        self.dispatched = 0
        """Operators that were looked at, views and allocations too: each costs time of its own."""
        self.own_ns = 0
        self.own_calls = 0
        self.plain_calls = 0
        """Of these, those that called no operator of torch."""
        self._total_ns = 0

    def __enter__(self) -> Self:
        for pointer in self._libraries.pointers:
            pointer.__call__ = _watched_call(self, pointer)
        for held, function in self._libraries.functions:
            held.__setstate__((_watched_function(self, function), (), {}, {}))
        self._mode.__enter__()
        self._total_ns = -time.perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        self._total_ns += time.perf_counter_ns()
        self._mode.__exit__(None, None, None)
        for pointer in self._libraries.pointers:
            if "__call__" in pointer.__dict__:
                del pointer.__call__
        for held, function in self._libraries.functions:
            held.__setstate__((function, (), {}, {}))

    def begin(self) -> None:
        """A function of its own starts."""
        self._own.append((time.perf_counter_ns(), self.torch_ns, self.torch_calls))

    def end(self) -> None:
        """It has returned; what torch took meanwhile is torch's."""
        began_ns, torch_ns, torch_calls = self._own.pop()
        self.own_calls += 1
        self.plain_calls += self.torch_calls == torch_calls
        if not self._own:
            spent_ns = time.perf_counter_ns() - began_ns - (self.torch_ns - torch_ns)
            nested_ns = NESTED_OVERHEAD_NS * (self.torch_calls - torch_calls)
            self.own_ns += max(0, spent_ns - CALL_OVERHEAD_NS - nested_ns)

    def operator(self, name: str, spent_ns: int) -> None:
        """An operator of torch ran."""
        entry = self.operators.setdefault(name, [0, 0])
        entry[0] += 1
        entry[1] += spent_ns
        self.torch_ns += spent_ns
        self.torch_calls += 1

    def spoil(self, value: Any) -> None:
        """Overwrite tensors, but for inputs and weights: NaN, in exact types zero."""
        if isinstance(value, TORCH.Tensor):
            start = value.untyped_storage().data_ptr() if value.layout is TORCH.strided else 0
            if not any(first <= start < first + size for first, size in self._kept):
                floating = value.is_floating_point() or value.is_complex()
                value.fill_(float("nan") if floating else 0)
        elif type(value) in (list, tuple):
            for item in value:
                self.spoil(item)

    def report(self) -> dict[str, Any]:
        """JSON-able; the operators that took longest first."""
        ordered = sorted(self.operators.items(), key=lambda item: -item[1][1])
        return {
            "total_ns": self._total_ns,
            "torch_ns": self.torch_ns,
            "own_ns": self.own_ns,
            "own_calls": self.own_calls,
            "plain_calls": self.plain_calls,
            "operators": [[name, count, spent_ns] for name, (count, spent_ns) in ordered[:OPERATORS]],
            "operator_calls": self.torch_calls,
            "dispatched": self.dispatched,
        }


def _mode(accountant: Accountant, libraries: Libraries) -> Any:
    """The dispatch mode of an accountant; its class needs torch."""
    from torch.utils._python_dispatch import TorchDispatchMode

    kernels = TORCH._C.DispatchKeySet(TORCH._C.DispatchKey.CPU)

    class Watching(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # nothing here is compiled, and wrapping it would import the compiler: a second

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            accountant.dispatched += 1
            if libraries.is_own_namespace(func.namespace):
                accountant.begin()
                try:
                    with self:  # straight to its kernel: called anew, it would come back here; what it calls is seen
                        answer = func.redispatch(kernels, *args, **(kwargs or {}))
                finally:
                    accountant.end()
                if accountant.without == "own":
                    accountant.spoil(answer if answer is not None else args)
                return answer
            start = time.perf_counter_ns()
            answer = func(*args, **(kwargs or {}))
            spent_ns = time.perf_counter_ns() - start
            if _is_work(func):
                accountant.operator(str(func), spent_ns)
                if accountant.without == "torch":
                    accountant.spoil(answer)
            return answer

    return Watching()


def _is_work(func: Any) -> bool:
    """Whether an operator computes or moves: it is neither a view nor an allocation."""
    return not func.is_view and func._schema.name.partition("::")[2] not in _ALLOCATIONS


def _watchable(base: Any, pointers: list[type[Any]]) -> Any:
    """A class of ctypes functions whose calls can be watched; as fast as its base while they are not."""
    fields = {"_flags_": base._flags_, "_restype_": getattr(base, "_restype_", None)}
    if getattr(base, "_argtypes_", None) is not None:
        fields["_argtypes_"] = base._argtypes_
    made = type(base)("OwnFunction", (base,), fields)
    pointers.append(made)
    return made


def _watched_call(accountant: Accountant, pointer: Any) -> Any:
    """The call of a ctypes function; it writes wherever it was told to, so to make it fail it is left out."""
    base = pointer.__mro__[1]

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        accountant.begin()
        try:
            return 0 if accountant.without == "own" else base.__call__(function, *args, **kwargs)
        finally:
            accountant.end()

    return call


def _watched_function(accountant: Accountant, function: Any) -> Any:
    """A function of an extension; to make it fail, what it returns is spoilt, or what it was given to write to."""

    def call(*args: Any, **kwargs: Any) -> Any:
        accountant.begin()
        try:
            answer = function(*args, **kwargs)
        finally:
            accountant.end()
        if accountant.without == "own":
            accountant.spoil(answer if isinstance(answer, (TORCH.Tensor, list, tuple)) else [*args, *kwargs.values()])
        return answer

    return call


def _package_folders() -> list[str]:
    """Where packages are installed."""
    return [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
