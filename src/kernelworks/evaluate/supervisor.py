"""Between the harness and a candidate: starts it, drains its output, watches its memory, ends all that it started.

Run as a script by ``supervision.py`` with ``python -I -S``: standard library only, and of that only what starts fast
(no pathlib: 4 ms). It is the reaper of every orphan below it (``PR_SET_CHILD_SUBREAPER``), so a candidate's daemons
cannot escape by a double fork or ``setsid``. A candidate that kills its parent kills this process, not the harness;
the kernel then kills the candidate (``PR_SET_PDEATHSIG``), and the harness finds the rest by a tag in their
environment.

When the harness dies, its end of the control socket closes, and everything is ended here. (``PR_SET_PDEATHSIG`` would
not do: it strikes when the *thread* that started this process ends, and it would kill the one process that can find
the others.)

Protocol on the control socket (SOCK_SEQPACKET, descriptor ``argv[1]``): first a configuration with the descriptor of
the candidate's end of the command socket, then::

    {"do": "inspect"}        -> {"event": "state", pid, threads, cpu_ms, processes, memory_bytes}
    {"do": "allow", "bytes"}                                    raise the memory limit
    {"do": "end"}            -> {"event": "ended", ...}         end everything, report, exit

``ended`` also comes unasked: when the candidate has ended by itself or has been ended for its memory.
"""

# ruff: noqa: PTH106, PTH108, PTH110, PTH112, PTH114, PTH118, PTH123, PTH208

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

MESSAGE_BYTES = 1 << 18
NAMES = 32
"""Names of processes and files are listed up to here; counts are exact."""

_TICK_S = 0.05
_TREE_TICKS = 8
_KILL_S = 5.0
_CHUNK_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


class Capture:
    """Head and tail of a stream; what lies between is counted and dropped."""

    def __init__(self, cap_bytes: int) -> None:
        self._cap = cap_bytes
        self._head = b""
        self._tail = b""
        self._total = 0

    def add(self, chunk: bytes) -> None:
        """Take the next piece of the stream."""
        self._total += len(chunk)
        room = self._cap - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._tail = (self._tail + chunk)[-self._cap :]

    def report(self) -> dict[str, Any]:
        """JSON-able: head and tail in base64, and the bytes dropped between them."""
        kept = len(self._head) + len(self._tail)
        return {
            "head": base64.b64encode(self._head).decode(),
            "tail": base64.b64encode(self._tail).decode(),
            "dropped_bytes": self._total - kept,
        }


def children_listed(pid: int) -> list[int]:
    """Children of every thread of a process, from ``/proc/PID/task/*/children``; empty once it is gone."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found.extend(map(int, _read(f"/proc/{pid}/task/{task}/children").split()))
    except (FileNotFoundError, ProcessLookupError):
        pass  # the process or a thread ended meanwhile
    return found


def children_scanned(pid: int) -> list[int]:
    """The same from the parents of all processes, for kernels without such lists (CONFIG_PROC_CHILDREN)."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields is not None and int(fields[2]) == pid:
                found.append(int(entry))
    return found


