"""One run of a compiler: limits on time, memory and output, whatever the source makes it do."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernelworks.targets.gate import BuildGate

POLL_S = 0.05
OUTPUT_CAP_BYTES = 256 << 10

# The limits of the shell hold even if this process is killed and can watch no longer: processor seconds of a process,
# the size of a file (in blocks of 512 bytes) and core files. A wait for the wall clock always ends sooner.
_LIMITED = ("/bin/sh", "-c", 'ulimit -c 0; ulimit -t "$1"; ulimit -f "$2"; shift 2; exec "$@"', "sh")
_SIGNALS_IN_OUTPUT = ("Killed signal terminated program", "unable to execute command: Killed")


Outcome = Literal["exited", "killed", "stopped", "out_of_time", "out_of_memory"]


@dataclass(frozen=True)
class Limits:
    """What one compiler process may use. ``time_s`` leaves out pauses for timings."""

    time_s: float = 60.0
    memory_bytes: int = 4 << 30
    """Resident memory of the compiler and its children."""
    file_bytes: int = 512 << 20
    """Size of any file that it writes."""


@dataclass(frozen=True)
class Finished:
    """How a compiler ended."""

    outcome: Outcome
    """``killed``: by a signal that was not ours, as the kernel does when the host's memory is exhausted.
    ``stopped``: by ``BuildGate.kill_running``.
    """
    returncode: int
    output: str
    """Decoded as UTF-8 with replacement; what is beyond the cap is dropped and said."""

    @property
    def ok(self) -> bool:
        """Whether the compiler ended by itself and reported success."""
        return self.outcome == "exited" and self.returncode == 0


def run_compiler(
    gate: BuildGate, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], limits: Limits, alone: bool = False
) -> Finished:
    """Run a compiler under limits; its whole process group is gone when this returns.

    Args:
        gate: admits the process and pauses it during timings.
        argv: the command, its first word an absolute path.
        cwd: working folder.
        env: the whole environment.
        limits: beyond them the group is killed.
        alone: run while no other compiler does.
    """
    limited = [*_LIMITED, str(int(4 * limits.time_s) + 1), str(limits.file_bytes // 512), *argv]
    with gate.process(limited, cwd=cwd, env=env, alone=alone) as child:
        return _watch(gate, child, limits)


def _watch(gate: BuildGate, child: subprocess.Popen[bytes], limits: Limits) -> Finished:
    assert child.stdout is not None
    pipe = child.stdout.fileno()
    os.set_blocking(pipe, False)
    output = _Output()
    deadline_s = gate.clock_s() + limits.time_s
    outcome: Outcome = "exited"
    pause_s = 0.001
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        is_open = True
        while (status := _exit_status(child.pid)) is None:
            if is_open:
                if selector.select(POLL_S):
                    is_open = output.drain(pipe)
            else:  # The pipe is closed, the end is near: look often at first.
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, POLL_S)
            if gate.clock_s() > deadline_s:
                outcome = "out_of_time"
            elif _resident_bytes(child.pid) > limits.memory_bytes:
                outcome = "out_of_memory"
            if outcome != "exited":
                return Finished(outcome, -signal.SIGKILL, output.text())
        if is_open:
            output.drain(pipe)
    text = output.text()
    if status == -signal.SIGKILL or (status != 0 and any(words in text for words in _SIGNALS_IN_OUTPUT)):
        outcome = "stopped" if gate.was_ended(child.pid) else "killed"
    return Finished(outcome, status, text)


class _Output:
    """The first bytes of a stream, and a count of the rest."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._dropped_bytes = 0

    def drain(self, pipe: int) -> bool:
        """Read what is there; False at the end of the stream."""
        while True:
            try:
                data = os.read(pipe, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            room = OUTPUT_CAP_BYTES - len(self._kept)
            self._kept += data[:room]
            self._dropped_bytes += max(0, len(data) - room)

    def text(self) -> str:
        text = self._kept.decode("utf-8", errors="replace")
        return f"{text}\n[{self._dropped_bytes} more bytes dropped]\n" if self._dropped_bytes else text


def _exit_status(pid: int) -> int | None:
    """Return code as ``subprocess`` counts it, None while the process runs; the process is not reaped."""
    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def _resident_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants."""
    total = 0
    waiting = [pid]
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    while waiting:
        folder = Path("/proc") / str(waiting.pop())
        try:
            total += int((folder / "statm").read_bytes().split()[1]) * page_bytes
            waiting += [int(word) for word in (folder / "task" / folder.name / "children").read_bytes().split()]
        except OSError:  # It ended meanwhile.
            continue
    return total
