from __future__ import annotations

import os
import socket
import threading
from collections.abc import Generator

import pytest

from kernelworks.errors import EvaluationError
from kernelworks.evaluate import channel


@pytest.fixture
def pair() -> Generator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        theirs.settimeout(10)
        yield ours, theirs


def test_large_messages_and_descriptors_arrive_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    read_end, write_end = os.pipe()
    large = {"text": "x" * 3_000_000}
    sender = threading.Thread(target=lambda: [channel.send(ours, large, [read_end]), channel.send(ours, {"n": 2})])
    sender.start()
    message, fds = channel.receive(theirs)
    assert message == large
    assert channel.receive(theirs) == ({"n": 2}, [])
    sender.join()
    os.write(write_end, b"hello")
    assert os.read(fds[0], 5) == b"hello"
    assert not os.get_inheritable(fds[0])
    for fd in (*fds, read_end, write_end):
        os.close(fd)


def test_the_end_of_the_other_side_is_an_end(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.close()
    with pytest.raises(EOFError):
        channel.receive(theirs)


def test_half_a_message_is_an_end_and_leaks_no_descriptor(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    before = len(os.listdir("/proc/self/fd"))
    with open("/dev/null", "rb") as file:
        socket.send_fds(ours, [b"\0" * 7 + b"\x40"], [file.fileno()])
    ours.close()
    with pytest.raises(EOFError):
        channel.receive(theirs)
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_too_many_descriptors_are_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(EvaluationError, match="at most 250"):
        channel.send(pair[0], {}, [0] * 251)
