"""KernelBench level 1 with the experts on this CPU: what loads, what is recognised, what ends correct, how fast.

    python benchmarks/kernelbench_level1.py CHECKOUT [--evaluations N] [--megabytes M] [--only 23,40] --out FILE

CHECKOUT is a local copy of the public repository; its files are used unmodified. Sizes are reduced by overriding
module-level constants (as ``--set`` does), the largest halved first, until all tensors fit into M megabytes.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelworks.app.config import load_config, usable_cores
from kernelworks.app.events import SilentListener
from kernelworks.app.optimize import optimize
from kernelworks.app.options import OptimizeOptions
from kernelworks.app.state import read_state
from kernelworks.errors import KernelworksError
from kernelworks.kernel.verdict import Status
from kernelworks.store.run import RunStore
from kernelworks.targets.registry import get_target
from kernelworks.task.model import CaseRole, size_bytes
from kernelworks.task.modulefile import constants
from kernelworks.task.resolve import load_task
from kernelworks.task.source import TaskReference

SMALLEST = 16
"""No constant is reduced below this: channels, heads and kernel sizes keep their meaning."""


def reduced(path: Path, limit_bytes: int) -> tuple[dict[str, str], str]:
    """Overrides under which all tensors of the timed case fit, and why not if they cannot be made to."""
    found = constants(ast.parse(path.read_text(encoding="utf-8")))
    sizes = {name: value for name, value in found.items() if type(value) is int}
    original = dict(sizes)
    while True:
        overrides = {name: str(size) for name, size in sizes.items() if size != original[name]}
        try:
            task = load_task(TaskReference(target=str(path), overrides=overrides), load_only=True).task
        except KernelworksError as error:
            return overrides, error.message
        case = task.cases_of(CaseRole.TIMED)[0]
        if sum(size_bytes(a, case) for a in task.tensors) <= limit_bytes:
            return overrides, ""
        name = max(sizes, key=lambda n: sizes[n], default="")
        if not name or sizes[name] < 2 * SMALLEST:
            return overrides, "does not fit with reduced sizes"
        sizes[name] //= 2


def run_task(path: Path, overrides: dict[str, str], evaluations: int) -> dict[str, Any]:
    """One short search; a row of the table."""
    measures = ("time_ms", "eager_ms", "compile_ms", "speedup", "speedup_low", "speedup_high", "roofline")
    row: dict[str, Any] = {"recognised": False, "status": "", "note": "", **dict.fromkeys(measures)}
    with tempfile.TemporaryDirectory(prefix="kernelworks-bench-") as folder:
        options = OptimizeOptions(
            task=TaskReference(target=str(path), overrides=overrides),
            config=load_config(None, {"budget.evaluations": evaluations}),
            folder=f"{folder}/run",
        )
        try:
            result = optimize(options, SilentListener())
        except KernelworksError as error:
            return {**row, "status": error.kind, "note": error.message}
        with RunStore.open(Path(folder) / "run", read_only=True) as store:
            verdicts = [v.verdict for v in read_state(store).asked]
    statuses = [v.status.value for v in verdicts]
    findings = [f.message for v in verdicts if v.status is not Status.CORRECT for f in v.findings]
    row |= {
        "recognised": True,
        "statuses": statuses,
        "findings": findings,
        "status": "correct" if result.best else "no_correct_kernel",
    }
    if result.best is not None:
        verdict = result.best.verdict
        row |= {k: getattr(verdict, k) for k in ("time_ms", "speedup", "speedup_low", "speedup_high", "roofline")}
        times = {b.name: b.time_ms for b in verdict.baselines if b.policy == "kernel"}
        row |= {"eager_ms": times.get("eager"), "compile_ms": times.get("compile")}
        row["baselines"] = [b.model_dump(mode="json") for b in verdict.baselines]
        row["foreign_load_cores"] = verdict.foreign_load_cores
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--evaluations", type=int, default=6)
    parser.add_argument("--megabytes", type=int, default=48)
    parser.add_argument("--only", help="numbers of tasks, separated by commas")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    files = sorted(
        (arguments.checkout / "KernelBench" / "level1").glob("*.py"), key=lambda p: int(p.name.split("_")[0])
    )
    if arguments.only:
        files = [f for f in files if f.name.split("_")[0] in arguments.only.split(",")]
    rows: list[dict[str, Any]] = []
    for path in files:
        start_s = time.monotonic()
        row: dict[str, Any] = {"task": path.name, "loads": True}
        try:
            load_task(TaskReference(target=str(path)), load_only=True)
        except KernelworksError as error:
            row |= {"loads": False, "note": error.message}
        overrides, problem = reduced(path, arguments.megabytes << 20)
        row["set"] = overrides
        if row["loads"]:
            row |= (
                {"status": "not_run", "note": problem} if problem else run_task(path, overrides, arguments.evaluations)
            )
        row["wall_s"] = round(time.monotonic() - start_s, 1)
        rows.append(row)
        print(
            json.dumps({k: row.get(k) for k in ("task", "loads", "recognised", "status", "speedup", "wall_s")}),
            flush=True,
        )
        write(arguments.out, rows)


def write(out: Path, rows: list[dict[str, Any]]) -> None:
    """The whole table so far, so that a long run that is cut off leaves what it has."""
    hardware = get_target("cpp").hardware()
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "device": hardware.name,
        "cores": usable_cores(),
        "versions": get_target("cpp").probe().versions,
        "command": " ".join(["python", "benchmarks/kernelbench_level1.py", "CHECKOUT", *sys.argv[2:]]),
        "summary": {
            "tasks": len(rows),
            "load": sum(r["loads"] for r in rows),
            "recognised": sum(bool(r.get("recognised")) for r in rows),
            "correct": sum(r.get("status") == "correct" for r in rows),
        },
        "tasks": rows,
    }
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
