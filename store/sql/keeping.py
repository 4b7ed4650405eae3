"""Logs as wholes: brought in, replaced, thrown away. Each function is a transaction's work on the writing connection, and
runs in a thread; writers wait for it.

A log of hours is much to write and much to throw away, and on SQLite nobody else writes meanwhile. So it comes and goes in
pieces, each a transaction of its own. To readers it is there or it is not: its session's row comes last and goes first. In
the meantime a row at position 0, which no log has, keeps its place. The term in that row is a fence, as ever: of two that
bring the same session in the later one takes it, and the other is refused at its next piece. What was broken off lies under
such a row until the next import throws it away, or a prune does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from sqlalchemy import ColumnElement, Connection, Engine, Select, Table, delete, func, select, update

from core.ports.keeping import Usage
from core.ports.store import BODIES_AT_ONCE, Body, Owned, SessionExists, SessionUnknown, TermRefused
from store.planning import Head, check_replacing
from store.sql.owners import clock_ns
from store.sql.rows import Rows
from store.sql.schema import bodies, events, sessions
from store.sql.statements import Statements
from store.sql.transaction import WholeLog, session_rows, write_bodies

EVENTS_AT_ONCE = 1_000
BODIES_BYTES_AT_ONCE = 1024 * 1024
"""What of a log is thrown away by one transaction, and of its bodies no more than are asked for at once; of its events, also
what is brought in. Some 10 ms on a quiet machine."""


def claim(connection: Connection, statements: Statements, session: str) -> Owned:
    """Keep the place of a log that is to come in pieces. Raises SessionExists, TermRefused."""
    place = Head(session, "", 0, 0, 0, 0, 0, "", b"", closed=True)
    statements.keep_places(connection, session_rows([place]))  # unless there is one
    head = _locked(connection, session)
    if head is None:
        raise _refused(session)
    if head.position:
        raise SessionExists(session)
    return _hide(connection, head)


def _hide(connection: Connection, head: Head) -> Owned:
    hidden = attrs.evolve(head, position=0, closed=True, term=head.term + 1)
    _change(connection, hidden, updated_ns=clock_ns(connection.dialect))
    return hidden.owned()


def _change(connection: Connection, head: Head, **computed: ColumnElement[Any]) -> None:
    # Never deleted and inserted: on PostgreSQL, who waits for the row would find no session.
    values = attrs.asdict(head) | computed
    connection.execute(update(sessions).where(sessions.c.session == head.session).values(values))


def _check(connection: Connection, owned: Owned) -> None:
    head = _locked(connection, owned.session)
    if head is None or head.owned() != owned:
        raise _refused(owned.session)


def _refused(session: str) -> TermRefused:
    return TermRefused(f"{session}: another import of it has begun, or it was thrown away")


def put_bodies(connection: Connection, statements: Statements, place: Owned, found: Sequence[Body]) -> None:
    """As Keeper.put_bodies, of a place that was claimed. Raises TermRefused, as all that follow."""
    _check(connection, place)
    seen = {"updated_ns": clock_ns(connection.dialect)}
    connection.execute(update(sessions).where(sessions.c.session == place.session).values(seen))
    write_bodies(connection, statements, place.session, found)


def put_events(connection: Connection, statements: Statements, place: Owned, rows: Rows) -> None:
    """The next events of a log that comes in."""
    _check(connection, place)
    statements.insert_events(connection, rows)


def end_log(connection: Connection, log: WholeLog, place: Owned) -> None:
    """From here on the log is there."""
    _check(connection, place)
    _change(connection, log.head)


def replace_log(connection: Connection, statements: Statements, log: WholeLog, replacing: Owned) -> None:
    """As Keeper.put_log for a log that is there; its bodies stay."""
    session = log.head.session
    head = _locked(connection, session)
    check_replacing(session, head, replacing)
    connection.execute(delete(events).where(events.c.session == session))
    statements.insert_events(connection, log.events)
    _change(connection, log.head)


def begin_delete(connection: Connection, session: str, unfinished: bool) -> Owned:
    """From here on the log is not there any more; its place. Raises SessionUnknown."""
    head = _locked(connection, session)
    if head is None or (unfinished and head.position):
        raise SessionUnknown(session)
    return _hide(connection, head)


def delete_events(connection: Connection, place: Owned) -> bool:
    """Some of the events of a log that is not there; whether there were any."""
    _check(connection, place)
    of_session = events.c.session == place.session
    first = connection.execute(select(func.min(events.c.position)).where(of_session)).scalar()
    if type(first) is not int:  # SQLite keeps whatever type it was given: end_delete deletes it
        return False
    connection.execute(delete(events).where(of_session, events.c.position < first + EVENTS_AT_ONCE))
    return True


def delete_bodies(connection: Connection, owned: Owned) -> bool:
    """Some of the bodies of a log that is not there, or was erased and stands as ``owned`` says; whether there were any."""
    _check(connection, owned)
    of_session = bodies.c.session == owned.session
    sizes = select(bodies.c.digest, bodies.c.size_bytes).where(of_session)
    size_bytes, last = 0, None
    for digest, size in connection.execute(sizes.order_by(bodies.c.digest).limit(BODIES_AT_ONCE)):
        size_bytes, last = size_bytes + (size if isinstance(size, int) else 0), digest
        if size_bytes >= BODIES_BYTES_AT_ONCE:
            break
    if last is not None:
        connection.execute(delete(bodies).where(of_session, bodies.c.digest <= last))
    return last is not None


def end_delete(connection: Connection, place: Owned) -> None:
    """Give up the place, and whatever is left."""
    _check(connection, place)
    for table in (bodies, events, sessions):
        connection.execute(delete(table).where(table.c.session == place.session))


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
