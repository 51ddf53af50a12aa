from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from support.runs import META, MiniatureRun

from kernelworks.errors import StoreError
from kernelworks.store import schema
from kernelworks.store.run import RunStore
from kernelworks.store.tables import Base

NEXT_REVISION = '''
"""A later version: kernels get a column and lose another, which makes Alembic rebuild the table."""
import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "0001"


def upgrade():
    with op.batch_alter_table("kernels") as kernels:
        kernels.add_column(sa.Column("colour", sa.Text(), server_default="red"))
        kernels.alter_column("operator", nullable=True)
    op.add_column("verdicts", sa.Column("note", sa.Text()))
    {failure}
'''


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    MiniatureRun(tmp_path / "run", evaluations=12, workers=2).go(pause_s=0.0)
    return tmp_path / "run"


def later_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str = "") -> None:
    """From here on, the code is that of a version with one more revision."""
    folder = tmp_path / "migrations 100%"
    shutil.copytree(schema.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "v9999_next.py").write_text(NEXT_REVISION.format(failure=failure))
    monkeypatch.setattr(schema, "MIGRATIONS", folder)


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    found = connection.execute(query).fetchall()
    connection.close()
    return found


def test_the_migrations_make_the_tables_that_the_code_knows(tmp_path: Path) -> None:
    RunStore.create(tmp_path / "run", META).close()
    engine = schema.engine_for(tmp_path / "run" / "run.sqlite", read_only=True)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_a_new_run_uses_a_write_ahead_log(tmp_path: Path) -> None:
    RunStore.create(tmp_path / "run", META).close()
    assert rows(tmp_path / "run" / "run.sqlite", "PRAGMA journal_mode") == [("wal",)]


@pytest.mark.parametrize("read_only", [True, False])
def test_an_older_run_is_migrated_after_a_copy(
    old_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    with RunStore.open(old_run, read_only=True) as store:
        before = (store.events(), store.kernels(), store.verdicts(samples=True))
    later_version(tmp_path, monkeypatch)
    with RunStore.open(old_run, read_only=read_only) as store:
        assert (store.events(), store.kernels(), store.verdicts(samples=True)) == before
    database, copy = old_run / "run.sqlite", old_run / "run.sqlite.bak-0001"
    assert rows(database, "SELECT version_num FROM alembic_version") == [("9999",)]
    assert rows(database, "SELECT DISTINCT colour FROM kernels") == [("red",)]
    assert rows(database, "PRAGMA foreign_key_check") == []
    assert rows(copy, "SELECT version_num FROM alembic_version") == [("0001",)]
    assert rows(copy, "SELECT COUNT(*) FROM events") == [(len(before[0]),)]
    assert not list(old_run.glob("*.new*"))


def test_a_migration_that_fails_leaves_the_run_as_it_was(
    old_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        later_version(tmp_path, patch, failure='op.execute("SELECT no_such_function()")')
        with pytest.raises(StoreError, match="no such function"):
            RunStore.open(old_run)
    assert rows(old_run / "run.sqlite", "SELECT version_num FROM alembic_version") == [("0001",)]
    with RunStore.open(old_run) as store:
        assert len(store.verdicts()) == 12


def test_a_run_in_use_is_not_migrated(old_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunStore.open(old_run):
        later_version(tmp_path, monkeypatch)
        with pytest.raises(StoreError, match="in use by process"):
            RunStore.open(old_run, read_only=True)
    assert rows(old_run / "run.sqlite", "SELECT version_num FROM alembic_version") == [("0001",)]


def test_a_run_of_a_newer_version_is_refused_and_left_alone(
    old_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        later_version(tmp_path, patch)
        RunStore.open(old_run).close()
    before = (old_run / "run.sqlite").read_bytes()
    for read_only in (True, False):
        with pytest.raises(StoreError, match="expected schema 0001 or older, found 9999, of a newer") as caught:
            RunStore.open(old_run, read_only=read_only)
        assert caught.value.exit_code == 2
    assert (old_run / "run.sqlite").read_bytes() == before


def test_a_database_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    connection = sqlite3.connect(tmp_path / "run" / "run.sqlite")
    connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()
    with pytest.raises(StoreError, match="expected a run of Kernelworks, found a database of another kind"):
        RunStore.open(tmp_path / "run")
