"""A PostgreSQL that stands still: its processes are stopped by a signal, and its sockets stay open."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql.base import PGDialect

from adapters.bench.environment import descendants
from core.ports.store import Body, Owned, StoreFailed
from core.session.digest import body_digest
from store.sql import stalls
from store.sql.sql_store import open_sql_store
from tests.crash.outages import running_postgres, url_of
from tests.store.backends import append, append_all, in_real_time_for, new_session, whole_log

RUN_S, STILL_S = 100.0, 60.0
# An alarm in the middle of a run of trio's would leave the store open and its threads running: the run gives up first.
pytestmark = [pytest.mark.needs("pgserver"), pytest.mark.limit(wall_s=2 * RUN_S)]


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for limit in ("LIMIT_S", "WORK_LIMIT_S", "VACUUM_LIMIT_S"):
        monkeypatch.setattr(stalls, limit, 1.0)
    with running_postgres() as server:
        yield server


def tell(pids: list[int], word: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # PostgreSQL ends processes of its own accord
            os.kill(pid, word)


@contextmanager
def standing_still(postgres: Any) -> Iterator[None]:
    """It goes on by itself after STILL_S: a thread that waits for it cannot be called off."""
    pids = descendants(postgres.get_pid())
    went_on = threading.Event()

    def go_on() -> None:
        went_on.set()
        tell(pids, signal.SIGCONT)

    timer = threading.Timer(STILL_S, go_on)
    try:
        tell(pids, signal.SIGSTOP)
        timer.start()
        yield
    finally:
        timer.cancel()
        tell(pids, signal.SIGCONT)
    assert not went_on.is_set(), "somebody waited until the database went on"


@in_real_time_for(RUN_S)
async def test_who_asks_a_database_that_stands_still_is_told_so(postgres: Any) -> None:
    async with open_sql_store(url_of(postgres)) as store:
        owner = await new_session(store)
        with standing_still(postgres):
            batch = owner.batch()
            (answer,) = await append_all(store, batch)
            assert isinstance(answer, StoreFailed)
            for ask in (lambda: store.session("sess_1"), lambda: store.scan("sess_1", 0, 2, lambda records: None)):
                with pytest.raises(StoreFailed):
                    await ask()
        await append(store, batch)
        assert len(await whole_log(store, "sess_1")) == 3


@in_real_time_for(RUN_S)
async def test_appends_wait_for_it_as_long_as_the_store_is_patient(postgres: Any) -> None:
    async with open_sql_store(url_of(postgres), patience_s=90.0) as store:
        owner = await new_session(store)
        with standing_still(postgres):
            answers: list[object] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_note, store, owner.batch(), answers)
                while not store._database.away:
                    await trio.sleep(0.05)
                assert answers == []
                nursery.cancel_scope.cancel()
        await owner.append()
        assert len(await whole_log(store, "sess_1")) == 4


@in_real_time_for(RUN_S)
async def test_a_store_closes_though_its_database_stands_still(postgres: Any) -> None:
    async with open_sql_store(url_of(postgres), patience_s=90.0) as store:
        owner = await new_session(store)
        answers: list[object] = []
        with standing_still(postgres):
            store.append_nowait(owner.batch(), answers.append)
            await trio.to_thread.run_sync(store.close)
    await trio.testing.wait_all_tasks_blocked()
    assert [type(answer) for answer in answers] == [StoreFailed]


@in_real_time_for(RUN_S)
async def test_a_store_closes_though_it_was_just_opened(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLAlchemy asks an engine's first connection what it speaks to, and nobody watches over that."""
    initialize = PGDialect.initialize

    def slowly(dialect: PGDialect, connection: Connection) -> None:
        time.sleep(2.0)
        initialize(dialect, connection)

    monkeypatch.setattr(PGDialect, "initialize", slowly)
    async with open_sql_store(url_of(postgres)) as store:
        await trio.sleep(0.5)
        with standing_still(postgres):
            await trio.to_thread.run_sync(store.close)


@pytest.mark.parametrize("work", ["put_log", "put_bodies", "delete", "compact"])
@in_real_time_for(RUN_S)
async def test_work_on_whole_logs_gives_the_connection_back(postgres: Any, work: str) -> None:
    async with open_sql_store(url_of(postgres)) as store:
        owner = await new_session(store)
        other = await new_session(store, "sess_2")
        log = list(await store.read("sess_1"))
        owned = Owned("sess_1", owner.term, owner.position)
        asks = {
            "put_log": partial(store.put_log, log, replacing=owned),
            "put_bodies": partial(store.put_bodies, "sess_3", [Body(body_digest(b"body"), b"body")]),
            "delete": partial(store.delete, "sess_1"),
            "compact": store.compact,
        }
        with standing_still(postgres), pytest.raises(StoreFailed):
            await asks[work]()
        await asks[work]()
        await other.append()


@in_real_time_for(RUN_S)
async def test_what_takes_long_is_given_longer(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "WORK_LIMIT_S", 60.0)
    async with open_sql_store(url_of(postgres)) as store:
        await store._keep(lambda connection: connection.exec_driver_sql("SELECT pg_sleep(3)").close())


def test_processes_that_are_gone_keep_none_of_the_others_stopped() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        tell([ended.pid, sleeper.pid], signal.SIGTERM)
        assert sleeper.wait(30) == -signal.SIGTERM


class Driver:
    """Of a driver's connection, what the guard asks."""

    closed = False

    def __init__(self, wire: socket.socket | None) -> None:
        self.wire = wire

    def fileno(self) -> int:
        assert self.wire is not None
        return self.wire.fileno()


class DriverError(Exception):
    """As a driver has one."""


class BrokenDriver(Driver):
    def fileno(self) -> int:
        raise DriverError("the connection is closed")


def test_a_connection_that_breaks_at_that_very_moment_does_not_end_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "LIMIT_S", 0.0)
    monkeypatch.setattr(stalls, "LOOK_EVERY_S", 0.01)
    guard = stalls.StallGuard(DriverError)
    ours, theirs = socket.socketpair()
    theirs.settimeout(30)
    with socket.socket() as never_connected, ours, theirs, ExitStack() as waits:
        for driver in (Driver(never_connected), BrokenDriver(None), Driver(ours)):
            waits.enter_context(guard.over(driver))
        guard.start()
        try:
            assert theirs.recv(1) == b"", "the last one was hung up on"
        finally:
            guard.close()


async def _note(store: Any, batch: Any, answers: list[object]) -> None:
    answers.extend(await append_all(store, batch))
