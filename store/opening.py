"""Opening a store by its URL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from core.ports.keeping import Keeper
from store.memory import open_memory_store
from store.queueing import DEFAULT_LIMITS, QueueLimits
from store.sql.engines import Durability, check_database
from store.sql.sql_store import open_sql_store
from store.sql.urls import parse_url

MEMORY_URLS = ("memory:", "sqlite+memory://")


def file_of(url: str) -> Path | None:
    """A SQLite store's file; None for a store that is no file. Raises StoreUrlInvalid."""
    if url in MEMORY_URLS:
        return None
    parsed = parse_url(url)
    return Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None


def check_store(url: str) -> None:
    """Whether ``open_store`` will find its database, as far as that can be seen without making anything. Blocks (PostgreSQL:
    for a connection). Raises StoreUrlInvalid, StoreFailed."""
    if url not in MEMORY_URLS:
        check_database(url)


@asynccontextmanager
async def open_store(
    url: str, *, durability: Durability = "full", limits: QueueLimits = DEFAULT_LIMITS, patience_s: float = 0.0
) -> AsyncIterator[Keeper]:
    """The store at ``url``, open for the block: ``sqlite:///path``, ``postgresql://user@host/name``, or ``memory:`` for
    one that ends with the block. ``durability``: what an acknowledged batch survives (store.sql.engines).
    ``patience_s``: how long appends wait for a PostgreSQL server that is away before they fail.

    Leaving the block writes what is queued. Raises StoreUrlInvalid, StoreFailed.
    """
    if url in MEMORY_URLS:
        async with open_memory_store(limits=limits) as memory:
            yield memory
    else:
        async with open_sql_store(url, durability, limits, patience_s=patience_s) as store:
            yield store
