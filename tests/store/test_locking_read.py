"""The term is read with a lock, inside the append's transaction. A plain read would let a batch of the old owner in beside a
term that another server is just taking: both transactions would have been right when they looked. (In the product the key
catches that too, because ``owner_changed`` takes the position. The lock is tested without its help.)"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import sqlalchemy
import trio
from sqlalchemy import insert, update

from core.ports.store import StoreError, TermRefused
from store.sql.engines import Engines, make_engines
from store.sql.schema import events, sessions
from store.sql.sql_store import open_sql_store
from tests.store.backends import empty_database, in_real_time, names, new_session, whole_log

SECOND = {"session": "sess_1", "position": 2, "epoch": 0, "at_ns": 5_000, "type": "paused", "version": 1, "body": "{}"}


@pytest.fixture(params=[name for name in names() if name != "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return empty_database(request.param, tmp_path)


@pytest.mark.needs("postgresql")
def test_a_network_that_swallows_packets_is_noticed(tmp_path: Path) -> None:
    """Without these a connection to a machine that vanished would be waited for a quarter of an hour."""
    made = make_engines(empty_database("postgresql", tmp_path), "normal")
    for engine in (made.write, made.read):
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            told = driver.info.get_parameters()
        assert (told["tcp_user_timeout"], told["connect_timeout"]) == ("10000", "5")
        assert int(told["keepalives_idle"]) + int(told["keepalives_interval"]) * int(told["keepalives_count"]) == 10
    made.dispose()


class Taker:
    """Another server in the middle of taking the term: it has written, and not yet committed."""

    def __init__(self, engines: Engines) -> None:
        self.going_on = threading.Event()
        self.written = threading.Event()
        self._engines = engines

    def take(self) -> None:
        with self._engines.write.begin() as connection:
            connection.execute(update(sessions).values(term=2, server="server-b"))
            self.written.set()
            assert self.going_on.wait(10)
        self._engines.dispose()


@in_real_time
async def test_an_append_waits_for_the_taker_and_is_refused(url: str) -> None:
    async with open_sql_store(url) as store, trio.open_nursery() as nursery:
        owner = await new_session(store)
        taker = Taker(make_engines(url, "full"))
        nursery.start_soon(trio.to_thread.run_sync, taker.take)
        await trio.to_thread.run_sync(taker.written.wait)
        answers: list[StoreError | None] = []
        store.append_nowait(owner.batch(), answers.append)
        await trio.sleep(0.2)
        assert answers == [], "the append did not wait for the row's lock"
        taker.going_on.set()
        while not answers:
            await trio.sleep(0.01)
        assert [type(answer) for answer in answers] == [TermRefused]
        assert [record.position for record in await whole_log(store, "sess_1")] == [1, 2]


@in_real_time
async def test_a_second_writer_s_row_would_collide(url: str) -> None:
    """The last line of defence, should the locks ever fail: the key."""
    async with open_sql_store(url) as store:
        await new_session(store)
    engines = make_engines(url, "full")
    with engines.write.connect() as connection, pytest.raises(sqlalchemy.exc.IntegrityError):
        connection.execute(insert(events), SECOND)
    engines.dispose()
