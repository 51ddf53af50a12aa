"""Builds that watch themselves: AddressSanitizer and UndefinedBehaviorSanitizer of g++ and clang++.

Such a build keeps every flag that the kernel chose; debug lines, frame pointers and ``-O1`` come last. It is a few
times slower, is never timed, and its runtime must be loaded before everything else in its process.

ThreadSanitizer is not used: it does not see the barriers of libgomp, which are futexes of its own, and reports races in
right OpenMP code.
"""

from __future__ import annotations

import os
from pathlib import Path

from kernelworks.targets.base import SanitizedBuild
from kernelworks.targets.compile import LIBRARY_NAME, Compilation, Toolchain, compile_shared, compiler_environment
from kernelworks.targets.gate import BuildGate
from kernelworks.targets.process import Limits, run_compiler

FLAGS = (
    "-fsanitize=address,undefined",
    "-fsanitize-recover=address",
    "-fno-omit-frame-pointer",
    "-g",
    "-O1",
)
"""Compile arguments, after all others. What is found is reported and the kernel goes on: one run shows all of it."""
_OWN_FLAGS = {"gcc": ("-fno-sanitize=object-size",), "clang": ("-shared-libasan",), "zig": ()}
"""Out of bounds is AddressSanitizer's to report, once."""
_LINK_FLAGS = {
    "gcc": ("-fsanitize=address,undefined",),
    # The runtime's symbols come with the process: clang leaves them open in shared libraries.
    "clang": ("-fsanitize=address,undefined", "-shared-libasan", "-Wl,-z,undefs"),
    "zig": (),
}
_QUESTION_LIMITS = Limits(time_s=30.0)

ENVIRONMENT = {
    "ASAN_OPTIONS": ":".join(
        (
            "detect_leaks=0",
            "halt_on_error=0",
            "allocator_may_return_null=1",
            "handle_segv=2",  # for good: the report is worth more than the handlers of the harness
            "handle_sigbus=2",
            "handle_sigfpe=2",
            "handle_sigill=2",
            "detect_stack_use_after_return=0",
            "malloc_context_size=6",
            "print_legend=0",
            "print_module_map=0",
            "color=never",
        )
    ),
    "UBSAN_OPTIONS": "print_stacktrace=1:color=never",
}
"""Of the process that runs such a build, beside what loads the runtime first."""


def find_runtime(toolchain: Toolchain, gate: BuildGate, folder: Path) -> Path | str:
    """The shared library of AddressSanitizer that goes with a compiler, or why there is none."""
    machine = os.uname().machine
    names = {
        "gcc": ("libasan.so",),
        "clang": (f"libclang_rt.asan-{machine}.so", "libclang_rt.asan.so"),
        "zig": (),
    }[toolchain.family]
    env = compiler_environment(folder)
    for name in names:
        argv = [*toolchain.command, f"-print-file-name={name}"]
        finished = run_compiler(gate, argv, cwd=folder, env=env, limits=_QUESTION_LIMITS)
        path = Path(finished.output.strip())
        if finished.ok and path.is_absolute() and path.exists():
            return path.resolve()
    return f"{toolchain.label} comes without the runtime of AddressSanitizer"


def compile_sanitized(
    toolchain: Toolchain, gate: BuildGate, compilation: Compilation, folder: Path
) -> SanitizedBuild | str:
    """Build ``LIBRARY_NAME`` in ``folder`` with sanitizers, or say why not.

    ``compilation`` is that of the plain build; the flags of this one follow its flags.
    """
    runtime = find_runtime(toolchain, gate, folder)
    if isinstance(runtime, str):
        return runtime
    flags = (*compilation.flags, *FLAGS, *_OWN_FLAGS[toolchain.family])
    watched = Compilation(compilation.text, flags, compilation.limits)
    linked = toolchain.model_copy(update={"openmp_link": (*toolchain.openmp_link, *_LINK_FLAGS[toolchain.family])})
    failed = compile_shared(linked, gate, watched, folder)
    if failed is not None:
        return f"the build with sanitizers failed: {failed.said.reason}"
    environment = {**ENVIRONMENT, "LD_PRELOAD": str(runtime)}
    return SanitizedBuild(path=folder / LIBRARY_NAME, flags=flags, runtime=runtime, environment=environment)
