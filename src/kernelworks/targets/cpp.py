"""The ``cpp`` target: C++17 on the local processor, ``function`` contract, no headers of any framework."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import threading
import time
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Literal

from kernelworks import __version__
from kernelworks.errors import EnvironmentLackError, KernelError
from kernelworks.kernel.describe import describe
from kernelworks.kernel.frontmatter import parse_kernel
from kernelworks.kernel.hardware import Hardware
from kernelworks.kernel.model import Contract, Kernel, Language, Origin, Params
from kernelworks.targets.bandwidth import ProbeLibraries, measured_rates, probe_source, run_child
from kernelworks.targets.base import Artefact, BuildFailure, Probe, SanitizedBuild
from kernelworks.targets.cache import Build, BuildCache, content_key
from kernelworks.targets.compile import (
    LIBRARY_NAME,
    SEARCH_VARIABLES,
    SOURCE_NAME,
    Compilation,
    Toolchain,
    compile_shared,
)
from kernelworks.targets.compiler import MEND, OPENMP_MEND, find_toolchain
from kernelworks.targets.flags import chosen_flags, compile_time_bindings, definitions
from kernelworks.targets.gate import BuildGate, process_gate
from kernelworks.targets.hardware_cpu import describe_cpu, instruction_set_digest
from kernelworks.targets.process import Limits
from kernelworks.targets.sanitize import compile_sanitized
from kernelworks.targets.signature import check_exported, check_signature
from kernelworks.task.model import Case, CaseRole, DType, Task, TensorArgument
from kernelworks.task.prototype import prototype

_PROBE_TIMEOUT_S = 30.0
_PROBE_KERNEL = """/*---
contract: function
---*/
#include <cstdint>
extern "C" int launch(const float* x, float* y, int64_t n) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; ++i) y[i] = 2.0f * x[i] + 1.0f;
    return 0;
}
"""


class CppTarget:
    """Builds ``extern "C" int launch(...)`` with g++ or clang++ into a shared library for ``ctypes``."""

    name = "cpp"

    def __init__(self, *, cache: BuildCache | None = None, gate: BuildGate | None = None) -> None:
        """``gate``: by default the one that all builds and timings of this process share."""
        self._cache = cache or BuildCache()
        self._gate = gate or process_gate()
        self._finding = threading.Lock()
        self._measuring = threading.Lock()
        self._toolchain: Toolchain | None = None
        self._hardware: Hardware | None = None
        self._probes: ProbeLibraries | None = None

    def toolchain(self) -> Toolchain:
        """The compiler in use, looked for once.

        Raises:
            EnvironmentLackError: no compiler works.
        """
        with self._finding:
            self._toolchain = self._toolchain or find_toolchain(self._gate)
            return self._toolchain

    def build(self, task: Task, kernel: Kernel, *, timeout_s: float = 60.0) -> Artefact | BuildFailure:
        """Compile a kernel at its point for the first timed case, or say why not.

        A failure of the environment (``environment``) or at a limit is not remembered, any other is. Lines of
        diagnostics are those of the kernel's text.

        Raises:
            EnvironmentLackError: no compiler works, or the cache cannot be written.
            KernelError: another contract or language, a flag that is not allowed, no point that satisfies the
                constraints, names that clash, machine code that cannot be followed from ``launch``.
            TaskError: a constant that is not finite.
        """
        if kernel.front.contract is not Contract.FUNCTION or kernel.front.lang is not Language.CPP:
            raise KernelError(
                f"target cpp: expected lang cpp with contract function, found lang {kernel.front.lang} with "
                f"contract {kernel.front.contract}"
            )
        bindings = compile_time_bindings(task, kernel)
        toolchain = self.toolchain()
        flags = (*toolchain.base_flags, *chosen_flags(kernel), *definitions(bindings))
        entry = self._cache.fetch(
            _key(toolchain, flags, kernel.text, prototype(task)),
            partial(self._make, task, toolchain, Compilation(kernel.text, flags, Limits(time_s=timeout_s)), bindings),
        )
        build = entry.build
        if build.failure is not None:
            return _with_path(build.failure, kernel.path)
        assert build.descriptor is not None
        return Artefact(
            path=entry.library,
            flags=flags,
            build_ms=build.build_ms,
            cached=entry.cached,
            descriptor=build.descriptor,
            code_digest=build.code_digest,
        )

    def build_sanitized(
        self, task: Task, kernel: Kernel, folder: Path, *, timeout_s: float = 60.0
    ) -> SanitizedBuild | str:
        """Compile a kernel with sanitizers into ``folder``, past the cache, or say why not."""
        toolchain = self.toolchain()
        bindings = compile_time_bindings(task, kernel)
        flags = (*toolchain.base_flags, *chosen_flags(kernel), *definitions(bindings))
        compilation = Compilation(kernel.text, flags, Limits(time_s=timeout_s))
        return compile_sanitized(toolchain, self._gate, compilation, folder)

    def hardware(self) -> Hardware:
        """The local processor with measured rates (a few seconds the first time on a machine).

        The first call builds and times, so it must not stand inside a timing of the same gate.

        Raises:
            EnvironmentLackError: no compiler works, or the probe does not run.
        """
        with self._measuring:
            if self._hardware is None:
                self._hardware = self._measured(describe_cpu(), again=False)
            return self._hardware

    def measure_again(self) -> Hardware:
        """Measure once more; rates can only rise. May stand inside a timing once ``hardware`` was asked for."""
        known = self.hardware()
        with self._measuring:
            self._hardware = self._measured(known, again=True)
            return self._hardware

    def probe_key(self) -> str:
        """Identity of what the probes are built by and with."""
        toolchain = self.toolchain()
        return content_key(toolchain.label, toolchain.identity, toolchain.base_flags, instruction_set_digest())

    def probe(self) -> Probe:
        """Build (past the cache), load and run one tiny kernel in a child; say what is missing and how to mend it."""
        facts = describe_cpu()
        device = f"{facts.name}, {facts.cores} cores, {facts.simd_bits}-bit vectors"
        versions = {"kernelworks": __version__, "python": platform.python_version()}
        try:
            toolchain = self.toolchain()
            versions["compiler"] = toolchain.label
            problem = self._try_tiny_kernel(facts.cores)
        except EnvironmentLackError as error:
            return Probe(usable=False, device=device, versions=versions, problem=error.message, mend=error.mend or MEND)
        if problem:
            return Probe(usable=False, device=device, versions=versions, problem=problem, mend=MEND)
        if not toolchain.openmp:
            lack = f"{toolchain.label} has no OpenMP: kernels are built single-threaded"
            return Probe(usable=True, device=device, versions=versions, problem=lack, mend=OPENMP_MEND)
        return Probe(usable=True, device=device, versions=versions)

    def _make(self, task: Task, toolchain: Toolchain, compilation: Compilation, names: Params, folder: Path) -> Build:
        start_s = time.perf_counter()
        with self._gate.working():
            mismatch = check_signature(compilation.text, task, names)
        if mismatch is not None:
            return Build(build_ms=_since_ms(start_s), failure=mismatch)
        failed = compile_shared(toolchain, self._gate, compilation, folder)
        build_ms = _since_ms(start_s)
        if failed is not None:
            return Build(build_ms=build_ms, failure=failed.said, lasting=failed.lasting)
        with self._gate.working():
            missing = check_exported(folder / LIBRARY_NAME, task)
            if missing is not None:
                return Build(build_ms=build_ms, failure=missing)
            report = describe(folder / LIBRARY_NAME, compilation.text)
        return Build(build_ms=build_ms, descriptor=report.descriptor, code_digest=report.code_digest)

    def _measured(self, facts: Hardware, *, again: bool) -> Hardware:
        if self._probes is None:
            bandwidth, peak = self._probe_library("bandwidth"), self._probe_library("peak")
            self._probes = ProbeLibraries(bandwidth=bandwidth, peak=peak, key=self.probe_key())
        rates = measured_rates(facts, self._probes, self._gate, again=again)
        return facts.model_copy(update={"bandwidths": rates.bandwidths, "peaks": rates.peaks})

    def _probe_library(self, name: Literal["bandwidth", "peak"]) -> Path:
        toolchain = self.toolchain()
        compilation = Compilation(probe_source(name), toolchain.base_flags)

        def make(folder: Path) -> Build:
            start_s = time.perf_counter()
            failed = compile_shared(toolchain, self._gate, compilation, folder)
            return Build(build_ms=_since_ms(start_s), failure=failed.said if failed else None, lasting=failed is None)

        entry = self._cache.fetch(_key(toolchain, compilation.flags, compilation.text, name), make)
        if entry.build.failure is not None:
            raise EnvironmentLackError(
                f"{toolchain.label} does not build the {name} probe: {entry.build.failure.reason}", mend=MEND
            )
        return entry.library

    def _try_tiny_kernel(self, threads: int) -> str:
        """What is wrong with a tiny kernel; empty if nothing is."""
        task = _tiny_task()
        kernel = parse_kernel(_PROBE_KERNEL, Language.CPP, Origin(proposer="file"))
        with tempfile.TemporaryDirectory(prefix="kernelworks-") as folder:
            fresh = CppTarget(cache=BuildCache(Path(folder)), gate=self._gate)
            built = fresh.build(task, kernel)
            if isinstance(built, BuildFailure):
                return f"{self.toolchain().label} does not build a tiny kernel: {built.reason}"
            answer = json.loads(run_child(["kernel", str(built.path)], threads, _PROBE_TIMEOUT_S))
        if answer != {"status": 0, "wrong": 0}:
            return f"a tiny kernel built by {self.toolchain().label} computes wrong numbers: {answer}"
        return ""


def _tiny_task() -> Task:
    return Task(
        name="probe",
        source="python",
        digest="",
        framework="numpy",
        inputs=(TensorArgument(name="x", dtype=DType.FLOAT32, shape=("n",), role="input"),),
        outputs=(TensorArgument(name="y", dtype=DType.FLOAT32, shape=("n",), role="output"),),
        dims=("n",),
        cases=(Case(name="probe", role=CaseRole.TIMED, sizes={"n": 4099}),),
    )


def _since_ms(start_s: float) -> float:
    return (time.perf_counter() - start_s) * 1e3


def _key(toolchain: Toolchain, flags: tuple[str, ...], text: str, expected: str) -> str:
    return content_key(
        toolchain.command,
        toolchain.version,
        toolchain.identity,
        toolchain.link_flags,
        flags,
        text,
        expected,
        instruction_set_digest(),
        tuple(os.environ.get(name) for name in SEARCH_VARIABLES),
        _rules_digest(),
    )


@lru_cache(maxsize=1)
def _rules_digest() -> str:
    """Changes with the code that judges a source and describes a library, whose results are kept in the cache."""
    digest = hashlib.sha256(__version__.encode())
    for package in ("kernelworks.kernel", "kernelworks.targets"):
        modules = (item for item in files(package).iterdir() if item.name.endswith(".py"))
        for module in sorted(modules, key=lambda item: item.name):
            digest.update(module.read_bytes())
    return digest.hexdigest()


def _with_path(failure: BuildFailure, path: str) -> BuildFailure:
    """A failure whose diagnostics name the kernel's file as the user gave it."""
    if not path:
        return failure
    shown = tuple(d.model_copy(update={"file": path}) if d.file == SOURCE_NAME else d for d in failure.diagnostics)
    return failure.model_copy(update={"diagnostics": shown})
