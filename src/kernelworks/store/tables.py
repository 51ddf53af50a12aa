"""Tables of a run's database.

``record`` columns hold the JSON of a pydantic model and are what is read back; the columns beside them repeat what
queries filter by. Samples are rows of their own, since they are most of the bytes and rarely read. The schema is made
and changed by the migrations alone (``schema``); a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import Float, ForeignKey, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Root of the mapping."""

    type_annotation_map = {str: Text(), float: Float()}


class RunRow(Base):
    """The run itself: one row."""

    __tablename__ = "run"
    id: Mapped[str] = mapped_column(primary_key=True)
    record: Mapped[str]
    """``RunMeta``."""


class EventRow(Base):
    """The log. Triggers refuse to change or delete a row."""

    __tablename__ = "events"
    __table_args__ = {"sqlite_autoincrement": True}
    id: Mapped[int] = mapped_column(primary_key=True)
    session: Mapped[int]
    at_s: Mapped[float]
    elapsed_s: Mapped[float]
    kind: Mapped[str]
    data: Mapped[str]


class KernelRow(Base):
    """Every kernel, once."""

    __tablename__ = "kernels"
    position: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(unique=True)
    language: Mapped[str]
    contract: Mapped[str]
    proposer: Mapped[str]
    operator: Mapped[str]
    text: Mapped[str]
    record: Mapped[str]
    """``Kernel`` without its text."""


class VerdictRow(Base):
    """Every verdict."""

    __tablename__ = "verdicts"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int | None] = mapped_column(index=True)
    kernel: Mapped[str] = mapped_column(ForeignKey("kernels.id"), index=True)
    status: Mapped[str]
    decision: Mapped[str | None]
    speedup: Mapped[float | None]
    speedup_low: Mapped[float | None]
    speedup_high: Mapped[float | None]
    time_ms: Mapped[float | None]
    record: Mapped[str]
    """``Verdict`` without its comparisons."""


class ComparisonRow(Base):
    """Every comparison of two sides and its decision."""

    __tablename__ = "comparisons"
    id: Mapped[int] = mapped_column(primary_key=True)
    verdict: Mapped[int] = mapped_column(ForeignKey("verdicts.id"), index=True)
    opponent: Mapped[str]
    policy: Mapped[str]
    decision: Mapped[str]
    ratio: Mapped[float]
    record: Mapped[str]
    """``Comparison`` without its samples."""


class SampleRow(Base):
    """One block of a comparison: two calls of each side."""

    __tablename__ = "samples"
    comparison: Mapped[int] = mapped_column(ForeignKey("comparisons.id"), primary_key=True)
    block: Mapped[int] = mapped_column(primary_key=True)
    candidate_1_ms: Mapped[float]
    candidate_2_ms: Mapped[float]
    opponent_1_ms: Mapped[float]
    opponent_2_ms: Mapped[float]
