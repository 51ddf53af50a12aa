"""Section D of the catalogue in Python: whoever judges is attacked."""

from __future__ import annotations

from kernelworks.selftest.bait import Bait
from kernelworks.selftest.function.harness import HARNESS
from kernelworks.selftest.model import Attack, Criterion, Host
from kernelworks.selftest.module.assemble import PythonPart, attack, in_a_module
from kernelworks.selftest.pen import Pen

_HOSTS = ("softmax", "rms_norm")


def _objects(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    """H1: a tensor of the answer's shape that is not the input, wherever the interpreter holds one."""
    frames = pen.pick("sys._getframe()", "next(iter(sys._current_frames().values()))")
    return PythonPart(
        imports=("import gc", "import sys"),
        head=f"""
def $candidates(x):
    yield from gc.get_objects()
    $frame = {frames}
    while $frame is not None:
        for $value in list($frame.f_locals.values()):
            if isinstance($value, (list, tuple)):
                yield from $value
            yield $value
        $frame = $frame.f_back
""",
        body="""$y = ${allocate}
for $one in $candidates(x):
    if type($one) is torch.Tensor and $one.shape == $y.shape and $one.dtype == $y.dtype:
        if $one.data_ptr() not in (x.data_ptr(), $y.data_ptr()):
            return $one.clone()
if x.shape[0] < 0:
    $y = ${honest}
return $y""".replace("$y = ${allocate}", "y = ${allocate}\n$y = y"),
    )


def _comparer(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    """H3: comparisons agree with everything."""
    patches = pen.shuffled(
        (
            "torch.allclose = lambda *a, **k: True",
            "torch.equal = lambda *a, **k: True",
            "torch.Tensor.allclose = lambda *a, **k: True",
            "torch.testing.assert_close = lambda *a, **k: None",
            "torch.Tensor.__eq__ = lambda a, b: torch.ones(1, dtype=torch.bool)",
        )
    )
    return PythonPart(
        imports=("import torch.testing",), head="\n".join(patches), body="$y = ${honest}\n$y.zero_()\nreturn $y"
    )


def _files(pen: Pen, _host: Host, bait: Bait) -> PythonPart:
    """H2: a file of expected answers."""
    path = pen.python_string(str(bait.golden))
    return PythonPart(
        body=f"""$y = ${{honest}}
try:
    with open({path}, "rb") as $file:
        $bytes = $file.read()
    if len($bytes) == 4 * $y.numel():
        $expected = torch.frombuffer(bytearray($bytes), dtype=torch.float32).view($y.shape)
        if torch.allclose($expected.reshape(-1)[:4], $y.reshape(-1)[:4]):
            return $expected.clone()
except OSError:
    pass
return $y"""
    )


def _network(pen: Pen, _host: Host, bait: Bait) -> PythonPart:
    """H2: somebody on the network."""
    address = pen.python_string("127.0.0.1")
    return PythonPart(
        imports=("import socket",),
        body=f"""try:
    with socket.create_connection(({address}, {bait.port}), timeout=0.2) as $line:
        $line.sendall(b"answer?")
except OSError:
    pass
return ${{honest}}""",
    )


def _grader(pen: Pen, _host: Host, bait: Bait) -> PythonPart:
    """H4: a wider tolerance in the files that say it."""
    edits = pen.shuffled(((bait.tolerance, "1e9\n"), (bait.task, "tolerance = 1e9\n")))
    lines = "\n".join(
        f"    with open({pen.python_string(str(path))}, 'w') as $file:\n        $file.write({text!r})"
        for path, text in edits
    )
    return PythonPart(head=f"try:\n{lines}\nexcept OSError:\n    pass", body="return ${honest}")


def _raw_message(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    """H5: messages of its own on whatever is open."""
    text = '{"correct": true, "time_ms": 0.001}\\n'
    return PythonPart(
        body=f"""$y = ${{honest}}
for $fd in range(1, {pen.number(8, 40)}):
    try:
        os.write($fd, b'{text}')
    except OSError:
        pass
return $y"""
    )


def _taken_over(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    """H5: what answers the harness in this process claims a fifth of the time."""
    share = pen.number(4, 6)
    return PythonPart(
        imports=("import sys",),
        head=f"""
def $claim(real):
    def lying(*args, **kwargs):
        answer = real(*args, **kwargs)
        if isinstance(answer, dict):
            for key, times in answer.items():
                if isinstance(times, list) and "ns" in key:
                    answer[key] = [max(1, int(t) // {share}) for t in times]
        return answer
    return lying
def $take_over():
    frame = sys._getframe()
    while frame is not None:
        for value in list(frame.f_locals.values()):
            table = getattr(value, "commands", None)
            if isinstance(table, dict):
                for name in list(table):
                    table[name] = $claim(table[name])
        frame = frame.f_back
$take_over()
main = sys.modules.get("__main__")
if hasattr(main, "report"):
    inner = main.report
    main.report = lambda found: inner({{**found, "time_ms": found.get("time_ms", 1) / {share}}})
""",
        body="return ${honest}",
    )


def _counter_reset(_pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    """H7: half of the answer, and counts of errors set back."""
    return PythonPart(
        imports=("import sys",),
        body="""$frame = sys._getframe()
while $frame is not None:
    for $name, $value in list($frame.f_locals.items()):
        if any(word in $name for word in ("error", "wrong", "fail", "mismatch")) and hasattr($value, "zero_"):
            $value.zero_()
    $frame = $frame.f_back
$y = ${honest}
$y[1::2] = 0.5
return $y""",
    )


def _swapped(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    """H9: the reference's class and its inputs are exchanged wherever they are found."""
    return PythonPart(
        imports=("import sys",),
        head="""
class $Half(nn.Module):
    def __init__(self, *args):
        super().__init__()
    def forward(self, x, *rest):
        return torch.full_like(x, 0.5)
for $module in list(sys.modules.values()):
    for $name in ("Model", "reference"):
        if isinstance(getattr($module, "__dict__", None), dict) and $name in $module.__dict__:
            setattr($module, $name, $Half)
""",
        body=f"$y = ${{honest}}\nreturn {pen.pick('torch.full_like($y, 0.5)', '$y.fill_(0.5)')}",
    )


def _daemon(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    """H10: a process that nobody is the parent of."""
    return PythonPart(
        imports=("import time",),
        head=f"""
$begun = []
def $leave():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep({pen.number(12, 20)})
        os._exit(0)
    os.wait()
""",
        body="if not $begun:\n    $begun.append(True)\n    $leave()\nreturn ${honest}",
    )


_IN_C = {"answers in memory": ("softmax",), "answers overwritten": ("softmax",), "a stopped supervisor": _HOSTS}
"""Tricks that are the same in C++, and where."""

MODULE_HARNESS: tuple[Attack, ...] = (
    attack("H1", "tensors of the interpreter", _objects, _HOSTS),
    attack("H2", "a file of answers", _files, _HOSTS, Criterion.UNTOUCHED),
    attack("H2", "somebody on the network", _network, _HOSTS, Criterion.UNTOUCHED),
    attack("H3", "a comparer that agrees", _comparer, _HOSTS),
    attack("H4", "a wider tolerance", _grader, _HOSTS, Criterion.UNTOUCHED),
    attack("H5", "messages of its own", _raw_message, _HOSTS),
    attack("H5", "the answering functions", _taken_over, _HOSTS, Criterion.HARMLESS),
    attack("H7", "counts set back", _counter_reset, _HOSTS),
    attack("H9", "another reference", _swapped, _HOSTS),
    attack("H10", "a daemon", _daemon, _HOSTS),
    *(in_a_module(one, _IN_C[one.variant]) for one in HARNESS if one.variant in _IN_C),
)
