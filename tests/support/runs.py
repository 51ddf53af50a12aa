"""A run in miniature: real search, real store, a made-up world in place of compilers and clocks.

As a program (``python -m support.runs FOLDER EVALUATIONS WORKERS``) it starts or resumes a run in FOLDER and prints
``ready`` when the search goes on, so that a test can kill it. No figure here was measured.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from random import Random

from kernelworks.kernel.descriptor import Descriptor
from kernelworks.kernel.model import Contract, FrontMatter, Kernel, Language, Origin
from kernelworks.kernel.outcome import Outcome
from kernelworks.kernel.verdict import Comparison, Decision, Finding, Status, Verdict
from kernelworks.search import Ask, Search, SearchConfig, StopRules
from kernelworks.store.records import RunMeta
from kernelworks.store.replay import Pending, restore
from kernelworks.store.run import RunStore

SEEDS = 5
META = RunMeta(
    run="20261201-0000abcd",
    created_at="2026-12-01T00:00:00+00:00",
    task="norm.py",
    target="cpp",
    proposer="experts",
    seed=7,
    search=SearchConfig(seeds=SEEDS).model_dump(mode="json"),
)


def fresh_search(meta: RunMeta = META) -> Search:
    """The search that a run with this meta begins with."""
    return Search(meta.seed, SearchConfig.model_validate(meta.search))


def propose(ask: Ask) -> Kernel | None:
    """A kernel by the ask alone; sometimes one that was proposed before, sometimes none."""
    choice = ask.seed % 40
    if ask.operator != "seed" and choice == 0:
        return None
    return Kernel(
        text=f"// {ask.operator} {' '.join(ask.parents)} {choice if ask.parents else ask.seed_index}\n",
        front=FrontMatter(lang=Language.CPP, contract=Contract.FUNCTION),
        origin=Origin(proposer="experts", parents=ask.parents, operator=ask.operator),
    )


def judge(kernel: Kernel, incumbent: str | None) -> Verdict:
    """A verdict by the kernel's text and its opponent alone."""
    world = Random(kernel.id)
    if world.random() < 0.3:
        status = world.choice([Status.BUILD_ERROR, Status.CRASHED, Status.WRONG])
        return Verdict(kernel=kernel.id, status=status, findings=(Finding(kind="x", message="made up"),))
    speedup = math.exp(world.gauss(0.5, 0.5))
    levels = [world.randrange(2) for _ in range(3)]
    duel = Comparison(
        opponent=incumbent or "eager",
        policy="kernel",
        case="large",
        time_ms=1.0,
        opponent_time_ms=speedup,
        ratio=speedup,
        ratio_low=speedup,
        ratio_high=speedup,
        decision=Random(f"{kernel.id} {incumbent}").choice(list(Decision)),
        blocks=2,
        cache="cold",
        samples_ms=((1.0, 1.25, 2.0, 2.5), (0.1, 0.2, 0.3, 0.4)),
        orders="ab",
    )
    return Verdict(
        kernel=kernel.id,
        status=Status.CORRECT,
        decision=Decision.FASTER,
        speedup=speedup,
        speedup_low=speedup,
        speedup_high=speedup,
        time_ms=1.0,
        descriptor=Descriptor(memory=levels[0], compute=levels[1], parallelism=levels[2]),
        code_digest=str(world.randrange(400)),
        comparisons=(duel,),
    )


class MiniatureRun:
    """What the application does with a search and a store, without compilers."""

    def __init__(self, folder: Path, evaluations: int, workers: int) -> None:
        self.rules = StopRules(evaluations=evaluations)
        self.workers = workers
        self.order = Random()
        self.queue: list[Pending] = []
        self.search = fresh_search()
        if (folder / "run.sqlite").exists():
            self.store = RunStore.open(folder)
            restored = restore(self.store, self.search)
            for pending in restored.requeue:
                if pending.kernel is not None:
                    self.search.seen.claim(pending.kernel.id)
                self.queue.append(pending)
            self.store.append("resumed", {"requeued": len(self.queue)})
        else:
            self.store = RunStore.create(folder, META)
            self.store.append("started", {})

    def go(self, pause_s: float) -> None:
        """Run until a stop rule says so; ``pause_s`` is the time of one evaluation."""
        while True:
            while len(self.queue) < self.workers and self._ask():
                pass
            if not self.queue:
                break
            pending = self.queue.pop(self.order.randrange(len(self.queue)))
            self._finish(pending, pause_s)
        self.store.append("stopped", {"reason": self._reason(none_left=True)})
        self.store.close()

    def _reason(self, *, none_left: bool) -> str | None:
        evaluations, barren = self.search.evaluations, self.search.barren
        return self.rules.reason(evaluations=evaluations, elapsed_s=0.0, barren=barren, none_left=none_left)

    def _ask(self) -> bool:
        in_flight = len(self.search.in_flight)
        if self._reason(none_left=False) or not self.rules.may_begin(
            evaluations=self.search.evaluations, in_flight=in_flight
        ):
            return False
        ask = self.search.ask()
        if ask is None:
            return False
        with self.store.step() as step:
            step.asked(ask)
        self.queue.append(Pending(ask.number))
        return True

    def _finish(self, pending: Pending, pause_s: float) -> None:
        ask = self.search.in_flight[pending.number]
        kernel = pending.kernel
        if kernel is None:
            kernel = propose(ask)
            if kernel is None:
                self._tell(ask.number, None, Outcome.nothing())
                return
            if not self.search.seen.claim(kernel.id):
                self._tell(ask.number, kernel, Outcome.duplicate(kernel.id))
                return
            with self.store.step() as step:
                step.proposed(ask.number, kernel)
        verdict = pending.verdict
        if verdict is None:
            probe = judge(kernel, None)
            incumbent = None if probe.descriptor is None else self.search.incumbent(probe.descriptor.cell)
            verdict = judge(kernel, incumbent)
            owner = self.search.seen.claim_code(verdict.code_digest, kernel.id)
            if owner != kernel.id:
                self._tell(ask.number, kernel, Outcome.duplicate(owner))
                return
            time.sleep(pause_s)
            # A step of its own on purpose: a death between the verdict and its telling must cost nothing either.
            self.store.record_verdict(ask.number, verdict)
        self._tell(ask.number, kernel, Outcome.evaluated(verdict))

    def _tell(self, number: int, kernel: Kernel | None, outcome: Outcome) -> None:
        kernel_id = "" if kernel is None else kernel.id
        told = self.search.tell(number, kernel_id, outcome)
        with self.store.step() as step:
            step.told(number, kernel_id, outcome, told)


def main() -> None:
    """Start or resume the run."""
    folder, evaluations, workers = sys.argv[1:]
    run = MiniatureRun(Path(folder), int(evaluations), int(workers))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    run.go(pause_s=0.01)


if __name__ == "__main__":
    main()
