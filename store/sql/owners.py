"""Which servers live, on the database's own clock, and which sessions have no owner."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Delete,
    Dialect,
    Insert,
    bindparam,
    cast,
    delete,
    extract,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from core.ports.store import Survey
from core.session.time_units import NS_PER_MS
from store.planning import OWNERLESS_MAX, Head
from store.sql.schema import servers, sessions

OWNED_MAX = 10_000

TERMS_CHANNEL = "duologue_terms"
"""PostgreSQL's notifications of terms that were taken: ``TERM SESSION``."""


def clock_ns(dialect: Dialect) -> ColumnElement[Any]:
    """The database's clock. (SQLite's is that of the machine, to the ms.)"""
    if dialect.name == "sqlite":
        return literal_column("CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000000", BigInteger)
    return cast(extract("epoch", func.clock_timestamp()) * 1_000_000_000, BigInteger)


def beat_statement(dialect: Dialect) -> Insert:
    """Takes ``of_server``."""
    make = sqlite.insert if dialect.name == "sqlite" else postgresql.insert
    values = {"server": bindparam("of_server"), "seen_ns": clock_ns(dialect)}
    beat: Any = make(servers).values(values)
    written: Insert = beat.on_conflict_do_update(index_elements=["server"], set_={"seen_ns": clock_ns(dialect)})
    return written


def leave_statement() -> Delete:
    """Takes ``of_server``."""
    return delete(servers).where(servers.c.server == bindparam("of_server"))


def read_survey(connection: Connection, server: str, expiry_ms: int) -> Survey:
    """As Store.survey, without the word that ``server`` lives."""
    now_ns = int(connection.execute(select(clock_ns(connection.dialect))).scalar_one())
    is_open = ~sessions.c.closed
    mine = select(sessions).where(is_open, sessions.c.server == server).limit(OWNED_MAX)
    silent = or_(servers.c.seen_ns.is_(None), servers.c.seen_ns <= now_ns - expiry_ms * NS_PER_MS)
    lost = (
        select(sessions)
        .outerjoin(servers, sessions.c.server == servers.c.server)
        .where(is_open, silent)
        .order_by(sessions.c.updated_ns, sessions.c.session)
        .limit(OWNERLESS_MAX)
    )
    owned = tuple(Head(*row).listed() for row in connection.execute(mine))
    ownerless = tuple(Head(*row).listed() for row in connection.execute(lost))
    return Survey(now_ns, owned, ownerless)
