"""Reads. Each is a function of a connection; they run in threads, on connections of their own, and see committed rows
only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, select, tuple_

from core.ports.store import BodyDamaged, LogUnreadable, SessionRow, SessionUnknown, StoredBatch
from core.ports.store import Row as EventRow
from core.session.digest import body_digest
from core.session.events import TAGS, Event, Record
from store.codec import decode_row, is_storable
from store.planning import Head
from store.sql.schema import RAW, bodies, events, sessions
from store.sql.statements import given_names

_EVENTS_AFTER = (
    select(*(column for column in events.c if column.name != "session"))
    .where(events.c.session == bindparam("of_session"), events.c.position > bindparam("after"))
    .order_by(events.c.position)
    .limit(bindparam("up_to"))
)
_FIRST_END_AFTER = select(func.min(events.c.position)).where(
    events.c.session == bindparam("of_session"),
    events.c.position > bindparam("after"),
    events.c.batch_id.is_not(None),
)
_PICKED = (
    select(events.c.position, events.c.epoch, events.c.at_ns, events.c.type, events.c.version, events.c.body)
    .where(events.c.session == bindparam("of_session"), events.c.type.in_(bindparam("tags", expanding=True)))
    .order_by(events.c.position)
)
_HEAD = select(sessions).where(sessions.c.session == bindparam("of_session"))
_BODY = select(bodies.c.coding, bodies.c.size_bytes, bodies.c.data).where(
    bodies.c.session == bindparam("of_session"), bodies.c.digest == bindparam("of_digest")
)
_SIZES = select(bodies.c.digest, bodies.c.size_bytes)
_BODIES = select(bodies.c.digest, bodies.c.coding, bodies.c.size_bytes, bodies.c.data)
_SESSIONS = (
    select(sessions)
    .where(sessions.c.position > 0)
    .order_by(sessions.c.created_ns.desc(), sessions.c.session.desc())
    .limit(bindparam("up_to"))
)
_SESSIONS_AFTER = _SESSIONS.where(
    tuple_(sessions.c.created_ns, sessions.c.session) < tuple_(bindparam("created_ns"), bindparam("after"))
)


EventRows = Sequence[Row[*tuple[Any, ...]]]
"""Position, epoch, at_ns, type, version, body, batch_id, term, chain."""


def read_head(connection: Connection, session: str) -> Head:
    """Raises SessionUnknown."""
    row = connection.execute(_HEAD, {"of_session": session}).first()
    if row is None or not row.position:  # a place that is kept for a log (store.sql.keeping)
        raise SessionUnknown(session)
    return Head(*row)


@contextmanager
def unless_gone(connection: Connection, session: str) -> Iterator[None]:
    """What is missing of a log that is being thrown away is no damage. Raises SessionUnknown for one."""
    try:
        yield
    except LogUnreadable:
        read_head(connection, session)
        raise


def read_batches(connection: Connection, session: str, after: int, limit: int) -> list[StoredBatch]:
    """As Store.read. Events never change, and a batch's are committed together, so several queries see the same log."""
    with unless_gone(connection, session):
        batches = _read_batches(connection, session, after, limit)
    read_head(connection, session)  # after the rows: what goes is not there before its first event goes
    return batches


def _read_batches(connection: Connection, session: str, after: int, limit: int) -> list[StoredBatch]:
    rows = read_rows(connection, session, after, max(limit, 1))
    batches = batches_of(rows, session, after)
    if not batches:
        end = connection.execute(_FIRST_END_AFTER, {"of_session": session, "after": after}).scalar()
        if end is not None and type(end) is not int:
            raise LogUnreadable(f"{session}: there is something at position {end!r}")
        if end is not None:
            # The first batch alone is longer than the page.
            return batches_of(read_rows(connection, session, after, end - after), session, after)
        if rows:
            raise LogUnreadable(f"{session}: the log ends within a batch, which begins at position {after + 1}")
    return batches


def read_picked(connection: Connection, session: str, kinds: Sequence[type[Event]]) -> list[Record]:
    """As Store.picked. The database goes through the whole log; only what is picked is decoded."""
    rows = connection.execute(_PICKED, {"of_session": session, "tags": [TAGS[kind] for kind in kinds]}).all()
    read_head(connection, session)
    return [decode_row(EventRow(*row)) for row in rows]


