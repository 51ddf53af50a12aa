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
    {"do": "settle"}         -> {"event": "settled"}            files that are there now were allowed
    {"do": "end"}            -> {"event": "ended", ...}         end everything, report, exit

An end is asked for first (SIGTERM, and a moment of grace), then carried out: everybody is killed, in a sandbox by
ending its process namespace, and waited for within a bound.

``ended`` also comes unasked: when the candidate has ended by itself or has been ended for its memory.
"""

# ruff: noqa: PTH119, PTH106, PTH108, PTH110, PTH112, PTH114, PTH118, PTH123, PTH208

from __future__ import annotations

import base64
import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

MESSAGE_BYTES = 1 << 18
LIBRARIES = 512
"""So many file names of mapped code are told at most."""
NAMES = 32
"""Names of processes and files are listed up to here; counts are exact."""

_TICK_S = 0.05
_TREE_TICKS = 8
_KILL_S = 5.0
_CHUNK_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CREDENTIALS = struct.Struct("=iII")
"""pid, uid, gid: ``struct ucred``."""
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


def mapped_libraries(pid: int) -> list[str] | None:
    """File names of the code that a process has mapped; ``None`` where the system does not tell.

    Files without a name in the file system (sealed copies in memory) do not count.
    """
    try:
        lines = _read(f"/proc/{pid}/maps").decode(errors="replace").splitlines()
    except OSError:
        return None
    fields = [line.split(maxsplit=5) for line in lines]
    paths = {found[5] for found in fields if len(found) == 6 and "x" in found[1] and found[5].startswith("/")}
    return sorted(os.path.basename(path) for path in paths if not path.startswith("/memfd:"))[:LIBRARIES]


def _living(pids: list[int]) -> list[str]:
    """Command names of those that are not zombies."""
    stats = [_stat(pid) for pid in pids]
    return [fields[0] for fields in stats if fields is not None and fields[1] not in "ZX"]


def _noticed(_number: int, _frame: object) -> None:
    """Nothing: a handler is there so that the end of a child writes to the wake-up pipe."""


class Alone:
    """The candidate as a child of this process."""

    def __init__(self, config: dict[str, Any], fds: tuple[int, int, int]) -> None:
        self._directory: str = config["directory"]
        self._settled: set[str] = set()
        self.top = os.getpid()
        """Everybody below this process is the candidate or was started by it."""
        self.status: int | None = None
        """What ``wait`` said of the candidate."""
        self.orphans = 0
        self.fds: tuple[int, ...] = ()
        """To listen to, besides the ends of children."""
        supervisor = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become(config["argv"], config["environment"], supervisor, fds, config["rlimits"])

    def others(self) -> list[int]:
        """Processes besides the candidate's own, zombies too."""
        return [pid for pid in descendants(self.top) if pid != self.pid]

    def hear(self) -> None:
        """Collect whoever has ended."""
        self._reap()

    def settle(self) -> None:
        """Files that are there now were allowed."""
        self._settled = set(_names_in(self._directory))

    def kill(self) -> bool:
        """Kill until no child is left; orphans of the killed become our children meanwhile. False: some resisted."""
        deadline = time.monotonic() + _KILL_S
        while self._reap():
            for pid in descendants(self.top):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0005)
        return True

    def files(self) -> tuple[list[str], int]:
        """Names of what the candidate left (at most ``NAMES``) and their number; removed."""
        found = sorted(set(_remove_tree(self._directory)) - self._settled)
        return found[:NAMES], len(found)

    def _reap(self) -> bool:
        """Collect whoever has ended; False when no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                self.status = status
            else:
                self.orphans += 1


class Boxed:
    """The candidate in a sandbox: bubblewrap, a first process (``confine.py``) below it, the candidate below that."""

    def __init__(self, config: dict[str, Any], fds: tuple[int, int, int]) -> None:
        box = config["box"]
        self.pid = self.top = 0
        self.status: int | None = None
        self.orphans = 0
        self._is_settled = False
        self._end: dict[str, Any] | None = None
        self._first, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._first.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._first.setblocking(False)
        self._first.send(json.dumps({**box["first"], "rlimits": config["rlimits"]}).encode())
        data = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in box["data"]]
        supervisor = os.getpid()
        self._bubblewrap = os.fork()
        if self._bubblewrap == 0:
            _become(config["argv"], config["environment"], supervisor, (*fds, theirs.fileno(), *data), {})
        for fd in data:
            os.close(fd)
        theirs.close()
        self.fds: tuple[int, ...] = (self._first.fileno(),)

    def others(self) -> list[int]:
        """Processes of the sandbox besides its first and the candidate's own, zombies too."""
        return [pid for pid in descendants(self.top) if pid != self.pid] if self.top else []

    def hear(self) -> None:
        """Take what the first process says; where bubblewrap ended without it, its status is the candidate's."""
        while self._take():
            pass
        for pid, status in _ended_children():
            if pid == self._bubblewrap and self.status is None:
                self.status = status

    def settle(self) -> None:
        """Files that are there now were allowed."""
        self._tell("settle")
        self._await(lambda: self._is_settled)

    def kill(self) -> bool:
        """Have the first process kill everybody, and then kill it, at which the kernel kills whoever is left."""
        self._tell("end")
        self._await(lambda: self._end is not None)
        # Bubblewrap leaves once its child, the first process, has left with all of its namespace.
        for pid in (self.top or self._bubblewrap, self._bubblewrap):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            if self._await(lambda: not _has_children()):
                return self._end is not None and bool(self._end["clean"])
        return False

    def files(self) -> tuple[list[str], int]:
        """Names of what the candidate left (at most ``NAMES``) and their number; gone with the sandbox."""
        return (self._end["files"], self._end["file_count"]) if self._end is not None else ([], 0)

    def _await(self, done: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + _KILL_S
        while True:
            self.hear()
            if done() or not _has_children() or time.monotonic() > deadline:
                return done()
            time.sleep(0.0005)

    def _take(self) -> bool:
        """One message; False when there is none."""
        try:
            packet, notes, _flags, _address = self._first.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
        except OSError:
            return False
        if not packet:
            return False
        message = json.loads(packet)
        sender = _CREDENTIALS.unpack(notes[0][2])[0]
        match message["event"]:
            case "first":
                self.top = sender
            case "candidate":
                self.pid = sender
            case "exited":
                self.status, self.orphans = message["status"], message["orphans"]
            case "settled":
                self._is_settled = True
            case "ended":
                self._end, self.orphans = message, message["orphans"]
            case other:
                raise ValueError(other)
        return True

    def _tell(self, what: str) -> None:
        with contextlib.suppress(OSError):  # it is gone, as the next look will tell
            self._first.send(json.dumps({"do": what}).encode())


class Supervisor:
    """One candidate from its start to its report."""

    def __init__(self, control: socket.socket, config: dict[str, Any], command_fd: int) -> None:
        self._control = control
        self._parent = os.getppid()
        self._limit_bytes: int = config["memory_bytes"]
        self._grace_s: float = config["grace_s"]
        self._peak_bytes = 0
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
        fds = (out_write, err_write, command_fd)
        self._candidate = Boxed(config, fds) if config["box"] is not None else Alone(config, fds)
        for fd in fds:
            os.close(fd)
        self._poll = select.poll()
        for fd in (control.fileno(), self._wake_fd, out, err, *self._candidate.fds):
            self._poll.register(fd, select.POLLIN)

    def run(self) -> None:
        """Serve until the candidate has ended, then report."""
        next_tick, ticks = time.monotonic() + _TICK_S, 0
        while True:
            ready = dict(self._poll.poll(max(0.0, next_tick - time.monotonic()) * 1e3))
            for fd in self._streams.keys() & ready.keys():
                self._drain(fd)
            self._listen(ready)
            if self._candidate.status is not None:
                return self._finish("none")
            if self._control.fileno() in ready and not self._obey():
                return None
            if time.monotonic() >= next_tick:
                next_tick, ticks = time.monotonic() + _TICK_S, ticks + 1
                if os.getppid() != self._parent:
                    return self._finish("orphaned")
                if self._memory_bytes(tree=ticks % _TREE_TICKS == 0) > self._limit_bytes:
                    return self._finish("memory")

    def _listen(self, ready: dict[int, int]) -> None:
        if self._wake_fd in ready:
            os.read(self._wake_fd, _CHUNK_BYTES)
        self._candidate.hear()
        for fd in self._candidate.fds:
            if ready.get(fd, 0) & select.POLLHUP:  # nobody will say more
                self._poll.unregister(fd)

    def _obey(self) -> bool:
        """Carry out one command; False when it was the last."""
        try:
            packet = self._control.recv(MESSAGE_BYTES)
        except ConnectionResetError:
            packet = b""
        message: dict[str, Any] = json.loads(packet) if packet else {"do": "end"}
        match message["do"]:
            case "end":
                self._candidate.hear()
                reason = "end" if self._candidate.status is None else "none"
                self._stop_softly()
                self._finish(reason)
                return False
            case "allow":
                self._limit_bytes += message["bytes"]
            case "settle":
                self._candidate.settle()
                self._send({"event": "settled"})
            case _:
                self._send(self._state())
        return True

    def _stop_softly(self) -> None:
        """Ask the candidate to leave, and give it a moment."""
        if not self._candidate.pid or self._candidate.status is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._candidate.pid, signal.SIGTERM)
        deadline = time.monotonic() + self._grace_s
        while self._candidate.status is None and time.monotonic() < deadline:
            ready = dict(self._poll.poll(1))
            for fd in self._streams.keys() & ready.keys():
                self._drain(fd)
            self._listen(ready)

    def _state(self) -> dict[str, Any]:
        pid = self._candidate.pid
        fields = _stat(pid) if pid else None
        others = _living(self._candidate.others())
        return {
            "event": "state",
            "pid": pid,
            "threads": int(fields[18]) if fields is not None else 0,
            "cpu_ms": (int(fields[12]) + int(fields[13])) * 1000 // os.sysconf("SC_CLK_TCK")
            if fields is not None
            else 0,
            "processes": others[:NAMES],
            "process_count": len(others),
            "memory_bytes": self._memory_bytes(tree=True),
            "libraries": mapped_libraries(pid) if pid else [],
        }

    def _memory_bytes(self, *, tree: bool) -> int:
        others = self._candidate.others() if tree else []
        found = sum(map(resident_bytes, [self._candidate.pid, *others])) if self._candidate.pid else 0
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

    def _finish(self, reason: str) -> None:
        candidate = self._candidate
        leftovers = _living(candidate.others())
        clean = candidate.kill()
        for fd in list(self._streams):
            while self._drain(fd) and clean:
                pass
        files, file_count = candidate.files()
        self._send(
            {
                "event": "ended",
                "reason": reason,
                "status": candidate.status,
                "clean": clean,
                "leftovers": leftovers[:NAMES],
                "leftover_count": len(leftovers),
                "orphan_count": candidate.orphans,
                "files": files,
                "file_count": file_count,
                "peak_bytes": self._peak_bytes,
                **{name: capture.report() for name, capture in self._captures.items()},
            }
        )

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the harness is gone; everything is ended all the same
            self._control.send(json.dumps(message).encode())


