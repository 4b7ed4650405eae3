"""Faults of a real database, made by real means: triggers that refuse, a lock that is held, a file that is damaged."""

from __future__ import annotations

import sqlite3
import stat
from functools import partial
from pathlib import Path

import pytest
import trio

from core.ports.store import StoreFailed
from core.session.digest import body_digest
from core.session.events import InputCleared, InputTranscript, Record
from store import health
from store.codec import UPCASTERS, LogUnreadable
from store.opening import open_store
from store.sql import engines, file, pages
from store.sql.checkpoint import Checkpointer
from store.sql.schema import bodies
from store.sql.sql_store import SqlStore, open_sql_store
from store.sql.urls import StoreUrlInvalid
from tests.store.backends import append, append_all, in_real_time, new_session, stored, whole_log

REFUSE_POISON = """
CREATE TRIGGER refuse BEFORE INSERT ON events WHEN NEW.body LIKE '%poison%'
BEGIN SELECT RAISE(ABORT, 'refused by a trigger: my secret'); END
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite3"


def execute(path: Path, statement: str, *values: object) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        with connection:
            return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


@in_real_time
async def test_one_session_s_bad_row_fails_that_session_only(path: Path) -> None:
    async with open_sql_store(f"sqlite:///{path}") as store:
        bad, good = await new_session(store, "bad"), await new_session(store, "good")
        execute(path, REFUSE_POISON)
        batches = [
            good.batch(urgent=False),
            bad.batch(urgent=False),
            bad.batch(InputTranscript("item", "poison"), bodies=(b"body",), urgent=False),
            bad.batch(urgent=False),
            good.batch(urgent=True),
        ]
        answers = await append_all(store, *batches)
        assert [type(answer) for answer in answers] == [type(None), StoreFailed, StoreFailed, StoreFailed, type(None)]
        assert len(await whole_log(store, "bad")) == 2, "one transaction a session: all of it or nothing"
        assert list(await store.read("good", after=2)) == await stored(store, "good", batches[0], batches[4])
        with pytest.raises(KeyError):
            await store.body("bad", body_digest(b"body"))
        await append(store, batches[1])


@in_real_time
async def test_a_failure_tells_its_code_and_nothing_that_was_said(path: Path) -> None:
    async with open_sql_store(f"sqlite:///{path}") as store:
        owner = await new_session(store)
        execute(path, REFUSE_POISON)
        with pytest.raises(StoreFailed) as caught:
            await owner.append(InputTranscript("item", "poison and secrets"))
        fault: BaseException | None = caught.value
        assert "SQLITE_CONSTRAINT_TRIGGER" in str(fault)
        assert "secret" not in str(fault)


@in_real_time
async def test_a_locked_file_is_an_error_in_time_and_not_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "BUSY_TIMEOUT_MS", 100)
    async with open_sql_store(f"sqlite:///{path}") as store:
        owner, other = await new_session(store), await new_session(store, "sess_2")
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        answers = await append_all(store, owner.batch(urgent=False), other.batch())
        assert [type(answer) for answer in answers] == [StoreFailed, StoreFailed]
        assert len(await whole_log(store, "sess_1")) == 2, "readers go on"
        blocker.execute("ROLLBACK")
        blocker.close()
        owner.position = 2
        await owner.append()


@in_real_time
async def test_whoever_waits_too_long_for_a_connection_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = engines._pool_options
    monkeypatch.setattr(engines, "_pool_options", lambda writes: {**usual(writes), "pool_timeout": 0.05})
    async with open_sql_store(f"sqlite:///{path}") as store:
        owner = await new_session(store)
        held = store._engines.write.connect()
        for ask in (partial(store.delete, "sess_1"), store.compact, owner.append):
            with pytest.raises(StoreFailed, match="no connection"):
                await ask()
        held.close()
        readers = [store._engines.read.connect() for _ in range(engines.READERS_MAX + engines.SCANS_MAX + 1)]
        with pytest.raises(StoreFailed, match="no connection"):
            await store.session("sess_1")
        for reader in readers:
            reader.close()
        assert len(await whole_log(store, "sess_1")) == 2
        await store.delete("sess_1")


@in_real_time
async def test_a_read_does_not_wait_for_a_writer(path: Path) -> None:
    async with open_sql_store(f"sqlite:///{path}") as store:
        await new_session(store)
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with trio.fail_after(2):
            assert len(await whole_log(store, "sess_1")) == 2
        blocker.close()


@in_real_time
async def test_damage_is_found_when_it_is_read(path: Path) -> None:
    async with open_sql_store(f"sqlite:///{path}") as store:
        owner = await new_session(store)
        await owner.append(InputCleared(), InputCleared(), InputCleared(), bodies=(b"body",))
    execute(path, "UPDATE bodies SET data = x'00'")
    execute(path, "DELETE FROM events WHERE position = 4")
    async with open_sql_store(f"sqlite:///{path}") as store:
        with pytest.raises(StoreFailed, match="damaged"):
            await store.body("sess_1", body_digest(b"body"))
        with pytest.raises(StoreFailed, match="damaged"):
            await store.bodies("sess_1", [body_digest(b"body")])
        with pytest.raises(LogUnreadable, match="position 4 is missing"):
            await store.read("sess_1")
        with pytest.raises(LogUnreadable, match="position 4 is missing"):
            await store.scan("sess_1", 0, 5, lambda records: None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("type = 'telepathy'", "unknown event type 'telepathy'"),
        ("type = 'tele,pathy'", "unknown event type"),
        ("version = 7", "newer than this server's"),
        ('body = \'{"item_id":"a"}\'', "text"),
        ('body = \'{"item_id":"a","te\'', "truncated"),
        ("body = '{},{}'", "item_id"),
        ("body = ''", "truncated"),
    ],
)
@in_real_time
async def test_a_scan_says_which_record_cannot_be_read(path: Path, change: str, words: str) -> None:
    async with open_sql_store(f"sqlite:///{path}") as store:
        owner = await new_session(store)
        await owner.append(*[InputTranscript("item", "words")] * 3)
        log = await whole_log(store, "sess_1")
        execute(path, f"UPDATE events SET {change} WHERE position = 4")
        found: list[Record] = []
        await store.scan("sess_1", 0, 3, found.extend)
        assert found == log[:3], "what lies before it can be read"
        with pytest.raises(LogUnreadable, match=f"position 4: .*{words}"):
            await store.scan("sess_1", 0, 5, found.extend)
        assert found == log[:3]


@in_real_time
async def test_a_scan_reads_events_of_older_versions(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_sql_store(f"sqlite:///{path}") as store:
        owner = await new_session(store)
        await owner.append(*[InputTranscript("item", "words")] * 3)
        log = await whole_log(store, "sess_1")
        execute(path, """UPDATE events SET version = 0, body = '{"said":"words"}' WHERE position = 4""")
        monkeypatch.setitem(UPCASTERS, ("input_transcript", 0), lambda raw: {"item_id": "item", "text": raw["said"]})
        found: list[Record] = []
        await store.scan("sess_1", 0, 5, found.extend)
        assert found == log


@in_real_time
async def test_a_page_of_a_scan_is_bounded_in_bytes(path: Path) -> None:
    async with open_sql_store(f"sqlite:///{path}") as store:
        owner = await new_session(store)
        sizes = [10, 10, 10, 3_000, 3_000, 9_000, 9_000, 10]
        await owner.append(*[InputTranscript("item", "é" * (pages.PAGE_BYTES // 10_000 * size // 2)) for size in sizes])
        counts: list[int] = []
        await store.scan("sess_1", 2, 10, lambda records: counts.append(len(records)))
        log = [record for record in await whole_log(store, "sess_1") if record.position > 2]
        assert len(log) == sum(counts) == len(sizes)
        while counts:
            page, log = log[: counts[0]], log[counts.pop(0) :]
            texts = [record.event.text for record in page if isinstance(record.event, InputTranscript)]
            assert len(texts) == 1 or sum(len(text.encode()) for text in texts) <= pages.PAGE_BYTES


@in_real_time
async def test_a_log_can_be_read_by_people(path: Path) -> None:
    async with open_sql_store(f"sqlite:///{path}") as store:
        owner = await new_session(store)
        await owner.append(InputTranscript("item_1", "Hello, wörld"))
    query = "SELECT position, type, json_extract(body, '$.text') FROM events WHERE type = ? ORDER BY position"
    assert execute(path, query, "input_transcript") == [(3, "input_transcript", "Hello, wörld")]


@in_real_time
async def test_tables_of_another_version_are_left_alone(path: Path) -> None:
    async with open_sql_store(f"sqlite:///{path}"):
        pass
    execute(path, "UPDATE alembic_version SET version_num = '99'")
    with pytest.raises(StoreFailed, match="version 99"):
        async with open_sql_store(f"sqlite:///{path}"):
            pass


@in_real_time
async def test_what_is_not_a_database_is_an_error(path: Path) -> None:
    path.write_bytes(b"these are not the bytes of a database" * 100)
    with pytest.raises(StoreFailed, match="SQLITE_NOTADB"):
        async with open_store(f"sqlite:///{path}"):
            pass
    with pytest.raises(StoreFailed, match=r"there is no folder .*/below/a for"):
        async with open_store(f"sqlite:///{path}/below/a/file"):
            pass
    for unusable in ("/sys/duologue.sqlite3", "/sys"):
        with pytest.raises(StoreFailed, match=r"cannot be opened: .* \(the server's user must be able to write"):
            async with open_store(f"sqlite:///{unusable}"):
                pass


@in_real_time
async def test_a_new_file_is_its_owner_s_only(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        await new_session(store)
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


@pytest.mark.parametrize("url", ["", "nonsense", "sqlite://", "sqlite:///:memory:", "mysql://host/name"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    async def main() -> None:
        async with open_store(url):
            pass

    with pytest.raises(StoreUrlInvalid):
        trio.run(main)


async def test_memory_is_a_url_too() -> None:
    async with open_store("memory:") as store:
        await (await new_session(store)).append()


@in_real_time
async def test_durability_is_sqlite_s_synchronous(path: Path) -> None:
    for durability, synchronous in (("full", 2), ("normal", 1)):
        made = engines.make_engines(f"sqlite:///{path}", durability)  # type: ignore[arg-type]
        with made.write.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == synchronous
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        made.dispose()


@in_real_time
async def test_a_full_disk_is_an_error_and_the_store_goes_on_when_there_is_room(path: Path) -> None:
    async with open_sql_store(f"sqlite:///{path}") as store:
        owner, other = await new_session(store), await new_session(store, "sess_2")
        pages = execute(path, "PRAGMA page_count")[0][0]
        _on_the_writer(store, f"PRAGMA max_page_count={pages}")
        big = owner.batch(bodies=(b"x" * 50_000,), urgent=False)
        answers = await append_all(store, big, other.batch())
        assert isinstance(answers[0], StoreFailed)
        assert str(answers[0]).startswith("OperationalError: SQLITE_FULL (the disk is full: make room")
        assert answers[1] is None
        _on_the_writer(store, "PRAGMA max_page_count=1000000")
        await append(store, big)
        assert list(await store.read("sess_1", after=2)) == await stored(store, "sess_1", big)


@in_real_time
async def test_a_store_that_refuses_writes_says_so_until_it_takes_them_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CALM_S", 1.0)
    async with open_sql_store(f"sqlite:///{path}") as store:
        await store.survey("server-a", 10_000)
        assert store.fault() is None
        _on_the_writer(store, "PRAGMA query_only=ON")
        while store.fault() is None:
            with pytest.raises(StoreFailed, match=r"SQLITE_READONLY \(the file is read-only: the server's user must"):
                await store.survey("server-a", 10_000)
        assert "SQLITE_READONLY" in str(store.fault())
        _on_the_writer(store, "PRAGMA query_only=OFF")
        while store.fault() is not None:
            await store.survey("server-a", 10_000)


@in_real_time
@pytest.mark.parametrize("part", ["", "-wal"])
async def test_what_would_be_written_to_a_deleted_file_is_refused(path: Path, part: str) -> None:
    """SQLite itself would go on, and all would be gone with the process."""
    moved, aside = Path(f"{path}{part}"), Path(f"{path}.aside")
    async with open_sql_store(f"sqlite:///{path}") as store:
        owner = await new_session(store)
        batch = owner.batch()
        moved.rename(aside)
        with pytest.raises(StoreFailed, match=f"{moved.name} is gone; put the old one back, or restart"):
            await append(store, batch)
        moved.write_bytes(b"")
        with pytest.raises(StoreFailed, match="was replaced by another one"):
            await append(store, batch)
        aside.rename(moved)
        await append(store, batch)
        assert list(await store.read("sess_1", after=2)) == await stored(store, "sess_1", batch)


@in_real_time
async def test_a_disk_with_little_room_left_is_a_fault_before_it_is_full(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_sql_store(f"sqlite:///{path}") as store:
        monkeypatch.setattr(file, "ROOM_BYTES_MIN", 2**62)
        while store.fault() is None:
            await trio.sleep(0.05)
        assert "nearly full; make room" in str(store.fault())
        await new_session(store)
        monkeypatch.setattr(file, "ROOM_BYTES_MIN", 0)
        while store.fault() is not None:
            await trio.sleep(0.05)


def _on_the_writer(store: SqlStore, statement: str) -> None:
    """Settings of SQLite that hold for one connection: the writer's, which has only one."""
    connection = store._engines.write.raw_connection()  # SQLAlchemy's own would begin a transaction
    connection.cursor().execute(statement)
    connection.close()


