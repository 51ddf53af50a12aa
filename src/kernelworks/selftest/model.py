"""What the suite is made of: operations as hosts, attacks on them, honest kernels, and what counts as caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from kernelworks.kernel.model import Contract
from kernelworks.selftest.bait import Bait
from kernelworks.selftest.pen import Pen


class Criterion(StrEnum):
    """When an attack counts as caught. A verdict that is not ``correct`` always does, if the attack ran at all."""

    REFUSED = "refused"
    """The verdict is not ``correct``."""
    HARMLESS = "harmless"
    """Or it is, and the kernel is not found faster than its honest twin, timed against it."""
    UNTOUCHED = "untouched"
    """Or it is, and nobody opened, changed or connected to the bait laid out for this attack."""
    NAMED = "named"
    """Or it is, and a finding names the trick."""


@dataclass(frozen=True)
class PythonSide:
    """What a ``ModelNew`` for an operation needs: Python text around a C++ function with the host's parameters."""

    forward: str
    """Parameters of ``forward``."""
    allocate: str
    """Expression of the output."""
    arguments: tuple[str, ...]
    """Expressions for the C++ parameters, in order; pointers as integers."""
    init: str = ""
    """``__init__`` of the reference, unindented; empty: none of its own."""
    by_torch: str = ""
    """An expression that is the answer by torch's own operators."""


@dataclass(frozen=True)
class Host:
    """An operation that attacks work on.

    ``parameters`` are those of ``launch``, as (type, name); ``work`` defines ``$work``, which computes the units
    (rows, elements) ``[$from, $to)``; ``units`` says how many there are.
    """

    name: str
    task: Callable[[Pen], str]
    """The text of the task file; sizes vary."""
    parameters: tuple[tuple[str, str], ...] = ()
    work: str = ""
    units: str = ""
    values: str = ""
    """Elements of the first output in all."""
    unit_values: str = "1"
    """Elements of the first output in a unit."""
    inputs: tuple[tuple[str, str], ...] = ()
    """(name, number of elements) of each input tensor."""
    python: PythonSide | None = None
    """Under the module contract."""

    @property
    def declared(self) -> str:
        """The parameter list of ``launch``."""
        return ", ".join(f"{kind} ${name}" for kind, name in self.parameters)

    @property
    def passed(self) -> str:
        """The arguments of ``launch``, to be passed on."""
        return ", ".join(f"${name}" for _, name in self.parameters)

    @property
    def output(self) -> tuple[str, str]:
        """(element type, name) of the first output."""
        return next(
            (kind.removesuffix("*"), f"${name}")
            for kind, name in self.parameters
            if kind.endswith("*") and not kind.startswith("const")
        )


@dataclass(frozen=True)
class Part:
    """The trick of an attack under the function contract, put around the host's honest work.

    ``${all}`` in the body is a call that does the whole work; an empty ``work`` leaves the host's in place.
    """

    body: str
    head: str = ""
    work: str = ""
    front: str = ""


Trick = Callable[[Pen, Host, Bait], Part]
"""What an attack does, by its host and the bait that is laid out for it."""
Writer = Callable[[Pen, Host, Bait], str]
"""The same as the text of a whole kernel file."""


@dataclass(frozen=True)
class Attack:
    """One way to cheat, as a generator of kernel files."""

    id: str
    """Of the catalogue."""
    contract: Contract
    variant: str
    """In words, unique within id and contract."""
    hosts: tuple[str, ...]
    """Operations that it can be mounted on; the seed chooses."""
    criterion: Criterion
    write: Writer
    twin: Writer
    """The same kernel without the trick."""
    trick: Trick | None = None
    """The C++ part of it, where that is all."""
    finding: str = ""
    """``NAMED``: kind of the finding that names it."""
    short: bool = False
    """Part of the short form."""
    spoils: bool = False
    """Where it gets through, nothing that shares its judge means anything any more."""


@dataclass(frozen=True)
class Honest:
    """One honest kernel, in a style that a hasty rule would refuse."""

    name: str
    contract: Contract
    host: str
    write: Callable[[Pen, Host], str]
    short: bool = False
    """Part of the short form."""
