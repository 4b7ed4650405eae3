"""A long log, read for a fold: a page of it comes as one row, column by column.

Row by row, the driver gives the interpreter up and takes it back for each of 27,000 events of an hour, and beside a busy
event loop waits for it each time. The database strings a page together while others compute, and then its events are read
at one go. A page is bounded in records and in bytes.

What is out of the ordinary in a page (an event of an older version, a damaged one) is left to those who read rows
(store.sql.reading): they know what to do with it, or what to say of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, LargeBinary, Select, Text, bindparam, cast, func, select

from core.ports.store import TakeRecords
from core.session.events import Record
from store.codec import Columns, ColumnsOdd, decode_columns
from store.sql.reading import read_head, read_rows, records_of, unless_gone
from store.sql.schema import events

PAGE_RECORDS = 2_000
PAGE_BYTES = 8 * 1024 * 1024
"""Of the events' JSON. A single event may be larger, and is a page of its own then."""


def scan(connection: Connection, session: str, after: int, upto: int, take: TakeRecords) -> None:
    """As Store.scan. Events never change, so several queries see the same log."""
    first = after
    with unless_gone(connection, session):
        for last in page_ends(connection, session, after, upto):
            if records := read_page(connection, session, after, last):
                take(records)
                after = records[-1].position
            if after < last:
                break
    if after == first or after < upto:
        read_head(connection, session)


def page_ends(connection: Connection, session: str, after: int, upto: int) -> Iterator[int]:
    """The last position of each page: one question for all pages, more only where the events are large."""
    where = {"of_session": session}
    stretches = dict[int, int]()
    if upto > after + 1:
        found = connection.execute(
            _sizes_of_stretches(connection.dialect.name), {**where, "after": after, "last": upto, "of": PAGE_RECORDS}
        )
        stretches = {stretch: int(size) for stretch, size in found}
    connection.rollback()
    for stretch, begin in enumerate(range(after, upto, PAGE_RECORDS)):
        end = min(upto, begin + PAGE_RECORDS)
        if stretches.get(stretch, 0) <= PAGE_BYTES:
            yield end
        else:
            yield from _halved(connection, where, begin, end)


def _halved(connection: Connection, where: dict[str, Any], after: int, end: int) -> Iterator[int]:
    while after < end:
        last = end
        while last > after + 1 and _size_bytes(connection, {**where, "after": after, "last": last}) > PAGE_BYTES:
            last = after + (last - after) // 2
        connection.rollback()
        yield last
        after = last


def read_page(connection: Connection, session: str, after: int, last: int) -> Sequence[Record]:
    """The records above ``after``, up to and with ``last``; fewer at the log's end. Raises LogUnreadable."""
    columns = read_columns(connection, session, after, last)
    # What follows is not the database's time: no transaction stays open for it (PostgreSQL would end it, and who runs it).
    connection.rollback()
    if columns is None:
        return []
    try:
        return decode_columns(columns, after)
    except ColumnsOdd:
        rows = read_rows(connection, session, after, last - after)
        connection.rollback()
        return records_of(rows, session, after)


def read_columns(connection: Connection, session: str, after: int, last: int) -> Columns | None:
    """A page; None when nothing is there."""
    row = connection.execute(_PAGE, {"of_session": session, "after": after, "last": last}).one()
    return None if row[0] is None else Columns(*row)


def _size_bytes(connection: Connection, where: dict[str, Any]) -> int:
    return int(connection.execute(_size_of_page(connection.dialect.name), where).scalar() or 0)


def _in_page(columns: Sequence[ColumnElement[Any]]) -> Select[Any]:
    return select(*columns).where(
        events.c.session == bindparam("of_session"),
        events.c.position > bindparam("after"),
        events.c.position <= bindparam("last"),
    )


def _page() -> Select[Any]:
    """One row: store.codec.Columns, in order. Its strings are null when the page is empty."""
    kind = events.c.type + " " + cast(events.c.version, Text)
    columns = (events.c.position, events.c.epoch, events.c.at_ns, kind, events.c.body)
    named = [column.label(f"column_{place}") for place, column in enumerate(columns)]
    # Both databases string the rows together in the order of the subquery; whoever reads them looks whether they did.
    rows = _in_page(named).order_by(events.c.position).subquery()
    strings: Sequence[ColumnElement[Any]] = [func.aggregate_strings(cast(column, Text), ",") for column in rows.c]
    return select(*strings)


_PAGE = _page()


@cache
def _size_of_page(dialect: str) -> Select[Any]:
    return _in_page([func.sum(_size_of_event(dialect))])


@cache
def _sizes_of_stretches(dialect: str) -> Select[Any]:
    """Of ``of`` positions each: its number from 0, its bytes."""
    stretch = (events.c.position - bindparam("after") - 1) // bindparam("of")
    return _in_page([stretch.label("stretch"), func.sum(_size_of_event(dialect))]).group_by("stretch")


def _size_of_event(dialect: str) -> ColumnElement[int]:
    # SQLite tells the length of bytes without reading them, that of a text only from its characters.
    text = events.c.body
    return func.length(cast(text, LargeBinary)) if dialect == "sqlite" else func.octet_length(text)
