"""Cases about what surrounds a kernel, by the numbers of ``docs/cases.md``: folders, locales, other runs, memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.cli import answer_of, kernelworks, start
from support.products import PRODUCT, TASK, kernel_text

from kernelworks.evaluate.lease import device_lease
from kernelworks.kernel.verdict import Status
from kernelworks.store.run import RunStore
from kernelworks.targets.hardware_cpu import describe_cpu

LONG_S = 120.0


def run(*words: str | Path, path: str) -> subprocess.CompletedProcess[str]:
    """``kernelworks`` by the interpreter's full path, with this ``PATH`` in the C locale."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
    return subprocess.run(
        [sys.executable, "-m", "kernelworks", *map(str, words), "--allow-unsandboxed", "--json"],
        capture_output=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        timeout=300,
        env={**kept, "PATH": path, "LC_ALL": "C"},
    )


GREEK = kernel_text(PRODUCT, head="// λ = Σ a·b — 🚀", front="idea: Σ über alle Zeilen 🚀\n").replace("\n", "\r\n")
BROKEN = kernel_text('float größe = "π";' + PRODUCT)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With accents in its name, a home in it, and the task."""
    found = tmp_path / "Größe é"
    home = found / "maison"
    home.mkdir(parents=True)
    for name in ("cache", "inductor"):
        (home / name).symlink_to(Path(os.environ["KERNELWORKS_HOME"]) / name, target_is_directory=True)
    monkeypatch.setenv("KERNELWORKS_HOME", str(home))
    (found / "tâche.py").write_text(TASK, encoding="utf-8")
    (found / "λ.cpp").write_bytes(GREEK.encode())
    (found / "π.cpp").write_bytes(BROKEN.encode())
    return found


STALLING = """#!/bin/sh
case "$*" in *-DSTALL=1*) if mkdir "{mark}"; then sleep 600; fi ;; esac
exec "{compiler}" "$@"
"""


BUILD = """
from kernelworks.kernel.frontmatter import parse_kernel
from kernelworks.kernel.model import Language, Origin
from kernelworks.targets.cpp import CppTarget
from support.builds import kernel_text, scale_task

text = kernel_text("y[i] = x[i];", front="params: {STALL: [1]}\\n")
built = CppTarget().build(scale_task(), parse_kernel(text, Language.CPP, Origin(proposer="file")))
print(built.path, built.cached)
"""


def test_case_23_a_build_that_was_killed_stands_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler stalls; who builds is killed; the same text again, while that compiler is still there."""
    compiler, mark, stalling = shutil.which("g++"), tmp_path / "stalled", tmp_path / "stalling"
    if compiler is None:
        pytest.skip("no g++")
    stalling.write_text(STALLING.format(mark=mark, compiler=compiler))
    stalling.chmod(0o755)
    monkeypatch.setenv("CXX", str(stalling))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    command = [sys.executable, "-c", BUILD]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: mark.exists() or first.poll() is not None)
    assert first.poll() is None, first.communicate()
    first.kill()
    first.wait()
    try:
        second = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S)
        assert running(str(stalling)), "the compiler of the first is still there"
    finally:
        for pid in running(str(stalling)):
            with suppress(ProcessLookupError):
                os.killpg(os.getpgid(pid), signal.SIGKILL)
        first.communicate()
    assert second.returncode == 0, second.stderr
    library, cached = second.stdout.split()
    assert Path(library).stat().st_size > 0 and cached == "False"


def running(word: str) -> list[int]:
    """Processes with a word in their command lines, this one's aside."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile
            if word.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def wait_for(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_case_25_an_environment_that_is_not_activated(folder: Path) -> None:
    """``PATH`` without the folder of the interpreter."""
    own = Path(sys.executable).parent
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if p and Path(p) != own)
    if shutil.which("g++", path=path) is None:
        pytest.skip("the compiler stands beside the interpreter")
    done = run("evaluate", folder / "tâche.py", folder / "λ.cpp", path=path)
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout)
    assert (line["status"], line["path"]) == ("correct", str(folder / "λ.cpp")), line["findings"]


def test_case_28_what_is_not_ascii_is_built_kept_and_told(folder: Path) -> None:
    """Greek letters, emoji and line ends of another system in a kernel's text, accents in every folder, C locale."""
    seeds = ("--seed-kernel", folder / "π.cpp", "--seed-kernel", folder / "λ.cpp")
    done = run("optimize", folder / "tâche.py", *seeds, "--run", folder / "été", path=os.environ["PATH"])
    assert done.returncode in (0, 1), done.stderr
    answer = answer_of(done)
    assert answer["failures"] == {"build_error": 1}
    assert Path(answer["best"]["path"]).read_bytes() == GREEK.encode()
    with RunStore.open(folder / "été", read_only=True) as store:
        assert {kernel.text.encode() for kernel in store.kernels()} == {GREEK.encode(), BROKEN.encode()}
        (failed,) = [v.verdict for v in store.verdicts() if v.verdict.status is Status.BUILD_ERROR]
    said = json.dumps([found.model_dump(mode="json") for found in failed.findings], ensure_ascii=False)
    assert "größe" in said and "π.cpp" in said and "cannot convert" in said, said


