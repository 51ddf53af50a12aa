"""Reading a run's database back into plain data."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, TypeVar, cast

import pydantic_core
import sqlalchemy as sa
from pydantic import BaseModel, ValidationError

from kernelworks.errors import StoreError
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Comparison, Verdict
from kernelworks.store import schema
from kernelworks.store.records import Event, RunMeta, StoredVerdict
from kernelworks.store.tables import ComparisonRow, EventRow, KernelRow, RunRow, SampleRow, VerdictRow

_Model = TypeVar("_Model", bound=BaseModel)
_Samples = tuple[float, float, float, float]


class Reader:
    """Queries of one run. Each call sees one consistent state and is safe from several threads.

    All methods raise ``StoreError`` for a database that cannot be read or whose records do not fit this version.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._engine = schema.engine_for(path, read_only=True)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def meta(self) -> RunMeta:
        """The run's own record."""
        rows = self._rows(sa.select(RunRow.record))
        if len(rows) != 1:
            raise StoreError(f"{self._path}: expected one run, found {len(rows)}")
        return self._model(RunMeta, {}, rows[0][0])

    def last_session(self) -> int:
        """Number of the newest session in the log; 0 for an empty log."""
        return int(self._rows(sa.select(sa.func.coalesce(sa.func.max(EventRow.session), 0)))[0][0])

    def events(self, after: int) -> tuple[Event, ...]:
        """Events with an id above ``after``, in order."""
        columns = (EventRow.id, EventRow.session, EventRow.at_s, EventRow.elapsed_s, EventRow.kind, EventRow.data)
        rows = self._rows(sa.select(*columns).where(EventRow.id > after).order_by(EventRow.id))
        return tuple(
            Event(id=row, session=session, at_s=at_s, elapsed_s=elapsed_s, kind=kind, data=_object(data))
            for row, session, at_s, elapsed_s, kind, data in rows
        )

    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel, in the order in which they were recorded."""
        rows = self._rows(sa.select(KernelRow.id, KernelRow.text, KernelRow.record).order_by(KernelRow.position))
        return tuple(self._kernel(*row) for row in rows)

    def kernel(self, prefix: str) -> Kernel:
        """The kernel whose id begins so."""
        found = KernelRow.id.startswith(prefix, autoescape=True)
        rows = self._rows(sa.select(KernelRow.id, KernelRow.text, KernelRow.record).where(found).limit(2))
        if len(rows) != 1 or not prefix:
            number = "several" if rows else "none"
            raise StoreError(f"{self._path}: expected one kernel whose id begins with {prefix!r}, found {number}")
        return self._kernel(*rows[0])

    def verdicts(self, *, samples: bool) -> tuple[StoredVerdict, ...]:
        """Every verdict, in order, with or without the samples of its comparisons."""
        of_verdict: dict[int, list[Comparison]] = defaultdict(list)
        with schema.database_errors(self._path), self._engine.begin() as connection:
            verdict_columns = (VerdictRow.id, VerdictRow.number, VerdictRow.record)
            verdicts = connection.execute(sa.select(*verdict_columns).order_by(VerdictRow.id)).all()
            columns = (ComparisonRow.id, ComparisonRow.verdict, ComparisonRow.record)
            comparisons = connection.execute(sa.select(*columns).order_by(ComparisonRow.id)).all()
            blocks = _samples(connection) if samples else {}
        for key, verdict, record in comparisons:
            extra = {"samples_ms": blocks.get(key, [])}
            of_verdict[verdict].append(self._model(Comparison, extra, record))
        return tuple(
            StoredVerdict(id=row, number=number, verdict=self._model(Verdict, {"comparisons": of_verdict[row]}, record))
            for row, number, record in verdicts
        )

    def _kernel(self, kernel_id: str, text: str, record: str) -> Kernel:
        kernel = self._model(Kernel, {"text": text}, record)
        if kernel.id != kernel_id:
            raise StoreError(f"{self._path}: expected kernel {kernel_id}, found text and params of {kernel.id}")
        return kernel

    def _rows(self, query: sa.Executable) -> list[tuple[Any, ...]]:
        with schema.database_errors(self._path), self._engine.begin() as connection:
            return [tuple(row) for row in connection.execute(query)]

    def _model(self, model: type[_Model], extra: dict[str, Any], record: str) -> _Model:
        try:
            return model.model_validate({**_object(record), **extra})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(str(part) for part in first["loc"])
            raise StoreError(
                f"{self._path}: expected a {model.__name__} that this version of Kernelworks knows, "
                f"found {key}: {first['msg']}"
            ) from error


def _samples(connection: sa.Connection) -> dict[int, list[_Samples]]:
    values = (SampleRow.candidate_1_ms, SampleRow.candidate_2_ms, SampleRow.opponent_1_ms, SampleRow.opponent_2_ms)
    query = sa.select(SampleRow.comparison, *values).order_by(SampleRow.comparison, SampleRow.block)
    blocks: dict[int, list[_Samples]] = defaultdict(list)
    for key, *samples in connection.execute(query):
        blocks[key].append(cast(_Samples, tuple(samples)))
    return blocks


def _object(text: str) -> dict[str, Any]:
    return cast(dict[str, Any], pydantic_core.from_json(text))
