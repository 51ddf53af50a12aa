"""Pages of large blocks: kept for the clock, given back after golden values. In processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from kernelworks.evaluate.heap import heap_environment, pages_shim
from kernelworks.evaluate.records import Heap

HEAD = """
import resource
import torch
from kernelworks.evaluate.heap import scratch, trim

def faults_and_mib(work):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    with open("/proc/self/statm") as file:
        return taken, int(file.read().split()[1]) // 256

def make():
    return torch.ones(8 << 20)

def three():
    return [make() for _ in range(3)]
"""


def run(heap: Heap, text: str) -> list[int]:
    """Whole numbers that a program prints on this heap."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(text)],
        env={**os.environ, **heap_environment(heap)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(word) for word in done.stdout.split()]


def test_the_shim_is_built_here() -> None:
    assert pages_shim() is not None


def test_a_warm_heap_keeps_the_pages_of_tensors_and_no_more_than_are_in_use_at_once() -> None:
    faults, before, after = run(
        "warm",
        """
        make()
        before = faults_and_mib(lambda: None)[1]
        litter = []
        def often():
            for k in range(40):
                tensor = make()
                litter.append([bytearray(1000 + k) for _ in range(50)])
                del tensor
        taken, after = faults_and_mib(often)
        print(taken, before, after)
        """,
    )
    assert faults < 2000, "fresh pages of 40 tensors would be 327,680"
    assert after - before < 16, "a tensor of 32 MiB was made 40 times"


def test_the_default_heap_takes_a_fault_for_every_page() -> None:
    (faults,) = run("default", "make()\nprint(faults_and_mib(lambda: [make() for _ in range(4)] and None)[0])")
    assert faults > 4 * 1000  # fewer than 8,192 each where the system gives large pages


def test_scratch_gives_its_blocks_back_and_leaves_the_kept_ones_alone() -> None:
    faults, base, inside, after = run(
        "warm",
        """
        kept = three()
        del kept
        base = faults_and_mib(lambda: None)[1]
        with scratch("warm"):
            held = three()
            inside = faults_and_mib(lambda: None)[1]
            del held
        after = faults_and_mib(lambda: None)[1]
        print(faults_and_mib(three)[0], base, inside, after)
        """,
    )
    assert inside - base > 90
    assert abs(after - base) < 4
    assert faults < 500, "the blocks that were kept before are still there"


def test_trim_gives_back_what_is_free() -> None:
    before, after = run(
        "warm",
        """
        held = three()
        del held[1:]
        before = faults_and_mib(lambda: None)[1]
        trim()
        print(before, faults_and_mib(lambda: None)[1])
        assert held[0].sum() == 8 << 20
        """,
    )
    assert 60 < before - after < 70


@pytest.mark.parametrize("count", [1 << 10, 1 << 18, (1 << 20) + 3])
def test_blocks_of_every_size_are_aligned_and_separate(count: int) -> None:
    (fine,) = run(
        "warm",
        f"""
        tensors = [torch.full(({count},), float(k)) for k in range(50)]
        fine = all(t.data_ptr() % 64 == 0 and bool((t == k).all()) for k, t in enumerate(tensors))
        starts = sorted(t.data_ptr() for t in tensors)
        print(int(fine and all(b - a >= {4 * count} for a, b in zip(starts, starts[1:]))))
        """,
    )
    assert fine
