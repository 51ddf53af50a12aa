from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kernelworks.errors import EnvironmentLackError
from kernelworks.targets.bandwidth import MAX_ROUNDS, Measured, ProbeLibraries, measured_rates, run_child
from kernelworks.targets.cpp import CppTarget
from kernelworks.targets.gate import BuildGate, process_gate
from kernelworks.targets.hardware_cpu import describe_cpu

NO_LIBRARY = Path("/no/such/library.so")


def kept(home: Path) -> Path:
    (path,) = (home / "cache" / "hardware").glob("*.json")
    return path


def no_probes(target: CppTarget) -> ProbeLibraries:
    """Those of the target, with libraries that are not there."""
    return ProbeLibraries(bandwidth=NO_LIBRARY, peak=NO_LIBRARY, key=target.probe_key())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELWORKS_HOME", str(tmp_path))
    return tmp_path


def test_rates_of_this_machine_are_measured_once_and_kept(home: Path) -> None:
    target = CppTarget()
    hardware = target.hardware()
    levels = [b.level for b in hardware.bandwidths]
    assert levels[0] == "memory"
    assert len(set(levels)) == len(levels)
    for bandwidth in hardware.bandwidths:
        rates = (bandwidth.read_gbs, bandwidth.copy_gbs, bandwidth.triad_gbs, bandwidth.fill_gbs)
        assert bandwidth.best_gbs == max(rates)
        assert min(rates) > 0.1
        assert bandwidth.best_gbs < 1e5
    assert {"float32", "float64"} <= {p.kind for p in hardware.peaks}
    for peak in hardware.peaks:
        assert 0.01 < peak.fused_gops <= peak.mixed_gops < 1e7
    measured = Measured.model_validate_json(kept(home).read_bytes())
    assert (measured.bandwidths, measured.peaks) == (hardware.bandwidths, hardware.peaks)

    # A final record is read back without running anything, whoever asks.
    kept(home).write_text(measured.model_copy(update={"calm": True}).model_dump_json())
    assert measured_rates(describe_cpu(), no_probes(target), BuildGate()).bandwidths == hardware.bandwidths

    # A record from a busy time is measured again, and rates only rise.
    raised = tuple(b.model_copy(update={"read_gbs": 1e6}) for b in measured.bandwidths)
    busy = Measured(bandwidths=raised, peaks=measured.peaks, rounds=1, calm=False)
    kept(home).write_text(busy.model_dump_json())
    again = CppTarget().hardware().bandwidths
    assert {b.read_gbs for b in again} == {1e6}
    stored = Measured.model_validate_json(kept(home).read_bytes())
    assert stored.rounds == 2
    assert Measured(bandwidths=raised, rounds=MAX_ROUNDS, calm=False).final


def test_a_rate_that_is_too_low_rises_when_it_is_asked_for_again(home: Path) -> None:
    target = CppTarget()
    low = tuple(
        b.model_copy(update={"read_gbs": 0.01, "copy_gbs": 0.01, "triad_gbs": 0.01, "fill_gbs": 0.01})
        for b in target.hardware().bandwidths
    )
    measured = Measured.model_validate_json(kept(home).read_bytes())
    kept(home).write_text(measured.model_copy(update={"bandwidths": low, "calm": True}).model_dump_json())
    fresh = CppTarget()
    assert {b.best_gbs for b in fresh.hardware().bandwidths} == {0.01}
    with process_gate().timing():  # as in the middle of an evaluation: nothing is built, and nothing waits for ever
        raised = fresh.measure_again()
    assert min(b.best_gbs for b in raised.bandwidths) > 0.1
    assert fresh.hardware() == raised
    assert CppTarget().hardware().bandwidths == raised.bandwidths


def test_other_cores_compilers_and_processors_have_records_of_their_own(home: Path) -> None:
    target = CppTarget()
    hardware = target.hardware()
    path = kept(home)
    final = Measured.model_validate_json(path.read_bytes()).model_copy(update={"calm": True})
    path.write_text(final.model_dump_json())
    probes, gate = no_probes(target), BuildGate()
    assert measured_rates(describe_cpu(), probes, gate).bandwidths == hardware.bandwidths
    for other, with_probes in (
        (describe_cpu().model_copy(update={"name": "another"}), probes),
        (describe_cpu().model_copy(update={"cores": 77}), probes),
        (describe_cpu(), probes.model_copy(update={"key": "another compiler"})),
    ):
        with pytest.raises(EnvironmentLackError, match=r"no/such"):
            measured_rates(other, with_probes, gate)
    if len(os.sched_getaffinity(0)) > 1:
        allowed = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, {min(allowed)})
            with pytest.raises(EnvironmentLackError, match=r"no/such"):
                measured_rates(hardware, probes, gate)
        finally:
            os.sched_setaffinity(0, allowed)


def test_a_child_that_fails_is_said() -> None:
    with pytest.raises(EnvironmentLackError, match=r"library\.so"):
        run_child(["kernel", str(NO_LIBRARY)], 1, 30.0)


def test_a_child_that_hangs_is_ended(tmp_path: Path) -> None:
    from kernelworks.targets.compile import LIBRARY_NAME, Compilation, compile_shared

    toolchain = CppTarget().toolchain()
    text = 'extern "C" int launch() { for (volatile int i = 0;; ++i) {} }\n'
    assert compile_shared(toolchain, BuildGate(), Compilation(text, toolchain.base_flags), tmp_path) is None
    with pytest.raises(EnvironmentLackError, match=r"within 0\.5 s"):
        run_child(["kernel", str(tmp_path / LIBRARY_NAME)], 1, 0.5)


def test_the_child_says_what_the_kernel_got_wrong(tmp_path: Path) -> None:
    from kernelworks.targets.compile import LIBRARY_NAME, Compilation, compile_shared

    toolchain = CppTarget().toolchain()
    text = 'extern "C" int launch(const float* x, float* y, long n) { y[1] = 3; return 7; }\n'
    assert compile_shared(toolchain, BuildGate(), Compilation(text, toolchain.base_flags), tmp_path) is None
    answer = json.loads(run_child(["kernel", str(tmp_path / LIBRARY_NAME)], 1, 30.0))
    assert answer == {"status": 7, "wrong": 4098}
