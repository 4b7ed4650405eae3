"""Many rows into a table by few statements.

SQLite's driver gives the interpreter up for each statement that it steps through, and beside a busy event loop waits for it
each time, half a millisecond or so. With a statement for each row, a group of fifty sessions would wait a hundred times.
So up to ROWS_MAX rows go in by one statement. PostgreSQL has a process of its own to spend on each statement it is sent:
there, events are copied, and bodies and sessions are written all at once.

Every kind of writing is a ``WriteRows``. Rows are tuples in the order of their table's columns; their values go to the driver
as they are, so they are of types that every driver takes by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Boolean, Connection, Dialect, Integer, LargeBinary, Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

Rows = Sequence[tuple[Any, ...]]

WriteRows = Callable[[Connection, Rows], None]
"""Nothing happens for no rows. Raises DBAPIError."""

ROWS_MAX = 64

IGNORE_KNOWN = " ON CONFLICT DO NOTHING"


def inserter(table: Table, dialect: Dialect, ending: str = "") -> WriteRows:
    """INSERT, with ``ending`` behind the values."""
    begin = f"INSERT INTO {table.name} ({_columns(table)}) VALUES "
    if dialect.name == "sqlite":
        row = f"({', '.join('?' * len(table.columns))})"
        # By powers of two: few statements, and few different ones for the driver to keep prepared.
        sizes = [1 << power for power in reversed(range(ROWS_MAX.bit_length()))]
        statements = [(size, begin + ", ".join([row] * size) + ending) for size in sizes]
        return lambda connection, rows: _insert_many(connection, rows, statements)
    statement = f"INSERT INTO {table.name} ({_columns(table)}) SELECT * FROM unnest({_arrays(table)}){ending}"
    return lambda connection, rows: _insert_columns(connection, rows, statement)


def _insert_many(connection: Connection, rows: Rows, statements: Sequence[tuple[int, str]]) -> None:
    # Not through SQLAlchemy, which would cost as much again for each statement.
    cursor, place = connection.connection.cursor(), 0
    for size, statement in statements:
        while len(rows) - place >= size:
            values = [value for row in rows[place : place + size] for value in row]
            try:
                cursor.execute(statement, values)
            except connection.dialect.loaded_dbapi.Error as fault:
                raise _as_usual(connection, fault, statement) from fault
            place += size
    cursor.close()


def _insert_columns(connection: Connection, rows: Rows, statement: str) -> None:
    # One statement for all: sent row by row, bodies cost twice the CPU here, and half as much again in the database.
    if rows:
        connection.exec_driver_sql(statement, tuple(map(list, zip(*rows, strict=True))))


def _arrays(table: Table) -> str:
    return ", ".join(_array(column.type) for column in table.columns)


def _array(kind: TypeEngine[Any]) -> str:
    match kind:
        case LargeBinary():
            return "%b::bytea[]"  # psycopg would write bytes as hexadecimal text unless it is told not to
        case Boolean():
            return "%s::boolean[]"
        case Integer():
            return "%s::bigint[]"
        case _:
            return "%s::text[]"


def upserter(table: Table, dialect: Dialect, columns: Iterable[str]) -> WriteRows:
    """SQLite: UPDATE of ``columns``, and of no index that has none of them; written as an INSERT that finds its key there.
    Call it under the file's lock only: it asks no questions."""
    (key,) = table.primary_key.columns
    changes = ", ".join(f"{name} = excluded.{name}" for name in columns)
    return inserter(table, dialect, f" ON CONFLICT ({key.name}) DO UPDATE SET {changes}")


def copier(table: Table) -> WriteRows:
    """PostgreSQL: COPY."""
    statement = f"COPY {table.name} ({_columns(table)}) FROM STDIN"

    def write(connection: Connection, rows: Rows) -> None:
        if not rows:
            return
        driver: Any = connection.connection.driver_connection
        try:
            with driver.cursor() as cursor, cursor.copy(statement) as copy:
                for row in rows:
                    copy.write_row(row)
        except connection.dialect.loaded_dbapi.Error as fault:
            raise _as_usual(connection, fault, statement) from fault

    return write


def _as_usual(connection: Connection, fault: Exception, statement: str) -> BaseException:
    """A driver's error as SQLAlchemy would have raised it, had it run the statement."""
    dialect, driver = connection.dialect, connection.connection
    gone = bool(dialect.is_disconnect(fault, driver, None))  # type: ignore[arg-type]
    if gone:
        connection.invalidate(fault)
    return DBAPIError.instance(
        statement,
        None,
        fault,
        dialect.loaded_dbapi.Error,
        hide_parameters=True,
        connection_invalidated=gone,
        dialect=dialect,
    )


def updater(table: Table, columns: Mapping[str, str]) -> WriteRows:
    """PostgreSQL: UPDATE of ``columns`` (name -> type), by one statement."""
    (key,) = table.primary_key.columns
    changes = ", ".join(f"{name} = {_given(name, of)}" for name, of in columns.items())
    # JSON has no bytes: they travel as hexadecimal text.
    given = {key.name: "text"} | {name: "text" if of == "bytea" else of for name, of in columns.items()}
    statement = (
        f"UPDATE {table.name} SET {changes} "
        f"FROM json_to_recordset(CAST(%s AS json)) AS new({', '.join(f'{name} {of}' for name, of in given.items())}) "
        f"WHERE {table.name}.{key.name} = new.{key.name}"
    )
    places = [(name, _names(table).index(name)) for name in given]

    def write(connection: Connection, rows: Rows) -> None:
        if rows:
            objects = [{name: _plain(row[place]) for name, place in places} for row in rows]
            connection.exec_driver_sql(statement, (msgspec.json.encode(objects).decode(),))

    return write


def _given(name: str, of: str) -> str:
    return f"decode(new.{name}, 'hex')" if of == "bytea" else f"new.{name}"


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def _columns(table: Table) -> str:
    return ", ".join(_names(table))


def _names(table: Table) -> list[str]:
    return [column.name for column in table.columns]
