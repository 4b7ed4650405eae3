"""Logs as wholes: brought in, replaced, thrown away. Each function is a transaction's work on the writing connection, and
runs in a thread; writers wait for it.

A log of hours is much to write and much to throw away, and on SQLite nobody else writes meanwhile. So it comes and goes in
pieces, each a transaction of its own. To readers it is there or it is not: its session's row comes last and goes first. In
the meantime a row at position 0, which no log has, keeps its place. The term in that row is a fence, as ever: of two that
bring the same session in the later one takes it, and the other is refused at its next piece. What was broken off lies under
such a row until somebody takes it: the next import, or a prune.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Select, Table, delete, func, select, update

from core.ports.keeping import Usage
from core.ports.store import Body, Owned, SessionExists, SessionUnknown, TermRefused
from store.planning import Head, check_replacing
from store.sql.owners import clock_ns
from store.sql.rows import Rows
from store.sql.schema import bodies, events, sessions
from store.sql.statements import Statements
from store.sql.transaction import WholeLog, session_rows, write_bodies

EVENTS_AT_ONCE = 1_000
BODIES_AT_ONCE = 256
BODIES_BYTES_AT_ONCE = 1024 * 1024
"""What of a log is thrown away by one transaction; of its events, also what is brought in. Some 10 ms on a quiet machine."""


def claim(connection: Connection, statements: Statements, session: str) -> int:
    """Keep the place of a log that is to come in pieces; the term. Raises SessionExists."""
    head = _locked(connection, session)
    if head is None:
        place = Head(session, "", 0, 0, 0, 0, 0, "", b"", closed=True)
        statements.keep_places(connection, session_rows([place]))
        head = _locked(connection, session)  # another import may have been quicker
        assert head is not None
    if head.position:
        raise SessionExists(session)
    return _hide(connection, head)


def _hide(connection: Connection, head: Head) -> int:
    hidden = {"position": 0, "closed": True, "term": head.term + 1, "updated_ns": clock_ns(connection.dialect)}
    connection.execute(update(sessions).where(sessions.c.session == head.session).values(hidden))
    return head.term + 1


def _check_place(connection: Connection, session: str, term: int) -> None:
    head = _locked(connection, session)
    if head is None or head.position or head.term != term:
        raise TermRefused(f"{session}: another import of it has begun, or it was thrown away")


def put_bodies(connection: Connection, statements: Statements, session: str, term: int, found: Sequence[Body]) -> None:
    """As Keeper.put_bodies, of a place that was claimed. Raises TermRefused, as all that follow."""
    _check_place(connection, session, term)
    seen = {"updated_ns": clock_ns(connection.dialect)}
    connection.execute(update(sessions).where(sessions.c.session == session).values(seen))
    write_bodies(connection, statements, session, found)


def put_events(connection: Connection, statements: Statements, session: str, term: int, rows: Rows) -> None:
    """The next events of a log that comes in."""
    _check_place(connection, session, term)
    statements.insert_events(connection, rows)


def end_log(connection: Connection, statements: Statements, log: WholeLog, term: int) -> None:
    """From here on the log is there."""
    session = log.head.session
    _check_place(connection, session, term)
    connection.execute(delete(sessions).where(sessions.c.session == session))
    statements.insert_sessions(connection, session_rows([log.head]))


def replace_log(connection: Connection, statements: Statements, log: WholeLog, replacing: Owned) -> None:
    """As Keeper.put_log for a log that is there; its bodies stay."""
    session = log.head.session
    head = _locked(connection, session)
    check_replacing(session, head if head is None or head.position else None, replacing)
    for table in (events, sessions):
        connection.execute(delete(table).where(table.c.session == session))
    statements.insert_events(connection, log.events)
    statements.insert_sessions(connection, session_rows([log.head]))


def begin_delete(connection: Connection, session: str) -> int:
    """From here on the log is not there any more; the term of its place. Raises SessionUnknown."""
    head = _locked(connection, session)
    if head is None:
        raise SessionUnknown(session)
    return _hide(connection, head)


def delete_events(connection: Connection, session: str, term: int) -> bool:
    """Some of the events of a log that is not there; whether there were any."""
    _check_place(connection, session, term)
    first = connection.execute(select(func.min(events.c.position)).where(events.c.session == session)).scalar()
    if type(first) is not int:  # SQLite keeps whatever type it was given: end_delete deletes it
        return False
    connection.execute(delete(events).where(events.c.session == session, events.c.position < first + EVENTS_AT_ONCE))
    return True


def delete_bodies(connection: Connection, session: str, term: int | None) -> bool:
    """Some of the bodies of a log that is not there (``term`` None: it is there, and was erased); whether there were any."""
    if term is not None:
        _check_place(connection, session, term)
    sizes = select(bodies.c.digest, bodies.c.size_bytes).where(bodies.c.session == session)
    size_bytes, last = 0, None
    for digest, size in connection.execute(sizes.order_by(bodies.c.digest).limit(BODIES_AT_ONCE)):
        size_bytes, last = size_bytes + (size if isinstance(size, int) else 0), digest
        if size_bytes >= BODIES_BYTES_AT_ONCE:
            break
    if last is not None:
        connection.execute(delete(bodies).where(bodies.c.session == session, bodies.c.digest <= last))
    return last is not None


def end_delete(connection: Connection, session: str, term: int) -> None:
    """Give up the place, and whatever is left."""
    _check_place(connection, session, term)
    for table in (bodies, events, sessions):
        connection.execute(delete(table).where(table.c.session == session))


def _locked(connection: Connection, session: str) -> Head | None:
    row = connection.execute(select(sessions).where(sessions.c.session == session).with_for_update()).first()
    return None if row is None else Head(*row)


def read_usage(connection: Connection) -> list[Usage]:
    """As Keeper.usage."""
    of_events = _sums(connection, select(events.c.session, func.sum(func.length(events.c.body))), events)
    of_bodies = _sums(connection, select(bodies.c.session, func.sum(bodies.c.size_bytes)), bodies)
    rows = select(sessions.c.session, sessions.c.updated_ns, sessions.c.closed, sessions.c.position)
    return [
        Usage(session, updated_ns, closed, of_events.get(session, 0), of_bodies.get(session, 0), not position)
        for session, updated_ns, closed, position in connection.execute(
            rows.order_by(sessions.c.updated_ns, sessions.c.session)
        )
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
