"""The candidate's process: loads one shared library and calls its ``launch`` on command.

Run as a script by ``supervisor.py`` with ``python -I -S``: standard library only, and never imported by the harness.
Nothing here is a defence: the candidate shares this process and can change anything in it. What must be trusted is
measured or checked by the harness.

Protocol: one JSON object per packet over the SOCK_SEQPACKET socket whose descriptor is ``argv[1]``. A command is
``{"id": text, "do": name, ...}``, answered by ``{"id": text, "value": object}`` or ``{"id": text, "error": text}``::

    watch    {shim: bool}, fd of a page, fd of the shim -> {}       record faults (faults.cpp)
    listen   {shim: whether}, fds of a page and the shim -> {}      to a doorbell (doorbell.cpp)
    lock     {code, number}              -> {}                      a filter of system calls (lockdown.py), for good
    load     {path or null}, fd of the library -> {ftz, daz}        dlopen, look up launch; null: one that does nothing
    map      {key, tensors: [layout]}, fds -> {bases: [address]}    may come several times for one key
    bind     {key, arguments: [...]}     -> {workspaces: [address]}
    call     {key}                       -> {returned}
    arm      {programs: [{keys, allocate}], last} -> {}           then calls when the doorbell rings, until dismissed
    float    {}                          -> {ftz, daz}

A program is a list of calls: the doorbell names one, and is answered after its last call, or the first that fails.

An argument is ``{"tensor": i, "output": bool}`` (the i-th mapped of this key), ``{"workspace": bytes}``,
``{"int": v}``, ``{"float": v}`` or ``{"bool": v}``.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

MESSAGE_BYTES = 1 << 16
DESCRIPTORS = 64
CHANNEL_LOST = 121
"""Exit code when the socket to the harness is gone."""

LEAST_GUARD_BYTES = 1 << 20
"""Least size of the region without access on either side of a tensor."""

_PAGE = mmap.PAGESIZE
_ALIGNMENT = 64
_MAP_FIXED = 0x10
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_LIBC.aligned_alloc.restype = ctypes.c_void_p
_LIBC.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_LIBC.free.restype = None
_LIBC.free.argtypes = [ctypes.c_void_p]

GO_WORD, DONE_WORD = 0, 16
"""Indices of 32-bit words in the page of a doorbell: number of the ring (the program follows), and number of the ring
that was answered (what the calls returned follows). ``struct Page`` of doorbell.cpp."""
NO_PROGRAM = 0xFFFFFFFF
"""Rung for this, the candidate's process goes back to its commands."""
FUTEX_WAIT, FUTEX_WAKE = 0, 1
_SYS_FUTEX = {"x86_64": 202, "ppc64le": 221, "s390x": 238}.get(os.uname().machine, 98)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def futex(address: int, operation: int, value: int, timeout_ns: int | None) -> None:
    """futex(2) on a shared word: sleep while it holds ``value`` (returns early at will), or wake ``value`` sleepers."""
    limit = None
    if timeout_ns is not None:
        limit = ctypes.byref(_Timespec(*divmod(timeout_ns, 1_000_000_000)))
    _LIBC.syscall(
        ctypes.c_long(_SYS_FUTEX),
        ctypes.c_void_p(address),
        ctypes.c_int(operation),
        ctypes.c_uint32(value),
        limit,
        None,
        ctypes.c_int(0),
    )


_FORBID: Any = getattr(_LIBC, "__asan_poison_memory_region", None)
"""There where AddressSanitizer was loaded first."""


def forbid(address: int, size_bytes: int) -> None:
    """Have AddressSanitizer report any access; nothing happens where it does not watch."""
    if _FORBID is not None and size_bytes > 0:
        _FORBID(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes))


class CommandError(Exception):
    """A command that could not be carried out; its text is the answer."""


