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
from kernelworks.errors import EvaluationError, KernelworksError, TaskError, TaskRefusedError
from kernelworks.evaluate import channel
from kernelworks.evaluate.baselines import Baselines
from kernelworks.evaluate.bound import ReferenceError, reduction_lengths, results
from kernelworks.evaluate.casestate import CaseState, compare, poison
from kernelworks.evaluate.families import FAMILIES
from kernelworks.evaluate.frames import frame_of
from kernelworks.evaluate.heap import scratch
from kernelworks.evaluate.necessary import necessary_bytes
from kernelworks.evaluate.perturb import Perturbation
from kernelworks.evaluate.prepare import DroppedFamilyError, prepare_case
from kernelworks.evaluate.records import BufferSlot, Heap, PreparedCase
from kernelworks.evaluate.reference import Reference
from kernelworks.evaluate.taskcheck import check_task
from kernelworks.task.graph import Graph
from kernelworks.task.model import Case
from kernelworks.task.resolve import load_task
from kernelworks.task.source import LoadedTask, TaskReference

Answer = tuple[Any, list[int]]
"""JSON-able result, and descriptors that go with it."""


class Service:
    """The requests, one public method each."""

    def __init__(self) -> None:
        self._loaded: LoadedTask | None = None
        self._heap: Heap = "default"
        self._threads = 1
        self._framed: Reference | None = None
        self._baselines: Baselines | None = None
        self._graphs: dict[str, tuple[Graph | None, str]] = {}
        self._cases: dict[str, CaseState] = {}
        self._perturbations: dict[str, Perturbation] = {}
        self._pools: dict[tuple[str, str], list[list[ReferenceError]]] = {}
        self._rng = np.random.default_rng()

    def load(self, reference: dict[str, Any], heap: Heap, threads: int, load_only: bool) -> Answer:
        """Load the task."""
        self._heap = heap
        self._threads = threads
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
            try:
                with scratch(self._heap):
                    state = prepare_case(reference, sizes, seed, family, self._lengths(sizes), pools)
            except DroppedFamilyError as dropped:
                gone = PreparedCase(key=key, case=case, family=family, seed=seed, dropped=str(dropped))
                return gone.model_dump(mode="json"), []
            self._cases[key] = state
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

    def release(self, key: str) -> Answer:
        """Forget a prepared case and give its memory back."""
        self._perturbations.pop(key, None)
        if self._baselines is not None:
            self._baselines.forget(key)
        state = self._cases.pop(key, None)
        if state is not None:
            state.close()
        return None, []

    def poison(self, key: str, lane: int, pattern: int) -> Answer:
        """Make a lane ready for a run on pristine inputs."""
        self._pristine(key)
        poison(self._state(key), lane, pattern, self._rng)
        return None, []

    def compare(self, key: str, lane: int) -> Answer:
        """Compare a lane with golden."""
        self._pristine(key)
        return compare(self._state(key), lane).model_dump(mode="json"), []

    def apply(self, key: str, variant: int | None) -> Answer:
        """Rewrite rows of the inputs, or restore them."""
        if variant is None:
            self._pristine(key)
        else:
            with scratch(self._heap):
                self._perturbation(key).apply(variant)
        return None, []

    def spot_poison(self, key: str, lane: int) -> Answer:
        """Poison what ``spot_check`` will look at."""
        self._perturbation(key).poison(lane)
        return None, []

    def spot_check(self, key: str, lane: int) -> Answer:
        """Check the sampled positions."""
        problem = self._perturbation(key).check(lane)
        return None if problem is None else problem.model_dump(mode="json"), []

    def baseline_names(self) -> Answer:
        """What can be timed."""
        return self._trusted().names().model_dump(mode="json"), []

    def warm_baseline(self, name: str, key: str) -> Answer:
        """Make a baseline ready for a case."""
        return self._trusted().warm(name, self._state(key)).model_dump(mode="json"), []

    def time_baseline(self, name: str, key: str, calls: int, flush_bytes: int) -> Answer:
        """Time a baseline."""
        return self._trusted().time(name, self._state(key), calls, flush_bytes).model_dump(mode="json"), []

    def check_task(self) -> Answer:
        """Problems of the task."""
        with scratch(self._heap):
            problems = check_task(self._reference(), self._lengths)
        return [p.model_dump(mode="json") for p in problems], []

    def necessary_bytes(self, key: str) -> Answer:
        """Bytes shown necessary."""
        self._pristine(key)
        with scratch(self._heap):
            return necessary_bytes(self._state(key), self._reference()), []

    def _reference(self) -> Reference:
        if self._framed is None:
            assert self._loaded is not None, "load comes first"
            self._framed = Reference(self._loaded, frame_of(self._loaded.task, self._threads))
        return self._framed

    def _trusted(self) -> Baselines:
        if self._baselines is None:
            self._baselines = Baselines(self._reference())
        return self._baselines

    def _case(self, name: str) -> Case:
        task = self._reference().task
        names = [case.name for case in task.cases]
        if name not in names:
            raise EvaluationError(f"case: expected one of {', '.join(names)}, found {name!r}")
        return task.case(name)

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
        if case.name not in self._graphs:
            assert self._loaded is not None
            try:
                self._graphs[case.name] = (self._loaded.trace(case), "")
            except TaskError as error:
                self._graphs[case.name] = (None, error.message)
        return self._graphs[case.name]

    def _lengths(self, case: Case) -> tuple[int, ...]:
        return reduction_lengths(self._reference().task, case, self._graph(case)[0])


def _requests(service: Service) -> dict[str, Callable[..., Answer]]:
    found: list[Callable[..., Answer]] = [
        service.load,
        service.trace,
        service.prepare,
        service.release,
        service.poison,
        service.compare,
        service.apply,
        service.spot_poison,
        service.spot_check,
        service.baseline_names,
        service.warm_baseline,
        service.time_baseline,
        service.check_task,
        service.necessary_bytes,
    ]
    return {method.__name__: method for method in found}


class ErrorRecord(Frozen):
    """An error on the wire."""

    kind: str
    message: str
    mend: str = ""
    problems: tuple[tuple[str, str], ...] = ()


def _describe(error: Exception) -> ErrorRecord:
    if isinstance(error, KernelworksError):
        problems = error.problems if isinstance(error, TaskRefusedError) else ()
        return ErrorRecord(kind=error.kind, message=error.message, mend=error.mend, problems=problems)
    if isinstance(error, MemoryError):
        return ErrorRecord(kind=EvaluationError.kind, message=f"the judge ran out of memory: {error}")
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
