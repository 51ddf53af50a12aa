"""How busy the machine is with other work before and while a timing runs, and waiting for that to end."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from kernelworks.evaluate.settings import OnLoad

LOOK_S = 0.15
"""Of one look. Linux counts in ticks of 10 ms: less would not tell a fifth of a core from a tick."""
_CPU_FOLDER = Path("/sys/devices/system/cpu")
_BUSY = ("user", "nice", "system", "irq", "softirq")
_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


@dataclass(frozen=True)
class Load:
    """Average over a span of time, in cores."""

    foreign_cores: float
    """Used by processes that this one did not start."""
    steal_cores: float
    """Taken by the host of a virtual machine."""
    throttles: int = 0
    """Times that a processor lowered its clock for its heat, where Linux counts them."""


class LoadWatch:
    """Measures from its creation; Linux counts in ticks of 10 ms, so spans below a tenth of a second say little."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._start = _snapshot()
        self._throttles = throttle_count()

    @property
    def seconds(self) -> float:
        """Since its creation."""
        return time.monotonic() - self._start_s

    def load(self) -> Load:
        """The load so far."""
        ticks = (time.monotonic() - self._start_s) * os.sysconf("SC_CLK_TCK")
        busy, steal, own = (now - then for now, then in zip(_snapshot(), self._start, strict=True))
        throttles = throttle_count() - self._throttles
        if ticks <= 0:
            return Load(0.0, 0.0, throttles)
        return Load(max(0.0, (busy - own) / ticks), max(0.0, steal / ticks), throttles)


class BusyError(Exception):
    """Other work uses the machine, and timings are to be refused then."""

    def __init__(self, load: Load) -> None:
        super().__init__(f"other programs use {load.foreign_cores:.2f} cores")
        self.load = load


class Quiet:
    """Waits for other work to end, altogether at most for a budget."""

    def __init__(self, on_load: OnLoad, limit_cores: float, budget_s: float) -> None:
        self._on_load = on_load
        self._limit_cores = limit_cores
        self._budget_s = budget_s
        self.waited_s = 0.0
        """For other work to end."""

    def settle(self, watch: LoadWatch | None = None) -> None:
        """Return when the machine is quiet or the budget is spent.

        Args:
            watch: a look that was taken anyway; if it is long enough and found quiet, no other is needed.

        Raises:
            BusyError: it is busy, and timings are to be refused then.
        """
        if self._on_load == "mark":
            return
        if watch is not None and watch.seconds >= LOOK_S and self.is_quiet(watch.load()):
            return
        while True:
            look = LoadWatch()
            time.sleep(LOOK_S)
            load = look.load()
            if self.is_quiet(load):
                return
            if self._on_load == "refuse":
                raise BusyError(load)
            self.waited_s += look.seconds
            if not self.patient:
                return

    def is_quiet(self, load: Load) -> bool:
        """Whether so much other work may run beside a timing."""
        return load.foreign_cores <= self._limit_cores

    @property
    def patient(self) -> bool:
        """Whether a disturbed timing is to be repeated."""
        return self._on_load == "wait" and self.waited_s < self._budget_s


def throttle_count() -> int:
    """Times that the processors lowered their clocks for their heat so far; 0 where Linux does not say."""
    return sum(map(_number, _CPU_FOLDER.glob("cpu[0-9]*/thermal_throttle/*_throttle_count")))


def _number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _snapshot() -> tuple[int, int, int]:
    """Ticks so far: all busy, stolen, and those of this process with everything below it."""
    words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    counts = dict(zip(_FIELDS, map(int, words), strict=False))
    return sum(counts[name] for name in _BUSY), counts["steal"], _own_ticks()


def own_cpu_s() -> float:
    """CPU time of this process and everything below it; waited-for children count through their parents."""
    return _own_ticks() / os.sysconf("SC_CLK_TCK")


def _own_ticks() -> int:
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it ended meanwhile
        fields = stat[stat.rindex(")") + 2 :].split()
        parents[int(entry.name)] = int(fields[1])
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    own = {os.getpid()}
    grown = True
    while grown:
        below = {pid for pid, parent in parents.items() if parent in own} - own
        own |= below
        grown = bool(below)
    return sum(ticks.get(pid, 0) for pid in own)
