"""The writer's statements, one set for each dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import attrs
import msgspec
from sqlalchemy import JSON, Connection, Delete, Dialect, Insert, Select, Text, bindparam, cast, func, select

from store.planning import Head
from store.sql.owners import beat_statement, leave_statement
from store.sql.rows import IGNORE_KNOWN, WriteRows, copier, inserter, updater, upserter
from store.sql.schema import bodies, events, sessions

LockHeads = Callable[[Connection, Iterable[str]], list[Head]]
"""The heads of the sessions of these names, those that are there; nobody else changes them in this transaction."""

MOVES = {"updated_ns": "bigint", "position": "bigint", "epoch": "bigint", "chain": "bytea"}
"""What of a session's row every append changes, with PostgreSQL's types. It is in no index, so most appends touch none."""
CHANGES = {**MOVES, "term": "bigint", "server": "text", "closed": "boolean"}
"""What of it a change of the owner or an end changes."""

BATCH_AT = select(events.c.batch_id).where(
    events.c.session == bindparam("at_session"), events.c.position == bindparam("at_position")
)
"""The id of the batch that ends at a position."""


@attrs.frozen
class Statements:
    """What one transaction of the writer runs. Rows are tuples in the order of the table's columns."""

    lock_heads: LockHeads
    insert_bodies: WriteRows
    """A body that is there already is no error."""
    insert_events: WriteRows
    insert_sessions: WriteRows
    keep_places: WriteRows
    """Sessions' rows again; one that is there already is no error."""
    move_sessions: WriteRows
    change_sessions: WriteRows
    """MOVES or CHANGES of sessions that this transaction has locked."""
    beat: Insert
    leave: Delete
    """Both take ``of_server``."""


def statements_for(dialect: Dialect) -> Statements:
    """Make them."""
    is_sqlite = dialect.name == "sqlite"
    return Statements(
        lock_heads=_lock_file_heads if is_sqlite else _lock_head_rows,
        insert_bodies=inserter(bodies, dialect, IGNORE_KNOWN),
        insert_events=inserter(events, dialect) if is_sqlite else copier(events),
        insert_sessions=inserter(sessions, dialect),
        keep_places=inserter(sessions, dialect, IGNORE_KNOWN),
        move_sessions=upserter(sessions, dialect, MOVES) if is_sqlite else updater(sessions, MOVES),
        change_sessions=upserter(sessions, dialect, CHANGES) if is_sqlite else updater(sessions, CHANGES),
        beat=beat_statement(dialect),
        leave=leave_statement(),
    )


def _lock_file_heads(connection: Connection, names: Iterable[str]) -> list[Head]:
    """SQLite: the whole file is locked already, and one row brings them all (store.sql.rows says why)."""
    found = connection.execute(_file_heads(connection.dialect.name), {"names": _json(names)}).scalar_one()
    rows = _decode_heads(found)
    return [Head(*row[:-2], chain=bytes.fromhex(row[-2]), closed=bool(row[-1])) for row in rows]


_decode_heads = msgspec.json.Decoder(list[tuple[str, str, int, int, int, int, int, str, str, int]]).decode


@cache
def _file_heads(dialect: str) -> Select[Any]:
    *others, chain, closed = sessions.c
    head = func.json_array(*others, func.hex(chain), closed)
    return select(func.json_group_array(head)).where(sessions.c.session.in_(given_names(dialect)))


def _lock_head_rows(connection: Connection, names: Iterable[str]) -> list[Head]:
    rows = connection.execute(_locked_heads(connection.dialect.name), {"names": _json(sorted(names))})
    return [Head(*row) for row in rows]


@cache
def _locked_heads(dialect: str) -> Select[Any]:
    heads = select(sessions).where(sessions.c.session.in_(given_names(dialect)))
    # In the order of the names, so that no two servers wait for each other.
    return heads.order_by(sessions.c.session).with_for_update(of=sessions)


def _json(names: Iterable[str]) -> str:
    return msgspec.json.encode(list(names)).decode()


def given_names(dialect: str) -> Select[Any]:
    """The names in ``names``, a JSON array. One parameter for all: an IN list would be rendered anew for each count."""
    names = bindparam("names", type_=Text)
    if dialect == "sqlite":
        given = func.json_each(names).table_valued("value")
    else:
        given = func.json_array_elements_text(cast(names, JSON)).table_valued("value")
    return select(given.c.value)
