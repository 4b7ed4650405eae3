"""A long log's pages, on each database that knows SQL."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing
from sqlalchemy import event

from core.session.events import InputTranscript, Record
from store.sql import engines, pages
from store.sql.engines import make_engines
from store.sql.sql_store import open_sql_store
from tests.store.backends import empty_database, in_real_time, names, new_session


async def three_pages(url: str) -> tuple[int, tuple[Record, ...]]:
    """A log's last position, and its records behind the first two."""
    async with open_sql_store(url) as store:
        owner = await new_session(store)
        batch = await owner.append(*[InputTranscript("item", "words")] * (2 * pages.PAGE_RECORDS + 1))
    return owner.position, tuple(batch.records)


@pytest.mark.parametrize("backend", [name for name in names() if name != "memory"])
@in_real_time
async def test_no_transaction_stands_open_while_a_page_is_folded(backend: str, tmp_path: Path) -> None:
    """A fold may take its time; PostgreSQL ends a transaction that stands still, and its connection with it."""
    url = empty_database(backend, tmp_path)
    last, written = await three_pages(url)
    taken: list[Record] = []

    def scan() -> None:
        made = make_engines(url, "normal")
        with made.read.connect() as connection:

            def take(records: Sequence[Record]) -> None:
                assert not connection.in_transaction()
                taken.extend(records)

            pages.scan(connection, "sess_1", 2, last, take)
        made.dispose()

    await trio.to_thread.run_sync(scan)
    assert tuple(taken) == written


@pytest.mark.parametrize("backend", [name for name in names() if name != "memory"])
@in_real_time
async def test_a_scan_asks_once_for_each_page_and_once_for_their_sizes(backend: str, tmp_path: Path) -> None:
    """Each question is a trip to the database, and while it lasts the resume waits."""
    url = empty_database(backend, tmp_path)
    last, _written = await three_pages(url)
    asked: list[str] = []

    def scan() -> None:
        made = make_engines(url, "normal")
        with made.read.connect() as connection:
            event.listen(made.read, "before_cursor_execute", lambda *found: asked.append(found[2]))
            pages.scan(connection, "sess_1", 2, last, lambda records: None)
            if backend == "postgresql":
                connection.exec_driver_sql("SELECT 1")
                status = connection.connection.driver_connection.info.transaction_status  # type: ignore[union-attr]
                assert status.name == "IDLE", "a transaction's beginning and end are trips too"
                asked.pop()
        made.dispose()

    await trio.to_thread.run_sync(scan)
    assert len([statement for statement in asked if statement.startswith("SELECT")]) == 1 + 3


@pytest.mark.parametrize("backend", [name for name in names() if name != "memory"])
@in_real_time
async def test_long_logs_keep_no_other_read_waiting(backend: str, tmp_path: Path) -> None:
    """A server that takes over many sessions must go on saying that it lives."""
    going_on = threading.Event()

    def take(records: object) -> None:
        assert going_on.wait(20)

    async with open_sql_store(empty_database(backend, tmp_path)) as store, trio.open_nursery() as nursery:
        await new_session(store)
        for _ in range(2 * engines.READERS_MAX):
            nursery.start_soon(store.scan, "sess_1", 0, 2, take)
        await trio.testing.wait_all_tasks_blocked()
        assert [row.session for row in (await store.survey("server-a", 10_000)).owned] == ["sess_1"]
        assert not going_on.is_set()
        going_on.set()
