"""Making and changing the tables, by Alembic's steps in ``versions``.

Steps are numbered 1, 2, 3 and only ever go up: a log is never brought back to an older server. Events need no steps of
their own (store.codec reads old ones as they are), so these are about tables, columns and indexes only.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from core.ports.store import StoreFailed

HEAD = "2"
"""The newest step. A test holds it to ``versions``."""

FOLDER = Path(__file__).parent

PATIENCE_S = 120
"""How long a server that starts waits for another one's steps, and a step may think between two statements."""

_ADVISORY_LOCK = 0x6475_6F6C
"""Any constant: it names the making of tables among the users of a PostgreSQL database."""


def make_tables(connection: Connection) -> None:
    """Bring the tables to HEAD, in the connection's transaction. Raises StoreFailed when a newer server made them."""
    if connection.dialect.name == "postgresql":
        for limit in ("lock_timeout", "idle_in_transaction_session_timeout"):
            # Those of a server that serves would end a step on a slow machine, and the wait for another server's.
            connection.execute(text(f"SET LOCAL {limit} = '{PATIENCE_S}s'"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
    version = tables_version(connection)
    if version == HEAD:
        return
    if version is not None and not (version.isdecimal() and 0 < int(version) < int(HEAD)):
        raise StoreFailed(f"the database's tables are of version {version}, this server knows up to {HEAD}")
    _upgrade(connection, version)


def tables_version(connection: Connection) -> str | None:
    """Of the tables as they are; None: there are none."""
    names = inspect(connection).get_table_names()
    for table, column in (("alembic_version", "version_num"), ("store_schema", "version")):
        if table in names:
            found = connection.execute(text(f"SELECT {column} FROM {table}")).scalar()
            return None if found is None else str(found)
    return None


def _upgrade(connection: Connection, version: str | None) -> None:
    # Alembic takes a tenth of a second to import: only who needs a step pays for it.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    if version == "1" and "store_schema" in inspect(connection).get_table_names():
        command.stamp(config, "1")  # made before Alembic was asked to keep count
    command.upgrade(config, "head")
