"""Reads. Each is a function of a connection; they run in threads, on connections of their own, and see committed rows
only."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select, tuple_

from core.ports.store import SessionRow, SessionUnknown, StoredBatch, StoreFailed
from core.session.digest import body_digest
from store.codec import Row, decode_row
from store.planning import Head
from store.sql.schema import RAW, batches, bodies, events, sessions

_BATCHES_AFTER = (
    select(batches.c.position, batches.c.batch_id, batches.c.term, batches.c.chain)
    .where(batches.c.session == bindparam("of_session"), batches.c.position > bindparam("after"))
    .order_by(batches.c.position)
    .limit(bindparam("up_to"))
)
_EVENTS_BETWEEN = (
    select(*(column for column in events.c if column.name != "session"))
    .where(
        events.c.session == bindparam("of_session"),
        events.c.position > bindparam("after"),
        events.c.position <= bindparam("last"),
    )
    .order_by(events.c.position)
)
_HEAD = select(sessions).where(sessions.c.session == bindparam("of_session"))
_BODY = select(bodies.c.coding, bodies.c.data).where(
    bodies.c.session == bindparam("of_session"), bodies.c.digest == bindparam("of_digest")
)
_SESSIONS = select(sessions).order_by(sessions.c.created_ns.desc(), sessions.c.session.desc()).limit(bindparam("up_to"))
_SESSIONS_AFTER = _SESSIONS.where(
    tuple_(sessions.c.created_ns, sessions.c.session) < tuple_(bindparam("created_ns"), bindparam("after"))
)


def read_head(connection: Connection, session: str) -> Head:
    """Raises SessionUnknown."""
    row = connection.execute(_HEAD, {"of_session": session}).first()
    if row is None:
        raise SessionUnknown(session)
    return Head(*row)


def read_batches(connection: Connection, session: str, after: int, limit: int) -> list[StoredBatch]:
    """As Store.read. Batches and events never change and are committed together, so two queries see the same log."""
    found = connection.execute(_BATCHES_AFTER, {"of_session": session, "after": after, "up_to": max(limit, 1)}).all()
    if not found:
        read_head(connection, session)
        return []
    whole = [batch for batch in found if batch.position - after <= limit] or found[:1]
    rows = connection.execute(_EVENTS_BETWEEN, {"of_session": session, "after": after, "last": whole[-1].position})
    records = [decode_row(Row(*row)) for row in rows]
    stored = []
    start = 0
    for batch in whole:
        # Pair check of the writer's: positions are dense, so a batch's records end where the batch says.
        end = batch.position - after
        if len(records) < end or records[end - 1].position != batch.position:
            raise StoreFailed(f"{session}: records are missing before position {batch.position}")
        stored.append(StoredBatch(batch.batch_id, batch.term, tuple(records[start:end]), bytes(batch.chain)))
        start = end
    return stored


def read_body(connection: Connection, session: str, digest: str) -> bytes:
    """Raises KeyError, or StoreFailed when the bytes are not those that were stored."""
    row = connection.execute(_BODY, {"of_session": session, "of_digest": digest}).first()
    if row is None:
        raise KeyError(digest)
    data = bytes(row.data)
    if row.coding != RAW or body_digest(data) != digest:
        raise StoreFailed(f"{session}: body {digest} is damaged or of coding {row.coding!r}")
    return data


def read_sessions(connection: Connection, limit: int, after: str) -> list[SessionRow]:
    """As Store.sessions. Raises SessionUnknown for an ``after`` that is not there."""
    if after:
        created_ns = read_head(connection, after).created_ns
        rows = connection.execute(_SESSIONS_AFTER, {"created_ns": created_ns, "after": after, "up_to": limit})
    else:
        rows = connection.execute(_SESSIONS, {"up_to": limit})
    return [Head(*row).listed() for row in rows]
