"""Candidates of a few lines that say what they found."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kernelworks.evaluate.process import Candidate, CandidateEndedError
from kernelworks.evaluate.sandbox import Sandbox, find_sandbox
from kernelworks.evaluate.supervision import Exit, Limits
from support.candidates import LIMITS, LONG_S, build

HEADERS = """
#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <iostream>
#include <pthread.h>
#include <sched.h>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>
"""


_BUILT: dict[str, Path] = {}
"""Libraries by text: most are tried in two ways."""


@contextmanager
def doing(body: str, folder: Path, sandbox: Sandbox, limits: Limits = LIMITS, head: str = "") -> Generator[Candidate]:
    """A candidate whose ``launch`` does this."""
    text = f'{HEADERS}{head}\nextern "C" int launch() {{ {body}\nfflush(nullptr); return 0; }}'
    library = _BUILT.get(text)
    if library is None or not library.exists():
        library = _BUILT[text] = build(text, folder)
    with Candidate.start(library, threads=2, limits=limits, sandbox=sandbox) as candidate:
        candidate.bind("k", [])
        yield candidate


def said(body: str, folder: Path, sandbox: Sandbox, limits: Limits = LIMITS) -> str:
    """What it printed."""
    with doing(body, folder, sandbox, limits) as candidate:
        assert candidate.call("k", LONG_S).returned == 0
        return candidate.end().stdout.text.strip()


def ended(body: str, folder: Path, sandbox: Sandbox, limits: Limits = LIMITS, head: str = "") -> Exit:
    """How it ended before it could return."""
    with doing(body, folder, sandbox, limits, head) as candidate, pytest.raises(CandidateEndedError) as caught:
        candidate.call("k", LONG_S)
    return caught.value.exit


def need_bubblewrap() -> Sandbox:
    """The full sandbox; skips the test where there is none."""
    found = find_sandbox()
    if found.kind == "none":
        pytest.skip(found.lacking[0])
    return found


def need_filters() -> Sandbox:
    """Filters of system calls, with bubblewrap or without; skips the test where the kernel takes none."""
    found = find_sandbox()
    if not found.filters:
        pytest.skip(found.lacking[-1])
    return found


def without_bubblewrap() -> Sandbox:
    """Filters alone."""
    return replace(need_filters(), kind="none", command="")
