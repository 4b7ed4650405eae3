"""One transaction for the requests of many sessions, and what becomes of them when it fails.

A group is decided first and written after: the heads of all its sessions are locked by one query, each request is
judged against the head that those before it left (store.planning), and then the rows of all that passed are inserted
table by table, bodies first. A refusal is found before anything of it was written, so it costs the others nothing.

A database error before the commit undoes the whole group; each session is then tried again by itself, so that one
session's bad row fails that session only. An error of the commit itself is not tried again: nobody knows whether the
group is in, and after a failed fsync the next one may lie. Whoever asked settles it by appending the same batch
again.

A database that is away (PostgreSQL restarts, the network breaks) is waited for, so long as the store's patience lasts:
the batches of the group are tried again, which is safe whatever became of the first try, since a repeated batch adds
nothing. What is no batch (create, take_term, a server's word) is not repeated, and asked anew by whoever wants it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any

import attrs
from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from core.ports.store import Body, StoredBatch, StoreError, StoreFailed
from store.codec import rows_to_keep
from store.planning import Addition, AppendBatch, Beat, Head, TakeTerm, head_of, plan
from store.queueing import Item, Outcome, all_failed
from store.sql.engines import failure
from store.sql.owners import TERMS_CHANNEL
from store.sql.rows import Rows
from store.sql.schema import RAW
from store.sql.stalls import StallGuard
from store.sql.statements import BATCH_AT, Statements

RETRY_S = 0.2


class GroupFailed(Exception):
    """The database cannot be reached, or its commit failed: trying the sessions one by one would not help. ``away``: it may
    be there again soon."""

    def __init__(self, error: StoreFailed, away: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.away = away


@attrs.define
class Database:
    """Where groups are written. ``patience_s``: how long a database that is away is waited for; ``away`` says that it
    is; ``hurry`` ends the waiting. ``lost``: why what is written would not be kept, if so (store.sql.file)."""

    engine: Engine
    statements: Statements
    patience_s: float = 0.0
    lost: Callable[[], str | None] = lambda: None
    guard: StallGuard | None = None
    """None: the database is a file, which says nothing for no time."""
    away: bool = False
    hurry: threading.Event = attrs.field(factory=threading.Event)


def commit_group(database: Database, items: Sequence[Item]) -> list[Outcome]:
    """Write a group; one outcome for each item, in order. Never raises a database's error."""
    patient_until = time.monotonic() + database.patience_s
    lost: dict[Item, Outcome] = {}
    while True:
        tried = [item for item in items if item not in lost]
        try:
            outcomes = dict(zip(tried, _try(database, tried), strict=True))
            break
        except GroupFailed as fault:
            impatient = time.monotonic() >= patient_until or database.hurry.is_set()
            if not fault.away or impatient:
                outcomes = dict(zip(tried, all_failed(tried, fault.error), strict=True))
                break
            database.away = True
            lost.update({item: fault.error for item in tried if not isinstance(item.request, AppendBatch)})
            database.hurry.wait(RETRY_S)
    database.away = False
    return [lost[item] if item in lost else outcomes[item] for item in items]


def _try(database: Database, items: Sequence[Item]) -> list[Outcome]:
    if not items:
        return []
    try:
        return _transact(database, items)
    except DBAPIError as fault:
        if fault.connection_invalidated:
            raise GroupFailed(failure(fault), away=True) from fault
        return _one_by_one(database, items)


def _one_by_one(database: Database, items: Sequence[Item]) -> list[Outcome]:
    """Each session in a transaction of its own, until the database itself fails."""
    by_session: dict[str, list[Item]] = {}
    for item in items:
        by_session.setdefault(item.request.session, []).append(item)
    outcomes: dict[Item, Outcome] = {}
    lost: StoreFailed | None = None
    for of_session in by_session.values():
        try:
            results = all_failed(of_session, lost) if lost else _transact(database, of_session)
        except GroupFailed as fault:
            lost = fault.error
            results = all_failed(of_session, lost)
        except DBAPIError as fault:
            results = all_failed(of_session, failure(fault))
        outcomes.update(zip(of_session, results, strict=True))
    return [outcomes[item] for item in items]


def _transact(database: Database, items: Sequence[Item]) -> list[Outcome]:
    lost = database.lost()
    if lost is not None:
        raise GroupFailed(StoreFailed(lost), away=False)
    with _begin(database.engine) as connection, _guarded(database, connection):
        statements = database.statements
        heads = statements.lock_heads(connection, {item.request.session for item in items})
        group = _Group(connection, statements, {head.session: head for head in heads})
        outcomes = [group.decide(item) for item in items]
        group.write()
        try:
            connection.commit()
        except DBAPIError as fault:
            away = fault.connection_invalidated
            # Whatever state this connection is in, no later group builds on it.
            connection.invalidate()
            raise GroupFailed(failure(fault), away) from fault
    return outcomes


def _guarded(database: Database, connection: Connection) -> AbstractContextManager[None]:
    return nullcontext() if database.guard is None else database.guard.over(connection.connection.driver_connection)


