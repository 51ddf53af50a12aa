from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelworks.kernel.hardware import Hardware
from kernelworks.targets.hardware_cpu import (
    available_memory_bytes,
    describe_cpu,
    instruction_set_digest,
    memory_kills,
    working_sets,
)

CPUINFO = """processor\t: 0
model name\t: Example 9000
flags\t\t: fpu sse sse2 avx avx2 fma avx512f avx512bw avx512cd avx512dq avx512vl hypervisor

processor\t: 1
model name\t: Example 9000
"""
ARM_CPUINFO = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd atomics sve\n"


def write(root: Path, path: str, text: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, Path]:
    """A made-up machine: every allowed processor has caches of its own and half of the last one."""
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    write(proc, "cpuinfo", CPUINFO)
    write(proc, "meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n")
    for cpu in os.sched_getaffinity(0):
        for index, (level, kind, size, shared) in enumerate(
            [
                ("1", "Data", "48K", cpu),
                ("1", "Instruction", "32K", cpu),
                ("2", "Unified", "1M", cpu),
                ("3", "Unified", "32M", 0),
            ]
        ):
            base = f"devices/system/cpu/cpu{cpu}/cache/index{index}"
            for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", str(shared))):
                write(sys, f"{base}/{name}", f"{text}\n")
    return proc, sys


def test_this_machine_is_described() -> None:
    found = describe_cpu()
    assert found.kind == "cpu"
    assert found.name
    assert 1 <= found.cores <= len(os.sched_getaffinity(0))
    assert found.simd_bits in (64, 128, 256, 512)
    assert found.memory_bytes > 1 << 28
    assert describe_cpu() == found


def test_files_of_the_system_become_the_record(machine: tuple[Path, Path]) -> None:
    found = describe_cpu(*machine)
    assert (found.name, found.simd_bits) == ("Example 9000", 512)
    assert {"avx512", "avx2", "fma"} <= set(found.features)
    assert "hypervisor" not in found.features
    assert (found.l1_bytes, found.l2_bytes, found.l3_bytes) == (48 << 10, 1 << 20, 32 << 20)
    assert found.memory_bytes == 16 << 30
    assert found.cores == len(os.sched_getaffinity(0))


def test_another_architecture_and_missing_files(tmp_path: Path) -> None:
    write(tmp_path, "cpuinfo", ARM_CPUINFO)
    found = describe_cpu(tmp_path, tmp_path / "nothing")
    assert os.uname().machine in found.name
    assert found.simd_bits == 128
    assert found.features == ("asimd", "atomics", "sve")
    assert (found.l3_bytes, found.memory_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "50000 100000"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "100000 100000"}, 1),
        (
            "3:cpu,cpuacct:/x\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "90000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
            1,
        ),
        ("3:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, None),
        ("3:cpuset:/x\n", {"cpuset/x/cpu.cfs_quota_us": "10", "cpuset/x/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_quotas_of_control_groups_bound_the_cores(
    group: str, files: dict[str, str], cores: int | None, machine: tuple[Path, Path]
) -> None:
    proc, sys = machine
    write(proc, "self/cgroup", group)
    for name, text in files.items():
        write(sys, f"fs/cgroup/{name}", f"{text}\n")
    assert describe_cpu(proc, sys).cores == (cores or len(os.sched_getaffinity(0)))


def test_control_groups_bound_the_memory(machine: tuple[Path, Path]) -> None:
    proc, sys = machine
    write(proc, "self/cgroup", "4:memory:/job\n0::/\n")
    write(sys, "fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n")
    assert describe_cpu(proc, sys).memory_bytes == 1 << 30


def test_the_instruction_set_has_a_digest_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, "cpuinfo", CPUINFO)
    digest = instruction_set_digest(tmp_path)
    write(tmp_path, "cpuinfo", CPUINFO.replace("cpu MHz", "") + "cpu MHz\t: 1234\n")
    assert instruction_set_digest(tmp_path) == digest
    write(tmp_path, "cpuinfo", CPUINFO.replace(" avx512vl", ""))
    assert instruction_set_digest(tmp_path) != digest


def record(**fields: int) -> Hardware:
    return Hardware(name="x", kind="cpu", cores=2, simd_bits=256, **fields)  # pyright: ignore[reportArgumentType]


def test_working_sets_exceed_the_caches_above_them() -> None:
    sets = working_sets(record(l1_bytes=48 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20, memory_bytes=24 << 30))
    assert sets == {"memory": 128 << 20, "l3": 16 << 20, "l2": 1 << 20, "l1": 48 << 10}


def test_working_sets_have_bounds() -> None:
    assert working_sets(record(l2_bytes=1 << 20, l3_bytes=1 << 30, memory_bytes=1 << 40))["memory"] == 512 << 20
    assert working_sets(record(l2_bytes=1 << 20, memory_bytes=1 << 29))["memory"] == 64 << 20
    assert working_sets(record(l2_bytes=16 << 20, l3_bytes=32 << 20)).keys() == {"memory", "l2"}
    assert working_sets(record()).keys() == {"memory"}


def test_available_memory_is_the_least_that_system_and_groups_leave(machine: tuple[Path, Path]) -> None:
    proc, sys = machine
    assert available_memory_bytes(*machine) is None, "neither says anything"
    write(proc, "meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    assert available_memory_bytes(*machine) == 8 << 30
    write(proc, "self/cgroup", "0::/user/job\n")
    group = "fs/cgroup/user"
    write(sys, f"{group}/memory.max", "max\n")
    write(sys, f"{group}/memory.current", str(1 << 30))
    write(sys, f"{group}/job/memory.max", str(4 << 30))
    write(sys, f"{group}/job/memory.current", str(3 << 30))
    assert available_memory_bytes(*machine) == 1 << 30
    write(sys, f"{group}/job/memory.stat", f"anon 1\ninactive_file {512 << 20}\n")
    assert available_memory_bytes(*machine) == 3 << 29
    write(sys, f"{group}/memory.max", str(1 << 30))
    assert available_memory_bytes(*machine) == 0
    found = available_memory_bytes()
    assert found is not None and 0 < found <= describe_cpu().memory_bytes


def test_processes_ended_for_want_of_memory_are_counted(machine: tuple[Path, Path]) -> None:
    proc, sys = machine
    assert memory_kills(*machine) == 0
    write(proc, "vmstat", "nr_free_pages 5\noom_kill 2\n")
    write(proc, "self/cgroup", "0::/job\n")
    write(sys, "fs/cgroup/job/memory.events", "oom 9\noom_kill 3\noom_group_kill 0\n")
    assert memory_kills(*machine) == 5
