"""The writer's statements, one set for each dialect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
from sqlalchemy import (
    JSON,
    Connection,
    Delete,
    Dialect,
    Insert,
    Select,
    Text,
    Update,
    bindparam,
    cast,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.compiler import SQLCompiler

from store.sql.owners import beat_statement, leave_statement
from store.sql.schema import bodies, events, sessions

Parameters = list[dict[str, Any]]

BATCH_AT = select(events.c.batch_id).where(
    events.c.session == bindparam("at_session"), events.c.position == bindparam("at_position")
)
"""The id of the batch that ends at a position."""


class Many:
    """A statement that is run with many parameter sets at once. It is compiled once and its values go to the driver as
    they are (a third of the writer's time otherwise), so they are of types that every driver takes by itself."""

    def __init__(self, statement: Insert | Update, names: Iterable[str], dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect, column_keys=list(names))
        assert isinstance(compiled, SQLCompiler)
        self._sql = str(compiled)
        self._order = compiled.positiontup
        """None: the driver takes parameters by name."""

    def run(self, connection: Connection, parameters: Parameters) -> None:
        """Nothing happens for no parameters."""
        if not parameters:
            return
        order = self._order
        if order is None:
            connection.exec_driver_sql(self._sql, parameters)
        else:
            connection.exec_driver_sql(self._sql, [tuple([values[name] for name in order]) for values in parameters])


@attrs.frozen
class Statements:
    """What one transaction of the writer runs. ``lock_heads`` takes ``names``: the sessions as a JSON array."""

    lock_heads: Select[Any]
    insert_bodies: Many
    insert_events: Many
    insert_sessions: Many
    update_sessions: Many
    """Takes ``of_session`` and every column but ``session``."""
    beat: Insert
    leave: Delete
    """Both take ``of_server``."""


def statements_for(dialect: Dialect) -> Statements:
    """Compile them."""
    inserts = {
        "sqlite": sqlite.insert(bodies).on_conflict_do_nothing(),
        "postgresql": postgresql.insert(bodies).on_conflict_do_nothing(),
    }
    update_session = update(sessions).where(sessions.c.session == bindparam("of_session"))
    columns = sessions.c.keys()
    return Statements(
        lock_heads=_lock_heads(dialect),
        insert_bodies=Many(inserts[dialect.name], bodies.c.keys(), dialect),
        insert_events=Many(insert(events), events.c.keys(), dialect),
        insert_sessions=Many(insert(sessions), columns, dialect),
        update_sessions=Many(update_session, [name for name in columns if name != "session"], dialect),
        beat=beat_statement(dialect),
        leave=leave_statement(),
    )


def _lock_heads(dialect: Dialect) -> Select[Any]:
    heads = select(sessions).where(sessions.c.session.in_(given_names(dialect)))
    # In the order of the names, so that no two servers wait for each other. (SQLite has locked the whole file already.)
    return heads.order_by(sessions.c.session).with_for_update(of=sessions)


def given_names(dialect: Dialect) -> Select[Any]:
    """The names in ``names``, a JSON array. One parameter for all: an IN list would be rendered anew for each count."""
    names = bindparam("names", type_=Text)
    if dialect.name == "sqlite":
        given = func.json_each(names).table_valued("value")
    else:
        given = func.json_array_elements_text(cast(names, JSON)).table_valued("value")
    return select(given.c.value)