PID_MARK = 0x7F501D00
"""Stands in a filter where this process's own number belongs."""
_SECCOMP_SET_MODE_FILTER = 1
_TSYNC_AND_SPEC_ALLOW = 1 | 4
"""For all threads; and without the mitigations of speculation, which would slow every kernel down."""
_PR_SET_NO_NEW_PRIVS = 38


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def install_filter(code: str, number: int) -> None:
    """Bind this process, all its threads and whatever it starts to a filter of system calls.

    Args:
        code: the program in hexadecimal digits, eight bytes an instruction.
        number: of the system call ``seccomp``.

    Raises:
        CommandError: the kernel does not take it.
    """
    program = bytearray.fromhex(code)
    mark, own = PID_MARK.to_bytes(4, sys.byteorder), os.getpid().to_bytes(4, sys.byteorder)
    for at in range(4, len(program), 8):
        if bytes(program[at : at + 4]) == mark:
            program[at : at + 4] = own
    memory = (ctypes.c_char * len(program)).from_buffer(program)
    described = _FilterProgram(len(program) // 8, ctypes.addressof(memory))
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    failed = _LIBC.syscall(
        ctypes.c_long(number),
        ctypes.c_ulong(_SECCOMP_SET_MODE_FILTER),
        ctypes.c_ulong(_TSYNC_AND_SPEC_ALLOW),
        ctypes.byref(described),
    )
    if failed:
        reason = os.strerror(ctypes.get_errno()) if failed < 0 else f"thread {failed} has one of its own"
        raise CommandError(f"the kernel takes no filter of system calls: {reason}")


def _mmap(address: int | None, size_bytes: int, protection: int, flags: int, fd: int) -> int:
    found = _LIBC.mmap(address, size_bytes, protection, flags, fd, 0)
    if found is None or found == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise CommandError(f"cannot map {size_bytes} bytes: {os.strerror(code)}")
    return int(found)


def map_guarded(size_bytes: int, fd: int | None) -> int:
    """Map whole pages (of ``fd``, or fresh ones) between regions without access; the address of the first page.

    Each guard is as large as the mapping, so that a stride off by one row, or an index off by one tensor, still faults.
    """
    guard = max(size_bytes, LEAST_GUARD_BYTES)
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    region = _mmap(None, size_bytes + 2 * guard, 0, anonymous, -1)
    access = mmap.PROT_READ | mmap.PROT_WRITE
    kind = anonymous if fd is None else mmap.MAP_SHARED
    return _mmap(region + guard, size_bytes, access, kind | _MAP_FIXED | mmap.MAP_POPULATE, -1 if fd is None else fd)


class Bound:
    """``launch`` with one set of arguments; ``own`` are (position, bytes) of what ``as_called`` allocates."""

    def __init__(self, function: Any, values: list[Any]) -> None:
        self.function = function
        self.values = values
        self.own: list[tuple[int, int]] = []
        self.workspaces: list[tuple[int, int]] = []

    def poison(self) -> None:
        """Fill the workspaces with 0xFF bytes (NaN in every floating type)."""
        for address, size_bytes in self.workspaces:
            ctypes.memset(address, 0xFF, size_bytes)

    def call(self) -> int:
        """One call with everything allocated beforehand."""
        return self.function(*self.values)

    def call_allocating(self) -> int:
        """One call that allocates outputs and workspaces, and frees them, as a user's program would."""
        values = self.values.copy()
        for position, size_bytes in self.own:
            values[position] = _LIBC.aligned_alloc(_ALIGNMENT, size_bytes)
            if not values[position]:
                raise CommandError(f"malloc found no {size_bytes} bytes")
        try:
            return self.function(*values)
        finally:
            for position, _ in self.own:
                _LIBC.free(values[position])


class Bell:
    """The candidate's side of a doorbell; by way of the shim where there is one."""

    def __init__(self, page: int, shim: ctypes.CDLL | None) -> None:
        self._page = page
        self._shim = shim
        self._words = (ctypes.c_uint32 * (_PAGE // 4)).from_address(page)
        if shim is not None:
            shim.kernelworks_wait.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
            shim.kernelworks_wait.restype = ctypes.c_uint32
            shim.kernelworks_answer.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int32]
            shim.kernelworks_answer.restype = ctypes.c_uint32

    @property
    def program(self) -> int:
        """For which program it rang last."""
        return self._words[GO_WORD + 1]

    def wait(self, last: int) -> int:
        """Sleep until another ring than the last; its number."""
        if self._shim is not None:
            return self._shim.kernelworks_wait(self._page, last)
        while self._words[GO_WORD] == last:
            futex(self._page + 4 * GO_WORD, FUTEX_WAIT, last, None)
        return self._words[GO_WORD]

    def answer(self, ring: int, returned: int) -> int:
        """Answer a ring, and sleep until the next; its number."""
        if self._shim is not None:
            return self._shim.kernelworks_answer(self._page, ring, returned)
        self._words[DONE_WORD + 1] = returned & 0xFFFFFFFF
        self._words[DONE_WORD] = ring
        futex(self._page + 4 * DONE_WORD, FUTEX_WAKE, 1, None)
        return self.wait(ring)


class _Nothing:
    """A library whose ``launch`` does nothing."""

    def __getitem__(self, _name: str) -> Any:
        def nothing(*_arguments: object) -> int:
            return 0

        return nothing  # as what ctypes looks up: new every time, with attributes that can be set


class Child:
    """State of the process between commands."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | _Nothing | None = None
        self._shim: ctypes.CDLL | None = None
        self._bell: Bell | None = None
        self._programs: list[list[Callable[[], int]]] = []
        self._last_ring: int | None = None
        self._tensors: dict[str, list[tuple[int, int]]] = {}
        self._bound: dict[str, Bound] = {}
        self.commands: dict[str, Callable[[dict[str, Any], list[int]], dict[str, Any]]] = {
            "watch": self.watch,
            "listen": self.listen,
            "lock": self.lock,
            "load": self.load,
            "map": self.map,
            "bind": self.bind,
            "call": self.call,
            "arm": self.arm,
            "float": lambda _message, _fds: float_mode(),
        }

    def watch(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Install the fault handlers, if there is a shim."""
        if not message["shim"]:
            return {}
        page = _mmap(None, _PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fds[0])
        self._shim = _shim(fds[1])
        if self._shim.kernelworks_watch_faults(ctypes.c_void_p(page)) != 0:
            raise CommandError("the fault handlers could not be set")
        return {}

    def listen(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Map the page of the doorbell."""
        page = _mmap(None, _PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fds[0])
        self._bell = Bell(page, _shim(fds[1]) if message["shim"] else None)
        return {}

    def lock(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Take a filter of system calls; several add up."""
        install_filter(message["code"], message["number"])
        return {}

    def load(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Load the candidate (all symbols resolved now) and look up ``launch``."""
        if message["path"] is None:
            self._library = _Nothing()
            return float_mode()
        path = library_path(fds[0])
        if _FORBID is not None:
            fds.clear()  # stays open: reports name the kernel's lines, which are read there
        try:
            self._library = ctypes.CDLL(path)
            _ = self._library.launch
        except (OSError, AttributeError) as error:
            raise CommandError(str(error).replace(path, message["path"])) from error
        return float_mode()

    def map(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Map tensors at addresses of their own, whatever other keys map."""
        tensors = self._tensors.setdefault(message["key"], [])
        bases: list[int] = []
        for layout, fd in zip(message["tensors"], fds, strict=True):
            base = map_guarded(layout["file_bytes"], fd)
            bases.append(base)
            end = layout["data_offset"] + layout["size_bytes"]
            forbid(base, layout["data_offset"])
            forbid(base + end, layout["file_bytes"] - end)
            tensors.append((base + layout["data_offset"], layout["size_bytes"]))
        return {"bases": bases}

    def bind(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Fix the arguments of a key."""
        if self._library is None:
            raise CommandError("bind before load")
        tensors: list[tuple[int, int]] = self._tensors.get(message["key"], [])
        function = self._library["launch"]  # a new object: its argtypes are its own
        function.restype = ctypes.c_int
        bound = Bound(function, [])
        types: list[Any] = []
        for position, argument in enumerate(message["arguments"]):
            kind, value = next(iter(argument.items()))
            types.append(_TYPES[kind])
            if kind == "tensor":
                address, size_bytes = tensors[int(value)]
                bound.values.append(address)
                if argument["output"]:
                    bound.own.append((position, _allocation_bytes(size_bytes)))
            elif kind == "workspace":
                address = _workspace(value)
                bound.values.append(address)
                bound.workspaces.append((address, value))
                bound.own.append((position, _allocation_bytes(value)))
            else:
                bound.values.append(value)
        function.argtypes = types
        bound.poison()
        self._bound[message["key"]] = bound
        return {"workspaces": [address for address, _ in bound.workspaces]}

    def call(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """One call with poisoned workspaces."""
        bound = self._bound[message["key"]]
        bound.poison()
        return {"returned": bound.call()}

    def arm(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Make the programs ready; ``rings`` comes next."""
        self._programs = [
            [self._call(key, program["allocate"]) for key in program["keys"]] for program in message["programs"]
        ]
        self._last_ring = message["last"]
        return {}

    def rings(self) -> None:
        """Once armed, call what the doorbell asks for until it dismisses this process."""
        if self._last_ring is None or self._bell is None:
            return
        bell, programs = self._bell, self._programs
        ring = bell.wait(self._last_ring)
        while (program := bell.program) != NO_PROGRAM:
            returned = 0
            for call in programs[program]:
                returned = call()
                if returned != 0:
                    break
            ring = bell.answer(ring, returned)
        self._last_ring = None

    def _call(self, key: str, allocate: bool) -> Callable[[], int]:
        bound = self._bound[key]
        return bound.call_allocating if allocate else bound.call


def library_path(fd: int) -> str:
    """Where a library behind a descriptor can be loaded from; its own path is not seen from inside a sandbox.

    Another path for every one: the loader takes equal names for one library, and descriptors are used again.
    """
    global _paths
    _paths += 1
    return f"/proc/self{'/' * _paths}fd/{fd}"


_paths = 0


def _shim(fd: int) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(library_path(fd))
    except OSError as error:
        raise CommandError(str(error)) from error


_TYPES = {
    "tensor": ctypes.c_void_p,
    "workspace": ctypes.c_void_p,
    "int": ctypes.c_int64,
    "float": ctypes.c_double,
    "bool": ctypes.c_uint8,
}


def _allocation_bytes(size_bytes: int) -> int:
    """A multiple of the alignment, and never 0: ``aligned_alloc`` asks for the one, NULL means failure."""
    return max(1, -(-size_bytes // _ALIGNMENT)) * _ALIGNMENT


def _workspace(size_bytes: int) -> int:
    aligned = -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
    pages = max(1, -(-aligned // _PAGE)) * _PAGE
    base = map_guarded(pages, None)
    forbid(base, pages - aligned)
    forbid(base + pages - aligned + size_bytes, aligned - size_bytes)
    return base + pages - aligned


def float_mode() -> dict[str, Any]:
    """Whether this thread flushes subnormal results (ftz) or takes subnormal operands as zero (daz)."""
    least_normal, least_subnormal, large = sys.float_info.min, 5e-324, 1e300
    return {"ftz": least_normal * 0.5 == 0.0, "daz": least_subnormal * large == 0.0}


def serve(channel: socket.socket, child: Child) -> None:
    """Answer commands until the harness closes its end."""
    while True:
        packet, fds, _flags, _address = socket.recv_fds(channel, MESSAGE_BYTES, DESCRIPTORS)
        if not packet:
            return
        message = json.loads(packet)
        try:
            answer = {"id": message["id"], "value": child.commands[message["do"]](message, fds)}
        except CommandError as error:
            answer = {"id": message["id"], "error": str(error)}
        for fd in fds:
            os.close(fd)
        channel.send(json.dumps(answer).encode())
        child.rings()


def run(child: Child) -> None:
    """Serve the socket named on the command line; leave by ``_exit``, so that no code of the candidate runs then."""
    gc.disable()
    try:
        serve(socket.socket(fileno=int(sys.argv[1])), child)
    except OSError:
        os._exit(CHANNEL_LOST)
    os._exit(0)


if __name__ == "__main__":
    run(Child())
