"""The clock on real kernels: nothing is decided where nothing differs, and 3% are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.clock import AND_EAGER, AT_WORK, settle_kernel

from kernelworks.evaluate.bench import Bench, open_bench
from kernelworks.evaluate.duel import Duel
from kernelworks.evaluate.judge import Judge
from kernelworks.evaluate.process import CandidatePool
from kernelworks.evaluate.settings import Settings
from kernelworks.evaluate.supervision import Limits
from kernelworks.evaluate.timing import compare_sides, warm_up
from kernelworks.kernel.verdict import Decision
from kernelworks.targets.base import Artefact
from kernelworks.targets.cpp import CppTarget
from kernelworks.targets.gate import process_gate
from kernelworks.task.source import TaskReference

pytestmark = [pytest.mark.proof, pytest.mark.timeout(3600)]

PAIRS = 100
"""Of each of the three kinds of pairs that do not differ, and of pairs that do."""
MOST_DECIDED = 9
"""Of 300 pairs that do not differ; 4% of error are spent, and most comparisons end within the margin."""
LEAST_FOUND = 80


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with bench_on(tmp_path, AT_WORK) as found:
        yield found


@contextmanager
def bench_on(folder: Path, task: str) -> Generator[Bench]:
    path = folder / "settle.py"
    path.write_text(task)
    settings = Settings(threads=2)
    with (
        Judge.start(TaskReference(target=str(path)), heap="warm", threads=2) as judge,
        CandidatePool(threads=2, limits=Limits()) as pool,
    ):
        bench = open_bench(judge, CppTarget(), settings, pool, heap="warm")
        yield bench
        bench.close()


def build(bench: Bench, more: int) -> Artefact:
    built = bench.target.build(bench.task, settle_kernel(more))
    assert isinstance(built, Artefact)
    return built


def decisions(compare: Callable[[], Decision]) -> Counter[Decision]:
    found: Counter[Decision] = Counter()
    for _ in range(PAIRS):
        with process_gate().timing():
            found[compare()] += 1
    return found


def in_two_processes(bench: Bench, candidate: Artefact, rival: Artefact) -> Decision:
    with bench.pool.start(candidate.path) as mine, bench.pool.start(rival.path) as theirs:
        duel = Duel(bench, mine)
        (comparison,) = duel.against_kernel("rival", theirs)
    assert duel.doubts == []
    return comparison.decision


def in_one_process(bench: Bench, candidate: Artefact) -> Decision:
    with bench.pool.start(candidate.path) as process:
        duel = Duel(bench, process)
        (comparison,) = duel.against_kernel("itself", process)
    assert duel.doubts == []
    return comparison.decision


def eager_against_itself(bench: Bench) -> Decision:
    case = bench.timed[0]
    sides = [bench.baseline_side(bench.anchor, (case,)) for _ in range(2)]
    for side in sides:
        warm_up(side)
    return compare_sides(sides[0], sides[1], bench.rng).decision


def test_three_hundred_pairs_that_do_not_differ_and_a_hundred_that_do(
    bench: Bench, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    same, slower = build(bench, 0), build(bench, 3)
    kinds = {
        "one process": decisions(lambda: in_one_process(bench, same)),
        "two processes": decisions(lambda: in_two_processes(bench, same, same)),
    }
    found = decisions(lambda: in_two_processes(bench, slower, same))
    with bench_on(tmp_path, AND_EAGER) as eager:
        kinds["eager against eager"] = decisions(lambda: eager_against_itself(eager))
    decided = {name: PAIRS - counts[Decision.UNDECIDED] for name, counts in kinds.items()}
    record_property("decided", decided)
    record_property("slower_found", found[Decision.SLOWER])
    assert sum(decided.values()) <= MOST_DECIDED, kinds
    assert found[Decision.SLOWER] >= LEAST_FOUND, found