def test_case_36_timings_of_two_runs_take_turns_and_the_wait_is_told(tmp_path: Path) -> None:
    task, kernel, config = tmp_path / "product.py", tmp_path / "right.cpp", tmp_path / "config.toml"
    task.write_text(TASK)
    kernel.write_text(kernel_text(PRODUCT))
    config.write_text('[evaluation]\non_load = "mark"\n')
    options = ("--allow-unsandboxed", "--config", str(config), "--json")
    with device_lease(describe_cpu().name):
        process = start("evaluate", str(task), str(kernel), *options)
        wait_for(lambda: process.poll() is not None or has_lock(process))
        time.sleep(0.5)  # enough to be worth a word
        assert process.poll() is None
    out, err = process.communicate(timeout=LONG_S)
    assert process.returncode == 0, err
    line = json.loads(out)
    assert line["status"] == "correct" and line["speedup"] is not None
    (waited,) = [found for found in line["findings"] if found["kind"] == "waited"]
    assert "for another timing on this device to end" in waited["message"]
    assert waited["evidence"]["waited_s"] >= 0.4


def has_lock(process: subprocess.Popen[str]) -> bool:
    """Whether a command has opened the lock file of a device."""
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            if link.readlink().name.startswith("device-"):
                return True
    return False


GATHER = """
import numpy as np
from jaxtyping import Int8, Int64

from kernelworks.task import case, task

A = np.ndarray


def draw(generator, sizes):
    table = generator.integers(-8, 8, (sizes["rows"], sizes["cols"]), dtype=np.int8)
    return {"table": table, "row": generator.integers(0, sizes["rows"], sizes["n"])}


@task(
    cases=[
        case("main", "timed", rows=64, cols=1000, n=4096),
        case("odd", "check", rows=7, cols=33, n=61),
        case("long", "large", rows=24901, cols=131072, n=512),
    ],
    inputs=draw,
    outputs=["y"],
)
def gather(table: Int8[A, "rows cols"], row: Int64[A, "n"]) -> Int8[A, "n"]:
    return table[row, -1]
"""
PICK = """/*---
contract: function
---*/
#include <cstdint>
extern "C" int launch(const int8_t* table, const int64_t* row, int8_t* y, int64_t rows, int64_t cols, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = table[(INT)((INT)row[i] * (INT)cols) + (INT)cols - 1];
    return 0;
}
"""


@pytest.mark.proof
def test_case_14_an_offset_beyond_32_bits(tmp_path: Path) -> None:
    """24,901 rows of 131,072: the memory for the table and its copies is needed, some 10 GiB."""
    (tmp_path / "gather.py").write_text(GATHER)
    for name, integer in (("short", "int32_t"), ("long", "int64_t")):
        (tmp_path / f"{name}.cpp").write_text(PICK.replace("INT", integer))
    files = [str(tmp_path / f"{name}.cpp") for name in ("short", "long")]
    done = kernelworks("evaluate", str(tmp_path / "gather.py"), *files, "--large", "--allow-unsandboxed", "--json")
    short, long = map(json.loads, done.stdout.splitlines())
    assert long["status"] == "correct", long["findings"]
    if any(found["kind"] == "large_not_tested" for found in long["findings"]):
        pytest.skip("the memory is not there")
    assert long["tested_elements"] == 24901 * 131072
    assert short["status"] in ("wrong", "crashed"), short["findings"]
    assert "case long" in short["findings"][0]["message"], short["findings"]
