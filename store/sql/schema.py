"""The tables.

A session's row is the lock and the fence: it holds the term and the head of the log, and every write locks it first.
Events are keyed by (session, position): one writer's order is the key's order, a second writer's row would collide. On
SQLite they are clustered by that key (WITHOUT ROWID), so that a replay reads one stretch of the file. The price is that
each session of a group dirties a page of its own, so there is one such table and not a second one for batches. Bodies
are big: they keep their rowid, so that new ones go to the end of the table wherever their digest falls in the index.

A server's row says when it called last, on the database's own clock: whose servers are silent, those sessions have no
owner. Tables are made and changed by Alembic's steps (store.sql.migrations); what is here is their sum, and a test holds
the two together.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    column,
)

metadata = MetaData()

# Names are compared and ordered byte by byte on every backend.
_Name = Text().with_variant(Text(collation="C"), "postgresql")

sessions = Table(
    "sessions",
    metadata,
    Column("session", _Name, primary_key=True),
    Column("dialect", Text, nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("updated_ns", BigInteger, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("term", BigInteger, nullable=False),
    Column("server", Text, nullable=False),
    Column("chain", LargeBinary, nullable=False),
    Column("closed", Boolean, nullable=False),
    Index("sessions_by_age", "created_ns", "session"),
    Index(
        "sessions_open", "server", sqlite_where=~column("closed", Boolean), postgresql_where=~column("closed", Boolean)
    ),
)
"""One row a session. The columns are store.planning.Head's fields, in order."""

events = Table(
    "events",
    metadata,
    Column("session", _Name, primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("at_ns", BigInteger, nullable=False),
    Column("type", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("batch_id", Text),
    Column("term", BigInteger),
    Column("chain", LargeBinary),
    sqlite_with_rowid=False,
)
"""One row a record; ``body`` is the event as JSON. The last record of a batch carries what the batch has beside its
records: ``batch_id``, ``term`` and ``chain``; in the others these are null. The seven columns before them are the
session and core.ports.store.Row's fields, in order."""

RAW = "raw"

bodies = Table(
    "bodies",
    metadata,
    Column("session", _Name, primary_key=True),
    Column("digest", _Name, primary_key=True),
    Column("coding", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
"""``coding`` says how ``data`` holds the ``size_bytes`` bytes: ``raw`` is as they are."""

servers = Table(
    "servers",
    metadata,
    Column("server", _Name, primary_key=True),
    Column("seen_ns", BigInteger, nullable=False),
)
"""One row a server that lives, or did until lately."""
