"""The candidate's process: loads one shared library and calls its ``launch`` on command.

Run as a script by ``supervisor.py`` with ``python -I -S``: standard library only, and never imported by the harness.
Nothing here is a defence: the candidate shares this process and can change anything in it. What must be trusted is
measured or checked by the harness.

Protocol: one JSON object per packet over the SOCK_SEQPACKET socket whose descriptor is ``argv[1]``. A command is
``{"id": text, "do": name, ...}``, answered by ``{"id": text, "value": object}`` or ``{"id": text, "error": text}``::

    watch    {shim or null}, fd of a page -> {}                     record faults (faults.cpp)
    load     {path}                      -> {ftz, daz}              dlopen, look up launch
    map      {key, tensors: [layout]}, fds -> {bases: [address]}    may come several times for one key
    bind     {key, arguments: [...]}     -> {workspaces: [address]}
    call     {key}                       -> {returned}
    time     {keys, calls, flush_bytes, allocate} -> {returned, inner_ns, page_faults}
    float    {}                          -> {ftz, daz}

An argument is ``{"tensor": i, "output": bool}`` (the i-th mapped of this key), ``{"workspace": bytes}``,
``{"int": v}``, ``{"float": v}`` or ``{"bool": v}``.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import resource
import socket
import sys
import time
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
_LIBC.memchr.restype = ctypes.c_void_p
_LIBC.memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
_LIBC.aligned_alloc.restype = ctypes.c_void_p
_LIBC.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_LIBC.free.restype = None
_LIBC.free.argtypes = [ctypes.c_void_p]


class CommandError(Exception):
    """A command that could not be carried out; its text is the answer."""


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


class Child:
    """State of the process between commands."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None
        self._shim: ctypes.CDLL | None = None
        self._tensors: dict[str, list[tuple[int, int]]] = {}
        self._bound: dict[str, Bound] = {}
        self._sweep = (0, 0)
        self.commands: dict[str, Callable[[dict[str, Any], list[int]], dict[str, Any]]] = {
            "watch": self.watch,
            "load": self.load,
            "map": self.map,
            "bind": self.bind,
            "call": self.call,
            "time": self.time,
            "float": lambda _message, _fds: float_mode(),
        }

    def watch(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Install the fault handlers, if there is a shim."""
        if message["shim"] is None:
            return {}
        page = _mmap(None, _PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fds[0])
        try:
            self._shim = ctypes.CDLL(message["shim"])
        except OSError as error:
            raise CommandError(str(error)) from error
        if self._shim.kernelworks_watch_faults(ctypes.c_void_p(page)) != 0:
            raise CommandError("the fault handlers could not be set")
        return {}

    def load(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Load the candidate (all symbols resolved now) and look up ``launch``."""
        try:
            self._library = ctypes.CDLL(message["path"])
            _ = self._library.launch
        except (OSError, AttributeError) as error:
            raise CommandError(str(error)) from error
        return float_mode()

    def map(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Map tensors at addresses of their own, whatever other keys map."""
        tensors = self._tensors.setdefault(message["key"], [])
        bases: list[int] = []
        for layout, fd in zip(message["tensors"], fds, strict=True):
            base = map_guarded(layout["file_bytes"], fd)
            bases.append(base)
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

    def time(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Timed calls, keys in turn; stops at the first that does not return 0."""
        bounds = [self._bound[key] for key in message["keys"]]
        calls = [bound.call_allocating if message["allocate"] else bound.call for bound in bounds]
        flush_bytes = message["flush_bytes"]
        usage, who, clock = resource.getrusage, resource.RUSAGE_SELF, time.perf_counter_ns
        inner_ns: list[int] = []
        page_faults: list[int] = []
        returned = 0
        for index in range(message["calls"]):
            call = calls[index % len(calls)]
            if flush_bytes:
                self._flush(flush_bytes)
            faults = usage(who).ru_minflt
            start = clock()
            returned = call()
            end = clock()
            page_faults.append(usage(who).ru_minflt - faults)
            inner_ns.append(end - start)
            if returned != 0:
                break
        return {"returned": returned, "inner_ns": inner_ns, "page_faults": page_faults}

    def _flush(self, size_bytes: int) -> None:
        """Evict the caches by reading: written lines would be written back during the timed call."""
        address, have_bytes = self._sweep
        if have_bytes < size_bytes:
            access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            address = _mmap(None, size_bytes, access, kind, -1)
            ctypes.memset(address, 0, size_bytes)  # pages of its own; untouched ones would all be the one zero page
            self._sweep = (address, size_bytes)
        _LIBC.memchr(address, 1, size_bytes)


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
    return map_guarded(pages, None) + pages - aligned


def float_mode() -> dict[str, Any]:
    """Whether this thread flushes subnormal results (ftz) or takes subnormal operands as zero (daz)."""
    least_normal, least_subnormal, large = sys.float_info.min, 5e-324, 1e300
    return {"ftz": least_normal * 0.5 == 0.0, "daz": least_subnormal * large == 0.0}


def serve(channel: socket.socket) -> None:
    """Answer commands until the harness closes its end."""
    child = Child()
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


def main() -> None:
    """Serve the socket named on the command line; leave by ``_exit``, so that no code of the candidate runs then."""
    gc.disable()
    try:
        serve(socket.socket(fileno=int(sys.argv[1])))
    except OSError:
        os._exit(CHANNEL_LOST)
    os._exit(0)


if __name__ == "__main__":
    main()
