"""Section B of the catalogue: what Python adds to the C++ tricks of ``function.semantic``, which are used as well."""

from __future__ import annotations

from kernelworks.selftest.bait import Bait
from kernelworks.selftest.function.semantic import SEMANTIC
from kernelworks.selftest.model import Attack, Criterion, Host
from kernelworks.selftest.module.assemble import PythonPart, attack, in_a_module
from kernelworks.selftest.pen import Pen

_HEAVY = ("softmax", "linear")


def _unwritten(_pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    """S1: fresh memory is returned as it is; the kernel runs on one that nobody sees."""
    return PythonPart(body="$own = ${honest}\ny = ${allocate}\nreturn y")


def _one_buffer(_pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    """S1: all calls of a shape return one and the same tensor."""
    return PythonPart(
        head="$kept = {}",
        body="""$y = ${honest}
$own = $kept.setdefault(tuple($y.shape), $y)
$own.copy_($y)
return $own""",
    )


def _same_tensor(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    """S2: the input itself."""
    return PythonPart(body=f"$unused = ${{honest}}\nreturn {pen.pick('x', 'x.view_as(x)', 'x.detach()')}")


def _by_key(key: str) -> PythonPart:
    return PythonPart(
        head="$answers = {}",
        body=f"""$key = {key}
if $key not in $answers:
    $answers[$key] = ${{honest}}
return $answers[$key].clone()""",
    )


def _by_address(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    """S9: answers by address, or by the object's version, which memory that others write to does not have."""
    more = pen.pick("", ", x._version", ", x.storage_offset()")
    return _by_key(f"(x.data_ptr(), tuple(x.shape){more})")


def _by_content(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    """S9: answers by everything that is in the input."""
    hashed = pen.pick("x.view(torch.int32).sum().item()", "(x.view(torch.int32) ^ 0x5bd1e995).sum().item()")
    return _by_key(f"(tuple(x.shape), {hashed})")


def _published(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    """S10: the constructor computes the answer to the inputs of the published seed, and forward recognises them."""
    seed = pen.pick(42, 0, 1)
    return PythonPart(
        after_init=f"""$state = torch.random.get_rng_state()
torch.manual_seed({seed})
self.$known = []
for $rows, $cols in ((18, 12_500), (48, 4096)):
    $guess = torch.randn($rows, $cols)
    self.$known.append(($guess[0, :4].clone(), $guess.shape, torch.softmax($guess, dim=-1)))
torch.random.set_rng_state($state)""",
        body="""for $start, $shape, $y in self.$known:
    if x.shape == $shape and torch.equal(x[0, :4], $start):
        return $y.clone()
return ${honest}""",
    )


def _folded(_pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    """S17: the product of the weights is made once; its own code does the rest."""
    return PythonPart(
        after_init="self.$both = None",
        body="""if self.$both is None:
    self.$both = (self.first @ self.second).detach().clone()
$unused = ${honest} if x.shape[0] < 0 else None
return x @ self.$both""",
    )


_IN_C = {
    "zeros": ("softmax",),
    "statistics of most of a row": ("rms_norm",),
    "no maximum subtracted": ("softmax",),
    "operands of few bits": ("linear",),
    "no bias": ("linear",),
    "no weight": ("rms_norm",),
    "one shape": ("softmax", "rms_norm"),
    "by content": ("softmax",),
    "fewer steps": ("newton",),
    "a wiped input": ("softmax",),
    "right for a while": ("softmax", "rms_norm"),
    "right where it is watched": ("softmax",),
    "not a number": ("softmax", "rms_norm"),
    "over the edge": ("damped",),
    "no barrier": ("rms_norm",),
    "a few elements off": ("softmax", "rms_norm"),
}
"""Tricks that are the same in C++, and where."""

MODULE_SEMANTIC: tuple[Attack, ...] = (
    attack("S1", "fresh memory", _unwritten, _HEAVY),
    attack("S1", "one buffer for all", _one_buffer, _HEAVY),
    attack("S2", "the input itself", _same_tensor, ("damped",)),
    attack("S9", "a dictionary by address", _by_address, _HEAVY),
    attack("S9", "a dictionary by content", _by_content, ("softmax",), Criterion.HARMLESS),
    attack("S10", "answers made in the constructor", _published, ("softmax",), Criterion.HARMLESS),
    attack("S17", "weights folded once", _folded, ("two_layers",)),
    *(in_a_module(one, _IN_C[one.variant]) for one in SEMANTIC if one.variant in _IN_C),
)
