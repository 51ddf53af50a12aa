from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.candidates import Bench, bench, on_x86

from kernelworks.evaluate.faults import Fault, Region, fault_shim, locate
from kernelworks.evaluate.supervision import Cause


def test_the_fault_shim_builds_here() -> None:
    assert fault_shim() is not None


@pytest.mark.parametrize(
    ("deed", "buffer", "side", "distance"),
    [
        ("past_end", "y", "after", 0),
        ("stride_overrun", "y", "after", 4 << 14),
        ("omp_past_end", "y", "after", 0),
        ("scratch_past_end", "scratch", "after", 0),
        ("read_past_end", "x", "after", 0),
        ("null", None, None, 0),
    ],
)
def test_faults_are_told_by_tensor(running: Bench, deed: str, buffer: str, side: str, distance: int) -> None:
    ending = running.ended(deed)
    assert (ending.cause, ending.signal) == (Cause.SIGNALLED, signal.SIGSEGV)
    assert ending.fault is not None
    assert (ending.fault.buffer, ending.fault.side, ending.fault.distance_bytes) == (buffer, side, distance)


@on_x86
def test_faults_are_told_in_words(library: Path) -> None:
    words = {
        "past_end": "killed by SIGSEGV: write 0 bytes past the end of y",
        "read_past_end": "killed by SIGSEGV: read 0 bytes past the end of x",
        "null": "killed by SIGSEGV: write at address 0x0 (null pointer)",
    }
    for deed, expected in words.items():
        with bench(library) as running:
            assert str(running.ended(deed)) == expected


@on_x86
@pytest.mark.parametrize("deed", ["beyond_the_address_space", "misaligned_vector"])
def test_a_fault_without_an_address_is_not_taken_for_a_null_pointer(running: Bench, deed: str) -> None:
    ending = running.ended(deed)
    assert (ending.cause, ending.signal) == (Cause.SIGNALLED, signal.SIGSEGV)
    assert str(ending).endswith("SIGSEGV: a misaligned vector load or store, or a pointer beyond the address space")


def test_small_overruns_hit_the_canary(library: Path) -> None:
    with bench(library, count=1001) as running:
        assert running.do("past_end") == 0
        damage = running.y.damage()
        assert damage is not None
        assert (damage.side, damage.distance_bytes) == ("after", 0)
        running.y.reset_canaries()
        assert running.do("before_start") == 0
        damage = running.y.damage()
        assert damage is not None
        assert damage.side == "before"
        assert 1 <= damage.distance_bytes <= 4
        assert running.x.damage() is None


_REGIONS = [Region("a", 1 << 20, 100, 4096), Region("b", (1 << 20) + 8192, 50, 4096)]


@given(st.integers(0, 1 << 21))
def test_locate_takes_the_nearest_region_within_reach(address: int) -> None:
    fault = locate(address, "write", _REGIONS)
    gaps = {r.name: max(r.start - address, address - (r.start + r.size_bytes) + 1, 0) for r in _REGIONS}
    if min(gaps.values()) > 4097:
        assert fault == Fault(address, "write")
    if min(gaps.values()) <= 4096:
        assert fault.buffer in {name for name, gap in gaps.items() if abs(gap - min(gaps.values())) <= 1}
        assert (fault.side is None) == (min(gaps.values()) == 0)


def test_without_a_compiler_a_crash_is_told_with_less_detail(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/compiler")
    fault_shim.cache_clear()
    try:
        with bench(library) as running:
            ending = running.ended("null")
    finally:
        fault_shim.cache_clear()
    assert str(ending) == "killed by SIGSEGV"
    assert ending.fault is None
