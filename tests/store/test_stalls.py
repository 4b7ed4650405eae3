"""A PostgreSQL that stands still: its processes are stopped by a signal, and its sockets stay open."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import trio

from adapters.bench.environment import descendants
from core.ports.store import StoreFailed
from store.sql import stalls
from store.sql.sql_store import open_sql_store
from tests.crash.outages import running_postgres, url_of
from tests.store.backends import append, append_all, in_real_time_for, new_session, whole_log

pytestmark = pytest.mark.needs("pgserver")


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(stalls, "LIMIT_S", 1.0)
    with running_postgres() as server:
        yield server


@contextmanager
def standing_still(postgres: Any) -> Iterator[None]:
    pids = descendants(postgres.get_pid())
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@in_real_time_for(100)
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


@in_real_time_for(100)
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


@in_real_time_for(100)
async def test_a_store_closes_though_its_database_stands_still(postgres: Any) -> None:
    async with open_sql_store(url_of(postgres), patience_s=90.0) as store:
        owner = await new_session(store)
        answers: list[object] = []
        with standing_still(postgres):
            store.append_nowait(owner.batch(), answers.append)
            await trio.to_thread.run_sync(store.close)
    await trio.testing.wait_all_tasks_blocked()
    assert [type(answer) for answer in answers] == [StoreFailed]


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
