"""Measured rates of the memory hierarchy and of arithmetic, kept on disk per machine.

``bandwidth.cpp`` and ``peak.cpp`` are the programs. Every disturbance makes a rate too low, and a rate that is too low
would call an honest kernel dishonest. So the best of many samples counts, rates taken on a busy machine are taken again
by later processes, and ``measured_rates(..., again=True)`` looks once more before anybody is accused. Rates only rise.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path
from typing import Literal, TypedDict, cast

from pydantic import ValidationError

from kernelworks.data import Frozen
from kernelworks.errors import EnvironmentLackError
from kernelworks.home import home
from kernelworks.kernel.hardware import Bandwidth, Hardware, Peak
from kernelworks.targets.gate import BuildGate
from kernelworks.targets.hardware_cpu import working_sets

PROBE_ROUNDS = 4
"""Turns that every pattern gets; the even ones with half of the cores."""
SECONDS_PER_TURN = 0.015
CALM_CORES = 0.2
"""Foreign load, in cores, up to which a measurement counts as final."""
MAX_ROUNDS = 5
_TIMEOUT_S = 60.0


class Measured(Frozen):
    """What is kept. A busy machine shows too little, so later rounds may raise rates, never lower them."""

    bandwidths: tuple[Bandwidth, ...]
    peaks: tuple[Peak, ...] = ()
    rounds: int
    calm: bool

    @property
    def final(self) -> bool:
        """Whether no further round is worth its seconds."""
        return self.calm or self.rounds >= MAX_ROUNDS

    def raised_by(self, fresh: Measured) -> Measured:
        """Both measurements as one: the higher rates."""
        return Measured(
            bandwidths=tuple(old.best_of(new) for old, new in zip(self.bandwidths, fresh.bandwidths, strict=True)),
            peaks=tuple(old.best_of(new) for old, new in zip(self.peaks, fresh.peaks, strict=True)),
            rounds=self.rounds + fresh.rounds,
            calm=self.calm or fresh.calm,
        )


class ProbeLibraries(Frozen):
    """The built probes, and what they were built by and with."""

    bandwidth: Path
    peak: Path
    key: str
    """Identity of compiler, flags and instruction set."""


class _Answer(TypedDict):
    status: int
    rates: list[list[float]]
    processor_s: float


def probe_source(name: Literal["bandwidth", "peak"]) -> str:
    """A probe's C++ text."""
    return files("kernelworks.targets").joinpath(f"{name}.cpp").read_text(encoding="utf-8")


def measured_rates(hardware: Hardware, probes: ProbeLibraries, gate: BuildGate, *, again: bool = False) -> Measured:
    """Bandwidths at memory, L3, L2 and L1, GB/s (1e9 bytes read plus bytes written), and peaks of arithmetic.

    All cores, threads that wait passively. A first call takes about three seconds, in processes of their own while
    builds pause. The result is kept under ``KERNELWORKS_HOME`` for the same processor model, caches, allowed cores,
    compiler and probes. Rates taken while others kept the machine busy are measured again by later processes, up to
    ``MAX_ROUNDS`` times.

    Args:
        hardware: what the system tells; its own rates are ignored.
        probes: the built probes.
        gate: of builds.
        again: measure whatever is known, and raise it.

    Raises:
        EnvironmentLackError: a probe does not run here.
    """
    facts = hardware.model_dump_json(exclude={"memory_bytes", "bandwidths", "peaks"})
    sources = (probe_source("bandwidth"), probe_source("peak"))
    parts = (facts, sorted(os.sched_getaffinity(0)), probes.key, PROBE_ROUNDS, SECONDS_PER_TURN, *sources)
    path = home() / "cache" / "hardware" / f"{hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}.json"
    known = _load(path)
    if known is not None and known.final and not again:
        return known
    with gate.timing():
        fresh = _measure(hardware, probes)
    merged = fresh if known is None else known.raised_by(fresh)
    _save(path, merged)
    return merged


