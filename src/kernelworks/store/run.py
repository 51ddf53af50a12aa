"""The store of one run: a folder with one SQLite file.

Everything that happens is an event of an append-only log; kernels, verdicts, comparisons and timing samples have
tables of their own. One logical step is one transaction::

    with store.step() as step:
        step.record_verdict(number, verdict)
        step.told(number, kernel.id, outcome, told)

A run has one writer at a time (``lock``) and any number of readers, also while it is written.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pydantic_core
import sqlalchemy as sa

from kernelworks.data import Frozen
from kernelworks.errors import StoreError
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.outcome import Outcome
from kernelworks.kernel.verdict import Verdict
from kernelworks.store import schema
from kernelworks.store.lock import LOCK, RunLock
from kernelworks.store.reading import Reader
from kernelworks.store.records import Event, EventKind, RunMeta, StoredVerdict
from kernelworks.store.tables import ComparisonRow, EventRow, KernelRow, RunRow, SampleRow, VerdictRow


class Step:
    """Writes of one transaction; made by ``RunStore.step``."""

    def __init__(self, connection: sa.Connection, session: int, elapsed_s: Callable[[], float]) -> None:
        self._connection = connection
        self._session = session
        self._elapsed_s = elapsed_s

    def append(self, kind: EventKind, data: Mapping[str, Any]) -> int:
        """Append an event and return its id. ``data`` holds anything that pydantic can write as JSON."""
        values = {
            "session": self._session,
            "at_s": time.time(),
            "elapsed_s": self._elapsed_s(),
            "kind": kind,
            "data": pydantic_core.to_json(dict(data), inf_nan_mode="strings").decode(),
        }
        return _insert(self._connection, EventRow, values)

    def record_kernel(self, kernel: Kernel) -> None:
        """Keep a kernel; nothing happens if it is kept already (equal text and params are one kernel)."""
        values = {
            "id": kernel.id,
            "language": kernel.front.lang,
            "contract": kernel.front.contract,
            "proposer": kernel.origin.proposer,
            "operator": kernel.origin.operator,
            "text": kernel.text,
            "record": kernel.model_dump_json(exclude={"text"}),
        }
        known = sa.select(KernelRow.position).where(KernelRow.id == kernel.id)
        if self._connection.execute(known).first() is None:
            _insert(self._connection, KernelRow, values)

    def record_verdict(self, number: int | None, verdict: Verdict) -> int:
        """Keep a verdict with its comparisons and samples, and return the id of its row.

        Args:
            number: of the ask that it answers; None for a verdict that the search did not ask for.
            verdict: of a kernel that is recorded.
        """
        record = verdict.model_dump_json(exclude={"comparisons"})
        columns = ("kernel", "status", "decision", "speedup", "speedup_low", "speedup_high", "time_ms")
        values = {name: getattr(verdict, name) for name in columns}
        row = _insert(self._connection, VerdictRow, {"number": number, "record": record, **values})
        for comparison in verdict.comparisons:
            values = {name: getattr(comparison, name) for name in ("opponent", "policy", "decision", "ratio")}
            record = comparison.model_dump_json(exclude={"samples_ms"})
            key = _insert(self._connection, ComparisonRow, {"verdict": row, "record": record, **values})
            if comparison.samples_ms:
                names = ("candidate_1_ms", "candidate_2_ms", "opponent_1_ms", "opponent_2_ms")
                blocks = [
                    {"comparison": key, "block": block, **dict(zip(names, samples, strict=True))}
                    for block, samples in enumerate(comparison.samples_ms)
                ]
                self._connection.execute(sa.insert(SampleRow), blocks)
        return row

    def asked(self, ask: Frozen) -> int:
        """Log an ask of the search, before anything is done for it."""
        return self.append("asked", ask.model_dump(mode="json"))

    def proposed(self, number: int, kernel: Kernel) -> int:
        """Keep the kernel that answers an ask and log it; a resumed run evaluates it first if it is not told."""
        self.record_kernel(kernel)
        return self.append("proposed", {"number": number, "kernel": kernel.id})

    def told(self, number: int, kernel_id: str, outcome: Outcome, told: Frozen) -> int:
        """Log an outcome in the order in which the search was told.

        Args:
            number: of the ask.
            kernel_id: as given to the search.
            outcome: as given to the search; the verdict of an evaluation must be recorded under ``number``.
            told: the answer of the search, compared when the run is replayed.

        Raises:
            ValueError: evaluated, but no verdict is recorded under this number.
        """
        row = None
        if outcome.verdict is not None:
            newest = sa.select(sa.func.max(VerdictRow.id)).where(VerdictRow.number == number)
            row = self._connection.execute(newest).scalar()
            if row is None:
                raise ValueError(f"told {number}: expected its verdict to be recorded before, found none")
        data = {"number": number, "kernel": kernel_id, "result": outcome.result, "of": outcome.of, "verdict": row}
        return self.append("told", {**data, "told": told.model_dump(mode="json")})


class RunStore:
    """A run on disk. Make one with ``create`` or ``open``; close it, or use it in a ``with`` statement."""

    def __init__(self, path: Path, lock: RunLock | None) -> None:
        self._path = path
        self._lock = lock
        self._reader = Reader(path)
        self._writer = None if lock is None else schema.engine_for(path, read_only=False)
        self._mutex = threading.Lock()
        self._began_s = time.monotonic()
        self._session = 0 if lock is None else self._reader.last_session() + 1
        self.meta: RunMeta = self._reader.meta()
        """What the run was started with."""

    @classmethod
    def create(cls, folder: Path, meta: RunMeta) -> RunStore:
        """Start a run in a new or empty folder; parents are made. Dying here leaves a folder that can be used again.

        Raises:
            StoreError: the folder holds a run or anything else, is in use, or cannot be written.
        """
        claim_folder(folder)
        lock = RunLock(folder)
        try:
            _refuse_occupied(folder)
            half_made = schema.create(folder)
            engine = schema.engine_for(half_made, read_only=False)
            with schema.database_errors(half_made), engine.begin() as connection:
                _insert(connection, RunRow, {"id": meta.run, "record": meta.model_dump_json()})
            engine.dispose()
            return cls(schema.publish(half_made), lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = False) -> RunStore:
        """Open a run. An older schema is migrated first, after a copy ``run.sqlite.bak-<revision>``.

        Args:
            folder: of the run.
            read_only: take no lock; writing raises ``StoreError``.

        Raises:
            StoreError: no run there, damaged, written by a newer Kernelworks, not migrated and not writable, or (for
                writing, or for a migration) in use by another process.
        """
        path = folder / schema.DATABASE
        if not path.is_file():
            found = "no such folder" if not folder.exists() else f"no {schema.DATABASE} in it"
            raise StoreError(f"{folder}: expected the folder of a run, found {found}")
        lock = None if read_only else RunLock(folder)
        try:
            older = schema.check(path)
            if older is not None:
                _migrate(path, older, lock)
            if lock is not None:
                schema.ensure_wal(path)
            return cls(path, lock)
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    @property
    def folder(self) -> Path:
        """Where the run lives."""
        return self._path.parent

    @contextlib.contextmanager
    def step(self) -> Generator[Step]:
        """One transaction: all of its writes or none. Threads wait for each other; steps do not nest.

        Raises:
            StoreError: opened read-only, or the database cannot be written.
        """
        if self._writer is None:
            raise StoreError(f"{self.folder}: expected a run opened for writing, found it opened read-only")
        with self._mutex, schema.database_errors(self._path), self._writer.begin() as connection:
            yield Step(connection, self._session, lambda: time.monotonic() - self._began_s)

    def append(self, kind: EventKind, data: Mapping[str, Any]) -> int:
        """``Step.append`` as a step of its own."""
        with self.step() as step:
            return step.append(kind, data)

    def record_kernel(self, kernel: Kernel) -> None:
        """``Step.record_kernel`` as a step of its own."""
        with self.step() as step:
            step.record_kernel(kernel)

    def record_verdict(self, number: int | None, verdict: Verdict) -> int:
        """``Step.record_verdict`` as a step of its own."""
        with self.step() as step:
            return step.record_verdict(number, verdict)

    def events(self, after: int = 0) -> tuple[Event, ...]:
        """Events with an id above ``after``, in order."""
        return self._reader.events(after)

    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel, in the order in which they were recorded."""
        return self._reader.kernels()

    def kernel(self, prefix: str) -> Kernel:
        """The kernel whose id begins so.

        Raises:
            StoreError: none or several.
        """
        return self._reader.kernel(prefix)

    def verdicts(self, *, samples: bool = False) -> tuple[StoredVerdict, ...]:
        """Every verdict, in order; ``samples_ms`` of their comparisons is empty unless ``samples``."""
        return self._reader.verdicts(samples=samples)

    def close(self) -> None:
        """Close the database and release the lock. Closing twice is allowed."""
        self._reader.close()
        if self._writer is not None:
            self._writer.dispose()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _insert(connection: sa.Connection, table: type[Any], values: Mapping[str, Any]) -> Any:
    """Insert one row and return its primary key."""
    key = connection.execute(sa.insert(table).values(**values)).inserted_primary_key
    return None if key is None else key[0]


def claim_folder(folder: Path) -> None:
    """Make the folder of a new run, or find it empty.

    Raises:
        StoreError: it holds something, or cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise StoreError(f"{folder}: expected a new or empty folder, found a file") from error
    except OSError as error:
        raise StoreError(f"{folder}: expected a folder that can be made, found: {error.strerror}") from error
    _refuse_occupied(folder)


def _refuse_occupied(folder: Path) -> None:
    """A run begins in an empty folder; what a creation that died left there does not count."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise StoreError(f"{folder}: expected a readable folder, found: {error.strerror}") from error
    if schema.DATABASE in names:
        raise StoreError(
            f"{folder}: expected a new or empty folder, found a run", mend="resume it or choose another folder"
        )
    others = [name for name in names if name != LOCK and not name.startswith(schema.HALF_MADE)]
    if others:
        raise StoreError(f"{folder}: expected a new or empty folder, found {others[0]!r} in it")


def _migrate(path: Path, older: str, held: RunLock | None) -> None:
    """Migrate under the run's lock; a read-only opener takes it for this moment only."""
    lock = held or RunLock(path.parent)
    try:
        schema.migrate(path, older)
    finally:
        if held is None:
            lock.release()
