"""The ``python`` target: PyTorch submissions (``ModelNew``) as they are. Nothing is compiled before they run.

What a submission compiles itself (``load_inline``, a compiler through ``subprocess``) it compiles in the candidate's
process, while it is imported and its model is made.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kernelworks import __version__
from kernelworks.errors import EnvironmentLackError, KernelError
from kernelworks.home import home
from kernelworks.kernel.hardware import Hardware
from kernelworks.kernel.model import Contract, Kernel, Language
from kernelworks.targets.base import Artefact, BuildFailure, Probe
from kernelworks.targets.cpp import CppTarget
from kernelworks.targets.hardware_cpu import describe_cpu
from kernelworks.task.model import Task

MEND = "pip install 'kernelworks[torch]'"
NUMPY_TASK = "expected a task whose reference is PyTorch, found a NumPy one: a ModelNew takes and returns tensors"
"""Why a task cannot have submissions."""
_IMPORT_S = 120.0


class ModuleTarget:
    """Takes Python files of the contract ``module`` and hands their text on."""

    name = "python"

    def __init__(self) -> None:
        self._cpp = CppTarget()

    def probe(self) -> Probe:
        """Import torch in a process of its own."""
        facts = describe_cpu()
        device = f"{facts.name}, {facts.cores} cores"
        versions = {"kernelworks": __version__, "python": platform.python_version()}
        problem = _torch_problem()
        if problem:
            return Probe(usable=False, device=device, versions=versions, problem=problem, mend=MEND)
        return Probe(usable=True, device=device, versions={**versions, "torch": _torch_version()})

    def build(self, task: Task, kernel: Kernel, *, timeout_s: float = 60.0) -> Artefact | BuildFailure:
        """Check the file without running it and put its text where the candidate's process gets it from.

        Raises:
            KernelError: another contract or language, a key of the front matter that has no meaning here, text that is
                no Python, a task without torch.
            EnvironmentLackError: the cache cannot be written.
        """
        del timeout_s  # nothing runs
        begun_s = time.perf_counter()
        front = kernel.front
        if front.contract is not Contract.MODULE or front.lang is not Language.PYTHON:
            raise KernelError(
                f"target python: expected lang python with contract module, found lang {front.lang} with contract "
                f"{front.contract}"
            )
        for key in ("params", "flags", "let"):
            if getattr(front, key):
                raise KernelError(
                    f"{key}: expected none in a Python submission, found {', '.join(getattr(front, key))}"
                )
        if task.framework != "torch":
            raise KernelError(f"task {task.name}: {NUMPY_TASK}")
        tree = _parsed(kernel.text)
        digest = hashlib.sha256(ast.dump(tree).encode(errors="surrogatepass")).hexdigest()
        path, cached = _kept(kernel.text)
        return Artefact(
            path=path,
            flags=(),
            build_ms=(time.perf_counter() - begun_s) * 1e3,
            cached=cached,
            descriptor=None,
            code_digest=digest,
            contract=Contract.MODULE,
        )

    def hardware(self) -> Hardware:
        """The local processor with measured rates, as for the ``cpp`` target.

        Raises:
            EnvironmentLackError: no compiler works, or the probe does not run.
        """
        return self._cpp.hardware()

    def measure_again(self) -> Hardware:
        """The same, measured once more."""
        return self._cpp.measure_again()


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise KernelError(f"line {error.lineno}: expected Python, found a syntax error: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; nesting beyond the parser's limit
        raise KernelError(f"expected Python, found text that cannot be parsed: {error}") from error


def _kept(text: str) -> tuple[Path, bool]:
    """The file of a text in the cache, and whether it was there."""
    folder = home() / "cache" / "modules"
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:40]}.py"
    if path.exists():
        return path, True
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8", newline="") as file:
            file.write(text)
        Path(file.name).replace(path)
    except OSError as error:
        raise EnvironmentLackError(f"cache {folder}: expected a folder that can be written, found {error}") from error
    return path, False


@cache
def _torch_problem() -> str:
    """Why torch cannot be imported; empty if it can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [sys.executable, "-I", "-c", "import torch"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_IMPORT_S, env=environment)
    except subprocess.TimeoutExpired:
        return f"torch was not imported within {_IMPORT_S:g} s"
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()
        return f"torch cannot be imported: {last[-1][:300] if last else f'exit code {done.returncode}'}"
    return ""


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "unknown"
