"""The local engine: builds in threads beside one evaluation at a time on the local device."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from kernelworks.engine.base import Built, Job, JobReport
from kernelworks.evaluate.session import Session
from kernelworks.kernel.verdict import Finding, Status, Verdict
from kernelworks.targets.gate import process_gate

KILL_AGAIN_S = 0.05
"""While the engine closes: a build that waited for its turn may start a compiler after the others were ended."""


class LocalEngine:
    """Jobs of one session. The device is leased by having a single evaluation thread."""

    def __init__(self, session: Session, *, build_workers: int) -> None:
        self._session = session
        self._reports: queue.SimpleQueue[JobReport | BaseException] = queue.SimpleQueue()
        self._builds = ThreadPoolExecutor(build_workers, thread_name_prefix="build")
        self._evaluations = ThreadPoolExecutor(1, thread_name_prefix="evaluate")
        self._building: set[Future[None]] = set()
        self._failure: BaseException | None = None
        self._closed = False

    def submit(self, job: Job) -> None:
        """Queue a job; returns at once."""
        if job.kind == "build":
            self._building = {build for build in self._building if not build.done()}
            self._building.add(self._builds.submit(self._guard, self._build, job))
        else:
            self._evaluations.submit(self._guard, self._evaluate, job)

    def collect(self, timeout_s: float) -> Sequence[JobReport]:
        """Reports that are ready, waiting at most so long for the first.

        Raises:
            KernelworksError: the harness failed (never the candidate); reports that came before it were handed out.
        """
        found: list[JobReport] = []
        with suppress(queue.Empty):
            while self._failure is None:
                item = self._reports.get_nowait() if found else self._reports.get(timeout=timeout_s)
                if isinstance(item, BaseException):
                    self._failure = item
                else:
                    found.append(item)
        if self._failure is not None and not found:
            raise self._failure
        return found

    def close(self) -> None:
        """End everything that still runs; what was in flight is lost."""
        if self._closed:
            return
        self._closed = True
        self._builds.shutdown(wait=False, cancel_futures=True)
        self._evaluations.shutdown(wait=False, cancel_futures=True)
        process_gate().kill_running()
        self._session.abort()
        self._evaluations.shutdown(wait=True)
        self._session.close()
        while not all(build.done() for build in self._building):
            process_gate().kill_running()
            time.sleep(KILL_AGAIN_S)
        self._builds.shutdown(wait=True)

    def _guard(self, work: Callable[[Job], JobReport], job: Job) -> None:
        try:
            self._reports.put(work(job))
        except BaseException as error:  # noqa: BLE001  thread border: raised again in the caller of collect()
            if not self._closed:
                self._reports.put(error)

    def _build(self, job: Job) -> JobReport:
        outcome = self._session.build(job.kernel)
        if isinstance(outcome, Verdict):
            return JobReport(number=job.number, kind=job.kind, verdict=outcome)
        if outcome.descriptor is None:
            message = "a kernel without machine code of its own has no place in the archive of a search"
            finding = Finding(kind="contract", message=message)
            verdict = Verdict(kernel=job.kernel.id, path=job.kernel.path, status=Status.INVALID, findings=(finding,))
            return JobReport(number=job.number, kind=job.kind, verdict=verdict)
        built = Built(
            descriptor=outcome.descriptor,
            code_digest=outcome.code_digest,
            flags=outcome.flags,
            build_ms=outcome.build_ms,
            cached=outcome.cached,
        )
        return JobReport(number=job.number, kind=job.kind, built=built)

    def _evaluate(self, job: Job) -> JobReport:
        if job.kind == "as_called":
            verdict = self._session.evaluate_as_called(job.kernel)
        else:
            verdict = self._session.evaluate(job.kernel, job.opponent, final=job.number == 0)
        return JobReport(number=job.number, kind=job.kind, verdict=verdict)