_LISTED = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def descendants(pid: int) -> list[int]:
    """All processes below one, parents before their children."""
    children = children_listed if _LISTED else children_scanned
    found = children(pid)
    for child in found:  # grows while it is walked
        found.extend(children(child))
    return found


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _stat(pid: int) -> list[str] | None:
    """[command name, state, parent, ...] of a process; ``None`` once it is gone."""
    try:
        text = _read(f"/proc/{pid}/stat").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    return [name, *rest.split()]


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, shared pages included; 0 once it is gone."""
    try:
        return int(_read(f"/proc/{pid}/statm").split()[1]) * resource.getpagesize()
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _living(pids: list[int]) -> list[str]:
    """Command names of those that are not zombies."""
    stats = [_stat(pid) for pid in pids]
    return [fields[0] for fields in stats if fields is not None and fields[1] not in "ZX"]


def _noticed(_number: int, _frame: object) -> None:
    """Nothing: a handler is there so that the end of a child writes to the wake-up pipe."""


class Supervisor:
    """One candidate from its start to its report."""

    def __init__(self, control: socket.socket, config: dict[str, Any], command_fd: int) -> None:
        self._control = control
        self._config = config
        self._parent = os.getppid()
        self._limit_bytes: int = config["memory_bytes"]
        self._peak_bytes = 0
        self._status: int | None = None
        self._orphans = 0
        self._captures = {name: Capture(config["output_bytes"]) for name in ("stdout", "stderr")}
        self._wake_fd, wake_write = os.pipe()
        os.set_blocking(self._wake_fd, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _noticed)
        out, out_write = os.pipe()
        err, err_write = os.pipe()
        self._streams = {out: self._captures["stdout"], err: self._captures["stderr"]}
        for fd in self._streams:
            os.set_blocking(fd, False)
        self._poll = select.poll()
        for fd in (control.fileno(), self._wake_fd, out, err):
            self._poll.register(fd, select.POLLIN)
        supervisor = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _become_candidate(config, supervisor, (out_write, err_write, command_fd))
        for fd in (command_fd, out_write, err_write):
            os.close(fd)

    def run(self) -> None:
        """Serve until the candidate has ended, then report."""
        next_tick, ticks = time.monotonic() + _TICK_S, 0
        while True:
            ready = dict(self._poll.poll(max(0.0, next_tick - time.monotonic()) * 1e3))
            for fd in self._streams.keys() & ready.keys():
                self._drain(fd)
            if self._wake_fd in ready:
                os.read(self._wake_fd, _CHUNK_BYTES)
                self._reap()
            if self._status is not None:
                return self._finish("none")
            if self._control.fileno() in ready and not self._obey():
                return None
            if time.monotonic() >= next_tick:
                next_tick, ticks = time.monotonic() + _TICK_S, ticks + 1
                if os.getppid() != self._parent:
                    return self._finish("orphaned")
                if self._memory_bytes(tree=ticks % _TREE_TICKS == 0) > self._limit_bytes:
                    return self._finish("memory")

    def _obey(self) -> bool:
        """Carry out one command; False when it was the last."""
        try:
            packet = self._control.recv(MESSAGE_BYTES)
        except ConnectionResetError:
            packet = b""
        message: dict[str, Any] = json.loads(packet) if packet else {"do": "end"}
        if message["do"] == "end":
            self._finish("end")
            return False
        if message["do"] == "allow":
            self._limit_bytes += message["bytes"]
        else:
            self._send(self._state())
        return True

    def _state(self) -> dict[str, Any]:
        fields = _stat(self._pid)
        others = _living([pid for pid in descendants(os.getpid()) if pid != self._pid])
        return {
            "event": "state",
            "pid": self._pid,
            "threads": int(fields[18]) if fields is not None else 0,
            "cpu_ms": (int(fields[12]) + int(fields[13])) * 1000 // os.sysconf("SC_CLK_TCK")
            if fields is not None
            else 0,
            "processes": others[:NAMES],
            "process_count": len(others),
            "memory_bytes": self._memory_bytes(tree=True),
        }

    def _memory_bytes(self, *, tree: bool) -> int:
        pids = descendants(os.getpid()) if tree else [self._pid]
        found = sum(map(resident_bytes, pids))
        self._peak_bytes = max(self._peak_bytes, found)
        return found

    def _drain(self, fd: int) -> bool:
        """Read once; False when there is nothing more to come now."""
        try:
            chunk = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._poll.unregister(fd)
            self._streams.pop(fd)
            os.close(fd)
            return False
        self._streams[fd].add(chunk)
        return True

    def _reap(self) -> bool:
        """Collect whoever has ended; False when no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                self._status = status
            else:
                self._orphans += 1

    def _kill_all(self) -> bool:
        """Kill until no child is left; orphans of the killed become our children meanwhile. False: some resisted."""
        deadline = time.monotonic() + _KILL_S
        while self._reap():
            for pid in descendants(os.getpid()):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0005)
        return True

    def _finish(self, reason: str) -> None:
        leftovers = _living([pid for pid in descendants(os.getpid()) if pid != self._pid])
        clean = self._kill_all()
        for fd in list(self._streams):
            while self._drain(fd) and clean:
                pass
        files = _remove_tree(self._config["directory"])
        self._send(
            {
                "event": "ended",
                "reason": reason,
                "status": self._status,
                "clean": clean,
                "leftovers": leftovers[:NAMES],
                "leftover_count": len(leftovers),
                "orphan_count": self._orphans,
                "files": files[:NAMES],
                "file_count": len(files),
                "peak_bytes": self._peak_bytes,
                **{name: capture.report() for name, capture in self._captures.items()},
            }
        )

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the harness is gone; everything is ended all the same
            self._control.send(json.dumps(message).encode())


def _remove_tree(directory: str) -> list[str]:
    """Remove the private directory; the relative names of what was in it."""
    found: list[str] = []
    for folder, folders, files in os.walk(directory, topdown=False):
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            found.append(os.path.relpath(path, directory))
            with contextlib.suppress(OSError):  # what resists is left to the harness
                if os.path.isdir(path) and not os.path.islink(path):
                    os.rmdir(path)
                else:
                    os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(directory)
    return sorted(found)


def _become_candidate(config: dict[str, Any], supervisor: int, fds: tuple[int, int, int]) -> NoReturn:
    """In the forked process: its own session, limits, descriptors 0 to 3 and no others; then the program."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(127)
        os.setsid()
        os.umask(0o077)
        for name, value in config["rlimits"].items():
            limit = getattr(resource, name)
            hard = resource.getrlimit(limit)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(limit, (value, value))
        null_fd = os.open("/dev/null", os.O_RDONLY)
        for target, source in enumerate((null_fd, *fds)):
            os.dup2(source, target)
            os.set_inheritable(target, True)  # dup2 changes nothing where both are equal
        os.execve(config["argv"][0], config["argv"], config["environment"])  # noqa: S606
    finally:
        os._exit(127)


def main() -> None:
    """Supervise one candidate for the harness at the other end of the socket named on the command line."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    packet, fds, _flags, _address = socket.recv_fds(control, MESSAGE_BYTES, 1)
    if packet:
        os.set_inheritable(fds[0], False)
        Supervisor(control, json.loads(packet), fds[0]).run()
    os._exit(0)  # nothing to clean up, and the harness waits


if __name__ == "__main__":
    main()
