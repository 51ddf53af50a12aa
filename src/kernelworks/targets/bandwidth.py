"""Measured rates of the memory hierarchy, kept on disk per machine (``bandwidth.cpp`` is the program)."""

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
from typing import TypedDict, cast

from pydantic import ValidationError

from kernelworks.data import Frozen
from kernelworks.errors import EnvironmentLackError
from kernelworks.home import home
from kernelworks.kernel.hardware import Bandwidth, Hardware
from kernelworks.targets.gate import BuildGate
from kernelworks.targets.hardware_cpu import working_sets

SECONDS_PER_PATTERN = 0.05
CALM_CORES = 0.2
"""Foreign load, in cores, up to which a measurement counts as final."""
MAX_ROUNDS = 5
_TIMEOUT_S = 60.0


class Measured(Frozen):
    """What is kept. A busy machine shows too little, so later rounds may raise rates, never lower them."""

    bandwidths: tuple[Bandwidth, ...]
    rounds: int
    calm: bool

    @property
    def final(self) -> bool:
        """Whether no further round is worth its second."""
        return self.calm or self.rounds >= MAX_ROUNDS


class _Answer(TypedDict):
    status: int
    rates: list[list[float]]
    processor_s: float


def bandwidth_source() -> str:
    """The probe's C++ text."""
    return files("kernelworks.targets").joinpath("bandwidth.cpp").read_text(encoding="utf-8")


def measured_bandwidths(hardware: Hardware, library: Path, gate: BuildGate) -> tuple[Bandwidth, ...]:
    """Rates at memory, L3 and L2, GB/s (1e9 bytes read plus bytes written), all cores, threads that wait passively.

    A first call takes about a second, in a process of its own while builds pause. The result is kept under
    ``KERNELWORKS_HOME`` for the same processor, cores and caches. Rates taken while others kept the machine busy are
    measured again by later processes, up to ``MAX_ROUNDS`` times.

    Raises:
        EnvironmentLackError: the probe does not run here.
    """
    digest = hashlib.sha256(
        f"{hardware.model_dump_json(exclude={'memory_bytes'})}{bandwidth_source()}".encode()
    ).hexdigest()[:24]
    path = home() / "cache" / "hardware" / f"{digest}.json"
    known = _load(path)
    if known is not None and known.final:
        return known.bandwidths
    with gate.timing():
        fresh = _measure(hardware, library)
    merged = fresh if known is None else _merge(known, fresh)
    _save(path, merged)
    return merged.bandwidths


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


def _measure(hardware: Hardware, library: Path) -> Measured:
    sets = working_sets(hardware)
    busy_s, start_s = _busy_s(), time.monotonic()
    words = [str(library), str(hardware.cores), str(SECONDS_PER_PATTERN), *map(str, sets.values())]
    answer = cast(_Answer, json.loads(run_child(["bandwidth", *words], hardware.cores, _TIMEOUT_S)))
    if answer["status"]:
        raise EnvironmentLackError(f"the bandwidth probe could not map {max(sets.values())} bytes of memory")
    foreign_cores = (_busy_s() - busy_s - answer["processor_s"]) / (time.monotonic() - start_s)
    bandwidths = tuple(
        Bandwidth(
            level=level,
            working_set_bytes=size_bytes,
            read_gbs=read * 1e-9,
            copy_gbs=max(copy, streaming_copy) * 1e-9,
            triad_gbs=max(triad, streaming_triad) * 1e-9,
        )
        for (level, size_bytes), (read, copy, streaming_copy, triad, streaming_triad) in zip(
            sets.items(), answer["rates"], strict=True
        )
    )
    return Measured(bandwidths=bandwidths, rounds=1, calm=foreign_cores <= CALM_CORES)


def _merge(known: Measured, fresh: Measured) -> Measured:
    bandwidths = tuple(
        Bandwidth(
            level=new.level,
            working_set_bytes=new.working_set_bytes,
            read_gbs=max(old.read_gbs, new.read_gbs),
            copy_gbs=max(old.copy_gbs, new.copy_gbs),
            triad_gbs=max(old.triad_gbs, new.triad_gbs),
        )
        for old, new in zip(known.bandwidths, fresh.bandwidths, strict=True)
    )
    return Measured(bandwidths=bandwidths, rounds=known.rounds + 1, calm=fresh.calm)


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
