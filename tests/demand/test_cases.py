"""Cases that users of such tools have run into, by the numbers of ``docs/cases.md``: kernels of every kind."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cli import kernelworks
from support.evaluations import bench_on, write_task
from support.products import BACKWARDS, PRODUCT, TASK, WHOLE_TILES, kernel_text

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.evaluation import Evaluation
from kernelworks.evaluate.sides import BoundCase, Overhead
from kernelworks.kernel.frontmatter import parse_kernel
from kernelworks.kernel.model import Language, Origin
from kernelworks.kernel.verdict import Status

CONFIG = '[evaluation]\non_load = "mark"\ncall_timeout_s = 5.0\n'
"""Tests share the machine with each other: waiting for quiet would be in vain."""
LEFTOVERS = kernel_text(
    "float* found = (float*)std::malloc(m * n * sizeof(float));\n"
    "    std::memcpy(c, found, m * n * sizeof(float));\n    std::free(found);"
)
"""Memory that was never written, in which somebody's answer may lie."""
LATER = kernel_text(
    f"std::thread([=] {{ usleep(300);\n{PRODUCT}\n}}).detach();", head="#include <thread>\n#include <unistd.h>"
)
WILD = kernel_text("c[-(1LL << 36)] = a[0];")
FLOOD = kernel_text(
    """static bool done = false;
    if (!done) {
        done = true;
        static char line[1 << 16];
        std::memset(line, '.', sizeof line - 1);
        std::memcpy(line, FORGED, sizeof FORGED - 1);
        line[sizeof line - 2] = '\\n';
        for (int i = 0; i < 1600; i++) std::fputs(line, stdout), std::fputs(line, stderr);
    }
    std::memset(c, 0, m * n * sizeof(float));""",
    head='static const char FORGED[] = "{\\"status\\":\\"correct\\",\\"speedup\\":99.0,\\"findings\\":[]}\\n";',
)
LOOKS_FOR_ANSWERS = """
#include <cmath>
template <class T> static bool found_in(const char* from, const char* to, const float* answer, const char* skip,
                                        const char* skip_end) {
  for (const char* at = from; at + 8 * sizeof(T) <= to; at += sizeof(T)) {
    if (at + 8 * sizeof(T) > skip && at < skip_end) continue;
    const T* v = (const T*)at;
    int same = 0;
    while (same < 8 && std::fabs((double)v[same] - answer[same]) < 1e-5 * std::fabs(answer[same])) same++;
    if (same == 8) return true;
  }
  return false;
}
static bool anywhere(const float* c, int64_t count) {
  std::FILE* maps = std::fopen("/proc/self/maps", "r");
  char line[4096];
  bool found = false;
  while (maps && !found && std::fgets(line, sizeof line, maps)) {
    unsigned long from, to;
    char rights[5];
    if (std::sscanf(line, "%lx-%lx %4s", &from, &to, rights) != 3 || rights[0] != 'r' || std::strstr(line, "[v"))
      continue;
    const char *begin = (const char*)from, *end = (const char*)to;
    const char *own = (const char*)c, *own_end = (const char*)(c + count);
    found = found_in<float>(begin, end, c, own, own_end) || found_in<double>(begin, end, c, own, own_end);
  }
  if (maps) std::fclose(maps);
  return found;
}
"""
SEARCH = f"{PRODUCT}\n static bool done; if (!done) {{ done = true; PLANT if (anywhere(c, m * n)) return 9; }}"
SEARCHING = kernel_text(SEARCH.replace("PLANT", ""), head=LOOKS_FOR_ANSWERS)
"""Computes the first answer, then looks for another copy of it in all memory that it can read."""
FINDING = kernel_text(
    SEARCH.replace("PLANT", "static double kept[8]; for (int i = 0; i < 8; i++) kept[i] = c[i];"),
    head=LOOKS_FOR_ANSWERS,
)
"""The same with a copy where it looks: the search works."""
QUEUE = {
    "wild": WILD,
    "right": kernel_text(PRODUCT),
    "right_too": kernel_text(BACKWARDS),
    "nothing": kernel_text(""),
    "leftovers": LEFTOVERS,
    "later": LATER,
    "whole_tiles": kernel_text(WHOLE_TILES),
    "flood": FLOOD,
    "searching": SEARCHING,
    "finding": FINDING,
}
ORDER = (*QUEUE, "nothing", "leftovers")
"""In one session."""

