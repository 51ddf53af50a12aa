"""Messages between the harness and the judge: length-prefixed JSON on a stream socket, descriptors beside it."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

from kernelworks.errors import EvaluationError

_HEADER = struct.Struct("!QI")
"""Length of the JSON text in bytes, number of descriptors that come with this header."""
_MOST_DESCRIPTORS = 250
"""Linux passes at most 253 (SCM_MAX_FD) at a time."""


def send(connection: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one message and duplicates of these descriptors.

    Raises:
        EvaluationError: too many descriptors.
        OSError: the other side is gone.
    """
    if len(fds) > _MOST_DESCRIPTORS:
        raise EvaluationError(f"expected at most {_MOST_DESCRIPTORS} buffers in one case, found {len(fds)}")
    text = json.dumps(message).encode()
    header = _HEADER.pack(len(text), len(fds))
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    connection.sendmsg([header], rights)
    connection.sendall(text)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive one message and its descriptors, which the caller closes.

    Raises:
        EOFError: the other side is gone.
        TimeoutError: the socket's timeout has passed.
    """
    fds = array.array("i")
    room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * fds.itemsize)
    header, ancillary, _, _ = connection.recvmsg(_HEADER.size, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    try:
        header += _read(connection, _HEADER.size - len(header)) if header else b""
        if not header:
            raise EOFError
        length, count = _HEADER.unpack(header)
        message = json.loads(_read(connection, length))
        if len(fds) != count:
            raise EvaluationError(f"expected {count} descriptors from the judge, found {len(fds)}")
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return message, list(fds)


def _read(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
