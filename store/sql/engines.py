"""Engines: how each database is spoken to, and what ``durability`` means there.

SQLite runs in WAL mode with one writing connection and a few reading ones. ``full`` syncs the log at every commit and
survives a power cut; ``normal`` syncs at checkpoints only: kill -9 loses nothing, a power cut may lose the last commits
(never their order). On PostgreSQL the two are ``synchronous_commit`` on and off.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import attrs
from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import QueuePool

from core.ports.store import StoreDamaged, StoreFailed
from store.sql.migrations import make_tables
from store.sql.urls import parse_url

Durability = Literal["full", "normal"]

READERS_MAX = 4
SCANS_MAX = 2
"""Of whole logs at once, beside the other reads: these take long, and nobody else is to wait for them."""
BUSY_TIMEOUT_MS = 5_000
"""How long a write waits for another process that writes to the same SQLite file, or for a locked row."""

STALLED_MS = 2_000
"""A server whose process is stopped in the middle of a transaction keeps its sessions' rows locked for so long; then
PostgreSQL ends its transaction, and another server can take them. Less than what that one waits for a lock."""


WRITABLE = "the server's user must be able to write to the file and to its folder"

RECOVER = "bring back a copy, or save what can still be read with: sqlite3 FILE .recover | sqlite3 NEW"

ADVICE = {
    "SQLITE_FULL": "the disk is full: make room, or throw sessions away with: duologue sessions prune",
    "SQLITE_READONLY": f"the file is read-only: {WRITABLE}",
    "SQLITE_CANTOPEN": f"the file cannot be opened: {WRITABLE}",
    "SQLITE_IOERR": "the disk failed: the system's log says more",
    "SQLITE_BUSY": "another program holds the file locked",
    "SQLITE_NOTADB": "the store's file is no SQLite database: name another with --store, or bring back a copy",
    "SQLITE_CORRUPT": f"the file is damaged: {RECOVER}",
    "25006": "the database takes no writes: a standby, or one that was set to read-only",
    "XX001": "the database's own files are damaged: its log says more; bring back a copy",
    "XX002": "an index of the database is damaged: REINDEX it",
    "53100": "the database's disk is full",
    "53300": "the database has no connection left: raise its max_connections",
    "28": "the database does not let this user in: check the URL's name and password",
    "3D000": "there is no database of that name: create it first",
}
"""How a database's code begins -> what is wrong, and what to do about it."""

DAMAGE = ("SQLITE_NOTADB", "SQLITE_CORRUPT", "XX001", "XX002")
"""How the codes of those begin that do not go away by themselves."""

NO_CODE = "no code"
NO_CONNECTION = (
    "there is no connection to the database: does it run, and are the URL's host, name, user and password right?"
)
"""A PostgreSQL that refuses a connection, or that nobody finds, is an OperationalError in words only, which are not shown."""

DEAD_AFTER_S = 10
"""A network that swallows packets says nothing: after so long without an answer the connection counts as broken."""


@attrs.frozen
class Engines:
    """``write`` has one connection; ``read`` up to READERS_MAX and SCANS_MAX, and one more for checkpoints."""

    write: Engine
    read: Engine

    def dispose(self) -> None:
        """Close every connection."""
        self.read.dispose()
        # The last connection to a SQLite file folds its log into it.
        self.write.dispose()


def failure(fault: DBAPIError | PoolTimeout) -> StoreFailed:
    """What a caller may know of a database's error: its kind and code. Never the statement's values, nor its text,
    where a database may quote them."""
    if isinstance(fault, PoolTimeout):
        return StoreFailed("no connection to the database came free in time")
    return failure_of(fault.orig)


def failure_of(origin: BaseException | None) -> StoreFailed:
    """The same for what a driver raised."""
    code = getattr(origin, "sqlite_errorname", None) or getattr(origin, "sqlstate", None) or NO_CODE
    if code == NO_CODE and type(origin).__name__ == "OperationalError":
        return StoreFailed(f"OperationalError: {NO_CONNECTION}")
    advice = next((f" ({words})" for begin, words in ADVICE.items() if code.startswith(begin)), "")
    kind = StoreDamaged if code.startswith(DAMAGE) else StoreFailed
    return kind(f"{type(origin).__name__}: {code}{advice}")


