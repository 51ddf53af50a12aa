"""Alembic runs this module to apply revisions on the connection that ``store.schema`` hands over."""

from __future__ import annotations

from alembic import context

from kernelworks.store.tables import Base

# render_as_batch: SQLite cannot alter most properties of a column; Alembic then copies the table.
# transactional_ddl: an upgrade that fails half-way leaves the database as it was.
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
