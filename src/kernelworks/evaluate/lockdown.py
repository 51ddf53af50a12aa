"""Which system calls a candidate may make: two filters in the kernel's own small language (seccomp, classic BPF).

``boxed``, from the start of a candidate's process: nothing that widens what the process can reach (other processes,
mounts, namespaces, the network, tracing, keys, the kernel's more dangerous parts). Such a call fails with EPERM, since
a loader or an interpreter may try one and live without it.

``locked``, right before anything of the candidate runs: besides, no process is started, no file opened for writing or
changed, no other process signalled, no priority changed. Honest kernels do none of that, so such a call is not
answered: the signal SIGSYS comes, whose handler (``faults.cpp``) writes the number down and ends the process. The call
does not happen whatever a candidate does to the handler.

A filter sees the number of a call and its arguments, never what a pointer leads to: ``clone3`` and ``openat2`` take
theirs behind a pointer and are said not to exist (ENOSYS), after which libraries fall back to ``clone`` and ``openat``.

Source: linux/Documentation/userspace-api/seccomp_filter.rst; the instruction set is that of McCanne and Jacobson 1993,
The BSD Packet Filter.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from kernelworks.evaluate.child import PID_MARK
from kernelworks.evaluate.syscalls import LAST_KNOWN, NUMBERS

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_INSTRUCTION = struct.Struct("=HBBI")
_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16  # struct seccomp_data
_KILL, _TRAP, _ERRNO, _ALLOW = 0x80000000, 0x00030000, 0x00050000, 0x7FFF0000
_EPERM, _ENOSYS = 1, 38

_WRITING = 0o3 | 0o100 | 0o1000
"""O_WRONLY, O_RDWR, O_CREAT, O_TRUNC."""
_CLONE_THREAD = 0x10000
_CLONE_NEW = 0x7E020000
_SIGSYS = 31
_PR_SET_SECCOMP = 22
_AF_UNIX = 1


@dataclass(frozen=True)
class Rule:
    """When a call is refused. ``argument`` counts from 0; only its lower 32 bits are seen, but for ``present``."""

    test: Literal["always", "any_bit", "no_bit", "equal", "unequal", "present"] = "always"
    argument: int = 0
    value: int = 0


_ALWAYS = Rule()
_NOT_ITSELF = Rule("unequal", 0, PID_MARK)
"""The installer puts its own process number in place of the mark."""

_BEYOND: Mapping[str, Rule] = {
    **dict.fromkeys(
        """ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd mount umount2
        pivot_root chroot unshare setns mount_setattr open_tree move_mount fsopen fsconfig fsmount fspick quotactl
        quotactl_fd swapon swapoff reboot sethostname setdomainname acct settimeofday adjtimex clock_settime
        clock_adjtime syslog vhangup iopl ioperm init_module finit_module delete_module kexec_load kexec_file_load bpf
        perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register add_key request_key keyctl
        open_by_handle_at fanotify_init""".split(),
        _ALWAYS,
    ),
    "socket": Rule("unequal", 0, _AF_UNIX),
    "clone": Rule("any_bit", 0, _CLONE_NEW),
}
_BESIDES: Mapping[str, Rule] = {
    **dict.fromkeys(
        """execve execveat fork vfork pidfd_open pidfd_send_signal tkill setpriority sched_setscheduler sched_setparam
        sched_setattr ioprio_set seccomp setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups
        capset socket socketpair connect bind listen accept accept4 sendmsg sendmmsg creat unlink unlinkat rename
        renameat renameat2 mkdir mkdirat rmdir mknod mknodat link linkat symlink symlinkat truncate chmod fchmod
        fchmodat fchmodat2 chown lchown fchown fchownat utime utimes utimensat futimesat setxattr lsetxattr fsetxattr
        removexattr lremovexattr fremovexattr inotify_init inotify_init1 shmget semget msgget mq_open mq_unlink
        """.split(),
        _ALWAYS,
    ),
    "clone": Rule("no_bit", 0, _CLONE_THREAD),
    "open": Rule("any_bit", 1, _WRITING),
    "openat": Rule("any_bit", 2, _WRITING),
    "sendto": Rule("present", 4),  # with an address; the command socket needs none
    "kill": _NOT_ITSELF,
    "tgkill": _NOT_ITSELF,
    "rt_sigqueueinfo": _NOT_ITSELF,
    "rt_tgsigqueueinfo": _NOT_ITSELF,
    "rt_sigaction": Rule("equal", 0, _SIGSYS),
    "prctl": Rule("equal", 0, _PR_SET_SECCOMP),
    "prlimit64": Rule("unequal", 0, 0),
    "migrate_pages": Rule("unequal", 0, 0),
    "move_pages": Rule("unequal", 0, 0),
    "personality": Rule("unequal", 0, 0xFFFFFFFF),  # that value asks
}
_UNKNOWN = ("clone3", "openat2")


@dataclass(frozen=True)
class Filter:
    """A program of the kernel's filter, ready to be installed (``child.install_filter``)."""

    code: bytes
    number: int
    """Of the system call ``seccomp`` here."""

    def wire(self) -> dict[str, Any]:
        """JSON-able."""
        return {"code": self.code.hex(), "number": self.number}