def make_engines(url: str, durability: Durability) -> Engines:
    """Connect, and make the tables where they are missing. Blocks. Raises StoreUrlInvalid, StoreFailed."""
    parsed = parse_url(url)
    make = _sqlite_engine if parsed.get_backend_name() == "sqlite" else _postgresql_engine
    engines = Engines(write=make(parsed, durability, True), read=make(parsed, durability, False))
    try:
        with engines.write.begin() as connection:
            make_tables(connection)
        if engines.read.dialect.name == "postgresql":
            # SQLAlchemy asks the first connection what it speaks to. Later a stalled database would never answer that, and
            # all who read would wait behind it: no guard knows of a connection that is still being made (store.sql.stalls).
            engines.read.connect().close()
    except DBAPIError as fault:
        engines.dispose()
        raise failure(fault) from fault
    except StoreFailed:
        engines.dispose()
        raise
    return engines


def check_database(url: str) -> None:
    """Raises what ``make_engines`` would raise for a wrong URL, a file that cannot be a store, or a PostgreSQL that lets
    nobody in; makes neither a file nor a table. Blocks."""
    parsed = parse_url(url)
    if parsed.get_backend_name() != "sqlite":
        engine = _postgresql_engine(parsed, "full", False)
    elif Path(str(parsed.database)).exists():
        engine = _sqlite_engine(parsed, "full", False)
    else:
        _check_new_file(Path(str(parsed.database)))
        return
    try:
        with engine.begin() as connection:
            inspect(connection).get_table_names()
    except DBAPIError as fault:
        raise failure(fault) from fault
    finally:
        engine.dispose()


def _check_new_file(path: Path) -> None:
    """Whether a store's file can be made. Raises StoreFailed."""
    _check_folder(path)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise StoreFailed(f"the store's file cannot be made in {path.parent} ({WRITABLE})")


def _check_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise StoreFailed(f"there is no folder {path.parent} for the store's file: make it first, or name another file")


def _sqlite_engine(url: URL, durability: Durability, writes: bool) -> Engine:
    assert url.database is not None
    _make_private_file(Path(url.database))
    engine = create_engine(url, poolclass=QueuePool, **_pool_options(writes))
    synchronous = {"full": "FULL", "normal": "NORMAL"}[durability]

    def on_connect(connection: Any, _record: object) -> None:
        # Transactions are begun by on_begin below and not by the driver, which would do it late and never IMMEDIATE.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute(f"PRAGMA synchronous={synchronous}")
        # Checkpoints have a thread of their own (store.sql.checkpoint).
        cursor.execute("PRAGMA wal_autocheckpoint=0")
        if writes:
            # What is erased is overwritten, not only forgotten.
            cursor.execute("PRAGMA secure_delete=ON")
        else:
            cursor.execute("PRAGMA query_only=ON")
        cursor.close()

    def on_begin(connection: Connection) -> None:
        # IMMEDIATE takes the write lock before the first read: what is read of a head stays true until the commit.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)
    return engine


def _make_private_file(path: Path) -> None:
    """Logs are people's conversations: a new file is its owner's only (SQLite's side files take its mode). Its folder is not
    made: a name that was mistyped, or a disk that is not mounted, would silently begin an empty store."""
    _check_folder(path)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as fault:
        raise StoreFailed(f"the store's file cannot be opened: {fault.strerror} ({WRITABLE})") from fault


def _postgresql_engine(url: URL, durability: Durability, writes: bool) -> Engine:
    settings = {
        "synchronous_commit": {"full": "on", "normal": "off"}[durability],
        "lock_timeout": BUSY_TIMEOUT_MS,
        "idle_in_transaction_session_timeout": STALLED_MS,
        "default_transaction_read_only": "off" if writes else "on",
    }
    arguments = {
        "connect_timeout": 5,
        "application_name": "duologue",
        "tcp_user_timeout": DEAD_AFTER_S * 1_000,
        "keepalives_idle": DEAD_AFTER_S // 2,
        "keepalives_interval": 1,
        "keepalives_count": DEAD_AFTER_S // 2,
    }
    # The URL has the last word, but for what the store relies on.
    arguments = {name: value for name, value in arguments.items() if name not in url.query}
    ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
    arguments["options"] = f"{url.query.get('options', '')} {ours}".strip()
    # A read's statements see what is committed, each by itself: a transaction around them would be two more trips.
    isolation = {} if writes else {"isolation_level": "AUTOCOMMIT"}
    return create_engine(url, connect_args=arguments, **isolation, **_pool_options(writes))


def _pool_options(writes: bool) -> dict[str, Any]:
    # hide_parameters: a statement's values are conversation content and must not stand in an error's text.
    return {"pool_size": 1 if writes else READERS_MAX + SCANS_MAX + 1, "max_overflow": 0, "hide_parameters": True}