def _begin(engine: Engine) -> Connection:
    away = engine.dialect.name == "postgresql"
    try:
        connection = engine.connect()
    except PoolTimeout as fault:  # an import or an erasure holds it
        raise GroupFailed(failure(fault), False) from fault
    except DBAPIError as fault:
        raise GroupFailed(failure(fault), away) from fault
    try:
        connection.begin()
    except DBAPIError as fault:
        connection.close()
        raise GroupFailed(failure(fault), away) from fault
    return connection


@attrs.define
class _Group:
    _connection: Connection
    _statements: Statements
    _before: Mapping[str, Head]
    """As they were locked."""
    _heads: dict[str, Head] = attrs.field(init=False)
    _additions: list[Addition] = attrs.field(factory=list)
    _beats: list[Beat] = attrs.field(factory=list)
    _taken: list[str] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self._heads = dict(self._before)

    def decide(self, item: Item) -> Outcome:
        """Judge one item. What passes moves its session's head for those behind it."""
        request = item.request
        inherited = item.inherited()
        if inherited is not None:
            return inherited
        if isinstance(request, Beat):
            self._beats.append(request)
            return None
        try:
            addition = plan(request, self._heads.get(request.session), self._batch_at)
        except StoreError as refusal:
            # The caller's traceback counts, not this thread's frames with the whole group in them.
            error = refusal.with_traceback(None)
            item.note(error)
            return error
        if addition is not None:
            self._additions.append(addition)
            self._heads[request.session] = addition.head
        if isinstance(request, TakeTerm):
            self._taken.append(request.session)
        return None if isinstance(request, AppendBatch) else self._heads[request.session].owned()

    def _batch_at(self, session: str, position: int) -> str | None:
        for addition in self._additions:
            if addition.head.session == session and addition.head.position == position:
                return addition.batch_id
        found = self._connection.execute(BATCH_AT, {"at_session": session, "at_position": position}).scalar()
        return None if found is None else str(found)

    def write(self) -> None:
        """Insert everything, bodies before the rows that name them."""
        new, changed, moved = list[Head](), list[Head](), list[Head]()
        for head in {addition.head.session: addition.head for addition in self._additions}.values():
            before = self._before.get(head.session)
            if before is None:
                new.append(head)
            elif (before.term, before.server, before.closed) == (head.term, head.server, head.closed):
                moved.append(head)
            else:
                changed.append(head)
        statements, connection = self._statements, self._connection
        statements.insert_bodies(connection, _body_rows(self._additions))
        statements.insert_events(connection, _event_rows(self._additions))
        statements.insert_sessions(connection, session_rows(new))
        statements.change_sessions(connection, session_rows(changed))
        statements.move_sessions(connection, session_rows(moved))
        for beat in self._beats:
            connection.execute(statements.leave if beat.leaving else statements.beat, {"of_server": beat.server})
        if connection.dialect.name == "postgresql":
            for session in self._taken:
                told = f"{self._heads[session].term} {session}"
                connection.execute(select(func.pg_notify(TERMS_CHANNEL, told)))


@attrs.frozen
class WholeLog:
    """A log as rows, made before anybody waits for it: encoding an hour takes longer than writing it."""

    head: Head
    events: Rows


def whole_log(batches: Sequence[StoredBatch]) -> WholeLog:
    """Raises RecordInvalid: not a log."""
    head = head_of(batches)
    additions = [
        Addition(
            attrs.evolve(head, position=batch.records[-1].position, term=batch.term, chain=batch.chain),
            batch.batch_id,
            rows_to_keep(batch),
        )
        for batch in batches
    ]
    return WholeLog(head, _event_rows(additions))


def write_bodies(connection: Connection, statements: Statements, session: str, bodies: Iterable[Body]) -> None:
    """Insert bodies that are not there yet, in the connection's transaction."""
    statements.insert_bodies(connection, _rows_of({(session, body.digest): body.data for body in bodies}))


_head_values = attrgetter(*(field.name for field in attrs.fields(Head)))


def session_rows(heads: Iterable[Head]) -> Rows:
    """In the order of the table's columns."""
    return list(map(_head_values, heads))


def _body_rows(additions: Iterable[Addition]) -> Rows:
    distinct = {(addition.head.session, body.digest): body.data for addition in additions for body in addition.bodies}
    return _rows_of(distinct)


def _rows_of(distinct: Mapping[tuple[str, str], bytes]) -> Rows:
    return [(session, digest, RAW, len(data), data) for (session, digest), data in distinct.items()]


def _event_rows(additions: Iterable[Addition]) -> Rows:
    rows: list[tuple[Any, ...]] = []
    for addition in additions:
        head, session = addition.head, addition.head.session
        for row in addition.rows:
            ends = row.position == head.position
            of_batch = (addition.batch_id, head.term, head.chain) if ends else (None, None, None)
            rows.append((session, row.position, row.epoch, row.at_ns, row.type, row.version, row.body, *of_batch))
    return rows
