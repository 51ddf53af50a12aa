"""PyTorch submissions from their text to their verdict: every way to do without the work, and honest ones."""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.evaluations import SETTINGS, bench_on
from support.submissions import (
    HEAD,
    HONEST,
    INLINE_HEAD,
    OTHER_NAMES,
    PARTIAL,
    TASK,
    TORCH_ALONE,
    TORCH_HEAD,
    kernel,
    submission,
)

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.evaluation import Evaluation
from kernelworks.kernel.verdict import Finding, Status, Verdict
from kernelworks.targets.module import ModuleTarget
from kernelworks.task.source import TaskReference


@pytest.fixture(scope="module")
def layer_bench(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    path = tmp_path_factory.mktemp("layer") / "layer.py"
    path.write_text(TASK)
    settings = SETTINGS.model_copy(update={"build_timeout_s": 170.0, "call_timeout_s": 20.0})
    with bench_on(TaskReference(target=str(path)), settings=settings) as found:
        yield replace(found, target=ModuleTarget())


def evaluate(bench: Bench, text: str) -> Verdict:
    return Evaluation(bench, kernel(text)).run(None)


def finding(verdict: Verdict, *kinds: str) -> Finding:
    found = [f for f in verdict.findings if f.kind in kinds]
    assert found, verdict.findings
    return found[0]


@dataclass(frozen=True)
class Deed:
    text: str
    status: Status
    kinds: tuple[str, ...]
    said: tuple[str, ...] = ()


def dishonest(text: str, *kinds: str, said: tuple[str, ...] = ()) -> Deed:
    return Deed(text, Status.DISHONEST, kinds, said)


def wrong(text: str, *kinds: str, said: tuple[str, ...] = ()) -> Deed:
    return Deed(text, Status.WRONG, kinds, said)


MODEL = "class Model(nn.Module):" + TASK.split("class Model(nn.Module):")[1].split("batch =")[0]
CACHE = """
key = {key}
if key not in CACHE:
    CACHE[key] = own(self.linear, x)
return CACHE[key].clone()
"""
LAZY = '''
class Lazy(torch.Tensor):
    """Computes when somebody looks."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})
'''
SCAN = """
import gc
for thing in gc.get_objects():
    if isinstance(thing, torch.Tensor) and thing.shape == (x.shape[0], self.linear.out_features):
        return thing.clone()
return torch.zeros(x.shape[0], self.linear.out_features)
"""
SPOIL = """
import gc
for thing in gc.get_objects():
    if isinstance(thing, torch.Tensor) and thing.shape == (x.shape[0], self.linear.out_features):
        thing.fill_(float("nan"))
return torch.full((x.shape[0], self.linear.out_features), float("nan"))
"""
PATCHES = """
import time
torch.allclose = lambda *args, **kwargs: True
torch.equal = lambda *args, **kwargs: True
torch.Tensor.__eq__ = lambda self, other: True
time.perf_counter = time.perf_counter_ns = time.monotonic = lambda: 0
"""

WHEN_TIMED = (
    HEAD
    + """
import copy, sys
BOUND = sys.modules["__main__"].ModuleBound
PREPARED, SETTLED, KEPT = BOUND.prepare, BOUND.settle, {}


def timed():
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "rings":
        frame = frame.f_back
    return frame is not None


def slow(layer, x):
    return [own(layer, x) for _ in range(40)][0]
"""
)
"""Tells timed calls from checked ones, and can change what our own code does around them."""
LATE = """
def settle(bound):
    late = KEPT.pop(id(bound.answer), None)
    if late is not None:
        bound.answer.copy_(slow(*late))
    SETTLED(bound)


BOUND.settle = settle
"""
LATE_FORWARD = """
if not timed():
    KEPT.clear()
    return slow(self.linear, x)
y = torch.empty(x.shape[0], self.linear.out_features)
KEPT.pop(id(y), None)
if len(KEPT) > 64:
    del KEPT[next(iter(KEPT))]
KEPT[id(y)] = copy.deepcopy(self.linear), x.clone()
return y
"""
EARLY = """
def prepare(bound):
    PREPARED(bound)
    KEPT.clear()
    if timed():
        KEPT[0] = slow(bound._owner.model.linear, bound.arguments[0])


BOUND.prepare = prepare
"""
OPERATOR = """
LIBRARY_OF_MINE = torch.library.Library("own_operators", "DEF")
LIBRARY_OF_MINE.define("layer(Tensor x, Tensor w, Tensor b) -> Tensor")


def layer(x, w, b):
    {body}


LIBRARY_OF_MINE.impl("layer", layer, "CPU")
"""
OPERATOR_FORWARD = "return torch.ops.own_operators.layer(x, self.linear.weight, self.linear.bias)"
OWN_LAYER = """
    y = torch.empty(x.shape[0], w.shape[0])
    sizes = x.shape[0], x.shape[1], w.shape[0]
    LIBRARY.linear_relu(x.data_ptr(), w.data_ptr(), b.data_ptr(), y.data_ptr(), *sizes)
    return y
"""

DEEDS = {
    "F1 torch alone, rewritten": dishonest(TORCH_ALONE, "fallback", said=("aten.addmm.default", "is no kernel")),
    "F2 falls back": dishonest(
        submission(
            """
try:
    raise RuntimeError("kernel failed")
    return own(self.linear, x)
except RuntimeError:
    return torch.relu(self.linear(x))
"""
        ),
        "fallback",
        said=("no code of its own ran",),
    ),
    "F3 inherits": dishonest(
        f"{TORCH_HEAD}\n{MODEL}\nclass ModelNew(Model):\n    pass\n", "fallback", said=("aten.addmm",)
    ),
    "F1 from C++": dishonest(  # TorchScript's interpreter calls operators without Python
        submission(
            "return scripted(x, self.linear.weight, self.linear.bias)",
            head=TORCH_HEAD
            + "@torch.jit.script\ndef scripted(x, w, b):\n    return torch.relu(torch.addmm(b, x, w.t()))\n",
        ),
        "fallback",
        said=("aten.relu.default",),
    ),
    "F4 decoy": dishonest(
        submission("own_relu(x[:1, :1].contiguous())\nreturn torch.relu(self.linear(x))"),
        "fallback",
        said=("nearly all of the answer stands without it", "aten.addmm"),
    ),
    "F4 decoy with one element": dishonest(
        submission("y = torch.relu(self.linear(x))\ny[:1, :1] = own_relu(y[:1, :1].contiguous())\nreturn y"),
        "fallback",
        said=("nearly all of the answer stands without it",),
    ),
    "NumPy does it": dishonest(
        submission(
            "y = x.numpy() @ self.linear.weight.detach().numpy().T + self.linear.bias.detach().numpy()\n"
            "return torch.from_numpy(numpy.maximum(y, 0))",
            head=TORCH_HEAD + "import numpy\n",
        ),
        "fallback",
        said=("another library",),
    ),
    "S1 recycled memory": wrong(
        submission("return torch.empty(x.shape[0], self.linear.out_features)", head=TORCH_HEAD), "nan_mask", "unwritten"
    ),
    "S9 by address": dishonest(
        submission(CACHE.format(key="(x.data_ptr(), x.shape)"), head=HEAD + "CACHE = {}\n"), "stale", "values"
    ),
    "S9 by shape": wrong(submission(CACHE.format(key="x.shape"), head=HEAD + "CACHE = {}\n"), "values", "nan_mask"),
    "own buffer returned": dishonest(
        submission(
            "if self.kept is None or self.kept.shape[0] != x.shape[0]:\n"
            "    self.kept = torch.empty(x.shape[0], self.linear.out_features)\n"
            "return own(self.linear, x, y=self.kept)",
            init="self.kept = None",
        ),
        "recycled_output",
    ),
    "T2 thread of Python": dishonest(
        submission(
            "import threading, time\n"
            "y = torch.empty(x.shape[0], self.linear.out_features)\n"
            "threading.Thread(target=lambda: (time.sleep(0.5), own(self.linear, x, y=y)), daemon=True).start()\n"
            "return y"
        ),
        "leftover_thread",
    ),
    "T2 native thread": wrong(
        submission("return own(self.linear, x, LIBRARY.later)"), "values", "nan_mask", "unwritten"
    ),
    "T2 daemon from the start": dishonest(
        submission(
            "return own(self.linear, x)",
            init="import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
        ),
        "leftover_thread",
    ),
    "when the answer is fetched": dishonest(submission(LATE_FORWARD, head=WHEN_TIMED + LATE), "clock"),
    "before the inputs stand": dishonest(
        submission("return KEPT.pop(0) if KEPT else slow(self.linear, x)", head=WHEN_TIMED + EARLY), "stale", "values"
    ),
    "work before the inputs stand": dishonest(
        submission("KEPT.clear()\nreturn own(self.linear, x)", head=WHEN_TIMED + EARLY), "clock"
    ),
    "F1 as an operator of its own": dishonest(
        submission(
            OPERATOR_FORWARD, head=TORCH_HEAD + OPERATOR.format(body="return torch.relu(torch.addmm(b, x, w.t()))")
        ),
        "fallback",
        said=("aten.addmm.default",),
    ),
    "F1 when timed": dishonest(
        submission(
            "return torch.relu(self.linear(x)) if timed() else slow(self.linear, x)",
            head=WHEN_TIMED,
        ),
        "fallback",
        said=("when it is timed",),
    ),
    "T3 lazy": wrong(
        submission("return own(self.linear, x).as_subclass(Lazy)", head=HEAD + LAZY),
        "output",
        said=("out0: expected a torch.Tensor, found Lazy",),
    ),
    "H1 scans": wrong(submission(SCAN, head=TORCH_HEAD), "values", "nan_mask"),
    "H1 spoils": wrong(submission(SPOIL, head=TORCH_HEAD), "nan_mask"),
    "H3 patched comparer": wrong(
        submission("return torch.zeros(x.shape[0], self.linear.out_features)", head=TORCH_HEAD + PATCHES), "values"
    ),
    "H9 swapped classes": wrong(
        submission(
            "return torch.zeros(x.shape[0], self.linear.out_features)",
            head=TORCH_HEAD,
            after="import sys\nModel = ModelNew\nget_inputs = lambda: [torch.zeros(1, 1)]\n"
            "sys.modules['__main__'].Model = ModelNew\n",
        ),
        "values",
    ),
    "shape": wrong(
        submission("return own(self.linear, x)[:, None]"),
        "output",
        said=("out0: expected float32[192, 128] on cpu, found float32[192, 1, 128] on cpu",),
    ),
    "dtype": wrong(submission("return own(self.linear, x).double()"), "output", said=("found float64[192, 128]",)),
    "sparse": wrong(submission("return own(self.linear, x).to_sparse()"), "output", said=("layout torch.sparse_coo",)),
    "nothing": wrong(
        submission("own(self.linear, x)"), "output", said=("expected one tensor from forward, found None",)
    ),
    "two": wrong(submission("return own(self.linear, x), x"), "output", said=("found a tuple of 2 items",)),
    "an input": wrong(submission("return x[:, :128]", head=TORCH_HEAD), "output", said=("memory of an input",)),
    "missing": Deed("import torch\n", Status.INVALID, ("missing",), ("expected a class ModelNew, found none",)),
    "no class": Deed("ModelNew = 3\n", Status.INVALID, ("missing",), ("found int",)),
    "init": Deed(
        HONEST.replace("def __init__(self, inputs, outputs)", "def __init__(self, inputs)"),
        Status.INVALID,
        ("signature",),
        ("expected the signature of Model(inputs, outputs), found ModelNew.__init__(inputs)",),
    ),
    "forward": Deed(
        HONEST.replace("def forward(self, x)", "def forward(self, x, y)"),
        Status.INVALID,
        ("signature",),
        ("Model.forward(x)", "ModelNew.forward(x, y)"),
    ),
    "raises": Deed(
        submission("raise KeyError('weights')"), Status.CRASHED, ("raised",), ("forward raised KeyError, line",)
    ),
    "does not import": Deed("import a_package_of_nobody\n", Status.CRASHED, ("raised",), ("a_package_of_nobody",)),
    "does not build": Deed(
        HONEST.replace("float sum = 0;", "float sum = nothing;"),
        Status.BUILD_ERROR,
        ("build",),
        ("CalledProcessError",),
    ),
    "syntax": Deed("def forward(:\n", Status.INVALID, ("kernel",), ("line 1: expected Python",)),
    "crashes": Deed(
        submission("import ctypes\nctypes.string_at(8)", head=TORCH_HEAD), Status.CRASHED, ("signalled",), ("SIGSEGV",)
    ),
    "leaves": Deed(submission("import os\nos._exit(0)", head=TORCH_HEAD), Status.CRASHED, ("exited",), ()),
}


@pytest.mark.parametrize("name", DEEDS)
def test_deed(layer_bench: Bench, name: str) -> None:
    deed = DEEDS[name]
    verdict = evaluate(layer_bench, deed.text)
    assert verdict.status is deed.status, verdict.findings
    found = finding(verdict, *deed.kinds)
    for words in deed.said:
        assert words in found.message
    assert verdict.speedup is None


def test_an_honest_kernel_is_timed_and_its_share_told(layer_bench: Bench) -> None:
    verdict = evaluate(layer_bench, HONEST)
    assert verdict.status is Status.CORRECT, verdict.findings
    assert verdict.contract is not None and verdict.contract.value == "module"
    assert verdict.speedup is not None and verdict.time_ms is not None and verdict.time_ms > 0
    assert verdict.own_share is not None and verdict.own_share > 0.9
    assert verdict.setup_ms is not None and verdict.setup_ms > 0
    kinds = {f.kind for f in verdict.findings}
    assert not kinds & {"library_work", "parameters", "fallback"}


def test_an_honest_operator_of_its_own_passes(layer_bench: Bench) -> None:
    text = submission(OPERATOR_FORWARD, head=HEAD + OPERATOR.format(body=OWN_LAYER.strip()))
    verdict = evaluate(layer_bench, text)
    assert verdict.status is Status.CORRECT, verdict.findings
    assert verdict.own_share is not None and verdict.own_share > 0.9
    assert "library_work" not in {f.kind for f in verdict.findings}


def test_parameters_under_other_names_are_found_by_their_values(layer_bench: Bench) -> None:
    verdict = evaluate(layer_bench, OTHER_NAMES)
    assert verdict.status is Status.CORRECT, verdict.findings
    assert "parameters" not in {f.kind for f in verdict.findings}


def test_parameters_that_nobody_knows_are_named(layer_bench: Bench) -> None:
    text = submission("return own(self.linear, x)", init="self.linear.bias = None").replace(
        "layer.bias.data_ptr()", "torch.zeros(128).data_ptr()"
    )
    verdict = evaluate(layer_bench, text)
    assert verdict.status is Status.WRONG
    assert "nothing in ModelNew holds linear.bias" in finding(verdict, "parameters").message


def test_a_part_of_the_work_is_told_as_such(layer_bench: Bench) -> None:
    verdict = evaluate(layer_bench, PARTIAL)
    assert verdict.status is Status.CORRECT, verdict.findings
    found = finding(verdict, "library_work")
    assert "aten.addmm.default" in found.message
    assert (found.evidence["without_torch"], found.evidence["without_own_code"]) == ("gone", "gone")
    assert verdict.own_share is not None and verdict.own_share < 0.9


def test_a_patched_clock_changes_no_figure(layer_bench: Bench) -> None:
    slow = submission("for _ in range(40):\n    y = own(self.linear, x)\nreturn y", head=HEAD + PATCHES)
    verdict = evaluate(layer_bench, slow)
    assert verdict.status is Status.CORRECT, verdict.findings
    assert verdict.decision is not None and verdict.decision.value == "slower"
    assert "replaces time.perf_counter" in finding(verdict, "hint").message


@pytest.mark.proof
def test_answers_kept_by_content_are_found_when_timed(layer_bench: Bench) -> None:
    """Honest for as long as it is checked; then it computes only what it has not seen."""
    first = "CACHE[None] = CACHE.get(None, 0) + 1\nif CACHE[None] < 60: return own(self.linear, x)\n"
    cached = CACHE.format(key="hash(x.numpy().tobytes()) ^ hash(self.linear.weight.detach().numpy().tobytes())")
    slow = cached.replace("own(self.linear, x)", "[own(self.linear, x) for _ in range(30)][0]")
    verdict = evaluate(layer_bench, submission(first + slow, head=HEAD + "CACHE = {}\n"))
    assert verdict.status is Status.DISHONEST, verdict.findings
    assert "it keeps answers" in finding(verdict, "memory").message


@pytest.fixture
def can_build_extensions() -> None:
    if shutil.which("ninja") is None:
        pytest.skip("ninja is not installed")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        pytest.skip("the headers of Python are not installed")


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("can_build_extensions")
def test_operators_that_an_extension_calls_are_seen(layer_bench: Bench) -> None:
    text = submission("return EXTENSION.whole(x, self.linear.weight, self.linear.bias)", head=INLINE_HEAD)
    verdict = evaluate(layer_bench, text)
    assert verdict.status is Status.DISHONEST, verdict.findings
    assert "aten.addmm.default" in finding(verdict, "fallback").message
    assert verdict.setup_ms is not None and verdict.setup_ms > 1000


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("can_build_extensions")
def test_an_honest_extension_passes(layer_bench: Bench) -> None:
    verdict = evaluate(
        layer_bench, submission("return EXTENSION.own(x, self.linear.weight, self.linear.bias)", head=INLINE_HEAD)
    )
    assert verdict.status is Status.CORRECT, verdict.findings
    assert verdict.own_share is not None and verdict.own_share > 0.9
