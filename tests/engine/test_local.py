from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.evaluations import HORNER, RIGHT, SETTINGS, kernel, write_task

from kernelworks.engine.base import Job, JobReport
from kernelworks.engine.local import LocalEngine
from kernelworks.errors import EnvironmentLackError, EvaluationError
from kernelworks.evaluate.session import Session
from kernelworks.evaluate.supervisor import descendants
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Status
from kernelworks.targets.base import Artefact, BuildFailure
from kernelworks.targets.cpp import CppTarget
from kernelworks.task.model import Task

LONG_S = 60.0
COMPILES_FOR_MINUTES = """
template <int K> constexpr long count() {
  long sum = 0;
  for (long i = 0; i < 5000000; i++) sum += i ^ K;
  return sum;
}
template <int K> struct Chain { static constexpr long value = count<K>() + Chain<K - 1>::value; };
template <> struct Chain<0> { static constexpr long value = 0; };
static const long answer = Chain<200>::value;
"""


@contextmanager
def engine_on(folder: Path, target: CppTarget | None = None, *, build_workers: int = 2) -> Generator[LocalEngine]:
    settings = SETTINGS.model_copy(update={"build_timeout_s": 600.0})
    session = Session(write_task(folder, HORNER), target or CppTarget(), settings)
    engine = LocalEngine(session, build_workers=build_workers)
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    with engine_on(tmp_path) as found:
        yield found


def reports(engine: LocalEngine, count: int) -> list[JobReport]:
    """The next reports, in the order in which they came."""
    found: list[JobReport] = []
    deadline = time.monotonic() + LONG_S
    while len(found) < count and time.monotonic() < deadline:
        found.extend(engine.collect(0.2))
    assert len(found) == count
    return found


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def running(word: str) -> list[int]:
    """Processes below this one with a word in their command line."""
    found: list[int] = []
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_builds_come_back_as_artefacts_or_verdicts(engine: LocalEngine) -> None:
    jobs = {1: RIGHT, 2: "nonsense", 3: RIGHT}
    for number, body in jobs.items():
        front = "needs: [sm_90a]" if number == 3 else ""
        engine.submit(Job(number=number, kind="build", kernel=kernel(body, front=front)))
    found = {report.number: report for report in reports(engine, 3)}
    assert all(report.kind == "build" for report in found.values())
    good, bad, unsupported = found[1], found[2].verdict, found[3].verdict
    assert good.verdict is None and good.built is not None
    assert good.built.code_digest and "-O3" in good.built.flags and good.built.build_ms > 0
    assert bad is not None and (bad.status, found[2].built) == (Status.BUILD_ERROR, None)
    assert unsupported is not None and unsupported.status is Status.UNSUPPORTED
    assert JobReport.model_validate_json(good.model_dump_json()) == good


def test_evaluations_come_back_as_verdicts_of_either_policy(engine: LocalEngine) -> None:
    engine.submit(Job(number=4, kind="evaluate", kernel=kernel(RIGHT)))
    engine.submit(Job(number=5, kind="as_called", kernel=kernel(RIGHT)))
    first, second = reports(engine, 2)
    assert (first.number, first.kind, second.number, second.kind) == (4, "evaluate", 5, "as_called")
    assert first.verdict is not None and {b.policy for b in first.verdict.baselines} == {"kernel"}
    assert second.verdict is not None and {b.policy for b in second.verdict.baselines} == {"as_called"}


def test_builds_run_while_a_kernel_is_evaluated(engine: LocalEngine) -> None:
    sleepy = "static int calls; if (calls++ == 0) usleep(1900000);" + RIGHT
    engine.submit(Job(number=1, kind="build", kernel=kernel(sleepy)))
    reports(engine, 1)
    engine.submit(Job(number=1, kind="evaluate", kernel=kernel(sleepy)))
    wait_for(lambda: running("library.so") or running("supervisor"))
    engine.submit(Job(number=2, kind="build", kernel=kernel(RIGHT, front="idea: built meanwhile")))
    first, second = reports(engine, 2)
    assert (first.number, first.kind, second.number, second.kind) == (2, "build", 1, "evaluate")


def test_nothing_to_collect_is_no_error(engine: LocalEngine) -> None:
    assert engine.collect(0.0) == engine.collect(0.01) == []


@pytest.mark.timeout(100)
def test_closing_ends_builds_in_flight_and_those_that_wait(tmp_path: Path) -> None:
    with engine_on(tmp_path, build_workers=5) as engine:
        for number in range(9):
            slow = kernel(RIGHT, front=f"params: {{MARK: [{7700 + number}]}}", head=COMPILES_FOR_MINUTES)
            engine.submit(Job(number=number, kind="build", kernel=slow))
        wait_for(lambda: running("-DMARK=77"))
        engine.close()
        assert running("-DMARK=77") == []
        assert running("judge_server") == []
        engine.close()


@pytest.mark.timeout(100)
def test_closing_does_not_wait_for_a_kernel_that_hangs(tmp_path: Path) -> None:
    patient = SETTINGS.model_copy(update={"call_timeout_s": 600.0})
    engine = LocalEngine(Session(write_task(tmp_path, HORNER), CppTarget(), patient), build_workers=1)
    hanging = kernel("for (volatile int i = 0;; i = i + 1) {}" + RIGHT)
    engine.submit(Job(number=1, kind="evaluate", kernel=hanging))
    try:
        wait_for(lambda: any(_ticks(pid) > 50 for pid in running("child.py")))
    finally:
        engine.close()
    assert running("child.py") == running("judge_server") == []
    assert engine.collect(0.0) == []


def _ticks(pid: int) -> int:
    """Processor time of a process, in hundredths of a second."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])
    return 0


class Vanishing(CppTarget):
    """A compiler that is uninstalled once it has built a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.built = 0

    def build(self, task: Task, kernel: Kernel, *, timeout_s: float = 60.0) -> Artefact | BuildFailure:
        self.built += 1
        if self.built > 1:
            raise EnvironmentLackError("g++ is gone")
        return super().build(task, kernel, timeout_s=timeout_s)


def test_what_goes_wrong_in_a_job_is_raised_where_reports_are_collected(tmp_path: Path) -> None:
    with engine_on(tmp_path, Vanishing(), build_workers=1) as engine:
        engine.submit(Job(number=1, kind="build", kernel=kernel(RIGHT)))
        engine.submit(Job(number=2, kind="build", kernel=kernel(RIGHT)))
        engine.submit(Job(number=3, kind="build", kernel=kernel(RIGHT)))
        found: list[JobReport] = []

        def collect_until_it_fails() -> Sequence[JobReport]:
            while True:
                found.extend(engine.collect(0.2))

        for _ in range(2):  # it stays so
            with pytest.raises(EnvironmentLackError, match=r"g\+\+ is gone"):
                collect_until_it_fails()
        assert [report.number for report in found] == [1]


def test_the_death_of_the_judge_is_the_harness_that_failed(engine: LocalEngine) -> None:
    engine.submit(Job(number=1, kind="evaluate", kernel=kernel(RIGHT)))
    reports(engine, 1)
    (judge,) = running("judge_server")
    os.kill(judge, signal.SIGKILL)
    engine.submit(Job(number=2, kind="evaluate", kernel=kernel(RIGHT)))
    with pytest.raises(EvaluationError, match="judge"):
        reports(engine, 1)
