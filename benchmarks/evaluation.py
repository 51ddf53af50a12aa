"""How fast candidates are evaluated, where the time goes, and how much memory it takes.

    python benchmarks/evaluation.py [--task TASK] [--minutes M] [--out FILE]

Runs one search and reports: candidates a minute (distinct kernels that were built, found correct and timed; the rest
apart), the share of each stage, the overhead of the harness, and the peak memory of controller and judge together
(proportional set size, so that shared pages count once).
"""

from __future__ import annotations

import argparse
import json
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
from kernelworks.kernel.verdict import Status
from kernelworks.store.run import RunStore
from kernelworks.task.source import TaskReference

SAMPLE_S = 0.2
JUDGE = "kernelworks.evaluate.judge_server"


class MemoryWatch:
    """Samples the proportional set size of this process and of every judge that it started."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        return self.peak_bytes

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, sum(map(_pss_bytes, ["self", *_judges()])))


def _judges() -> list[str]:
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if JUDGE in (entry / "cmdline").read_text(errors="replace"):
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


def measure(task: str, minutes: float, seed: int) -> dict[str, object]:
    """Run one search and compute the figures."""
    with tempfile.TemporaryDirectory(prefix="kernelworks-bench-") as folder:
        watch = MemoryWatch()
        start_s = time.monotonic()
        config = load_config(None, {"budget.minutes": minutes, "search.seed": seed})
        options = OptimizeOptions(task=TaskReference(target=task), config=config, folder=f"{folder}/run")
        result = optimize(options, SilentListener())
        wall_s = time.monotonic() - start_s
        peak_bytes = watch.stop()
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
        "stage_median_ms": {name: statistics.median(v.stages_ms.get(name, 0.0) for v in timed) for name in totals},
        "peak_controller_and_judge_bytes": peak_bytes,
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
