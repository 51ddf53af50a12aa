"""What a candidate's process is confined by: found once by trying, named in every verdict.

With bubblewrap the process has namespaces of its own (processes, network, IPC, host name, mounts): it sees the system's
programs and libraries, the interpreter and our scripts, all read-only, and one private folder of limited size in
memory. It runs as user 65534 without capabilities. Started by root, bubblewrap leaves all capabilities in place, so
they are dropped inside (``confine.py``); started by anybody else, it makes a user namespace.

With or without it, the filters of ``lockdown.py`` bind where the kernel has them.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from kernelworks.errors import EnvironmentLackError
from kernelworks.evaluate import child
from kernelworks.evaluate.lockdown import Filter, locked
from kernelworks.evaluate.program import interpreter

NOBODY = 65534
FOLDER = "/tmp"  # noqa: S108  a mount of the sandbox's own
CONFINE = Path(child.__file__).with_name("confine.py")
MEND = "run 'make system-deps' or install the package bubblewrap, or accept the risk with --allow-unsandboxed"

_TRIAL_S = 20.0
_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_OPTIONAL = ("/etc/ld.so.cache", "/etc/alternatives", "/sys/devices/system")
_TRIAL = """
import importlib.util, json, os, sys
spec = importlib.util.spec_from_file_location("child", sys.argv[1])
child = importlib.util.module_from_spec(spec)
spec.loader.exec_module(child)
said = ""
if sys.argv[2]:
    try:
        child.install_filter(*json.loads(sys.argv[2]).values())
    except child.CommandError as error:
        said = str(error)
with open("/proc/self/status") as file:
    fields = dict(line.split(":", 1) for line in file)
with open("/proc/net/dev") as file:
    interfaces = [line.split(":")[0].strip() for line in file if ":" in line]