def read_rows(connection: Connection, session: str, after: int, limit: int) -> EventRows:
    """The next ``limit`` events of a log as the table has them, but for their session. All at once: one by one they cost
    half as much again."""
    return connection.execute(_EVENTS_AFTER, {"of_session": session, "after": after, "up_to": limit}).all()


def batches_of(rows: EventRows, session: str, after: int) -> list[StoredBatch]:
    """The batches that end within ``rows``, which follow position ``after``. Raises LogUnreadable, also when one
    is missing."""
    batches: list[StoredBatch] = []
    stored = _dense(rows, session, after)
    begin = 0
    for place, row in enumerate(rows, start=1):
        batch_id, term, chain = row[6:]
        if batch_id is None:
            continue
        if not (isinstance(batch_id, str) and isinstance(term, int) and isinstance(chain, bytes | memoryview)):
            raise LogUnreadable(f"{session}: position {row[0]} ends a batch whose term or chain is missing")
        of_batch = tuple(stored[begin:place])
        batches.append(StoredBatch(batch_id, term, tuple(map(decode_row, of_batch)), bytes(chain), of_batch))
        begin = place
    return batches


def records_of(rows: EventRows, session: str, after: int) -> list[Record]:
    """The records in ``rows``, which follow position ``after``. Raises LogUnreadable, also when one is missing."""
    return list(map(decode_row, _dense(rows, session, after)))


def _dense(rows: EventRows, session: str, after: int) -> list[EventRow]:
    for position, row in enumerate(rows, start=after + 1):
        # Pair check of the writer's: what was written dense must be read dense, or a fold would be of another session.
        if row[0] != position:
            raise LogUnreadable(f"{session}: position {position} is missing")
    stored = [EventRow(*row[:6]) for row in rows]
    for one in stored:  # SQLite keeps whatever type it was given
        numbers, texts = (one.epoch, one.at_ns, one.version), (one.type, one.body)
        if not (all(type(value) is int for value in numbers) and all(type(value) is str for value in texts)):
            raise LogUnreadable(f"{session}: position {one.position}: a column is of another type")
    return stored


def read_bodies(
    connection: Connection, session: str, digests: Sequence[str], limit_bytes: int
) -> dict[str, bytes | None]:
    """As Store.bodies. Raises BodyDamaged when bytes are not those that were stored."""
    wanted = {"of_session": session, "names": json.dumps([digest for digest in digests if is_storable(digest)])}
    known = bodies.c.digest.in_(given_names(connection.dialect.name)), bodies.c.session == bindparam("of_session")
    sizes = {row.digest: row.size_bytes for row in connection.execute(_SIZES.where(*known), wanted)}
    fitting, size_bytes = list[str](), 0
    for digest in digests:
        size = sizes.get(digest, 0)
        size_bytes += size if isinstance(size, int) else 0  # else it is damaged, and found so below
        if fitting and size_bytes > limit_bytes:
            break
        fitting.append(digest)
    rows = connection.execute(
        _BODIES.where(*known), {**wanted, "names": json.dumps([d for d in fitting if d in sizes])}
    )
    found = {row.digest: _checked(session, *row) for row in rows}
    return {digest: found.get(digest) for digest in fitting}


def read_body(connection: Connection, session: str, digest: str) -> bytes:
    """Raises KeyError, or BodyDamaged when the bytes are not those that were stored."""
    row = connection.execute(_BODY, {"of_session": session, "of_digest": digest}).first()
    if row is None:
        raise KeyError(digest)
    return _checked(session, digest, *row)


def _checked(session: str, digest: str, coding: str, size_bytes: int, data: bytes) -> bytes:
    is_whole = coding == RAW and isinstance(data, bytes | memoryview) and len(data) == size_bytes
    if not is_whole or body_digest(data) != digest:
        raise BodyDamaged(f"{session}: body {digest} is damaged or of coding {coding!r}")
    return bytes(data)


def read_sessions(connection: Connection, limit: int, after: str) -> list[SessionRow]:
    """As Store.sessions. Raises SessionUnknown for an ``after`` that is not there."""
    if after:
        created_ns = read_head(connection, after).created_ns
        rows = connection.execute(_SESSIONS_AFTER, {"created_ns": created_ns, "after": after, "up_to": limit})
    else:
        rows = connection.execute(_SESSIONS, {"up_to": limit})
    return [Head(*row).listed() for row in rows]
