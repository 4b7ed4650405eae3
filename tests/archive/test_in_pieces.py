"""Logs come and go in pieces, and to readers they are there or they are not."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from adapters.archive import bringing_in
from adapters.archive.bringing_in import import_session
from adapters.archive.erasing import erase_session, rewritten
from adapters.archive.pruning import ABANDONED_NS, prune_sessions
from adapters.archive.reading_lines import ArchiveInvalid
from adapters.archive.writing import export_session
from adapters.command_line.main import main
from core.ports.keeping import Keeper, Usage
from core.ports.store import Body, Owned, SessionExists, SessionUnknown, StoredBatch, StoreFailed, TermRefused
from core.session import events as e
from store.memory import open_memory_store
from store.opening import open_store
from store.sql import keeping, pages, reading
from tests.archive.recordings import put, record
from tests.archive.test_archive import replayed
from tests.archive.test_beside_a_server import is_free
from tests.store.backends import empty_database, in_real_time_for, names

Recording = tuple[list[StoredBatch], list[Body]]

PIECE = 10
TIME_S = 55
"""For a busy machine."""
SQL = pytest.mark.parametrize("backend", [name for name in names() if name != "memory"])


@pytest.fixture(scope="module")
def recording() -> Recording:
    return record()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "EVENTS_AT_ONCE", PIECE)
    monkeypatch.setattr(keeping, "BODIES_BYTES_AT_ONCE", 20_000)
    monkeypatch.setattr(bringing_in, "GROUP_BYTES", 20_000)


@pytest.fixture
def archive(recording: Recording, tmp_path: Path) -> Path:
    async def export() -> None:
        async with open_memory_store() as store:
            await export_session(store, await put(store, recording), tmp_path / "talk.zip")

    trio.run(export)
    return tmp_path / "talk.zip"


def session_of(recording: Recording) -> str:
    opened = recording[0][0].records[0].event
    assert isinstance(opened, e.SessionOpened)
    return opened.session_id


class Steps:
    """Counts the pieces of one kind of work, and breaks it off before piece ``last``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, last: int = 10**6) -> None:
        self.done = 0
        self._work, self._last = getattr(keeping, name), last
        monkeypatch.setattr(keeping, name, self)

    def __call__(self, connection: Any, *given: Any, **named: Any) -> Any:
        if self.done == self._last:
            raise sqlite3.OperationalError("broken off")
        self.done += 1
        return self._work(connection, *given, **named)


@contextmanager
def breaks_off(monkeypatch: pytest.MonkeyPatch, name: str, last: int) -> Iterator[None]:
    """What is done within breaks off before its piece ``last`` of that work."""
    with monkeypatch.context() as patch:
        Steps(patch, name, last)
        with pytest.raises(sqlite3.OperationalError):
            yield


async def nobody_sees(store: Keeper, session: str) -> None:
    assert await store.sessions() == []
    for look in (store.session(session), store.read(session), store.picked(session, [e.SessionOpened])):
        with pytest.raises(SessionUnknown):
            await look
    with pytest.raises(SessionUnknown):
        await store.take_term(session, "server-b", 1)
    survey = await store.survey("server-b", 1)
    assert (survey.owned, survey.ownerless) == ((), ())


