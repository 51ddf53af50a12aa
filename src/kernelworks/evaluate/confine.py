"""The first process of a sandbox: starts a candidate without any privilege, reaps what it leaves, and tells its end.

Run as a script by bubblewrap with ``python -I -S -B``: standard library only. It is process 1 of the sandbox's process
namespace, so every orphan becomes its child, no signal from inside ends it, and when it ends, the kernel ends all.
Bubblewrap's own first process folds a death by a signal into an exit code; this one hands on what ``wait`` said.

Protocol on the socket ``argv[1]`` (SOCK_SEQPACKET), whose other end the supervisor has. First comes a configuration
``{argv, rlimits, uid, folder, close: descriptors of the candidate alone}``, then::

    -> {"event": "first"}, {"event": "candidate"}        each sent by whom it names: the kernel adds the number
    -> {"event": "exited", status, orphans}              the candidate has ended
    {"do": "settle"}  -> {"event": "settled"}            files that are there now were allowed
    {"do": "end"}     -> {"event": "ended", clean, orphans, files, file_count}    after everybody has been killed
"""

# ruff: noqa: PTH116, PTH118

from __future__ import annotations

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

NAMES = 32
"""Names of files are listed up to here; counts are exact up to ``_WALKED``."""

_WALKED = 10_000
_MESSAGE_BYTES = 1 << 18
_KILL_S = 3.0
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAP_DAC_READ_SEARCH, _CAP_KILL = 2, 5
_CAP_VERSION = 0x20080522
_LIBC = ctypes.CDLL(None, use_errno=True)


def drop_capabilities(uid: int | None = None, keep: int = 0) -> None:
    """Leave this process the capabilities in the mask ``keep``, and whatever it executes none.

    Args:
        uid: become this user, without groups; ``None`` stays who it is.
        keep: has no effect together with a user.
    """
    for number in range(64):
        if _LIBC.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break  # the last one is behind us, or they are gone already
    _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        keep = 0
    header = (ctypes.c_uint32 * 2)(_CAP_VERSION, 0)
    data = (ctypes.c_uint32 * 6)(keep, keep)  # effective, permitted, inheritable; then the upper halves
    if _LIBC.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def set_limits(rlimits: dict[str, int]) -> None:
    """Soft and hard limits; one that is higher than the hard limit now is that."""
    for name, value in rlimits.items():
        limit = getattr(resource, name)
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


def files_in(folder: str) -> list[str]:
    """Relative names of what lies in a folder, at most ``_WALKED``."""
    found: list[str] = []
    waiting = [""]
    device = os.stat(folder).st_dev
    while waiting and len(found) < _WALKED:
        below = waiting.pop()
        try:
            with os.scandir(os.path.join(folder, below)) as entries:
                for entry in entries:
                    if entry.stat(follow_symlinks=False).st_dev != device:
                        continue  # mounted here by the harness
                    found.append(os.path.join(below, entry.name))
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(found[-1])
                    if len(found) >= _WALKED:
                        break
        except OSError:
            continue  # it was made unreadable; its own name is there
    return found


class First:
    """Process 1."""

    def __init__(self, report: socket.socket, config: dict[str, Any]) -> None:
        self._report = report
        self._folder: str = config["folder"]
        self._settled = set(files_in(self._folder))
        self._orphans = 0
        self._wake_fd, wake_write = os.pipe()
        for fd in (self._wake_fd, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._send(event="first")
        self._pid = os.fork()
        if self._pid == 0:
            self._become_candidate(config)
        for fd in (0, 1, *config["close"]):  # stderr stays, for what goes wrong here
            os.close(fd)
        drop_capabilities(keep=1 << _CAP_KILL | 1 << _CAP_DAC_READ_SEARCH if os.getuid() == 0 else 0)

    def run(self) -> None:
        """Serve until told to end, or nobody listens any more."""
        poll = select.poll()
        for fd in (self._wake_fd, self._report.fileno()):
            poll.register(fd, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self._wake_fd in ready:
                os.read(self._wake_fd, 1 << 12)
                self._reap()
            if self._report.fileno() in ready:
                packet = self._report.recv(_MESSAGE_BYTES)
                if not packet:
                    return
                if json.loads(packet)["do"] == "settle":
                    self._settled = set(files_in(self._folder))
                    self._send(event="settled")
                else:
                    self._end()

    def _end(self) -> None:
        deadline = time.monotonic() + _KILL_S
        clean = True
        while self._reap() and clean:
            with contextlib.suppress(ProcessLookupError):  # zombies are not counted
                os.kill(-1, signal.SIGKILL)  # all but this process
            time.sleep(0.0005)
            clean = time.monotonic() < deadline
        left = sorted(set(files_in(self._folder)) - self._settled)
        self._send(event="ended", clean=clean, orphans=self._orphans, files=left[:NAMES], file_count=len(left))

    def _reap(self) -> bool:
        """Collect whoever has ended; False when nobody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                self._send(event="exited", status=status, orphans=self._orphans)
            else:
                self._orphans += 1

    def _send(self, **message: object) -> None:
        self._report.send(json.dumps(message).encode())

    def _become_candidate(self, config: dict[str, Any]) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            self._send(event="candidate")
            os.umask(0o077)
            drop_capabilities(config["uid"])
            set_limits(config["rlimits"])  # the number of processes binds who is not root
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.execve(config["argv"][0], config["argv"], os.environ)  # noqa: S606
        finally:
            os._exit(127)


def main() -> None:
    """Serve the socket whose descriptor is the first argument."""
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # who has the same user here may neither trace nor read this process
    report = socket.socket(fileno=int(sys.argv[1]))
    report.set_inheritable(False)
    packet = report.recv(_MESSAGE_BYTES)
    if packet:
        First(report, json.loads(packet)).run()
    os._exit(0)


if __name__ == "__main__":
    main()
