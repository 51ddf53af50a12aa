"""The harness's end of a supervisor: starts it, asks it, has it end a candidate, and cleans up where it was killed."""

from __future__ import annotations

import base64
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from kernelworks.data import Frozen
from kernelworks.errors import EvaluationError
from kernelworks.evaluate import child, supervisor
from kernelworks.evaluate.faults import Fault
from kernelworks.evaluate.program import Program, interpreter
from kernelworks.evaluate.sandbox import CONFINE, FOLDER, Sandbox

TAG = "KERNELWORKS_EVALUATION"
"""Environment variable that marks every process of one candidate."""

_GRACE_S = 1.0
"""How long the news of an end may lag behind the closing of the candidate's channel."""
_ANSWER_S = 10.0
"""A supervisor that has not answered by then has been stopped by its candidate; killing takes it 5 s at most."""
_COMMAND_FD, _REPORT_FD = 3, 4
_OWN_BYTES = 64 << 20
"""Interpreters of supervisor and candidate."""


@dataclass(frozen=True)
class Limits:
    """What a candidate may use."""

    memory_bytes: int = 4 << 30
    """Resident memory of its processes beyond the tensors, workspaces and flush buffer given to it."""
    output_bytes: int = 16 << 10
    """Kept of the head, and again of the tail, of stdout and of stderr."""
    start_s: float = 30.0
    """To start, and to load the library."""
    file_bytes: int = 1 << 20
    """Largest file that it may write."""
    folder_bytes: int = 64 << 20
    """Size of its private folder in a sandbox."""
    descriptors: int = 256
    processes: int = 1024
    """Processes and threads of its user, in a sandbox; without one they cannot be told from the user's own."""
    grace_s: float = 0.2
    """From asking it to leave to ending it."""


class Cause(StrEnum):
    """Why a candidate ended."""

    FINISHED = "finished"
    """The harness had no further use for it."""
    EXITED = "exited"
    """It left by itself."""
    SIGNALLED = "signalled"
    """A signal that the harness did not send."""
    TIMED_OUT = "timed_out"
    MEMORY = "memory"
    FORGED = "forged"
    """It sent something on the result channel that is no answer to the command."""
    CHANNEL_CLOSED = "channel_closed"
    """It closed the result channel."""
    SUPERVISOR_LOST = "supervisor_lost"
    """It killed or stopped the process that supervises it."""


