"""From a trick and its host to a Python file with ``ModelNew``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from kernelworks.kernel.model import Contract
from kernelworks.selftest.bait import Bait
from kernelworks.selftest.function.assemble import assemble as assemble_cpp
from kernelworks.selftest.model import Attack, Criterion, Host, Part, Trick
from kernelworks.selftest.pen import Pen

_FILE = '''${imports}

$source = r"""
${cpp}
"""


def $built():
    # ${remark}
    $folder = tempfile.mkdtemp()
    $text, $library = os.path.join($folder, "a.cpp"), os.path.join($folder, "a.so")
    with open($text, "w") as $file:
        $file.write($source)
    $words = ["g++", "-O3", "-march=native", "-std=c++17", "-fopenmp", "-shared", "-fPIC", "-w", $text, "-o", $library]
    subprocess.run($words, check=True)
    $opened = ctypes.CDLL($library)
    shutil.rmtree($folder)
    return $opened.launch


$launch = $built()
$launch.argtypes = [${types}]
${head}


class ModelNew(nn.Module):
${init}
    def $answer(self, ${forward}):
        y = ${allocate}
        if $launch(${arguments}) != 0:
            raise RuntimeError("the kernel failed")
        return y

    def forward(self, ${forward}):
${body}
'''
_IMPORTS = ("import ctypes", "import os", "import shutil", "import subprocess", "import tempfile")
_TYPES = {"int64_t": "ctypes.c_int64", "double": "ctypes.c_double"}


@dataclass(frozen=True)
class PythonPart:
    """A trick in Python around honest C++. ``${honest}`` in the body is the honest answer as an expression."""

    body: str
    """Of ``forward``, unindented."""
    head: str = ""
    """At module level."""
    imports: tuple[str, ...] = ()
    after_init: str = ""
    """At the end of ``__init__``, unindented."""
    native: bool = True
    """Whether there is a C++ kernel at all."""


PythonTrick = Callable[[Pen, Host, Bait], PythonPart]


def assemble(pen: Pen, host: Host, part: PythonPart, cpp: Part | None = None) -> str:
    """The whole file."""
    side = host.python
    assert side is not None
    source = assemble_cpp(pen, host, cpp or Part(body="  ${all}"))
    source = source.partition("---*/\n")[2]
    types = ", ".join(_TYPES.get(kind, "ctypes.c_void_p") for kind, _ in host.parameters)
    imports = [*pen.shuffled([*_IMPORTS, *part.imports]), "", "import torch", "from torch import nn"]
    template = _FILE if part.native else _without_kernel(_FILE)
    return pen.write(
        template,
        imports="\n".join(imports),
        cpp=source,
        remark=pen.comment(),
        types=types,
        head=part.head,
        init=_indented(_init(side.init, part.after_init), 4),
        forward=side.forward,
        allocate=side.allocate,
        arguments=", ".join(side.arguments),
        body=_indented(part.body, 8),
        honest=f"self.$answer({side.forward})",
        torch=side.by_torch,
    )


def _without_kernel(template: str) -> str:
    first, last = template.index("$source = "), template.index("${head}")
    answer, forward = template.index("    def $answer"), template.index("    def forward")
    return template[:first] + template[last:answer] + template[forward:]


def _init(own: str, after: str) -> str:
    if not after:
        return own
    start = own or "def __init__(self):\n    super().__init__()\n"
    head, separator, rest = start.partition("\ndef run")
    return head.rstrip("\n") + "\n" + _indented(after, 4) + "\n" + separator + rest


def _indented(text: str, columns: int) -> str:
    return "\n".join(" " * columns + line if line.strip() else "" for line in text.splitlines())


def plain(pen: Pen, host: Host) -> str:
    """An honest C++ kernel, called by ctypes, and nothing else."""
    return assemble(pen, host, PythonPart(body="return ${honest}"))


def attack(
    id_: str,
    variant: str,
    trick: PythonTrick,
    hosts: tuple[str, ...],
    criterion: Criterion = Criterion.REFUSED,
    *,
    finding: str = "",
) -> Attack:
    """An attack in Python."""
    return Attack(
        id=id_,
        contract=Contract.MODULE,
        variant=variant,
        hosts=hosts,
        criterion=criterion,
        write=partial(_write, trick),
        twin=_twin,
        finding=finding,
    )


def in_a_module(of_function: Attack, hosts: tuple[str, ...]) -> Attack:
    """The C++ trick of an attack under the function contract, inside a ``ModelNew``."""
    assert of_function.trick is not None
    write = partial(_write_native, of_function.trick)
    return replace(of_function, contract=Contract.MODULE, hosts=hosts, write=write, twin=_twin, trick=None)


def _write(trick: PythonTrick, pen: Pen, host: Host, bait: Bait) -> str:
    return assemble(pen, host, trick(pen, host, bait))


def _write_native(trick: Trick, pen: Pen, host: Host, bait: Bait) -> str:
    return assemble(pen, host, PythonPart(body="return ${honest}"), trick(pen, host, bait))


def _twin(pen: Pen, host: Host, _bait: Bait) -> str:
    return plain(pen, host)
