"""How busy the machine is with other work while a timing runs."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_BUSY = ("user", "nice", "system", "irq", "softirq")
_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


@dataclass(frozen=True)
class Load:
    """Average over a span of time, in cores."""

    foreign_cores: float
    """Used by processes that this one did not start."""
    steal_cores: float
    """Taken by the host of a virtual machine."""


class LoadWatch:
    """Measures from its creation; Linux counts in ticks of 10 ms, so spans below a tenth of a second say little."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._start = _snapshot()

    def load(self) -> Load:
        """The load so far."""
        ticks = (time.monotonic() - self._start_s) * os.sysconf("SC_CLK_TCK")
        busy, steal, own = (now - then for now, then in zip(_snapshot(), self._start, strict=True))
        if ticks <= 0:
            return Load(0.0, 0.0)
        return Load(max(0.0, (busy - own) / ticks), max(0.0, steal / ticks))


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
