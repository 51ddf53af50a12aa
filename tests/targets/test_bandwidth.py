from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelworks.errors import EnvironmentLackError
from kernelworks.targets.bandwidth import MAX_ROUNDS, Measured, measured_bandwidths, run_child
from kernelworks.targets.cpp import CppTarget
from kernelworks.targets.gate import BuildGate
from kernelworks.targets.hardware_cpu import describe_cpu

NO_LIBRARY = Path("/no/such/library.so")


def kept(home: Path) -> Path:
    (path,) = (home / "cache" / "hardware").glob("*.json")
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELWORKS_HOME", str(tmp_path))
    return tmp_path


def test_rates_of_this_machine_are_measured_once_and_kept(home: Path) -> None:
    hardware = CppTarget().hardware()
    levels = [b.level for b in hardware.bandwidths]
    assert levels[0] == "memory"
    assert len(set(levels)) == len(levels)
    for bandwidth in hardware.bandwidths:
        assert bandwidth.best_gbs == max(bandwidth.read_gbs, bandwidth.copy_gbs, bandwidth.triad_gbs)
        assert min(bandwidth.read_gbs, bandwidth.copy_gbs, bandwidth.triad_gbs) > 0.1
        assert bandwidth.best_gbs < 1e5
    measured = Measured.model_validate_json(kept(home).read_bytes())
    assert measured.bandwidths == hardware.bandwidths

    # A final record is read back without running anything.
    kept(home).write_text(measured.model_copy(update={"calm": True}).model_dump_json())
    assert measured_bandwidths(describe_cpu(), NO_LIBRARY, BuildGate()) == hardware.bandwidths

    # A record from a busy time is measured again, and rates only rise.
    raised = tuple(b.model_copy(update={"read_gbs": 1e6}) for b in measured.bandwidths)
    busy = Measured(bandwidths=raised, rounds=1, calm=False)
    kept(home).write_text(busy.model_dump_json())
    again = CppTarget().hardware().bandwidths
    assert {b.read_gbs for b in again} == {1e6}
    stored = Measured.model_validate_json(kept(home).read_bytes())
    assert stored.rounds == 2
    assert Measured(bandwidths=raised, rounds=MAX_ROUNDS, calm=False).final


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
