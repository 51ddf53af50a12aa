from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.builds import kernel_text, make_kernel, scale_task

from kernelworks.errors import EnvironmentLackError, KernelError
from kernelworks.targets.base import Artefact, BuildFailure
from kernelworks.targets.cache import BuildCache
from kernelworks.targets.cpp import CppTarget
from kernelworks.targets.gate import BuildGate

COPY = kernel_text("y[i] = x[i];")
ENDLESS = """
template <int N, int M> struct Deep {
    static constexpr long value = Deep<N - 1, M>::value + Deep<N - 1, M + N>::value;
};
template <int M> struct Deep<0, M> { static constexpr long value = M; };
"""


@pytest.fixture
def target(tmp_path: Path) -> CppTarget:
    """A target with a cache of its own."""
    return CppTarget(cache=BuildCache(tmp_path / "builds"))


def built(outcome: Artefact | BuildFailure) -> Artefact:
    assert isinstance(outcome, Artefact), outcome.log
    return outcome


def failed(outcome: Artefact | BuildFailure) -> BuildFailure:
    assert isinstance(outcome, BuildFailure)
    return outcome


def run(artefact: Artefact, values: list[float]) -> list[float]:
    launch = ctypes.CDLL(str(artefact.path)).launch
    launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    x = (ctypes.c_float * len(values))(*values)
    y = (ctypes.c_float * len(values))()
    assert launch(ctypes.addressof(x), ctypes.addressof(y), len(values)) == 0
    return list(y)


def test_a_kernel_is_built_with_its_params_and_constants_and_runs(target: CppTarget) -> None:
    front = "params: {SHIFT: [1, 2], HALF: [true]}\nlet: {TWICE: SHIFT * 2}\n"
    kernel = make_kernel(kernel_text("y[i] = x[i] * (float)H_SCALE + SHIFT + TWICE + HALF;", front=front))
    artefact = built(target.build(scale_task({"H_SCALE": -0.5}), kernel.model_copy(update={"params": {"SHIFT": 2}})))
    assert run(artefact, [1.0, 4.0]) == [6.5, 5.0]
    assert {"-O3", "-march=native", "-std=c++17", "-DSHIFT=2", "-DTWICE=4", "-DHALF=1", "-DH_SCALE=(-0.5)"} <= set(
        artefact.flags
    )
    assert artefact.code_digest
    assert artefact.build_ms > 0


def test_the_second_build_comes_from_the_cache_with_its_descriptor(target: CppTarget, tmp_path: Path) -> None:
    first = built(target.build(scale_task(), make_kernel(COPY)))
    second = built(CppTarget(cache=BuildCache(tmp_path / "builds")).build(scale_task(), make_kernel(COPY)))
    assert (first.cached, second.cached) == (False, True)
    assert (first.path, first.descriptor, first.code_digest, first.build_ms) == (
        second.path,
        second.descriptor,
        second.code_digest,
        second.build_ms,
    )


def test_flags_params_and_constants_make_another_build(target: CppTarget) -> None:
    front = 'params: {K: [1, 2]}\nflags: {MATH: ["", "-ffast-math"]}\n'
    kernel = make_kernel(kernel_text("y[i] = x[i] * K * H_SCALE;", front=front))
    variants = [
        (kernel, 1.0),
        (kernel.model_copy(update={"params": {"K": 2}}), 1.0),
        (kernel.model_copy(update={"flags": {"MATH": "-ffast-math"}}), 1.0),
        (kernel, 2.0),
    ]
    paths = {built(target.build(scale_task({"H_SCALE": scale}), k)).path for k, scale in variants}
    assert len(paths) == 4


def test_an_error_has_the_line_of_the_file_and_its_path(target: CppTarget) -> None:
    text = kernel_text("y[i] = x[i] + größe;", head="// Größe: die Länge — ñ 漢字")
    kernel = make_kernel(text, path="kernels/mine.cpp")
    failure = failed(target.build(scale_task(), kernel))
    line = next(n for n, line in enumerate(text.splitlines(), 1) if "y[i]" in line)
    error = failure.diagnostics[0]
    assert (error.file, error.line, error.severity) == ("kernels/mine.cpp", line, "error")
    assert f":{line}: " in failure.reason
    assert not failure.environment
    assert failed(target.build(scale_task(), kernel)) == failure, "remembered"