@dataclass(frozen=True)
class Output:
    """What was printed: head and tail, and the number of bytes dropped between them."""

    head: bytes = b""
    tail: bytes = b""
    dropped_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Everything that was printed."""
        return len(self.head) + self.dropped_bytes + len(self.tail)

    @property
    def text(self) -> str:
        """Decoded as UTF-8 with replacement, what was dropped said in its place."""
        gap = f"\n[{self.dropped_bytes} bytes dropped]\n".encode() if self.dropped_bytes else b""
        return (self.head + gap + self.tail).decode("utf-8", errors="replace")


@dataclass(frozen=True)
class Exit:
    """How a candidate ended, and what it left behind."""

    cause: Cause
    code: int | None = None
    """Exit code where it left by itself."""
    signal: int | None = None
    """Number of the signal that ended it."""
    fault: Fault | None = None
    """Where that signal struck, as far as known."""
    call: str | None = None
    """Name of the system call that it was ended for; empty where that is not known."""
    leftovers: tuple[str, ...] = ()
    """Command names of processes (at most 32) that it had started and that still ran at its end; killed."""
    leftover_count: int = 0
    orphan_count: int = 0
    """Processes that it had started and never waited for, whether they still ran at its end or not."""
    files: tuple[str, ...] = ()
    """Names of files (at most 32) found in its private folder; removed."""
    file_count: int = 0
    unkilled: bool = False
    """Processes kept appearing faster than they could be killed."""
    peak_bytes: int = 0
    """Largest resident memory seen, tensors included."""
    stdout: Output = Output()
    stderr: Output = Output()

    @property
    def timed_out(self) -> bool:
        """Whether it was ended at a time limit."""
        return self.cause is Cause.TIMED_OUT

    def __str__(self) -> str:
        match self.cause:
            case Cause.FINISHED:
                return "ended by the harness"
            case Cause.EXITED:
                return f"left with exit code {self.code}"
            case Cause.SIGNALLED if self.call is not None:
                what = f"the system call {self.call}, which" if self.call else "a system call that"
                return f"tried {what} a kernel has no use for"
            case Cause.SIGNALLED:
                where = f": {self.fault}" if self.fault is not None else ""
                return f"killed by {_signal_name(self.signal)}{where}"
            case Cause.TIMED_OUT:
                return "still running at its time limit"
            case Cause.MEMORY:
                return f"over its memory limit, with {self.peak_bytes >> 20} MiB resident"
            case Cause.FORGED:
                return "sent a message on the result channel that answers no command"
            case Cause.CHANNEL_CLOSED:
                return "closed the result channel"
            case Cause.SUPERVISOR_LOST:
                return "killed or stopped the process that supervises it"


class SupervisorLostError(Exception):
    """The supervisor is gone, or does not answer, or its candidate has ended."""


class State(Frozen):
    """A candidate as the supervisor sees it now."""

    event: Literal["state"]
    pid: int
    threads: int
    cpu_ms: int
    processes: tuple[str, ...]
    process_count: int
    memory_bytes: int
    libraries: tuple[str, ...] | None
    """File names of the code that it has mapped; None where the system does not tell."""


class _Settled(Frozen):
    event: Literal["settled"]


_Answer = TypeVar("_Answer", bound=Frozen)


class _Stream(Frozen):
    head: str
    tail: str
    dropped_bytes: int

    def output(self) -> Output:
        return Output(base64.b64decode(self.head), base64.b64decode(self.tail), self.dropped_bytes)


class _Report(Frozen):
    event: Literal["ended"]
    reason: Literal["none", "end", "memory", "orphaned"]
    status: int | None
    clean: bool
    leftovers: tuple[str, ...]
    leftover_count: int
    orphan_count: int
    files: tuple[str, ...]
    file_count: int
    peak_bytes: int
    stdout: _Stream
    stderr: _Stream


class Supervision:
    """One supervisor and the candidate below it."""

    def __init__(
        self,
        channel: socket.socket,
        *,
        threads: int,
        limits: Limits,
        program: Program,
        sandbox: Sandbox,
    ) -> None:
        """Start both, without waiting.

        Args:
            channel: the candidate's end of the command socket.
            threads: of OpenMP.
            limits: what the candidate may use.
            program: what runs in its process.
            sandbox: what confines it.
        """
        if not sys.executable:
            raise EvaluationError("expected a Python interpreter in sys.executable, found none")
        self.mark = f"{TAG}={secrets.token_hex(16)}"
        """In the environment of every process of this candidate."""
        boxed = sandbox.kind != "none"
        self._directory = None if boxed else tempfile.mkdtemp(prefix="kernelworks-candidate-")
        environment = {**self._environment(threads), **program.environment}
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own = [interpreter(), "-I", "-S", "-B", str(Path(supervisor.__file__))]
        with theirs:
            for end in (self._control, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, supervisor.MESSAGE_BYTES)
            self._process = self._spawn(own, theirs.fileno(), environment)
        config = {
            "argv": program.argv(_COMMAND_FD),
            "box": None,
            "environment": environment,
            "directory": self._directory,
            "memory_bytes": limits.memory_bytes + _OWN_BYTES,
            "output_bytes": limits.output_bytes,
            "grace_s": limits.grace_s,
            "rlimits": {
                "RLIMIT_CORE": 0,
                "RLIMIT_FSIZE": limits.file_bytes,
                "RLIMIT_NOFILE": limits.descriptors,
            },
        }
        if boxed:
            config = _boxed(config, program, sandbox, limits)
        self._control.settimeout(_ANSWER_S)
        with suppress(OSError):  # gone already: the first command will say so
            socket.send_fds(self._control, [json.dumps(config).encode()], [channel.fileno()])

    def fileno(self) -> int:
        """Descriptor that becomes readable when the candidate has ended by itself or the supervisor is gone."""
        return self._control.fileno()

    def allow(self, size_bytes: int) -> None:
        """Raise the memory limit by what the harness gives to the candidate; no answer."""
        with suppress(OSError):  # gone: the next command will say so
            self._send({"do": "allow", "bytes": size_bytes})

    def settle(self, timeout_s: float) -> None:
        """Files that are there now were allowed.

        Raises:
            SupervisorLostError: the candidate has ended, or the supervisor has.
        """
        self._demand({"do": "settle"}, _Settled, timeout_s)

    def inspect(self, timeout_s: float) -> State:
        """What runs now.

        Raises:
            SupervisorLostError: the candidate has ended, or the supervisor has.
        """
        return self._demand({"do": "inspect"}, State, timeout_s)

    def finish(self, cause: Cause) -> Exit:
        """End the candidate and all that it started; nothing of it is left afterwards. Call it once.

        Args:
            cause: why the harness wants the end; an end that the candidate found by itself before that goes first.
        """
        if cause is Cause.CHANNEL_CLOSED:
            ended = select.poll()  # select() takes no descriptor above 1023
            ended.register(self._control, select.POLLIN)
            ended.poll(_GRACE_S * 1e3)
        report = self._last_report()
        self._control.close()
        try:
            self._process.wait(_GRACE_S if report is not None else 0.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if report is None or not report.clean:
            _kill_marked(self.mark)
        self._remove_directory()
        return _exit(cause, report)

    def _spawn(self, argv: list[str], control_fd: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [*argv, str(control_fd)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(control_fd,),
                cwd=self._directory or "/",
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self._control.close()
            self._remove_directory()
            raise EvaluationError(f"the supervisor does not start: {error}") from error

    def _remove_directory(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _environment(self, threads: int) -> dict[str, str]:
        return {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": self._directory or FOLDER,
            "TMPDIR": self._directory or FOLDER,
            "OMP_NUM_THREADS": str(threads),
            # Also for num_threads(8): a kernel has the threads that it was given, as the baselines have.
            "OMP_THREAD_LIMIT": str(threads),
            "OMP_WAIT_POLICY": "passive",
            "OMP_PROC_BIND": "false",
            TAG: self.mark.partition("=")[2],
        }

    def _demand(self, message: dict[str, object], kind: type[_Answer], timeout_s: float) -> _Answer:
        try:
            self._send(message)
            self._control.settimeout(timeout_s)
            # An unasked "ended" may come first; it is peeked at, and left for ``finish``.
            packet = self._control.recv(supervisor.MESSAGE_BYTES, socket.MSG_PEEK)
            answer = kind.model_validate_json(packet, strict=True)
            self._control.recv(supervisor.MESSAGE_BYTES)
        except (OSError, ValidationError) as error:
            raise SupervisorLostError from error
        return answer

    def _send(self, message: dict[str, object]) -> None:
        self._control.settimeout(_ANSWER_S)
        self._control.send(json.dumps(message).encode())

    def _last_report(self) -> _Report | None:
        with suppress(OSError, ValidationError):
            self._process.send_signal(signal.SIGCONT)  # its candidate may have stopped it
            with suppress(OSError):  # the report may be there although the supervisor has left
                self._send({"do": "end"})
            self._control.settimeout(_ANSWER_S)
            return _Report.model_validate_json(self._control.recv(supervisor.MESSAGE_BYTES), strict=True)
        return None


def _boxed(config: dict[str, Any], program: Program, sandbox: Sandbox, limits: Limits) -> dict[str, Any]:
    """The same candidate as first process of a sandbox; scripts are handed in as open files."""
    data = (CONFINE, program.script, *program.beside)
    first = [interpreter(), "-I", "-S", "-B", str(CONFINE), str(_REPORT_FD)]
    numbered = [(_REPORT_FD + 1 + index, path) for index, path in enumerate(data)]
    rlimits = {**config["rlimits"], "RLIMIT_NPROC": limits.processes}
    first_config = {"argv": config["argv"], "uid": sandbox.uid, "folder": FOLDER, "close": [_COMMAND_FD]}
    return {
        **config,
        "argv": sandbox.wrapped(first, program.readable, numbered, limits.folder_bytes),
        "rlimits": rlimits,
        "box": {"first": first_config, "data": [str(path) for path in data]},
    }


def _exit(cause: Cause, report: _Report | None) -> Exit:
    """Compose the supervisor's report with what the harness knows."""
    if report is None:
        return Exit(cause if cause is Cause.TIMED_OUT else Cause.SUPERVISOR_LOST)
    code = number = None
    if report.status is not None:
        returned = os.waitstatus_to_exitcode(report.status)
        code, number = (returned, None) if returned >= 0 else (None, -returned)
    by_itself = report.reason == "none"
    if report.reason == "memory":
        cause = Cause.MEMORY
    elif by_itself and code == child.CHANNEL_LOST:
        cause = Cause.CHANNEL_CLOSED
    elif by_itself and cause is not Cause.FORGED:
        cause = Cause.EXITED if code is not None else Cause.SIGNALLED
    return Exit(
        cause,
        code,
        number,
        leftovers=report.leftovers,
        leftover_count=report.leftover_count,
        orphan_count=report.orphan_count,
        files=report.files,
        file_count=report.file_count,
        unkilled=not report.clean,
        peak_bytes=report.peak_bytes,
        stdout=report.stdout.output(),
        stderr=report.stderr.output(),
    )


def _kill_marked(mark: str) -> None:
    """Kill every process of a candidate until none is left; its supervisor is no more."""
    deadline = time.monotonic() + _ANSWER_S
    while (pids := marked_processes(mark)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def marked_processes(mark: str) -> list[int]:
    """Processes that were started with ``mark`` in their environment; zombies have none any more."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"
