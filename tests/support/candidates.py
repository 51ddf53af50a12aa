"""A candidate that does whatever a test asks for, and its tensors."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from kernelworks.evaluate.buffers import SharedBuffer
from kernelworks.evaluate.process import BufferArg, Candidate, CandidateEndedError, WorkspaceArg
from kernelworks.evaluate.sandbox import Sandbox
from kernelworks.evaluate.supervision import Exit, Limits, marked_processes
from kernelworks.targets.compiler import find_toolchain

SOURCE = Path(__file__).with_name("misbehaviour.cpp")
DEEDS = {name: int(number) for number, name in re.findall(r"case (\d+): // (\w+)", SOURCE.read_text())}
LIMITS = Limits(memory_bytes=256 << 20)
LONG_S = 60.0
"""For what must end by itself."""

on_x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="a property of x86 processors")


def build(text: str, folder: Path) -> Path:
    toolchain = find_toolchain()
    source, library = folder / "source.cpp", folder / "library.so"
    source.write_text(text)
    words = [*toolchain.command, "-O1", "-g0", "-std=c++17", "-w", "-shared", "-fPIC", *toolchain.openmp_compile]
    subprocess.run([*words, str(source), *toolchain.openmp_link, "-o", str(library)], check=True)
    return library


@dataclass(frozen=True)
class Bench:
    """A running candidate with its tensors: ``x`` counts upwards, ``y`` is NaN."""

    candidate: Candidate
    x: SharedBuffer
    y: SharedBuffer
    count: int

    def bind(self, key: str, deed: str, scale: float = 2.0, negate: bool = False) -> None:
        y = BufferArg(self.y, output=True)
        scratch = WorkspaceArg("scratch", 64)
        self.candidate.bind(key, [BufferArg(self.x), y, scratch, self.count, scale, negate, DEEDS[deed]])

    def do(self, deed: str, timeout_s: float = LONG_S) -> int:
        self.bind(deed, deed)
        return self.candidate.call(deed, timeout_s).returned

    def ended(self, deed: str, timeout_s: float = LONG_S) -> Exit:
        with pytest.raises(CandidateEndedError) as caught:
            self.do(deed, timeout_s)
        assert caught.value.exit == self.candidate.end()
        return caught.value.exit

    def output(self) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        return np.frombuffer(bytes(self.y.data), np.float32)


@contextmanager
def bench(
    library: Path, count: int = 1 << 14, limits: Limits = LIMITS, sandbox: Sandbox | None = None
) -> Generator[Bench]:
    with SharedBuffer.create("x", 4 * count) as x, SharedBuffer.create("y", 4 * count) as y:
        x.data[:] = np.arange(count, dtype=np.float32).tobytes()
        y.data[:] = np.full(count, np.nan, np.float32).tobytes()
        with Candidate.start(library, threads=2, limits=limits, sandbox=sandbox) as candidate:
            yield Bench(candidate, x, y, count)
        assert marked_processes(candidate.mark) == []