def test_the_locale_of_the_user_changes_nothing(target: CppTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LANG", "LANGUAGE", "LC_ALL", "LC_MESSAGES"):
        monkeypatch.setenv(name, "de_DE.UTF-8")
    failure = failed(target.build(scale_task(), make_kernel(kernel_text("y[i] = missing;"))))
    assert "missing" in failure.diagnostics[0].message
    assert failure.diagnostics[0].severity == "error"


def test_a_wrong_prototype_is_said_before_the_compiler_is_asked(target: CppTarget) -> None:
    text = COPY.replace("float* __restrict y, ", "")
    failure = failed(target.build(scale_task(), make_kernel(text)))
    assert "must have 3 parameters and has 2" in failure.reason


@pytest.mark.parametrize(
    "change", [('extern "C" int', "int"), ('extern "C" int', 'extern "C" __attribute__((visibility("hidden"))) int')]
)
def test_a_library_that_exports_no_launch_is_refused_with_the_prototype(
    change: tuple[str, str], target: CppTarget
) -> None:
    failure = failed(target.build(scale_task(), make_kernel(COPY.replace(*change))))
    assert 'expected a definition of `extern "C" int launch(const float* x, float* y, int64_t n)`' in failure.reason


def test_a_symbol_that_is_defined_nowhere_fails_the_build_not_the_run(target: CppTarget) -> None:
    kernel = make_kernel(kernel_text("y[i] = helper(x[i]);", head='extern "C" float helper(float);'))
    assert failed(target.build(scale_task(), kernel)).reason == "undefined symbol helper"


@pytest.mark.parametrize(
    "front",
    ['flags: {A: ["-fplugin=x.so"]}\n', "params: {K: [1]}\nconstraints: ['K > 1']\n"],
)
def test_a_kernel_that_breaks_a_rule_is_refused(front: str, target: CppTarget) -> None:
    with pytest.raises(KernelError):
        target.build(scale_task(), make_kernel(kernel_text("y[i] = x[i];", front=front)))


@pytest.mark.parametrize("change", [("function", "device"), ("function", "function\nlang: opencl")])
def test_other_contracts_and_languages_are_refused(change: tuple[str, str], target: CppTarget) -> None:
    with pytest.raises(KernelError, match="expected lang cpp with contract function"):
        target.build(scale_task(), make_kernel(COPY.replace(*change)))


def test_fast_math_does_not_flush_denormals_of_the_loading_process(target: CppTarget) -> None:
    kernel = make_kernel(kernel_text("y[i] = x[i] * 0.5f;", front='flags: {M: ["-ffast-math"]}\n'))
    path = built(target.build(scale_task(), kernel)).path
    script = f"import ctypes; ctypes.CDLL({str(path)!r}); print(5e-324 * 1.0 > 0.0, 2.3e-308 / 4 > 0.0)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_a_compile_that_does_not_end_is_ended_and_not_remembered(tmp_path: Path) -> None:
    kernel = make_kernel(kernel_text("y[i] = x[i] + Deep<400, 0>::value;", head=ENDLESS))
    target = CppTarget(cache=BuildCache(tmp_path))
    failure = failed(target.build(scale_task(), kernel, timeout_s=0.5))
    assert failure.reason == "the compiler was ended at its limit of 0.5 s"
    assert not failure.environment
    assert list(tmp_path.glob("??/*")) == []


def test_builds_wait_for_a_timing_in_every_stage(tmp_path: Path) -> None:
    gate = BuildGate()
    target = CppTarget(cache=BuildCache(tmp_path), gate=gate)
    target.toolchain()
    outcomes: list[Artefact | BuildFailure] = []
    with gate.timing():
        thread = threading.Thread(target=lambda: outcomes.append(target.build(scale_task(), make_kernel(COPY))))
        thread.start()
        thread.join(0.3)
        assert outcomes == []
    thread.join(60)
    assert isinstance(outcomes[0], Artefact)


def test_a_build_that_is_stopped_is_not_tried_again(tmp_path: Path) -> None:
    gate = BuildGate()
    target = CppTarget(cache=BuildCache(tmp_path), gate=gate)
    target.toolchain()
    outcomes: list[Artefact | BuildFailure] = []
    kernel = make_kernel(kernel_text("y[i] = x[i] + Deep<400, 0>::value;", head=ENDLESS))
    thread = threading.Thread(target=lambda: outcomes.append(target.build(scale_task(), kernel)))
    thread.start()
    while thread.is_alive():  # The compiler may not have started yet.
        gate.kill_running()
        thread.join(0.05)
    failure = failed(outcomes[0])
    assert (failure.reason, failure.environment) == ("the build was stopped", True)


def test_many_threads_build_at_once(target: CppTarget) -> None:
    outcomes: dict[int, Artefact | BuildFailure] = {}

    def build(number: int) -> None:
        kernel = make_kernel(kernel_text(f"y[i] = x[i] + {number % 3}.0f;"))
        outcomes[number] = target.build(scale_task(), kernel)

    threads = [threading.Thread(target=build, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, outcome in outcomes.items():
        assert run(built(outcome), [1.0]) == [1.0 + number % 3]
    assert len({built(outcome).path for outcome in outcomes.values()}) == 3


def test_an_unwritable_cache_is_the_environments_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentLackError, match="build cache"):
        CppTarget(cache=BuildCache(tmp_path / "file")).build(scale_task(), make_kernel(COPY))


def test_the_probe_builds_and_runs_a_kernel() -> None:
    probe = CppTarget().probe()
    assert probe.usable
    assert probe.problem == probe.mend == ""
    assert probe.versions.keys() == {"compiler", "kernelworks", "python"}
    assert f"{len(os.sched_getaffinity(0))} cores" in probe.device or "cores" in probe.device
