"""Logs as wholes: brought in, replaced, thrown away. Each function is a transaction's work on the writing connection, and
runs in a thread; writers wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Select, Table, delete, func, select

from core.ports.keeping import Usage
from core.ports.store import Body, Owned, SessionUnknown
from store.planning import Head, check_replacing
from store.sql.schema import bodies, events, sessions
from store.sql.statements import Statements
from store.sql.transaction import WholeLog, write_bodies, write_whole_log


def put_bodies(connection: Connection, statements: Statements, session: str, found: Sequence[Body]) -> None:
    """As Keeper.put_bodies."""
    write_bodies(connection, statements, session, found)


def put_log(connection: Connection, statements: Statements, log: WholeLog, replacing: Owned | None) -> None:
    """As Keeper.put_log."""
    session = log.head.session
    check_replacing(session, _locked(connection, session), replacing)
    if replacing is not None:
        _delete(connection, session)
    write_whole_log(connection, statements, log)


def delete_session(connection: Connection, session: str) -> None:
    """As Keeper.delete."""
    if _locked(connection, session) is None:
        raise SessionUnknown(session)
    _delete(connection, session)


def _locked(connection: Connection, session: str) -> Head | None:
    row = connection.execute(select(sessions).where(sessions.c.session == session).with_for_update()).first()
    return None if row is None else Head(*row)


def _delete(connection: Connection, session: str) -> None:
    for table in (bodies, events, sessions):
        connection.execute(delete(table).where(table.c.session == session))


def read_usage(connection: Connection) -> list[Usage]:
    """As Keeper.usage."""
    of_events = _sums(connection, select(events.c.session, func.sum(func.length(events.c.body))), events)
    of_bodies = _sums(connection, select(bodies.c.session, func.sum(bodies.c.size_bytes)), bodies)
    rows = select(sessions.c.session, sessions.c.updated_ns, sessions.c.closed)
    return [
        Usage(session, updated_ns, closed, of_events.get(session, 0), of_bodies.get(session, 0))
        for session, updated_ns, closed in connection.execute(rows.order_by(sessions.c.updated_ns, sessions.c.session))
    ]


def _sums(connection: Connection, sums: Select[Any], table: Table) -> dict[str, int]:
    return {session: int(total) for session, total in connection.execute(sums.group_by(table.c.session))}


def vacuum(connection: Connection) -> None:
    """As Keeper.compact, on PostgreSQL. ``connection`` commits by itself."""
    connection.exec_driver_sql("VACUUM sessions, events, bodies")


VACUUM_BYTES_MAX = 256 * 1024 * 1024
"""Nobody can write while SQLite writes the file anew. A larger one keeps its size: what is free in it is used again."""


def compact_file(engine: Engine) -> None:
    """As Keeper.compact, on SQLite. Outside of any transaction, as VACUUM wants it. What was thrown away is overwritten
    already (store.sql.engines), and with the log's end it is nowhere any more."""
    pooled = engine.raw_connection()
    try:
        connection = pooled.driver_connection
        assert connection is not None
        pages, free, page_bytes = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        if (pages - free) * page_bytes <= VACUUM_BYTES_MAX:
            connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        pooled.close()
