"""The first schema: run, events, kernels, verdicts, comparisons, samples."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables, and the triggers that keep the log append-only."""
    op.create_table(
        "run",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("record", sa.Text(), nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("session", sa.Integer(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("elapsed_s", sa.Float(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sqlite_autoincrement=True,
    )
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER events_refuse_{verb.lower()} BEFORE {verb} ON events "
            "BEGIN SELECT RAISE(ABORT, 'the event log is append-only'); END"
        )
    op.create_table(
        "kernels",
        sa.Column("position", sa.Integer(), primary_key=True),
        sa.Column("id", sa.Text(), nullable=False, unique=True),
        sa.Column("language", sa.Text(), nullable=False),
        sa.Column("contract", sa.Text(), nullable=False),
        sa.Column("proposer", sa.Text(), nullable=False),
        sa.Column("operator", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
    )
    op.create_table(
        "verdicts",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("number", sa.Integer(), index=True),
        sa.Column("kernel", sa.Text(), sa.ForeignKey("kernels.id"), nullable=False, index=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text()),
        sa.Column("speedup", sa.Float()),
        sa.Column("speedup_low", sa.Float()),
        sa.Column("speedup_high", sa.Float()),
        sa.Column("time_ms", sa.Float()),
        sa.Column("record", sa.Text(), nullable=False),
    )
    op.create_table(
        "comparisons",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("verdict", sa.Integer(), sa.ForeignKey("verdicts.id"), nullable=False, index=True),
        sa.Column("opponent", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("ratio", sa.Float(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
    )
    op.create_table(
        "samples",
        sa.Column("comparison", sa.Integer(), sa.ForeignKey("comparisons.id"), primary_key=True),
        sa.Column("block", sa.Integer(), primary_key=True),
        sa.Column("candidate_1_ms", sa.Float(), nullable=False),
        sa.Column("candidate_2_ms", sa.Float(), nullable=False),
        sa.Column("opponent_1_ms", sa.Float(), nullable=False),
        sa.Column("opponent_2_ms", sa.Float(), nullable=False),
    )
