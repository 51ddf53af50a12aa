"""The harness's side of the judge: starts its process, asks it, and turns its errors into ours.

The harness never imports torch and never sees a golden value; it gets descriptors of shared memory and reports.
"""

from __future__ import annotations

import collections
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import kernelworks
from kernelworks.errors import (
    DoesNotFitError,
    EvaluationError,
    KernelError,
    KernelFormatError,
    KernelworksError,
    TaskError,
    TaskRefusedError,
)
from kernelworks.evaluate import channel
from kernelworks.evaluate.baselines import compiler_environment
from kernelworks.evaluate.heap import heap_environment
from kernelworks.evaluate.patience import OVERRUN_EXIT, REFERENCE_TIMEOUT_S, MemorySpentError, Notice, await_answer
from kernelworks.evaluate.records import (
    BaselineCalls,
    BaselineNames,
    CaseProblem,
    CaseReport,
    CountedWork,
    Heap,
    JudgeUsage,
    NecessaryBytes,
    PreparedCase,
    ReferenceCalling,
    TaskProblem,
)
from kernelworks.targets.hardware_cpu import memory_kills
from kernelworks.task.graph import Graph
from kernelworks.task.model import Task
from kernelworks.task.source import TaskReference

LIMITS_S = {
    "load": 300.0,
    "trace": 120.0,
    "prepare": 300.0,
    "calling": 120.0,
    "check_task": 600.0,
    "necessary_bytes": 300.0,
    "work": 120.0,
    "apply": 300.0,
    "redraw": 300.0,
    "warm_baseline": 300.0,
    "time_baseline": 300.0,
}
"""Time limits of requests that run the user's code."""
_LIMIT_S = 60.0
WATCHED = {
    "load": "loading the task",
    "trace": "tracing the reference",
    "check_task": "checking the task",
    "prepare": "preparing a case",
    "necessary_bytes": "looking at what the reference reads",
}
"""Requests that run the user's code away from any clock, and what is said when one takes long."""
_OUTPUT_LINES = 200
_LINE_BYTES = 4096
_CLOSE_S = 2.0


