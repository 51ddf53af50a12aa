"""The database file: opened, recognised, checked, created and migrated.

SQLite in WAL mode, so that readers never wait for the writer. ``synchronous=NORMAL``: the death of the process loses
nothing that was committed; a power cut may lose the last transactions (never the consistency), which a search can
afford and one fsync a transaction is not worth.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Generator
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import event, exc

from kernelworks.errors import StoreError

DATABASE = "run.sqlite"
HALF_MADE = "run.sqlite.new"
"""A database that is being created; left over only if its process died then."""
APPLICATION_ID = 0x4B574B31
"""In the header of the file (``PRAGMA application_id``): it is a run of ours."""
MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_TIMEOUT_S = 10.0


def engine_for(path: Path, *, read_only: bool, foreign_keys: bool = True) -> sa.Engine:
    """An engine on an existing file; a writer's transactions take the write lock when they begin.

    A reader on a medium that cannot be written opens the file as immutable, since WAL needs a shared-memory file.
    """
    mode = "rw"
    if read_only:
        mode = "ro"
        if not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
            mode = "ro&immutable=1"

    def connect() -> sqlite3.Connection:
        # isolation_level=None: the driver begins no transaction by itself; the "begin" listener below does.
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute(f"PRAGMA foreign_keys={int(foreign_keys)}")
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.QueuePool)
    begin = "BEGIN" if read_only else "BEGIN IMMEDIATE"

    def on_begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine, "begin", on_begin)
    return engine


@contextlib.contextmanager
def database_errors(path: Path) -> Generator[None]:
    """Errors of the database (damage, full disk, a lock that is not ours) become one sentence.

    Raises:
        StoreError: instead of the database's own error.
    """
    try:
        yield
    except (sqlite3.DatabaseError, exc.DatabaseError) as error:
        cause = error.orig if isinstance(error, exc.DatabaseError) else error
        raise StoreError(f"{path}: expected a usable run database, found: {cause}") from error


def create(folder: Path) -> Path:
    """A new database under its provisional name; ``publish`` gives it the real one.

    Raises:
        StoreError: the folder cannot be written.
    """
    path = folder / HALF_MADE
    with database_errors(path):
        for leftover in folder.glob(f"{HALF_MADE}*"):
            leftover.unlink()
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        _upgrade(path)
    return path


def publish(path: Path) -> Path:
    """Give a complete new database its name in one step, then switch it to WAL."""
    final = path.with_name(DATABASE)
    path.replace(final)
    ensure_wal(final)
    return final


def ensure_wal(path: Path) -> None:
    """Switch a database to WAL; no work if it is (the mode is kept in the file)."""
    with database_errors(path), contextlib.closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


def check(path: Path) -> str | None:
    """Recognise a database and check it for damage.

    Returns:
        The revision of an older database that must be migrated; None for the newest.

    Raises:
        StoreError: damaged, not a run, or written by a newer version of Kernelworks.
    """
    engine = engine_for(path, read_only=True)
    try:
        with database_errors(path), engine.connect() as connection:
            damage = str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one())
            if damage != "ok":
                raise StoreError(f"{path}: expected an intact database, found damage: {damage.splitlines()[-1]}")
            if connection.exec_driver_sql("PRAGMA application_id").scalar_one() != APPLICATION_ID:
                raise StoreError(f"{path}: expected a run of Kernelworks, found a database of another kind")
            revision = str(connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one())
    finally:
        engine.dispose()
    script = ScriptDirectory.from_config(_config())
    if revision == script.get_current_head():
        return None
    if revision not in {r.revision for r in script.walk_revisions()}:
        raise StoreError(
            f"{path}: expected schema {script.get_current_head()} or older, found {revision}, of a newer Kernelworks",
            mend="upgrade Kernelworks",
        )
    return revision


def migrate(path: Path, revision: str) -> Path:
    """Bring an older database to the newest schema, after a copy ``run.sqlite.bak-<revision>``.

    The upgrade is one transaction. The caller holds the run's lock.

    Returns:
        The copy.

    Raises:
        StoreError: the copy cannot be written or the upgrade fails; the database is then as before.
    """
    backup = path.with_name(f"{path.name}.bak-{revision}")
    unfinished = path.with_name(f"{backup.name}.new")
    with database_errors(path):
        unfinished.unlink(missing_ok=True)
        # SQLite's own backup, not a copy of the file: recent pages may still be in the write-ahead log.
        with (
            contextlib.closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S)) as source,
            contextlib.closing(sqlite3.connect(unfinished)) as copy,
        ):
            source.backup(copy)
        unfinished.replace(backup)
        _upgrade(path)
    return backup


def _upgrade(path: Path) -> None:
    # A table that Alembic rebuilds is dropped first, which the rows that refer to it would forbid.
    engine = engine_for(path, read_only=False, foreign_keys=False)
    try:
        with engine.begin() as connection:
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    finally:
        engine.dispose()


def _config() -> Config:
    config = Config()
    # "%" begins an interpolation in Alembic's configuration.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
