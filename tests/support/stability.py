"""Many evaluations in one session: what they leave behind in the harness and in the judge."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from pathlib import Path

from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.evaluation import Evaluation
from kernelworks.evaluate.records import JudgeUsage
from kernelworks.kernel.verdict import Status
from support.evaluations import RIGHT, SLOW, kernel

DEEDS = (
    (SLOW, Status.CORRECT),
    ("n -= 3;" + RIGHT, Status.WRONG),
    (SLOW, Status.CORRECT),
    ("abort();", Status.CRASHED),
    ("return 1;", Status.CRASHED),
)
"""Bodies of kernels in turn: timed to the end, and ended in every way that has a path of its own."""


@dataclass(frozen=True)
class Held:
    """What two processes hold at a moment."""

    harness_bytes: int
    judge_bytes: int
    descriptors: tuple[int, int]
    maps: tuple[int, int]
    usage: JudgeUsage

    @staticmethod
    def now(bench: Bench) -> Held:
        """After a collection of garbage."""
        gc.collect()
        pids = (os.getpid(), bench.judge.pid)
        harness_bytes, judge_bytes = (_resident_bytes(pid) for pid in pids)
        harness_fds, judge_fds = (len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
        harness_maps, judge_maps = (Path(f"/proc/{pid}/maps").read_text().count("\n") for pid in pids)
        return Held(
            harness_bytes, judge_bytes, (harness_fds, judge_fds), (harness_maps, judge_maps), bench.judge.usage()
        )


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def evaluate_many(bench: Bench, count: int) -> None:
    """So many evaluations, each of which must end as its kernel deserves."""
    for number in range(count):
        body, status = DEEDS[number % len(DEEDS)]
        assert Evaluation(bench, kernel(body)).run(None).status is status
