"""What Alembic runs for each command: steps run on the connection that it is given, in that connection's transaction."""

from __future__ import annotations

from alembic import context

from store.sql.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,  # SQLite's DDL is transactional too, once the driver is kept from committing before it
)
with context.begin_transaction():
    context.run_migrations()