@in_real_time_for(TIME_S)
async def test_the_file_is_free_between_the_pieces(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.sqlite3"
    free: list[bool] = []

    async def leave(seconds: float) -> None:
        free.append(is_free(path))

    async with open_store(f"sqlite:///{path}") as store:
        put_events, delete_bodies = (Steps(monkeypatch, name) for name in ("put_events", "delete_bodies"))
        monkeypatch.setattr("store.sql.sql_store.trio.sleep", leave)
        await put(store, recording)
        count = sum(len(batch.records) for batch in recording[0])
        assert put_events.done == -(-count // PIECE) > 5
        await store.delete(session_of(recording))
        assert delete_bodies.done > 5
    assert all(free)
    assert len(free) > put_events.done + delete_bodies.done


@SQL
@pytest.mark.parametrize("work", ["put_bodies", "put_events", "end_log"])
@in_real_time_for(TIME_S)
async def test_an_import_that_was_killed_is_seen_by_nobody_and_completed_by_the_next(
    work: str, backend: str, recording: Recording, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, session = empty_database(backend, tmp_path), session_of(recording)
    shorter = recording[0][:-2], recording[1]
    async with open_store(url) as store, open_store(url) as other:
        with monkeypatch.context() as patch:
            Steps(patch, work, last=0 if work == "end_log" else 2)
            broken_off = put(store, shorter) if work != "put_bodies" else import_killed(store, archive, patch)
            with pytest.raises(sqlite3.OperationalError):
                await broken_off
        await nobody_sees(other, session)
        (left,) = await other.usage()
        assert (left.session, left.unfinished, left.closed) == (session, True, True)
        assert left.total_bytes > 0
        assert (await prune_sessions(other, left.updated_ns, 2**62, 0)).pruned == (), "it may be at work still"
        assert (await import_session(other, archive)).replay.exact
        assert (await replayed(store, session)).exact
        assert list(await store.read(session, limit=10**6)) == recording[0]
        assert not (await store.usage())[0].unfinished


async def import_killed(store: Keeper, archive: Path, patch: pytest.MonkeyPatch) -> None:
    """As one that was killed: nothing is taken back."""

    async def nothing(session: str) -> None:
        await trio.lowlevel.checkpoint()

    patch.setattr(store, "withdraw", nothing)
    await import_session(store, archive)


@SQL
@in_real_time_for(TIME_S)
async def test_what_was_left_for_an_hour_is_pruned(
    backend: str, recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(empty_database(backend, tmp_path)) as store:
        with breaks_off(monkeypatch, "put_events", last=2):
            await put(store, recording)
        (left,) = await store.usage()
        now_ns = left.updated_ns + ABANDONED_NS + 1
        assert (await prune_sessions(store, now_ns, None, None)).pruned == (left.session,)
        assert await store.usage() == []
        with pytest.raises(KeyError):
            await store.body(left.session, recording[1][0].digest)


@SQL
@in_real_time_for(TIME_S)
async def test_what_was_left_and_then_completed_is_not_pruned(
    backend: str, recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = empty_database(backend, tmp_path)
    async with open_store(url) as store, open_store(url) as other:
        await store.put_bodies(session_of(recording), recording[1])
        (left,) = before = await store.usage()
        session = await put(other, recording)

        async def usage() -> Sequence[Usage]:
            await trio.lowlevel.checkpoint()
            return before

        monkeypatch.setattr(store, "usage", usage)
        await prune_sessions(store, left.updated_ns + ABANDONED_NS + 1, None, None)
        assert (await replayed(other, session)).exact


@pytest.mark.parametrize("backend", names())
@in_real_time_for(TIME_S)
async def test_an_import_that_fails_takes_back_what_it_has_put(
    backend: str, recording: Recording, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    check = bringing_in.body_digest

    def last_is_damaged(data: bytes) -> str:
        asked.append(len(data))
        return check(data) if len(asked) < len(recording[1]) else "another"

    monkeypatch.setattr(bringing_in, "body_digest", last_is_damaged)
    async with open_store("memory:" if backend == "memory" else empty_database(backend, tmp_path)) as store:
        with pytest.raises(ArchiveInvalid):
            await import_session(store, archive)
        assert await store.usage() == []
        for body in recording[1]:
            with pytest.raises(KeyError):
                await store.body(session_of(recording), body.digest)


async def test_a_damaged_archive_is_told_though_the_store_fails_as_its_parts_are_taken_back(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(session: str) -> None:
        await trio.lowlevel.checkpoint()
        raise StoreFailed("away")

    monkeypatch.setattr(bringing_in, "body_digest", lambda data: "another")
    async with open_memory_store() as store:
        monkeypatch.setattr(store, "withdraw", fail)
        with pytest.raises(ArchiveInvalid):
            await import_session(store, archive)


@SQL
@in_real_time_for(TIME_S)
async def test_two_imports_of_one_session_do_not_mix(
    backend: str, recording: Recording, archive: Path, tmp_path: Path
) -> None:
    url, session = empty_database(backend, tmp_path), session_of(recording)
    async with open_store(url) as first, open_store(url) as second:
        refused: list[type[Exception]] = []

        async def bring_in(store: Keeper) -> None:
            try:
                await import_session(store, archive)
            except (SessionExists, TermRefused) as fault:
                refused.append(type(fault))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(bring_in, first)
            nursery.start_soon(bring_in, second)
        assert len(refused) == 1
        after = await replayed(first, session)
        assert (after.exact, after.bodies) == (True, [])


@SQL
@in_real_time_for(TIME_S)
async def test_of_two_imports_the_later_one_goes_on(backend: str, recording: Recording, tmp_path: Path) -> None:
    url, session = empty_database(backend, tmp_path), session_of(recording)
    log, bodies = recording
    async with open_store(url) as first, open_store(url) as second:
        await first.put_bodies(session, bodies[:1])
        await second.put_bodies(session, bodies[1:])
        with pytest.raises(TermRefused):
            await first.put_bodies(session, bodies)
        await first.withdraw(session)
        with pytest.raises(KeyError):  # what the first one had put is no part of the second
            await second.body(session, bodies[0].digest)
        await second.put_bodies(session, bodies)
        await second.put_log(log)
        after = await replayed(first, session)
        assert (after.exact, after.bodies) == (True, [])
        for store in (first, second):
            with pytest.raises(SessionExists):
                await store.put_bodies(session, bodies)
            with pytest.raises(SessionExists):
                await store.put_log(log)


@SQL
@in_real_time_for(TIME_S)
async def test_a_session_that_was_half_thrown_away_is_gone(
    backend: str, recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(empty_database(backend, tmp_path)) as store:
        session = await put(store, recording)
        with breaks_off(monkeypatch, "delete_events", last=2):
            await store.delete(session)
        await nobody_sees(store, session)
        await store.delete(session)
        assert await store.usage() == []
        with pytest.raises(SessionUnknown):
            await store.delete(session)


@SQL
@in_real_time_for(TIME_S)
async def test_sounds_of_a_session_that_was_half_thrown_away_do_not_come_back_with_its_log(
    backend: str, recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(empty_database(backend, tmp_path)) as store:
        session = await put(store, recording)
        with breaks_off(monkeypatch, "delete_bodies", last=1):
            await store.delete(session)
        await store.put_log(rewritten(recording[0], 10**18))
        (usage,) = await store.usage()
        assert (usage.unfinished, usage.bodies_bytes) == (False, 0)


@SQL
@in_real_time_for(TIME_S)
async def test_an_import_that_is_stopped_as_it_begins_leaves_nothing(
    backend: str, recording: Recording, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, stopped = keeping.claim, trio.CancelScope()

    def claim_and_stop(*given: Any, **named: Any) -> Any:
        trio.from_thread.run_sync(stopped.cancel)
        return claim(*given, **named)

    monkeypatch.setattr(keeping, "claim", claim_and_stop)
    async with open_store(empty_database(backend, tmp_path)) as store:
        with stopped:
            await import_session(store, archive)
        assert stopped.cancelled_caught
        assert await store.usage() == []


@SQL
@in_real_time_for(TIME_S)
async def test_an_erasure_takes_no_sound_of_a_log_that_came_in_its_log_s_place(
    backend: str, recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, session = empty_database(backend, tmp_path), session_of(recording)
    async with open_store(url) as store, open_store(url) as other:
        await put(store, recording)
        row = await store.session(session)
        keep, kept = store._keep, list[Any]()  # type: ignore[attr-defined]

        async def keep_late(work: Any) -> Any:
            kept.append(work)
            if len(kept) == 2:  # the log is erased, its sounds are not
                await other.delete(session)
                await put(other, recording)
            return await keep(work)

        monkeypatch.setattr(store, "_keep", keep_late)
        erased = rewritten(recording[0], 10**18)
        with pytest.raises(TermRefused):
            await store.put_log(erased, replacing=Owned(session, row.term, row.position))
        after = await replayed(other, session)
        assert (after.exact, after.erased, after.bodies) == (True, False, [])


@SQL
@pytest.mark.parametrize("asked", ["take_term", "delete"])
@in_real_time_for(TIME_S)
async def test_who_waits_for_a_log_that_is_replaced_finds_it(
    asked: str, backend: str, recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, replace, wrote = empty_database(backend, tmp_path), keeping.replace_log, trio.Event()

    def replace_and_wait(connection: Any, **given: Any) -> None:
        replace(connection, **given)
        trio.from_thread.run_sync(wrote.set)
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
        while backend == "postgresql" and not connection.exec_driver_sql(waiting).first():
            time.sleep(0.01)

    monkeypatch.setattr(keeping, "replace_log", replace_and_wait)
    async with open_store(url) as store, open_store(url) as other:
        session = await put(store, recording)
        row = await store.session(session)
        log = rewritten(recording[0], 10**18)

        async def ask() -> None:
            await wrote.wait()
            if asked == "delete":
                await other.delete(session)
            else:
                assert (await other.take_term(session, "server-b", 1)).term == row.term + 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with suppress(TermRefused):  # before its sounds went
                await store.put_log(log, replacing=Owned(session, row.term, row.position))
        left = await store.usage()
        assert [one.unfinished for one in left] == ([] if asked == "delete" else [False])


@SQL
@in_real_time_for(TIME_S)
async def test_a_log_that_goes_while_it_is_read_is_not_damaged(
    backend: str, recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_RECORDS", PIECE)
    async with open_store(empty_database(backend, tmp_path)) as store:
        session = await put(store, recording)
        read: list[int] = []

        async def throw_away() -> None:
            with breaks_off(monkeypatch, "delete_events", last=3):
                await store.delete(session)

        def take(records: Sequence[e.Record]) -> None:
            read.append(len(records))
            trio.from_thread.run(throw_away)

        with pytest.raises(SessionUnknown):
            await store.scan(session, 0, (await store.session(session)).position, take)
        assert read == [PIECE]


@SQL
@in_real_time_for(TIME_S)
async def test_a_log_that_goes_before_the_rest_of_its_first_batch_is_read_is_not_damaged(
    backend: str, recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(empty_database(backend, tmp_path)) as store:
        session, batches_of = await put(store, recording), reading.batches_of

        def batches_of_what_is_left(*given: Any) -> Any:
            monkeypatch.setattr(reading, "batches_of", batches_of)
            trio.from_thread.run(store.delete, session)
            return batches_of(*given)

        monkeypatch.setattr(reading, "batches_of", batches_of_what_is_left)
        found: list[StoredBatch] = []
        with pytest.raises(SessionUnknown) if backend == "postgresql" else nullcontext():
            found += await store.read(session, 0, 1)
        assert found == ([] if backend == "postgresql" else recording[0][:1]), "SQLite reads of one moment"


@SQL
@in_real_time_for(TIME_S)
async def test_an_erasure_that_broke_off_is_completed_when_it_is_asked_again(
    backend: str, recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(empty_database(backend, tmp_path)) as store:
        session = await put(store, recording)
        with breaks_off(monkeypatch, "delete_bodies", last=1):
            await erase_session(store, session, lambda: 10**18)
        assert (await replayed(store, session)).erased, "the log is erased first, and all at once"
        await erase_session(store, session, lambda: 10**18)
        (usage,) = await store.usage()
        assert usage.bodies_bytes == 0


def test_a_second_import_that_is_refused_says_so_and_leaves_no_traceback(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is overtaken."""

    def overtaken(*_given: Any, **_named: Any) -> None:
        raise TermRefused("duplex-1: another import of it has begun, or it was thrown away")

    monkeypatch.setattr(keeping, "put_events", overtaken)
    words = ["sessions", "import", str(archive), "--store", f"sqlite:///{tmp_path}/log.sqlite3"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert "another import of it has begun" in result.output