@cache
def boxed(machine: str = os.uname().machine) -> Filter | None:
    """The filter for the whole life of a candidate's process; ``None`` on a machine without a table of calls."""
    return _filter(machine, _BEYOND, _ERRNO | _EPERM)


@cache
def locked(machine: str = os.uname().machine) -> Filter | None:
    """The filter for a candidate's own code, on top of ``boxed``; ``None`` on a machine without a table of calls."""
    beyond = {name: rule for name, rule in _BEYOND.items() if name not in _BESIDES}
    return _filter(machine, {**beyond, **_BESIDES}, _TRAP)


def call_name(number: int, machine: str = os.uname().machine) -> str:
    """Name of a system call that the filters refuse; its number in words for any other."""
    names = {found: name for name, found in NUMBERS.get(machine, {}).items()}
    return names.get(number, f"number {number}")


def _filter(machine: str, rules: Mapping[str, Rule], refusal: int) -> Filter | None:
    numbers = NUMBERS.get(machine)
    if numbers is None:
        return None
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),  # a 32-bit call has other numbers
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_GREATER, 0, 1, LAST_KNOWN),  # x32 calls too: they carry bit 30
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
    ]
    for name in _UNKNOWN:
        code += [(_EQUAL, 0, 1, numbers[name]), (_RETURN, 0, 0, _ERRNO | _ENOSYS)]
    for name, rule in rules.items():
        if name in numbers:
            body = _body(rule, refusal)
            code += [(_EQUAL, 0, len(body), numbers[name]), *body]
    code.append((_RETURN, 0, 0, _ALLOW))
    return Filter(b"".join(_INSTRUCTION.pack(*instruction) for instruction in code), numbers["seccomp"])


def _body(rule: Rule, refusal: int) -> Sequence[tuple[int, int, int, int]]:
    """What follows once the number fits: always a return."""
    low = _ARGUMENTS_AT + 8 * rule.argument  # both machines are little-endian
    load, refuse, allow = (_LOAD, 0, 0, low), (_RETURN, 0, 0, refusal), (_RETURN, 0, 0, _ALLOW)
    match rule.test:
        case "always":
            return [refuse]
        case "any_bit":
            return [load, (_ANY_BIT, 0, 1, rule.value), refuse, allow]
        case "no_bit":
            return [load, (_ANY_BIT, 1, 0, rule.value), refuse, allow]
        case "equal":
            return [load, (_EQUAL, 0, 1, rule.value), refuse, allow]
        case "unequal":
            return [load, (_EQUAL, 1, 0, rule.value), refuse, allow]
        case "present":
            high = (_LOAD, 0, 0, low + 4)
            return [load, (_EQUAL, 0, 2, 0), high, (_EQUAL, 1, 0, 0), refuse, allow]