names = ("Uid", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")
print(json.dumps({"said": said, "parent": os.getppid(), "interfaces": interfaces,
                  **{name: fields[name].split()[0] for name in names}}))
"""


@dataclass(frozen=True)
class Sandbox:
    """How candidates are confined."""

    kind: Literal["bubblewrap", "none"] = "none"
    lacking: tuple[str, ...] = ()
    """What is missing of the full recipe, one sentence each."""
    command: str = ""
    """Path of bubblewrap; empty without it."""
    filters: bool = False
    """Whether the kernel takes filters of system calls."""

    @property
    def uid(self) -> int | None:
        """The user to become inside; ``None`` where bubblewrap maps it."""
        return NOBODY if os.geteuid() == 0 else None

    def wrapped(
        self, argv: Sequence[str], readable: Sequence[Path], data: Sequence[tuple[int, Path]], folder_bytes: int
    ) -> list[str]:
        """The command line that runs another one as first process of a sandbox.

        Args:
            argv: absolute path of a program and its arguments.
            readable: files and folders that are there under the same path, read-only.
            data: open descriptors whose content is there under these paths, readable for everybody.
            folder_bytes: size of the private folder.
        """
        user = [] if self.uid is not None else ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
        words = [self.command, *user, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
        words += [
            "--unshare-cgroup-try",
            "--die-with-parent",
            "--new-session",
            "--as-pid-1",
            "--ro-bind",
            "/usr",
            "/usr",
        ]
        for name in _LINKS:
            if os.path.islink(name):  # noqa: PTH114
                words += ["--symlink", os.readlink(name), name]  # noqa: PTH115
            elif os.path.isdir(name):  # noqa: PTH112
                words += ["--ro-bind", name, name]
        words += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
        words += ["--perms", "1777", "--size", str(folder_bytes), "--tmpfs", FOLDER]
        bound = [path for path in (*_interpreter_folders(), *readable) if not path.is_relative_to("/usr")]
        words += _parents((*map(Path, _OPTIONAL), *bound, *(path for _, path in data)))
        for name in _OPTIONAL:
            words += ["--ro-bind-try", name, name]
        for path in bound:
            words += ["--ro-bind", str(path), str(path)]
        for fd, path in data:
            words += ["--perms", "0555", "--ro-bind-data", str(fd), str(path)]
        return [*words, "--remount-ro", "/", "--chdir", FOLDER, "--", *argv]

    def require(self, whose: str) -> None:
        """Refuse host code of foreign origin where nothing keeps it from the user's files.

        Raises:
            EnvironmentLackError: there is no sandbox.
        """
        if self.kind == "none":
            raise EnvironmentLackError(f"{whose} needs a sandbox to run in, and {self.lacking[0]}", mend=MEND)


OWN_PROPOSERS = frozenset({"experts"})
"""Whose kernels are our own text. Whatever comes from a file, a model, an agent or a plug-in is of foreign origin."""

UNCONFINED = Sandbox(lacking=("none was asked for",))
"""Nothing but limits and the supervisor."""


@cache
def find_sandbox() -> Sandbox:
    """What works here, by starting a tiny sandbox: bubblewrap may be there and yet be forbidden, as in a container."""
    command = shutil.which("bwrap")
    if command is None:
        return _with_filters(Sandbox(lacking=("bubblewrap is not installed",)))
    problem = _problem(found := Sandbox("bubblewrap", command=command))
    if problem:
        return _with_filters(Sandbox(lacking=(f"bubblewrap does not work here: {problem}",)))
    return _with_filters(found)


def _with_filters(sandbox: Sandbox) -> Sandbox:
    program = locked()
    problem = _filter_problem(program) if program is not None else f"no table of them for {os.uname().machine}"
    if problem:
        return replace(sandbox, lacking=(*sandbox.lacking, f"system calls are not filtered: {problem}"))
    return replace(sandbox, filters=True)


def _filter_problem(program: Filter) -> str:
    """Why the filter that locks a candidate cannot be installed; empty if it can."""
    argv = _trial_argv(program)
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, env={}, timeout=_TRIAL_S)
    facts = _facts(done.stdout)
    if facts is None:
        return _last_line(done.stderr)
    return "" if facts["Seccomp"] == "2" else facts["said"] or "the kernel has none"


def _problem(sandbox: Sandbox) -> str:
    """Why a sandbox is none; empty if it is one."""
    said, stderr = _try(sandbox)
    facts = _facts(said)
    if facts is None:
        return _last_line(stderr)
    expected = {"Uid": str(NOBODY), "CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "parent": 1}
    for name, value in expected.items():
        if facts[name] != value:
            return f"expected {name} {value} inside, found {facts[name]}"
    if set(facts["interfaces"]) - {"lo"}:
        return f"expected no network inside, found {', '.join(facts['interfaces'])}"
    return ""


def _try(sandbox: Sandbox) -> tuple[str, str]:
    """What a tiny program inside says, on stdout and on stderr."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, ExitStack() as stack:
        data: list[tuple[int, Path]] = []
        for path in (CONFINE, Path(child.__file__)):
            data.append((stack.enter_context(path.open("rb")).fileno(), path))
        first = [interpreter(), "-I", "-S", "-B", str(CONFINE), str(theirs.fileno())]
        fds = [theirs.fileno(), *(fd for fd, _ in data)]
        started = subprocess.Popen(
            sandbox.wrapped(first, (), data, 1 << 20),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"LANG": "C.UTF-8"},
            pass_fds=fds,
        )
        theirs.close()
        config: dict[str, Any] = {
            "argv": _trial_argv(None),
            "rlimits": {},
            "uid": sandbox.uid,
            "folder": FOLDER,
            "close": [],
        }
        ours.settimeout(_TRIAL_S)
        with suppress(OSError):
            ours.send(json.dumps(config).encode())
            while (packet := ours.recv(1 << 16)) and json.loads(packet)["event"] != "exited":
                pass
        ours.close()  # at which the first process leaves
        try:
            return started.communicate(timeout=_TRIAL_S)
        except subprocess.TimeoutExpired:
            started.kill()
            return started.communicate()


def _trial_argv(program: Filter | None) -> list[str]:
    wire = json.dumps(program.wire()) if program is not None else ""
    return [interpreter(), "-I", "-S", "-B", "-c", _TRIAL, str(child.__file__), wire]


def _facts(said: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(said)
    except ValueError:
        return None
    return found


def _last_line(text: str) -> str:
    return next((line.strip()[:200] for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


def _parents(paths: Sequence[Path]) -> list[str]:
    """Words that make the folders above these, for everybody to walk through; left to itself, bubblewrap locks them."""
    above = {parent for path in paths for parent in path.parents if parent != Path("/")}
    words: list[str] = []
    for folder in sorted(above):  # the shorter ones first
        words += ["--perms", "0755", "--dir", str(folder)]
    return words


def _interpreter_folders() -> list[Path]:
    """Of the interpreter: its standard library, and its virtual environment where it is a copy inside of one."""
    found = {Path(sys.base_prefix).resolve()}
    own = Path(interpreter()).parent.parent
    if os.access(own / "pyvenv.cfg", os.R_OK):
        found.add(own)
    return sorted(found)
