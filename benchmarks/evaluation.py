"""How fast candidates are evaluated, where the time goes, and how much memory it takes.

    python benchmarks/evaluation.py [--task TASK] [--minutes M] [--out FILE]

Runs one search and reports: candidates a minute (distinct kernels that were built, found correct and timed; the rest
apart), the share of each stage, the overhead of the harness (wall time without the build, without the timed calls of
both sides and without waiting for a quiet machine), and the peak memory of controller and judge (proportional set size,
so that shared pages count once), beside what the judge takes before it has prepared anything and the limit of
docs/verification.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from kernelworks.app.config import load_config
from kernelworks.app.events import SilentListener
from kernelworks.app.optimize import optimize
from kernelworks.app.options import OptimizeOptions
from kernelworks.app.state import read_state
from kernelworks.evaluate.judge import Judge
from kernelworks.kernel.verdict import Status, Verdict
from kernelworks.store.run import RunStore
from kernelworks.task.model import CaseRole, size_bytes
from kernelworks.task.source import TaskReference

SAMPLE_S = 1.0  # each look walks the page tables of the judge, which a timing feels
JUDGE = "kernelworks.evaluate.judge_server"


class MemoryWatch:
    """Samples the proportional set size of this process and of every judge that it started."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        """Of all together."""
        self.controller_bytes = 0
        self.judge_bytes = 0
        """Of the largest judge."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            controller_bytes, judges = _pss_bytes("self"), [_pss_bytes(pid) for pid in _judges()]
            self.controller_bytes = max(self.controller_bytes, controller_bytes)
            self.judge_bytes = max([self.judge_bytes, *judges])
            self.peak_bytes = max(self.peak_bytes, controller_bytes + sum(judges))


def _judges() -> list[str]:
    """Judges that this process started; others may run on the machine."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if parent == str(os.getpid()) and JUDGE in (entry / "cmdline").read_text(errors="replace"):
                    found.append(entry.name)
            except OSError:
                continue
    return found


def _pss_bytes(pid: str) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))


def overhead_ms(verdict: Verdict) -> float:
    """Wall time of an evaluation that is neither building nor timed calls nor waiting."""
    # Blocks of two calls of either side; the store keeps single samples apart.
    calls_ms = sum(2 * c.blocks * (c.time_ms + c.opponent_time_ms) for c in verdict.comparisons)
    spent_ms = sum(ms for stage, ms in verdict.stages_ms.items() if stage != "build")
    return spent_ms - calls_ms - (verdict.waited_ms or 0.0)


def limits(task: str) -> dict[str, int]:
    """What a judge takes with the task loaded, and what it may take: 3 x (inputs and outputs) + 300 MiB."""
    with Judge.start(TaskReference(target=task), heap="warm", threads=1) as judge:
        tensors, cases = judge.task.tensors, judge.task.cases_of(CaseRole.TIMED, CaseRole.CHECK)
        largest_bytes = max(sum(size_bytes(tensor, case) for tensor in tensors) for case in cases)
        loaded_bytes = _pss_bytes(str(judge.pid))
    return {
        "largest_case_bytes": largest_bytes,
        "judge_loaded_bytes": loaded_bytes,
        "judge_limit_bytes": 3 * largest_bytes + (300 << 20),
    }


def measure(task: str, minutes: float, seed: int) -> dict[str, object]:
    """Run one search and compute the figures."""
    with tempfile.TemporaryDirectory(prefix="kernelworks-bench-") as folder:
        watch = MemoryWatch()
        start_s = time.monotonic()
        config = load_config(None, {"budget.minutes": minutes, "search.seed": seed})
        options = OptimizeOptions(task=TaskReference(target=task), config=config, folder=f"{folder}/run")
        result = optimize(options, SilentListener())
        wall_s = time.monotonic() - start_s
        watch.stop()
        with RunStore.open(Path(folder) / "run", read_only=True) as store:
            state = read_state(store)
            verdicts = [v.verdict for v in state.asked]
            search_s = state.restored.elapsed_s
            duplicates = sum(e.kind == "told" and e.data["result"] == "duplicate" for e in state.events)
            versions, hardware = store.meta.versions, store.meta.hardware
    timed = [v for v in verdicts if v.status is Status.CORRECT and v.time_ms is not None]
    totals: Counter[str] = Counter()
    for verdict in verdicts:
        totals.update(verdict.stages_ms)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "device": hardware.name if hardware is not None else "",
        "cores": hardware.cores if hardware is not None else 0,
        "versions": versions,
        "command": " ".join(["python", *sys.argv]),
        "task": task,
        "seed": seed,
        "wall_s": wall_s,
        "search_s": search_s,
        "evaluations": len(verdicts),
        "candidates_timed": len(timed),
        "candidates_per_minute": 60 * len(timed) / search_s,
        "failures": {
            s.value: n for s, n in Counter(v.status for v in verdicts if v.status is not Status.CORRECT).items()
        },
        "duplicates": duplicates,
        "stage_share": {name: ms / (1e3 * search_s) for name, ms in totals.most_common()},
        "stage_median_ms": {
            name: statistics.median(v.stages_ms.get(name, 0.0) for v in timed) for name in totals if timed
        },
        "overhead_median_ms": statistics.median(map(overhead_ms, timed)) if timed else None,
        "peak_controller_and_judge_bytes": watch.peak_bytes,
        "peak_controller_bytes": watch.controller_bytes,
        "peak_judge_bytes": watch.judge_bytes,
        **limits(task),
        "best": None if result.best is None else result.best.verdict.model_dump(mode="json", exclude={"comparisons"}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default=str(Path(__file__).parent.parent / "examples" / "gated_rms_norm.py"))
    parser.add_argument("--minutes", type=float, default=1.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the figures there as JSON too")
    arguments = parser.parse_args()
    figures = json.dumps(measure(arguments.task, arguments.minutes, arguments.seed), indent=1)
    print(figures)
    if arguments.out is not None:
        arguments.out.write_text(figures + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
