"""Section A of the catalogue in Python: answers that are right, and times that are not."""

from __future__ import annotations

from kernelworks.selftest.bait import Bait
from kernelworks.selftest.function.pieces import fake_answers
from kernelworks.selftest.function.timing import TIMING
from kernelworks.selftest.model import Attack, Criterion, Host
from kernelworks.selftest.module.assemble import PythonPart, attack, in_a_module
from kernelworks.selftest.pen import Pen

_HEAVY = ("softmax", "linear")
_ONCE = """
$done = []
def $once():
    if $done:
        return
    $done.append(True)
    try:
        $patch()
    except Exception:
        pass
"""


def _queue(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    start = pen.pick("$serve_on.start()", "atexit_free = $serve_on.start()")
    return PythonPart(
        imports=("import queue", "import threading"),
        head=f"""
$jobs = queue.SimpleQueue()
def $serve():
    while True:
        $job = $jobs.get()
        $launch(*$job)
$serve_on = threading.Thread(target=$serve, daemon=True)
{start}
""",
        body="y = ${allocate}\n$jobs.put((${arguments},))\nreturn y",
    )


def _thread(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    wait = pen.number(50, 300) / 1e6
    return PythonPart(
        imports=("import threading", "import time"),
        body=f"""y = ${{allocate}}
$values = (${{arguments}},)
def $later():
    time.sleep({wait})
    $launch(*$values)
threading.Thread(target=$later).start()
return y""",
    )


def _lazy(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    make = pen.pick("torch.Tensor._make_subclass($Lazy, y)", "y.as_subclass($Lazy)")
    return PythonPart(
        head="""
class $Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        for $one in args:
            if isinstance($one, $Lazy) and hasattr($one, "$todo"):
                $values = $one.__dict__.pop("$todo")
                $launch(*$values)
        return super().__torch_function__(func, types, args, kwargs or {})
""",
        body=f"y = ${{allocate}}\n$values = (${{arguments}},)\n$late = {make}\n$late.$todo = $values\nreturn $late",
    )


def _patched(code: str) -> PythonPart:
    body = "\n".join("    " + line for line in code.splitlines())
    return PythonPart(head=f"def $patch():\n{body}\n{_ONCE}", body="$once()\nreturn ${honest}")


def _slow_clock(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    return _clock(pen, f"// {pen.pick(3, 5, 8)}")


def _slightly_slow_clock(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    return _clock(pen, f"* {pen.number(92, 94)} // 100")


def _clock(pen: Pen, change: str) -> PythonPart:
    lines = ["import time as t", "def slow(real):", "    begun = real()"]
    lines += [f"    return lambda: begun + (real() - begun) {change}"]
    lines += [f"t.{name} = slow(t.{name})" for name in pen.shuffled(("perf_counter_ns", "monotonic_ns", "time_ns"))]
    lines += [
        "slow_s = lambda real, begun: lambda: begun + int((real() - begun) * 10**9) " + change + " / 10**9",
        "t.perf_counter = slow_s(t.perf_counter, t.perf_counter())",
    ]
    return _patched("\n".join(lines))


def _no_time(_pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    return PythonPart(
        head="""
import time as $clock
$real = $clock.perf_counter_ns
$shown = [0, False]
def $fake():
    if $shown[1]:
        $shown[1] = False
        return $shown[0] + 1
    $shown[0] = $real()
    return $shown[0]
$clock.perf_counter_ns = $fake
$clock.perf_counter = lambda: $fake() / 10**9
""",
        body="$y = ${honest}\n$shown[1] = True\nreturn $y",
    )


def _statistics(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    return _patched(fake_answers(pen.pick("0.2", "0.35", "0.5")))


def _after_warm_up(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    honest = pen.number(11, 17)
    where = pen.pick("self.$count", "$state['n']")
    start = "self.$count = 0" if where.startswith("self") else ""
    return PythonPart(
        head="$state = {'n': 0}\n$last = {}",
        after_init=start,
        body=f"""{where} += 1
if {where} > {honest} and tuple(x.shape) in $last:
    return $last[tuple(x.shape)].clone()
$y = ${{honest}}
$last[tuple(x.shape)] = $y.clone()
return $y""",
    )


def _ahead(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    return PythonPart(
        head="$ready = {}",
        body=f"""$key = (x.data_ptr(), x.shape)
$stack = $ready.setdefault($key, [])
if not $stack:
    $stack.extend(${{honest}} for _ in range({pen.number(8, 15)}))
return $stack.pop()""",
    )


def _replay(_pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    return PythonPart(
        head="$plans = {}",
        body="""$key = (x.data_ptr(), tuple(x.shape))
if $key not in $plans:
    $plans[$key] = (x, ${honest})
$held, $out = $plans[$key]
return $out.clone()""",
    )


def _spinners(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    return PythonPart(
        imports=("import time",),
        head=f"""
def $patch():
    for _ in range({pen.number(2, 3)}):
        if os.fork() == 0:
            $end = time.time() + 8
            while time.time() < $end:
                pass
            os._exit(0)
{_ONCE}""",
        body="$once()\nreturn ${honest}",
    )


def _slow_start(pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    return PythonPart(
        imports=("import time",),
        after_init="self.$count = 0",
        body=f"""self.$count += 1
if self.$count <= {pen.number(2, 3)}:
    time.sleep({pen.number(25, 40)} / 1000)
return ${{honest}}""",
    )


def _plain(_pen: Pen, _host: Host, _bait: Bait) -> PythonPart:
    return PythonPart(body="return ${honest}")


_IN_C = {
    "the last part after the return": ("softmax",),
    "a detour of clock_gettime": _HEAVY,
    "a sweep of nothing": ("rms_norm",),
}
"""Tricks that are the same in C++, and where."""

MODULE_TIMING: tuple[Attack, ...] = (
    attack("T1", "a queue of its own", _queue, _HEAVY),
    attack("T2", "a thread per call", _thread, _HEAVY),
    attack("T3", "a tensor that computes when it is used", _lazy, _HEAVY),
    attack("T4", "a slow clock", _slow_clock, _HEAVY, Criterion.HARMLESS),
    attack("T4", "a slightly slow clock", _slightly_slow_clock, _HEAVY, Criterion.HARMLESS),
    attack("T5", "times changed on their way", _statistics, _HEAVY, Criterion.HARMLESS),
    attack("T8", "old answers once warmed up", _after_warm_up, _HEAVY),
    attack("T9", "work ahead", _ahead, _HEAVY),
    attack("T10", "a stale plan", _replay, _HEAVY),
    attack("T11", "processes that spin", _spinners, _HEAVY),
    attack("T12", "slow at first", _slow_start, _HEAVY, Criterion.HARMLESS),
    attack("T13", "no time at all", _no_time, _HEAVY, Criterion.HARMLESS),
    attack("T14", "too small to time", _plain, ("tiny",), Criterion.NAMED, finding="launch_overhead"),
    *(in_a_module(one, _IN_C[one.variant]) for one in TIMING if one.variant in _IN_C),
)