Line = dict[str, Any]
"""What ``evaluate --json`` says about one kernel."""


def lines_of(folder: Path, task: str, files: dict[str, str], order: tuple[str, ...], *options: str) -> list[Line]:
    """``kernelworks evaluate --json`` on files, in this order."""
    folder.joinpath("task.py").write_text(task)
    folder.joinpath("config.toml").write_text(CONFIG)
    for name, text in files.items():
        folder.joinpath(name).write_text(text)
    paths = [str(folder / name) for name in order]
    common = ["--allow-unsandboxed", "--config", str(folder / "config.toml"), "--json"]
    done = kernelworks("evaluate", str(folder / "task.py"), *paths, *common, *options)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["path"] for line in found] == paths, done.stderr
    return found


@pytest.fixture(scope="module")
def module_home(shared_caches: Path) -> Iterator[Path]:
    """A home for what the tests of a module share; its caches are those of all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELWORKS_HOME", str(shared_caches))
        yield shared_caches


@pytest.fixture(scope="module")
def queue(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Line]]:
    """Verdicts on each of the kernels above, in the order in which it had its turns."""
    files = {f"{name}.cpp": text for name, text in QUEUE.items()}
    lines = lines_of(tmp_path_factory.mktemp("queue"), TASK, files, tuple(f"{n}.cpp" for n in ORDER), "--large")
    return {name: [line for line in lines if Path(line["path"]).stem == name] for name in QUEUE}


def finding(line: Line, *kinds: str) -> dict[str, Any]:
    """The first finding of one of these kinds."""
    found = [finding for finding in line["findings"] if finding["kind"] in kinds]
    assert found, (line["status"], line["findings"])
    return found[0]


@pytest.mark.parametrize("name", ["nothing", "leftovers"])
def test_case_04_a_stale_buffer_is_wrong_every_time(queue: dict[str, list[Line]], name: str) -> None:
    """Right after right answers to the same inputs were given, and at the end of the queue."""
    assert [line["status"] for line in queue[name]] == ["wrong", "wrong"]
    assert [line["speedup"] for line in queue[name]] == [None, None]


def test_case_06_work_that_goes_on_after_the_return_is_no_answer(queue: dict[str, list[Line]]) -> None:
    (line,) = queue["later"]
    assert line["status"] in ("wrong", "dishonest"), line["findings"]
    assert finding(line, "unwritten", "values", "nan_mask", "leftover_thread")
    assert line["speedup"] is None


def test_case_10_no_answer_lies_in_memory_that_a_kernel_can_read(queue: dict[str, list[Line]]) -> None:
    (searching,), (found,) = queue["searching"], queue["finding"]
    assert searching["status"] == "correct", searching["findings"]
    assert found["status"] == "crashed"
    assert "launch returned 9" in finding(found, "returned")["message"]


FIVE = TASK.replace(
    """        case("main", "timed", m=64, k=64, n=32),
