"""What runs in a candidate's process: a script of ours that obeys commands, and what it needs besides itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernelworks.evaluate import child


@dataclass(frozen=True)
class Program:
    """A script that answers commands as ``child.py`` does; its first argument is the descriptor of the socket."""

    script: Path
    flags: tuple[str, ...] = ("-I", "-S", "-B")
    """Of the interpreter. ``-B`` always: where files are forbidden, a compiled module must not be tried to be written.
    """
    arguments: tuple[str, ...] = ()
    """After the descriptor."""
    beside: tuple[Path, ...] = ()
    """Other files of ours that the script reads; read-only, at their own paths."""
    readable: tuple[Path, ...] = ()
    """Files and folders (packages) that it may read besides the system's and the interpreter's, at their own paths."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to what every candidate gets."""
    setup: bool = False
    """Processes may be started and files be written in the private folder until ``Candidate.lock``; otherwise the
    process is locked before it loads anything of the candidate."""

    def __post_init__(self) -> None:
        assert "-B" in self.flags, "a process that is locked must not write compiled modules"

    def argv(self, command_fd: int) -> list[str]:
        """The command line."""
        return [interpreter(), *self.flags, str(self.script), str(command_fd), *self.arguments]


def interpreter() -> str:
    """The interpreter itself, not the link to it in a virtual environment; empty where Python does not know it."""
    return str(Path(sys.executable).resolve()) if sys.executable else ""


LIBRARY_PROGRAM = Program(Path(child.__file__))
"""For shared libraries with a ``launch``."""
