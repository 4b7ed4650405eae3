"""Store URLs: which databases they name, and what else they may say.

A word that is not understood is refused, and not left out: who writes ``?mode=ro`` relies on it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

HOSTS = frozenset({"host", "port"})
"""What SQLAlchemy reads of a PostgreSQL URL's options itself: several servers, or a socket's folder."""


class StoreUrlInvalid(ValueError):
    """A store URL that names no database this server can use."""


def parse_url(url: str) -> URL:
    """Raises StoreUrlInvalid."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as fault:
        raise StoreUrlInvalid("a store URL looks like sqlite:///duologue.sqlite3 or postgresql://host/name") from fault
    match parsed.get_backend_name():
        case "sqlite" if parsed.database in (None, "", ":memory:"):
            raise StoreUrlInvalid("a SQLite store needs a file; for a store in memory say memory:")
        case "sqlite":
            return _checked_sqlite(parsed)
        case "postgresql" | "postgres":
            return _checked_postgresql(parsed.set(drivername="postgresql+psycopg"))
        case other:
            raise StoreUrlInvalid(f"no store speaks {other!r}: use sqlite, postgresql or memory:")


def _checked_sqlite(url: URL) -> URL:
    if url.query:
        raise StoreUrlInvalid(f"a SQLite store takes no options, and the URL has {_named(url.query)}")
    if url.host or url.port or url.username or url.password:
        raise StoreUrlInvalid("a SQLite store is a file of this machine: sqlite:///FILE, with three slashes")
    return url.set(drivername="sqlite+pysqlite")


def _checked_postgresql(url: URL) -> URL:
    try:
        from psycopg.pq import Conninfo
    except ImportError as fault:
        raise StoreUrlInvalid(
            f"PostgreSQL needs the package psycopg; get it with: {sys.executable} -m pip install 'psycopg[binary]'"
        ) from fault
    known = HOSTS | {option.keyword.decode() for option in Conninfo.get_defaults()}
    if unknown := [name for name in url.query if name not in known]:
        raise StoreUrlInvalid(f"PostgreSQL knows no option {_named(unknown)}")
    if several := [name for name, value in url.query.items() if not isinstance(value, str) and name not in HOSTS]:
        raise StoreUrlInvalid(f"the URL says {_named(several)} more than once")
    return url


def _named(options: Iterable[str]) -> str:
    return ", ".join(map(repr, options))
