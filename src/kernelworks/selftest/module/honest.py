"""Honest submissions of many styles, with words and habits that a rule over texts takes offence at."""

from __future__ import annotations

from functools import partial

from kernelworks.kernel.model import Contract
from kernelworks.selftest.model import Honest, Host, Part
from kernelworks.selftest.module.assemble import PythonPart, assemble
from kernelworks.selftest.pen import Pen


def _write(part: PythonPart, cpp: str, pen: Pen, host: Host) -> str:
    return assemble(pen, host, part, Part(body=cpp) if cpp else None)


def _honest(name: str, host: str, body: str = "return ${honest}", *, cpp: str = "", **fields: str) -> Honest:
    part = PythonPart(body=body, head=fields.get("head", ""), after_init=fields.get("after_init", ""))
    return Honest(name, Contract.MODULE, host, partial(_write, part, cpp), short=name == "try and except")


MODULE_HONEST = (
    _honest("called by ctypes", "softmax"),
    _honest(
        "try and except",
        "softmax",
        """try:
    return ${honest}
except RuntimeError as $problem:
    raise ValueError("softmax failed") from $problem""",
    ),
    _honest(
        "pass and suspicious words",
        "softmax",
        """# stream the rows past the cache, time.time() of the old version was worse; see patch 7
if x.dim() != 2:
    pass
return ${honest}""",
        head='$notes = "no side stream, no torch.matmul, no hack"\n\n\nclass $Config:\n    pass\n',
    ),
    _honest("contiguous first", "softmax", "x = x.contiguous()\nreturn ${honest}"),
    _honest(
        "OpenMP",
        "rms_norm",
        cpp="  #pragma omp parallel for\n  for (int64_t $r = 0; $r < $rows; ++$r)"
        " $work($x, $w, $y, $rows, $cols, $r, $r + 1);",
    ),
    _honest("a counter in the module", "rms_norm", "self.$calls += 1\nreturn ${honest}", after_init="self.$calls = 0"),
    _honest(
        "prints once",
        "linear",
        "if not $said:\n    $said.append(1)\n    print('first call')\nreturn ${honest}",
        head="$said = []",
    ),
    _honest("a helper of nn", "linear", "return self.$shape(${honest})", after_init="self.$shape = nn.Identity()"),
    _honest("no gradient", "two_layers", "with torch.no_grad():\n    return ${honest}"),
    _honest("in its own class", "newton"),
    _honest("pointwise", "damped"),
)