def _ended_children() -> list[tuple[int, int]]:
    """Collect children that have ended: number and what ``wait`` said."""
    found: list[tuple[int, int]] = []
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(ended)
    return found


def _has_children() -> bool:
    """Whether any child is left, ended or not."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _names_in(directory: str) -> list[str]:
    found: list[str] = []
    for folder, folders, files in os.walk(directory):
        found.extend(os.path.relpath(os.path.join(folder, name), directory) for name in [*folders, *files])
    return found


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


def _become(
    argv: list[str], environment: dict[str, str], supervisor: int, fds: tuple[int, ...], rlimits: dict[str, int]
) -> NoReturn:
    """In the forked process: its own session, limits, descriptors 0 upwards and no others; then the program."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(127)
        os.setsid()
        os.umask(0o077)
        for name, value in rlimits.items():
            limit = getattr(resource, name)
            hard = resource.getrlimit(limit)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(limit, (value, value))
        # Out of the way first: a descriptor may lie where another one has to go.
        aside = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 2 + len(fds)) for fd in fds]
        null_fd = os.open("/dev/null", os.O_RDONLY)
        for target, source in enumerate((null_fd, *aside)):
            if target != source:
                os.dup2(source, target)
            os.set_inheritable(target, True)
        os.execve(argv[0], argv, environment)  # noqa: S606
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
