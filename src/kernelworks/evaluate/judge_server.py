"""The judge's process: owns the task, seeds, inputs, golden values, the comparison and the trusted baselines.

Run as ``python -m kernelworks.evaluate.judge_server FD`` by ``judge.Judge``; answers one request at a time on the
socket ``FD`` and ends when the other side closes it, also in the middle of a request.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from kernelworks.data import Frozen
from kernelworks.errors import DoesNotFitError, EvaluationError, KernelworksError, TaskRefusedError
from kernelworks.evaluate import channel
from kernelworks.evaluate.baselines import Baselines
from kernelworks.evaluate.bits import differing, fingerprint
from kernelworks.evaluate.bound import ReferenceError, reduction_lengths, results
from kernelworks.evaluate.buffers import SharedBuffer
from kernelworks.evaluate.casestate import CaseState, compare, poison, restore, restore_inputs, share_weights
from kernelworks.evaluate.families import FAMILIES
from kernelworks.evaluate.footprint import refuse_oversize
from kernelworks.evaluate.frames import frame_of
from kernelworks.evaluate.heap import scratch, trim
from kernelworks.evaluate.necessary import necessary_bytes
from kernelworks.evaluate.patience import RunLimit
from kernelworks.evaluate.perturb import Perturbation
from kernelworks.evaluate.prepare import DroppedFamilyError, prepare_case
from kernelworks.evaluate.records import BufferSlot, CountedWork, Heap, JudgeUsage, PreparedCase, ReferenceCalling
from kernelworks.evaluate.reference import Reference
from kernelworks.evaluate.taskcheck import check_task
from kernelworks.kernel.operations import count_work
from kernelworks.task.graph import Graph
from kernelworks.task.model import Case, CaseRole
from kernelworks.task.resolve import load_task
from kernelworks.task.source import LoadedTask, TaskReference

LOADING_RUNS = 2
"""Loading tries the reference on many sizes, most of them small: it may take as long as so many runs."""

Answer = tuple[Any, list[int]]
"""JSON-able result, and descriptors that go with it."""


class Service:
    """The requests, one public method each."""

    def __init__(self) -> None:
        self._loaded: LoadedTask | None = None
        self._heap: Heap = "default"
        self._threads = 1
        self._limit: RunLimit | None = None
        self._framed: Reference | None = None
        self._baselines: Baselines | None = None
        self._cases: dict[str, CaseState] = {}
        self._lent: list[SharedBuffer] = []
        """Weights handed out by ``calling``; kept while this process lives."""
        self._perturbations: dict[str, Perturbation] = {}
        self._pools: dict[tuple[str, str], list[list[ReferenceError]]] = {}
        self._rng = np.random.default_rng()

    def load(
        self, reference: dict[str, Any], heap: Heap, threads: int, load_only: bool, reference_timeout_s: float
    ) -> Answer:
        """Load the task."""
        self._heap = heap
        self._threads = threads
        self._limit = RunLimit(reference_timeout_s)
        with self._limit.running(LOADING_RUNS):
            self._loaded = load_task(TaskReference.model_validate(reference), load_only=load_only)
        return self._loaded.task.model_dump(mode="json"), []

    def trace(self) -> Answer:
        """The graph of the first timed case, or why there is none."""
        graph, reason = self._graph(self._reference().task.cases[0])
        return {"graph": None if graph is None else graph.model_dump(mode="json"), "reason": reason}, []

    def prepare(self, case: str, seed: int, family: str) -> Answer:
        """Prepare a case, or find it prepared."""
        reference = self._reference()
        if family not in FAMILIES:
            raise EvaluationError(f"input family: expected one of {', '.join(FAMILIES)}, found {family!r}")
        key = f"{case}/{family}/{seed}"
        if key not in self._cases:
            sizes = self._case(case)
            answers = results(reference.task)
            pools = self._pools.setdefault((case, family), [[] for _ in answers])
            refuse_oversize(reference.task, sizes, blockwise=reference.blockwise(sizes))
            try:
                with scratch(self._heap):
                    state = prepare_case(reference, sizes, seed, family, self._lengths(sizes), pools)
            except DroppedFamilyError as dropped:
                gone = PreparedCase(key=key, case=case, family=family, seed=seed, dropped=str(dropped))
                return gone.model_dump(mode="json"), []
            self._cases[key] = state
            self._tidy()
        prepared = self._cases[key].prepared()
        fds: list[int] = []
        lanes: list[tuple[Any, ...]] = []
        for lane in prepared.lanes:
            slots: list[Any] = []
            for slot in lane:
                if isinstance(slot, BufferSlot):
                    if slot.fd not in fds:
                        fds.append(slot.fd)
                    slots.append(slot.model_copy(update={"fd": fds.index(slot.fd)}))
                else:
                    slots.append(slot)
            lanes.append(tuple(slots))
        return prepared.model_copy(update={"lanes": tuple(lanes)}).model_dump(mode="json"), fds

    def calling(self, seed: int) -> Answer:
        """How the reference is made and called, and its weights for a seed."""
        reference = self._reference()
        case = reference.task.cases[0]
        with scratch(self._heap):
            drawn = reference.draw(case, seed)[len(reference.task.inputs) :]
        slots, buffers = share_weights(reference.task, case, drawn)
        self._lent += buffers
        found = ReferenceCalling(calling=reference.loaded.calling(), seed=seed, weights=slots)
        return found.model_dump(mode="json"), [buffer.fd for buffer in buffers]

    def release(self, key: str) -> Answer:
        """Forget a prepared case and give its memory back."""
        self._perturbations.pop(key, None)
        if self._baselines is not None:
            self._baselines.forget(key)
        state = self._cases.pop(key, None)
        if state is not None:
            state.close()
        return None, []

    def poison(self, key: str, lane: int, pattern: int, renew: list[str] | None) -> Answer:
        """Make a lane ready for a run on pristine inputs."""
        self._pristine(key)
        poison(self._state(key), lane, pattern, self._rng, renew)
        return None, []

    def compare(self, key: str, lane: int, explain: bool) -> Answer:
        """Compare a lane with golden."""
        self._pristine(key)
        state = self._state(key)
        earlier = [s for s in self._cases.values() if s.case.name == state.case.name and s.family != state.family]
        return compare(state, lane, explain=explain, earlier=earlier).model_dump(mode="json"), []

    def fingerprint(self, key: str, lane: int) -> Answer:
        """The bits of a lane's results as one text."""
        return fingerprint(self._state(key), lane), []

    def differing(self, key: str) -> Answer:
        """Elements whose bits differ between the first two lanes, by result."""
        return differing(self._state(key)), []

    def repair(self) -> Answer:
        """Write every input of every prepared case as it was drawn; says which had been changed."""
        problems: list[Any] = []
        for key, state in self._cases.items():
            self._pristine(key)
            problems += [{"key": key, **p.model_dump(mode="json")} for p in restore_inputs(state)]
        return problems, []

    def apply(self, key: str, variant: int | None) -> Answer:
        """Rewrite rows of the inputs, or restore them."""
        if variant is None:
            self._pristine(key)
        else:
            with scratch(self._heap):
                self._perturbation(key).apply(variant)
        return None, []

    def ready(self, keys: list[str], lane: int, variants: list[int | None]) -> Answer:
        """Make a lane of several cases ready for timed calls."""
        for key, variant in zip(keys, variants, strict=True):
            perturbation = self._perturbation(key)
            if variant is None:
                perturbation.stir()
            else:
                with scratch(self._heap):
                    perturbation.apply(variant)
            perturbation.poison(lane)
        return None, []

    def redraw(self, keys: list[str], lane: int) -> Answer:
        """Make a lane of several cases ready for calls on inputs that are new throughout."""
        for key in keys:
            perturbation = self._perturbation(key)
            with scratch(self._heap):
                perturbation.redraw()
            perturbation.poison(lane)
        return None, []

    def restore(self, keys: list[str], lane: int) -> Answer:
        """Restore inputs that are changed in place."""
        for key in keys:
            restore(self._state(key), lane)
        return None, []

    def withdraw(self, key: str) -> Answer:
        """Put back what was rewritten, before the answer is looked at."""
        self._perturbation(key).withdraw()
        return None, []

    def spot_check(self, key: str, lane: int) -> Answer:
        """Check the sampled positions, and some of the inputs."""
        problem = self._perturbation(key).check(lane)
        return None if problem is None else problem.model_dump(mode="json"), []

    def baseline_names(self) -> Answer:
        """What can be timed."""
        return self._trusted().names().model_dump(mode="json"), []

    def warm_baseline(self, name: str, key: str) -> Answer:
        """Make a baseline ready for a case."""
        return self._trusted().warm(name, self._state(key)).model_dump(mode="json"), []

    def time_baseline(self, name: str, keys: list[str], flush_bytes: int) -> Answer:
        """Time a baseline."""
        states = [self._state(key) for key in keys]
        return self._trusted().time(name, states, flush_bytes).model_dump(mode="json"), []

    def check_task(self) -> Answer:
        """Problems of the task."""
        task = self._reference().task
        for case in task.cases_of(CaseRole.TIMED, CaseRole.CHECK):
            refuse_oversize(task, case, blockwise=self._reference().blockwise(case))
        with scratch(self._heap):
            problems = check_task(self._reference(), self._lengths, self._operators)
        self._tidy()
        return [p.model_dump(mode="json") for p in problems], []

    def necessary_bytes(self, key: str) -> Answer:
        """Bytes shown necessary."""
        self._pristine(key)
        with scratch(self._heap):
            found = necessary_bytes(self._state(key), self._reference())
        self._tidy()
        return found.model_dump(mode="json"), []

    def work(self, case: str) -> Answer:
        """Bytes and operations of the reference."""
        graph, reason = self._graph(self._case(case))
        counted = CountedWork(work=None if graph is None else count_work(graph), untraced=reason)
        return counted.model_dump(mode="json"), []

    def usage(self) -> Answer:
        """Runs of the reference, and cases that are held."""
        return JudgeUsage(runs=dict(self._reference().runs), prepared=len(self._cases)).model_dump(mode="json"), []

    def _tidy(self) -> None:
        """Give back what checks and golden values leave behind, before the baselines' heap finds its shape."""
        if self._baselines is None or not self._baselines.any_warm:
            trim()

    def _reference(self) -> Reference:
        if self._framed is None:
            assert self._loaded is not None, "load comes first"
            self._framed = Reference(self._loaded, frame_of(self._loaded.task, self._threads), self._limit)
        return self._framed

    def _trusted(self) -> Baselines:
        if self._baselines is None:
            self._baselines = Baselines(self._reference())
        return self._baselines

    def _case(self, name: str) -> Case:
        task = self._reference().task
        try:
            return task.case(name)
        except KeyError:
            names = ", ".join(case.name for case in task.cases)
            raise EvaluationError(f"case: expected one of {names}, found {name!r}") from None

    def _state(self, key: str) -> CaseState:
        if key not in self._cases:
            raise EvaluationError(f"prepared case: expected one of {sorted(self._cases)}, found {key!r}")
        return self._cases[key]

    def _perturbation(self, key: str) -> Perturbation:
        if key not in self._perturbations:
            self._perturbations[key] = Perturbation(self._state(key), self._reference())
        return self._perturbations[key]

    def _pristine(self, key: str) -> None:
        if key in self._perturbations:
            self._perturbations[key].apply(None)

    def _graph(self, case: Case) -> tuple[Graph | None, str]:
        return self._reference().graph(case)

    def _operators(self, case: Case) -> list[str]:
        graph = self._graph(case)[0]
        return [] if graph is None else [node.op for node in graph.nodes if node.kind == "call"]

    def _lengths(self, case: Case) -> tuple[int, ...]:
        return reduction_lengths(self._reference().task, case, self._graph(case)[0])