# --- checkpoints ----------------------------------------------------------------------------------------------------


@in_real_time
async def test_checkpoints_run_beside_the_writer(path: Path) -> None:
    made = engines.make_engines(f"sqlite:///{path}", "full")
    for engine in (made.write, made.read):
        with engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA wal_autocheckpoint").scalar() == 0
    made.dispose()
    async with open_sql_store(f"sqlite:///{path}") as store:
        owner = await new_session(store)
        for _ in range(5):
            await owner.append(bodies=(bytes([owner.batches]) * 100_000,))
        with trio.fail_after(10):
            # The thread's own checkpoint, without any further write.
            while path.stat().st_size < 500_000:
                await trio.sleep(0.05)


def test_a_log_that_readers_held_long_is_started_again_by_the_writer(path: Path) -> None:
    made = engines.make_engines(f"sqlite:///{path}", "normal")
    checkpointer = Checkpointer(made.read, log_frames_max=10)

    def write(digest: str) -> int:
        """A body of 40 kB in a group; the log's size after it."""
        checkpointer.before_group()
        with made.write.begin() as connection:
            values = {"session": "s", "digest": digest, "coding": "raw", "size_bytes": 40_000, "data": b"x" * 40_000}
            connection.execute(bodies.insert(), values)
        return Path(f"{path}-wal").stat().st_size

    write("1")
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM bodies").fetchall()
    write("2")
    checkpointer._checkpoint()
    grown = write("3")
    reader.close()
    assert write("4") == grown, "the log grew although nobody needed what is in it"
    made.dispose()


def test_a_checkpoint_that_fails_is_logged_and_tried_again(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = engines.make_engines(f"sqlite:///{path}", "full")
    checkpointer = Checkpointer(made.read)

    def fail(engine: object) -> int:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr("store.sql.checkpoint.checkpoint", fail)
        checkpointer._checkpoint()
    assert "checkpoint failed" in caplog.text
    checkpointer._checkpoint()
    made.dispose()
