"""A SQLite log whose end is lost, at every single byte: what is recovered is exactly what had been committed before it."""

from __future__ import annotations

import os
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import attrs
import pytest
import trio

from core.session.events import Append
from store.opening import open_store
from store.sql.checkpoint import Checkpointer
from tests.store.backends import new_session, whole_log, writer

pytestmark = [pytest.mark.crash, pytest.mark.limit(wall_s=300)]

PAGE_BYTES = 512
WAL_HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
FRAME_BYTES = FRAME_HEADER_BYTES + PAGE_BYTES
APPENDS = 3
SESSION = "sess_1"
IN_MEMORY = Path("/dev/shm")
"""Where a machine has it: nothing here depends on a disk, and seventeen thousand small files do."""

Rows = tuple[tuple[object, ...], ...]


@attrs.frozen
class Log:
    """A database file with its tables, the write-ahead log of a session's whole life beside it, and the rows that both
    together hold."""

    file: bytes
    wal: bytes
    events: Rows
    bodies: Rows

    def commits(self) -> list[int]:
        """The offset at which each transaction is complete: a frame whose header tells the database's size ends one."""
        ends = range(WAL_HEADER_BYTES + FRAME_BYTES, len(self.wal) + 1, FRAME_BYTES)
        return [end for end in ends if struct.unpack_from(">I", self.wal, end - FRAME_BYTES + 4)[0]]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    if not os.access(IN_MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="duologue-torn-", dir=IN_MEMORY) as name:
        yield Path(name)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    """Small pages and short bodies make a log that is small enough to be cut everywhere."""
    monkeypatch.setattr(Checkpointer, "_checkpoint", lambda _self: None)  # it would begin the log anew
    path = tmp_path / "whole.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode=WAL")

    async def make_tables() -> None:
        async with open_store(f"sqlite:///{path}"):
            pass

    async def live() -> bytes:
        async with open_store(f"sqlite:///{path}") as store:
            owner = await new_session(store, SESSION)
            for number in range(APPENDS):
                data = bytes([number + 1]) * 30
                await owner.append(Append("audio", str(number), len(data), 0, 0), bodies=(data,))
            return Path(f"{path}-wal").read_bytes()

    trio.run(make_tables)
    file = path.read_bytes()
    wal = trio.run(live)
    with closing(sqlite3.connect(path)) as connection:
        found = Log(file, wal, *_rows(connection))
    assert len(found.commits()) == 1 + APPENDS
    assert len(found.events) == 2 + APPENDS
    assert len(found.bodies) == APPENDS
    return found


@attrs.define(eq=False)
class Torn:
    """A copy of the log that loses one byte after the other, from its end. Read only, so that nothing is ever put right."""

    path: Path
    log: Log
    zeroed: bool
    """The file keeps its length, as some file systems leave it: what was lost reads as zeros."""

    def lose_one_by_one(self) -> Iterator[int]:
        """Each offset, once everything from there on is lost."""
        self.path.write_bytes(self.log.file)
        wal = os.open(f"{self.path}-wal", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.write(wal, self.log.wal)
            yield len(self.log.wal)
            for offset in reversed(range(len(self.log.wal))):
                if self.zeroed and not self.log.wal[offset]:
                    continue  # it was a zero: the file is the one that was tried just now
                if self.zeroed:
                    os.pwrite(wal, b"\0", offset)
                else:
                    os.ftruncate(wal, offset)
                yield offset
        finally:
            os.close(wal)

    def recovered(self) -> tuple[Rows, Rows, int]:
        """Events, bodies, and the session's head, as SQLite recovers them. The index beside the log is made anew."""
        Path(f"{self.path}-shm").unlink(missing_ok=True)
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as connection:
            head = connection.execute("SELECT position FROM sessions").fetchone()
            return *_rows(connection), head[0] if head else 0

    def complete(self, offset: int) -> int:
        """How many transactions are whole when all from ``offset`` on is lost. A zero that became a zero is not lost."""
        if self.zeroed:
            offset = len(self.log.wal) - len(self.log.wal[offset:].lstrip(b"\0"))
        return sum(end <= offset for end in self.log.commits())


def _rows(connection: sqlite3.Connection) -> tuple[Rows, Rows]:
    events = connection.execute("SELECT * FROM events ORDER BY session, position").fetchall()
    bodies = connection.execute("SELECT * FROM bodies ORDER BY rowid").fetchall()
    return tuple(events), tuple(bodies)


@pytest.mark.parametrize("zeroed", [False, True], ids=["cut", "zeroed"])
def test_a_log_cut_at_every_offset_recovers_what_was_committed_before(folder: Path, log: Log, zeroed: bool) -> None:
    torn = Torn(folder / "torn.sqlite3", log, zeroed)
    offsets = 0
    for offset in torn.lose_one_by_one():
        commits = torn.complete(offset)
        records = commits + 1 if commits else 0  # the first transaction holds two
        events, bodies, head = torn.recovered()
        assert events == log.events[:records], offset
        assert bodies == log.bodies[: max(0, commits - 1)], offset
        assert head == records, offset
        offsets += 1
    print(f"{offsets} offsets of a log of {len(log.wal)} bytes, {len(log.commits())} transactions")
    assert offsets == (len(log.wal) - log.wal.count(0) if zeroed else len(log.wal)) + 1


def test_the_store_goes_on_from_a_log_cut_at_any_frame(tmp_path: Path, log: Log) -> None:
    """The same through the store: it folds, gives out a term, and takes the next batch."""
    path = tmp_path / "torn.sqlite3"

    async def go_on(records: int) -> None:
        async with open_store(f"sqlite:///{path}") as store:
            if not records:
                assert list(await store.sessions()) == []
                await new_session(store, SESSION)
                return
            found = await whole_log(store, SESSION)
            assert [record.position for record in found] == list(range(1, records + 1))
            await writer(store, await store.take_term(SESSION, "server-b", 1)).append(bodies=(b"more",))

    commits = log.commits()
    for offset in range(0, len(log.wal) + 1, FRAME_BYTES):
        cut = min(offset + WAL_HEADER_BYTES - 1, len(log.wal))  # one byte short of a frame
        path.write_bytes(log.file)
        Path(f"{path}-shm").unlink(missing_ok=True)
        Path(f"{path}-wal").write_bytes(log.wal[:cut])
        whole = sum(end <= cut for end in commits)
        trio.run(go_on, whole + 1 if whole else 0)