def child_environment(threads: int) -> dict[str, str]:
    """Environment of a child that runs built code: passive waiting, so many threads, nothing private."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "OMP_WAIT_POLICY": "passive",
        "OMP_NUM_THREADS": str(threads),
    }


def run_child(words: list[str], threads: int, timeout_s: float) -> str:
    """Run ``child.py`` with these words and return what it printed.

    Raises:
        EnvironmentLackError: it ended badly or not in time; the message has its last line.
    """
    script = str(files("kernelworks.targets").joinpath("child.py"))
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", script, *words],
            env=child_environment(threads),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentLackError(f"a built probe did not end within {timeout_s:g} s") from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        said = f": {lines[-1]}" if lines else ""
        raise EnvironmentLackError(f"a built probe ended with status {done.returncode}{said}")
    return done.stdout.decode()


def _measure(hardware: Hardware, probes: ProbeLibraries) -> Measured:
    sets = working_sets(hardware)
    busy_s, start_s = _busy_s(), time.monotonic()
    turns = [str(hardware.cores), str(PROBE_ROUNDS), str(SECONDS_PER_TURN)]
    rates = _run("bandwidth", probes.bandwidth, [*turns, *map(str, sets.values())], hardware.cores)
    arithmetic = _run("peaks", probes.peak, turns, hardware.cores)
    if rates["status"]:
        raise EnvironmentLackError(f"the bandwidth probe could not map {max(sets.values())} bytes of memory")
    own_s = rates["processor_s"] + arithmetic["processor_s"]
    foreign_cores = (_busy_s() - busy_s - own_s) / (time.monotonic() - start_s)
    return Measured(
        bandwidths=tuple(
            _bandwidth(level, size, row) for (level, size), row in zip(sets.items(), rates["rates"], strict=True)
        ),
        peaks=_peaks(hardware, arithmetic["rates"][0]),
        rounds=1,
        calm=foreign_cores <= CALM_CORES,
    )


def _run(what: str, library: Path, words: list[str], threads: int) -> _Answer:
    return cast(_Answer, json.loads(run_child([what, str(library), *words], threads, _TIMEOUT_S)))


def _bandwidth(level: str, size_bytes: int, rates: list[float]) -> Bandwidth:
    read, copy, streaming_copy, triad, streaming_triad, fill, streaming_fill = (rate * 1e-9 for rate in rates)
    return Bandwidth(
        level=level,
        working_set_bytes=size_bytes,
        read_gbs=read,
        copy_gbs=max(copy, streaming_copy),
        triad_gbs=max(triad, streaming_triad),
        fill_gbs=max(fill, streaming_fill),
    )


def _peaks(hardware: Hardware, rates: list[float]) -> tuple[Peak, ...]:
    """Those that are the whole truth: where the processor has units that the probe does not drive, nothing is said."""
    single, single_mixed, double, double_mixed, bfloat16, float16, integer = (rate * 1e-9 for rate in rates)
    half = max(bfloat16, float16, single)  # 16-bit numbers may be widened, too
    found = [
        Peak(kind="float32", fused_gops=single, mixed_gops=max(single, single_mixed)),
        Peak(kind="float64", fused_gops=double, mixed_gops=max(double, double_mixed)),
        Peak(kind="half", fused_gops=half, mixed_gops=max(half, single_mixed)),
        Peak(kind="integer", fused_gops=integer, mixed_gops=integer),
    ]
    unknown = {"half", "integer"} if any(f.startswith(_TILES) for f in hardware.features) else set[str]()
    return tuple(p for p in found if p.fused_gops > 0 and p.kind not in unknown)


_TILES = ("amx", "i8mm", "bf16", "fphp", "sme")
"""Beginnings of features (as Linux spells them) of units for 8 and 16 bits that the probe does not drive."""


def _busy_s() -> float:
    """Seconds that the allowed cores spent on anything, other machines on the same host (steal) included."""
    allowed = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
    ticks = 0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        words = line.split()
        if words and words[0] in allowed:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, words[1:9])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def _load(path: Path) -> Measured | None:
    try:
        return Measured.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _save(path: Path, measured: Measured) -> None:
    """Keep the result by one rename; a folder that cannot be written costs a second measurement, no more."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(measured.model_dump_json())
        Path(file.name).replace(path)
    except OSError:
        return