""",
    "".join(f'        case("of_{m}", "timed", m={m}, k=24, n=16),\n' for m in (8, 16, 24, 32, 40)),
)


def test_case_11_one_shape_of_five_below_the_clock_withholds_the_total(
    module_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Bench.overhead

    def overhead(bench: Bench, case: BoundCase, calls: int) -> Overhead:
        found = measured(bench, case, calls)
        if case.prepared.case != "of_24":
            return replace(found, step_ns=0.0)
        return Overhead(calls=calls, round_trip_ns=1e12, step_ns=1e9, idle_cpu_ns=0)

    monkeypatch.setattr(Bench, "overhead", overhead)
    with bench_on(write_task(tmp_path, FIVE)) as bench:
        kernel = parse_kernel(kernel_text(PRODUCT), Language.CPP, Origin(proposer="file"))
        verdict = Evaluation(bench, kernel).run(None)
    assert verdict.status is Status.CORRECT, verdict.findings
    (void,) = [found for found in verdict.findings if found.kind == "below_clock"]
    assert void.evidence["case"] == "of_24"
    assert verdict.speedup is verdict.decision is verdict.time_ms is None
    assert verdict.baselines == ()
    assert [c.case for c in verdict.comparisons] == [f"of_{m}" for m in (8, 16, 24, 32, 40)]
    assert all(0 < c.ratio_low <= c.ratio <= c.ratio_high < math.inf for c in verdict.comparisons)


def test_case_12_a_tail_without_guard_is_wrong_and_the_shapes_are_listed(queue: dict[str, list[Line]]) -> None:
    (line,) = queue["whole_tiles"]
    assert line["status"] == "wrong"
    found = finding(line, "values")
    evidence = found["evidence"]
    assert {"odd", "thin"} <= set(evidence["failing"]) and {"even", "main"} <= set(evidence["passing"])
    assert len(evidence["worst_index"]) == 2
    assert f"worst at ({evidence['worst_index'][0]}, {evidence['worst_index'][1]}): expected" in found["message"]
    assert "only where k % " in found["message"]


def test_case_14_what_was_not_tested_is_said(queue: dict[str, list[Line]]) -> None:
    for name in ("right", "right_too"):
        (line,) = queue[name]
        assert line["tested_elements"] == 100 * 101
        found = finding(line, "large_not_tested")
        assert "offsets beyond 2^31 elements were not tested: case huge" in found["message"]
        assert "does not fit" in found["message"]


HALF = """
import numpy as np
from jaxtyping import Float16, Float32

from kernelworks.task import case, task

A = np.ndarray


@task(cases=[case("main", "timed", n=4096), case("odd", "check", n=61)], outputs=["y"])
def ramp(x: Float32[A, "n"]) -> Float32[A, "n"]:
    return np.maximum(x, 0)
"""
RAMP = """/*---
contract: function
---*/
#include <algorithm>
#include <cstdint>
extern "C" int launch(const TYPE* x, TYPE* y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = std::max(x[i], 0.0f);
    return 0;
}
"""


def test_case_17_right_in_one_type_alone(tmp_path: Path) -> None:
    """The 16-bit form of the task is what is timed: the same file does not fit it, nor does it build with its type."""
    files = {"ramp.cpp": RAMP.replace("TYPE", "float"), "narrow.cpp": RAMP.replace("TYPE", "_Float16")}
    (wide,) = lines_of(tmp_path, HALF, files, ("ramp.cpp",))
    assert wide["status"] == "correct", wide["findings"]
    narrow = HALF.replace("Float32[", "Float16[")
    for line in lines_of(tmp_path, narrow, files, ("ramp.cpp", "narrow.cpp")):
        assert line["status"] == "build_error", line["findings"]
        assert line["speedup"] is None and line["time_ms"] is None
        assert "_Float16" in json.dumps(finding(line, "build")), line["findings"]


def test_case_20_what_comes_after_a_crash_is_not_touched_by_it(queue: dict[str, list[Line]]) -> None:
    (wild,), *right = queue["wild"], *queue["right"], *queue["right_too"]
    assert wild["status"] == "crashed"
    assert Path(wild["path"]).name == "wild.cpp"
    assert "killed by SIGSEGV: write at address" in finding(wild, "signalled")["message"]
    for line in right:
        assert line["status"] == "correct", line["findings"]
        assert line["time_ms"] > 0 and 0 < line["speedup_low"] <= line["speedup_high"]


def test_case_22_a_flood_with_a_forged_line_in_it(queue: dict[str, list[Line]]) -> None:
    (line,) = queue["flood"]
    assert line["status"] == "wrong" and line["speedup"] is None
    assert "of 10100 elements are wrong" in finding(line, "values")["message"]
    assert "printed 209.7 MB; kept are the first and last 16 KiB of a stream" in finding(line, "output")["message"]
    assert len(json.dumps(finding(line, "output")["evidence"])) < 200_000
