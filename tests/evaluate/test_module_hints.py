"""What a submission's text suggests, and what it does not."""

from __future__ import annotations

import pytest
from support.submissions import HONEST, PARTIAL

from kernelworks.evaluate.module_hints import module_hints


def hints(text: str) -> list[str]:
    found = module_hints(text)
    return [hint["what"] for finding in found for hint in finding.evidence["hints"]]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("class ModelNew(Model): pass", "ModelNew inherits from Model"),
        ("import torch as t\nt.cuda.synchronize = print", "replaces t.cuda.synchronize"),
        ("import torch\nsetattr(torch.Tensor, '__eq__', print)", "replaces an attribute of torch.Tensor"),
        ("import time\ntime.perf_counter = int", "replaces time.perf_counter"),
        ("from threading import Thread", "imports threading"),
        ("import gc", "imports gc"),
        ("import requests", "imports requests"),
        ("import pandas", "imports pandas"),
        ("text = open('answers.txt')", "opens a file (open)"),
        ("import sys\nsys._getframe(1)", "looks at what is not its own"),
        ("class Lazy(torch.Tensor): ...", "Lazy is a subclass of torch.Tensor"),
        ("exec('x = 1')", "runs text (exec)"),
        ("def f(x):\n    try:\n        return g(x)\n    except Exception:\n        return h(x)", "another computation"),
    ],
)
def test_hint(text: str, what: str) -> None:
    assert any(what in hint for hint in hints(text)), hints(text)


def test_honest_words_are_nothing() -> None:
    text = (
        "import math, functools, torch\n"
        "from torch.utils.cpp_extension import load_inline\n"
        "# threading, torch.allclose = ..., open('x'), exec\n"
        "stream = 'socket time.time = 0'\n"
        "class ModelNew(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        try:\n            pass\n        except ValueError:\n            pass\n"
        "        torch.backends.cudnn.benchmark = True\n"
        "        return x\n"
    )
    assert module_hints(text) == ()


@pytest.mark.parametrize("text", [HONEST, PARTIAL])
def test_one_finding_lists_all_lines(text: str) -> None:
    (finding,) = module_hints(text)
    assert finding.kind == "hint"
    assert finding.message.startswith("worth a look, no fault by itself: line ")


def test_what_is_no_python_has_no_hints() -> None:
    assert module_hints("def f(:") == ()
