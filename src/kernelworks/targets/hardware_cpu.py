"""The hardware record of the local processor: what the system tells, and rates that are measured once.

Sources: ``sched_getaffinity`` and the CPU quota of the control groups for cores, ``/proc/cpuinfo`` for name and vector
features, ``/sys/devices/system/cpu`` for caches, ``/proc/meminfo`` and control groups for memory.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from kernelworks.kernel.hardware import Hardware

MIB = 1 << 20
LARGEST_WORKING_SET_BYTES = 512 * MIB
_VECTOR_FEATURE = re.compile(r"(sse|ssse|avx|amx|fma$|f16c|vnni|bmi|asimd|sve|neon|fphp|bf16|i8mm|atomics)")
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
_SIZE = re.compile(r"(\d+)([KMG]?)\Z")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def describe_cpu(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> Hardware:
    """The record without measured rates; what cannot be read is 0 or empty.

    Args:
        proc: where procfs is mounted.
        sys: where sysfs is mounted.
    """
    allowed = sorted(os.sched_getaffinity(0))
    model, flags = _cpuinfo(proc)
    l1_bytes, l2_bytes, l3 = _cache_bytes(allowed, sys)
    return Hardware(
        name=model,
        kind="cpu",
        cores=_cores(len(allowed), proc, sys),
        simd_bits=_simd_bits(flags),
        features=_features(flags),
        l1_bytes=l1_bytes,
        l2_bytes=l2_bytes,
        l3_bytes=sum(l3.values()),
        l3_count=max(1, len(l3)),
        memory_bytes=_memory_bytes(proc, sys),
    )


def instruction_set_digest(proc: Path = Path("/proc")) -> str:
    """Changes when ``-march=native`` may mean something else."""
    model, flags = _cpuinfo(proc)
    return hashlib.sha256(repr((model, sorted(flags))).encode()).hexdigest()[:16]


def working_sets(hardware: Hardware) -> dict[str, int]:
    """Bytes to measure with by level: at least four times the last cache (at most 512 MiB), half of L3, L2 and L1.

    ``l1_bytes`` and ``l2_bytes`` are of one core, ``l3_bytes`` of all that the allowed cores reach. L3 is left out
    where its half does not exceed all L2 caches twice, since those would answer for it.
    """
    private_bytes = hardware.l2_bytes * hardware.cores
    last_bytes = max(hardware.l3_bytes, private_bytes, hardware.l1_bytes * hardware.cores)
    memory_bytes = min(max(4 * last_bytes, 64 * MIB), LARGEST_WORKING_SET_BYTES)
    if hardware.memory_bytes:
        memory_bytes = min(memory_bytes, hardware.memory_bytes // 8)
    found = {"memory": memory_bytes}
    if hardware.l3_bytes // 2 > 2 * private_bytes:
        found["l3"] = hardware.l3_bytes // 2
    if hardware.l2_bytes:
        found["l2"] = private_bytes // 2
    if hardware.l1_bytes:
        found["l1"] = hardware.l1_bytes * hardware.cores // 2
    return found


def available_memory_bytes(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> int | None:
    """What a process can still take before something is ended for it; None where the system does not tell.

    The least of what the system has available (caches can be dropped, swap is not counted) and what each control group
    above this process has left; pages of files count as left, since they can be dropped as well.
    """
    available = re.search(r"^MemAvailable:\s*(\d+) kB", _read(proc / "meminfo"), re.MULTILINE)
    left = [int(available[1]) * 1024] if available else []
    for folder in _control_groups("memory", proc, sys):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            granted, taken = _read(folder / limit).strip(), _read(folder / used).strip()
            if granted.isdigit() and taken.isdigit():
                left.append(int(granted) - int(taken) + _file_pages_bytes(folder))
    return max(0, min(left)) if left else None


def memory_kills(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> int:
    """How many processes the system ended for want of memory, by all counters that can be read."""
    texts = [_read(proc / "vmstat"), *(_read(f / "memory.events") for f in _control_groups("memory", proc, sys))]
    found = (re.search(r"^oom_kill (\d+)$", text, re.MULTILINE) for text in texts)
    return sum(int(match[1]) for match in found if match)


def _file_pages_bytes(folder: Path) -> int:
    """Pages of files that a control group holds and that can be dropped at once."""
    inactive = re.search(r"^(?:total_)?inactive_file (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
    return int(inactive[1]) if inactive else 0


def _cpuinfo(proc: Path) -> tuple[str, frozenset[str]]:
    fields: dict[str, str] = {}
    for line in _read(proc / "cpuinfo").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    name = fields.get("model name") or fields.get("Model") or f"{os.uname().machine} processor"
    return name, frozenset((fields.get("flags") or fields.get("Features") or "").split())


def _features(flags: frozenset[str]) -> tuple[str, ...]:
    """Vector features as the kernel spells them, and ``avx512`` for the set that every AVX-512 server has."""
    found = {flag for flag in flags if _VECTOR_FEATURE.match(flag)}
    if flags >= _AVX512:
        found.add("avx512")
    return tuple(sorted(found))


def _simd_bits(flags: frozenset[str]) -> int:
    if "avx512f" in flags:
        return 512
    if "avx" in flags:
        return 256
    return 128 if flags & {"sse2", "asimd", "neon"} else 64


def _cores(allowed: int, proc: Path, sys: Path) -> int:
    quotas = [_quota(folder) for folder in _control_groups("cpu", proc, sys)]
    return max(1, min([allowed, *(math.ceil(q) for q in quotas if q is not None)]))


def _quota(folder: Path) -> float | None:
    """Processors that a control group grants; None without a limit."""
    words = _read(folder / "cpu.max").split() or [
        _read(folder / "cpu.cfs_quota_us").strip(),
        _read(folder / "cpu.cfs_period_us").strip(),
    ]
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        return int(words[0]) / int(words[1])
    return None


def _memory_bytes(proc: Path, sys: Path) -> int:
    total = re.search(r"^MemTotal:\s*(\d+) kB", _read(proc / "meminfo"), re.MULTILINE)
    limits = [int(total[1]) * 1024] if total else []
    for folder in _control_groups("memory", proc, sys):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name).strip()
            if text.isdigit():
                limits.append(int(text))
    return min(limits, default=0)


def _control_groups(controller: str, proc: Path, sys: Path) -> Iterator[Path]:
    """Folders of this process's group and all groups above it, for one controller, in both versions."""
    root = sys / "fs" / "cgroup"
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / controllers if controllers else root
        folder = top / path.lstrip("/")
        yield from (folder, *(p for p in folder.parents if p == top or top in p.parents))


def _cache_bytes(allowed: list[int], sys: Path) -> tuple[int, int, dict[str, int]]:
    """L1 data and L2 of one core, and the L3 caches that the allowed cores use, by the cores that share one."""
    l1_bytes = l2_bytes = 0
    l3: dict[str, int] = {}
    for cpu in allowed:
        for index in (sys / "devices" / "system" / "cpu" / f"cpu{cpu}" / "cache").glob("index*"):
            level, kind = _read(index / "level").strip(), _read(index / "type").strip()
            size = _SIZE.match(_read(index / "size").strip())
            if size is None or kind == "Instruction":
                continue
            size_bytes = int(size[1]) * _UNITS[size[2]]
            if level == "1":
                l1_bytes = size_bytes
            elif level == "2":
                l2_bytes = size_bytes
            elif level == "3":
                l3[_read(index / "shared_cpu_list").strip()] = size_bytes
    return l1_bytes, l2_bytes, l3


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