def _requests(service: Service) -> dict[str, Callable[..., Answer]]:
    found: list[Callable[..., Answer]] = [
        service.load,
        service.trace,
        service.prepare,
        service.calling,
        service.release,
        service.poison,
        service.compare,
        service.repair,
        service.fingerprint,
        service.differing,
        service.apply,
        service.ready,
        service.redraw,
        service.restore,
        service.withdraw,
        service.spot_check,
        service.baseline_names,
        service.warm_baseline,
        service.time_baseline,
        service.check_task,
        service.necessary_bytes,
        service.work,
        service.usage,
    ]
    return {method.__name__: method for method in found}


class ErrorRecord(Frozen):
    """An error on the wire."""

    kind: str
    message: str
    mend: str = ""
    problems: tuple[tuple[str, str], ...] = ()
    figures: dict[str, int] = {}


def _describe(error: Exception) -> ErrorRecord:
    if isinstance(error, KernelworksError):
        problems = error.problems if isinstance(error, TaskRefusedError) else ()
        figures = error.figures if isinstance(error, DoesNotFitError) else {}
        return ErrorRecord(kind=error.kind, message=error.message, mend=error.mend, problems=problems, figures=figures)
    if isinstance(error, MemoryError):
        return ErrorRecord(kind=DoesNotFitError.kind, message=f"the judge ran out of memory: {error}")
    traceback.print_exc()
    return ErrorRecord(kind=EvaluationError.kind, message=f"the judge failed: {type(error).__name__}: {error}")


def serve(connection: socket.socket) -> None:
    """Answer requests until the other side is gone."""
    requests = _requests(Service())
    while True:
        try:
            message, _ = channel.receive(connection)
        except (EOFError, ConnectionError):
            return
        try:
            result, fds = requests[message["method"]](**message["params"])
            channel.send(connection, {"result": result}, fds)
        except ConnectionError:
            return
        except Exception as error:  # noqa: BLE001  process border: every error is raised again in the harness
            channel.send(connection, {"error": _describe(error).model_dump()})


def _end_with_harness(connection: socket.socket) -> None:
    """End this process when the harness closes its end or dies, whatever is running.

    ``PR_SET_PDEATHSIG`` would strike already when the *thread* that started the judge ends.
    """
    poll = select.poll()
    poll.register(connection, 0)  # hang-ups and errors alone, which are always reported
    poll.poll()
    os._exit(0)


def main() -> None:
    """Serve the socket whose descriptor is the first argument."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_end_with_harness, args=(connection,), daemon=True).start()
    serve(connection)


if __name__ == "__main__":
    main()