class Judge:
    """A judge with its task loaded. Close it, or use it as a context manager; any thread may ask.

    Every request raises EvaluationError if the judge has died or does not answer in time (TaskError where the user's
    own code was running), and whatever error the judge itself raised.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        connection: socket.socket,
        reference_timeout_s: float = REFERENCE_TIMEOUT_S,
        notice: Notice | None = None,
    ) -> None:
        self._process = process
        self._connection = connection
        self._reference: TaskReference | None = None
        self._reference_timeout_s = reference_timeout_s
        self._notice = notice
        self._memory_kills = memory_kills()
        self._lock = threading.Lock()
        self._fds: dict[str, list[int]] = {}
        self._prepared: dict[str, PreparedCase] = {}
        self._output: collections.deque[str] = collections.deque(maxlen=_OUTPUT_LINES)
        self._drain = threading.Thread(target=self._read_output, name="judge-output", daemon=True)
        self._drain.start()
        self._task: Task | None = None

    @classmethod
    def start(
        cls,
        reference: TaskReference,
        *,
        heap: Heap,
        threads: int,
        load_only: bool = False,
        reference_timeout_s: float = REFERENCE_TIMEOUT_S,
        notice: Notice | None = None,
    ) -> Judge:
        """Start a judge and load the task.

        Args:
            reference: what the user typed.
            heap: ``warm`` keeps freed pages, so that torch's timed calls take no page faults (policy ``kernel``);
                ``default`` leaves the C library as it is (policy ``as_called``).
            threads: threads of the baselines (OpenMP and torch).
            load_only: create no inputs; nothing can be prepared afterwards.
            reference_timeout_s: limit of one run of the reference.
            notice: told when the reference keeps everyone waiting.

        Raises:
            TaskError: the task cannot be loaded.
            EnvironmentLackError: the task needs torch and there is none.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "kernelworks.evaluate.judge_server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=_environment(heap, threads),
                start_new_session=True,
            )
        judge = cls(process, ours, reference_timeout_s, notice)
        judge._reference = reference
        try:
            about = reference.model_dump(mode="json")
            params: dict[str, Any] = {"reference": about, "heap": heap, "threads": threads, "load_only": load_only}
            params["reference_timeout_s"] = reference_timeout_s
            judge._task = Task.model_validate(judge._ask("load", params))
        except BaseException:
            judge.close()
            raise
        return judge

    @property
    def task(self) -> Task:
        """The task as plain data."""
        assert self._task is not None
        return self._task

    @property
    def pid(self) -> int:
        """Process id, for who watches its memory."""
        return self._process.pid

    @property
    def reference(self) -> TaskReference:
        """Of the task."""
        assert self._reference is not None
        return self._reference

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    @property
    def output_tail(self) -> str:
        """The last 200 lines that the judge and the user's task printed."""
        return "\n".join(self._output)

    def trace(self) -> tuple[Graph | None, str]:
        """The reference as operators for the first case, or None and the reason why it cannot be traced."""
        answer = self._ask("trace", {})
        graph = answer["graph"]
        return (None if graph is None else Graph.model_validate(graph)), answer["reason"]

    def prepare(self, case: str, seed: int, family: str) -> PreparedCase:
        """Make inputs, golden values and buffers of a case; found again if it was prepared before.

        Descriptors in the result belong to this judge and are valid until ``release`` or ``close``. A family that
        cannot judge this task comes back with ``dropped``.
        """
        key = f"{case}/{family}/{seed}"
        if key not in self._prepared:
            params = {"case": case, "seed": seed, "family": family}
            answer, fds = self._exchange("prepare", params)
            for lane in answer["lanes"]:
                for slot in lane:
                    if slot["kind"] == "buffer":
                        slot["fd"] = fds[slot["fd"]]
            self._fds[key] = fds
            self._prepared[key] = PreparedCase.model_validate(answer)
        return self._prepared[key]

    def calling(self, seed: int) -> ReferenceCalling:
        """How the reference is made and called, with the weights of a model of this seed.

        Raises:
            TaskError: its constructor takes something that no other process can be handed.
        """
        answer, fds = self._exchange("calling", {"seed": seed})
        for slot in answer["weights"]:
            slot["fd"] = fds[slot["fd"]]
        self._fds[f"calling/{seed}"] = fds
        return ReferenceCalling.model_validate(answer)

    def release(self, key: str) -> None:
        """Give the memory of a prepared case back."""
        self._ask("release", {"key": key})
        self._prepared.pop(key, None)
        for fd in self._fds.pop(key, []):
            os.close(fd)

    def poison(self, key: str, lane: int, pattern: int = 0, renew: Sequence[str] | None = None) -> None:
        """Make a lane ready for a run.

        Floating outputs hold NaN with a random payload, others the fill ``pattern`` (0 or 1); inputs changed in place
        are restored, canaries are fresh, no perturbation stands. With ``renew`` only these canaries change
        (``x/before``, ``x/after``), and outputs hold their last poison.
        """
        changed = None if renew is None else list(renew)
        self._ask("poison", {"key": key, "lane": lane, "pattern": pattern, "renew": changed})

    def compare(self, key: str, lane: int, *, explain: bool = True) -> CaseReport:
        """Judge what a run left in a lane; changed inputs and canaries are restored.

        ``explain`` says where and how a wrong answer is wrong.
        """
        return CaseReport.model_validate(self._ask("compare", {"key": key, "lane": lane, "explain": explain}))

    def fingerprint(self, key: str, lane: int) -> str:
        """The bits of a lane's results as one short text; all NaN count as one."""
        return self._ask("fingerprint", {"key": key, "lane": lane})

    def differing(self, key: str) -> dict[str, int]:
        """By result, how many elements have other bits in lane 1 than in lane 0; results without any are left out."""
        return self._ask("differing", {"key": key})

    def repair(self) -> list[tuple[str, CaseProblem]]:
        """Write every input of every prepared case as it was drawn, so that the next candidate finds it so.

        Returns:
            Those that the last candidate had changed unseen, with the key of their case.
        """
        found = self._ask("repair", {})
        return [(p.pop("key"), CaseProblem.model_validate(p)) for p in found]

    def apply(self, key: str, variant: int | None) -> None:
        """Rewrite a random share of the inputs (any number; few variants exist), or restore them."""
        self._ask("apply", {"key": key, "variant": variant})

    def ready(self, keys: Sequence[str], lane: int, variants: Sequence[int | None]) -> None:
        """Make a lane of several cases ready for timed calls: inputs that these change in place are restored, a random
        share of the inputs is rewritten, and random positions of the outputs are poisoned.

        Args:
            keys: of the cases.
            lane: of their buffers.
            variants: for each case which rewriting: any number (few exist, and ``spot_check`` knows their answers), or
                None for one that stood never before.
        """
        self._ask("ready", {"keys": list(keys), "lane": lane, "variants": list(variants)})

    def redraw(self, keys: Sequence[str], lane: int) -> None:
        """Make a lane of several cases ready as ``ready`` does, for inputs and weights that are new throughout.

        ``apply(key, None)``, or whatever is asked for next, puts them back.
        """
        self._ask("redraw", {"keys": list(keys), "lane": lane})

    def restore(self, keys: Sequence[str], lane: int) -> None:
        """Restore the inputs that calls of these cases change in place."""
        self._ask("restore", {"keys": list(keys), "lane": lane})

    def withdraw(self, key: str) -> None:
        """Put the inputs back that ``ready`` rewrote; ``spot_check`` still expects the answer to the rewritten ones."""
        self._ask("withdraw", {"key": key})

    def spot_check(self, key: str, lane: int) -> CaseProblem | None:
        """Check sampled outputs of the variant that stands or was withdrawn last, and that the inputs are unchanged."""
        answer = self._ask("spot_check", {"key": key, "lane": lane})
        return None if answer is None else CaseProblem.model_validate(answer)

    def baseline_names(self) -> BaselineNames:
        """Baselines that can be timed; the first is the anchor."""
        return BaselineNames.model_validate(self._ask("baseline_names", {}))

    def warm_baseline(self, name: str, key: str) -> BaselineNames:
        """Make a baseline ready for a case (torch.compile compiles); one that fails has gone to ``missing``."""
        return BaselineNames.model_validate(self._ask("warm_baseline", {"name": name, "key": key}))

    def time_baseline(self, name: str, keys: Sequence[str], flush_bytes: int) -> BaselineCalls:
        """Time a warm baseline, one call of each case, on what stands in the shared inputs.

        ``flush_bytes`` of other memory are read before the first call, to evict the caches.
        """
        params = {"name": name, "keys": list(keys), "flush_bytes": flush_bytes}
        return BaselineCalls.model_validate(self._ask("time_baseline", params))

    def check_task(self) -> list[TaskProblem]:
        """What is wrong with the task (``taskcheck``).

        Raises:
            TaskError: the reference raises, or does not finish.
        """
        return [TaskProblem.model_validate(problem) for problem in self._ask("check_task", {})]

    def necessary_bytes(self, key: str) -> NecessaryBytes:
        """Bytes that the operation must move, shown by perturbation."""
        return NecessaryBytes.model_validate(self._ask("necessary_bytes", {"key": key}))

    def work(self, case: str) -> CountedWork:
        """Bytes and operations of the reference in a case, by its graph."""
        return CountedWork.model_validate(self._ask("work", {"case": case}))

    def usage(self) -> JudgeUsage:
        """How often the reference was run, and how many cases are held."""
        return JudgeUsage.model_validate(self._ask("usage", {}))

    def close(self) -> None:
        """End the judge and everything it started; idempotent."""
        self._connection.close()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._kill()
        self._drain.join()
        for fds in self._fds.values():
            for fd in fds:
                os.close(fd)
        self._fds.clear()
        self._prepared.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, method: str, params: dict[str, Any]) -> Any:
        answer, fds = self._exchange(method, params)
        assert not fds
        return answer

    def _exchange(self, method: str, params: dict[str, Any]) -> tuple[Any, list[int]]:
        limit_s = LIMITS_S.get(method, _LIMIT_S)
        if method in LIMITS_S:
            limit_s *= max(1.0, self._reference_timeout_s / REFERENCE_TIMEOUT_S)
        with self._lock:
            try:
                self._connection.settimeout(limit_s)
                channel.send(self._connection, {"method": method, "params": params})
                if method in WATCHED:
                    about = f"a run of the reference may take {self._reference_timeout_s:g} s"
                    word = f"{WATCHED[method]} takes long; {about}"
                    await_answer(self._connection, self.pid, limit_s, word, self._notice)
                answer, fds = channel.receive(self._connection)
            except MemorySpentError as error:
                self._kill()
                raise TaskError(
                    f"the task's reference ran out of memory: {error} during {method!r}, and no more is left",
                    mend="give the timed case smaller sizes (--set NAME=VALUE)",
                ) from None
            except TimeoutError:
                self._kill()
                kind = TaskError if method in LIMITS_S else EvaluationError
                raise kind(f"the task's reference did not finish: no answer to {method!r} in {limit_s:g} s") from None
            except (EOFError, OSError):
                raise self._death(method) from None
            except BaseException:  # interrupted between request and answer: the next answer would be the wrong one
                self._kill()
                raise
        if "error" in answer:
            raise _error(answer["error"])
        return answer["result"], fds

    def _death(self, method: str) -> KernelworksError:
        self._kill()
        self._drain.join()
        code = self._process.returncode
        if code == OVERRUN_EXIT:
            return TaskError(
                f"the task's reference did not finish: one run took more than {self._reference_timeout_s:g} s",
                mend="give it smaller sizes (--set NAME=VALUE), or raise reference_timeout_s under [evaluation]",
            )
        if code == -signal.SIGKILL and memory_kills() > self._memory_kills:
            return DoesNotFitError(
                f"the system ended the judge's process during {method!r}, since no memory was left",
                mend="give the task smaller sizes (--set NAME=VALUE), or more memory",
            )
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        tail = self.output_tail[-2000:]
        message = f"the judge's process ended during {method!r} ({how})" + (f"; it last said: {tail}" if tail else "")
        if method in LIMITS_S and code != 0:  # with 0 it ended because this side closed the connection
            return TaskError(
                message, mend="the task's own code ran there: it must not exit, crash or use up the memory"
            )
        return EvaluationError(message)

    def _kill(self) -> None:
        try:
            self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _read_output(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        with stream:
            while line := stream.readline(_LINE_BYTES):
                self._output.append(line.decode(errors="replace").rstrip("\n"))


def _environment(heap: Heap, threads: int) -> dict[str, str]:
    package = str(Path(kernelworks.__file__).parent.parent)
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {
        **os.environ,
        **compiler_environment(),
        **heap_environment(heap),
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
    }
    found |= {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": str(threads), "OPENBLAS_THREAD_TIMEOUT": "4"}
    return found


def _error(record: dict[str, Any]) -> KernelworksError:
    kind, message, mend = record["kind"], record["message"], record["mend"]
    if kind == TaskRefusedError.kind:
        return TaskRefusedError(message, tuple((k, m) for k, m in record["problems"]), mend=mend)
    if kind == DoesNotFitError.kind:
        return DoesNotFitError(message, record["figures"], mend=mend)
    if kind == KernelFormatError.kind:
        return KernelError(message, mend=mend)
    return _KINDS.get(kind, EvaluationError)(message, mend=mend)


def _kinds(base: type[KernelworksError]) -> dict[str, type[KernelworksError]]:
    found = {base.kind: base}
    for below in base.__subclasses__():
        found |= _kinds(below)
    return found


_KINDS = _kinds(KernelworksError)
