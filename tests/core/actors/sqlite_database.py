"""The stories' database as a SQLite file, with the product's own store in front of it: its writer thread, its reading
threads, its SQL. What a MemoryDatabase is to the stories otherwise.

Threads and a mock clock do not go together by themselves: as soon as everyone waits for a thread the clock would jump, and
which of a thread and a task comes first would be chance. So a thread works here only while everything else waits, and the
clock stands still meanwhile. A story is then as repeatable as in memory. What is left to chance is only what nobody in the
story can see: how the writer groups batches into commits, and how long anything takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import attrs
import trio
import trio.testing

from core.ports.store import (
    BODIES_BYTES,
    AppendDone,
    Batch,
    Owned,
    SessionRow,
    Store,
    StoredBatch,
    StoreError,
    StoreFailed,
    Survey,
    TakeRecords,
    TermGiven,
)
from core.session.events import Event, Record, SessionOpened
from store.memory import Fault, FaultPolicy
from store.planning import AppendBatch, Beat, CreateLog, Head, Request, TakeTerm, encode_batch
from store.sql import reading
from store.sql.engines import Engines, make_engines
from store.sql.sql_store import open_sql_store
from store.sql.writer import GroupLimits
from tests.virtual_time import clock_held

T = TypeVar("T")

AT_ONCE = GroupLimits(window_s=0.0, patience_s=0.0)
"""Nobody else will come: everything waits for this group."""


@attrs.define(eq=False)
class SqliteDatabase:
    """The file. Several servers' stores may be open on it."""

    path: Path
    tells_terms: bool = True
    """Without a meaning here: on SQLite, servers find out by themselves."""
    _engines: Engines = attrs.field(init=False)
    _turn: trio.Lock = attrs.field(factory=trio.Lock)

    def __attrs_post_init__(self) -> None:
        self._engines = make_engines(self.url, "normal")

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def dispose(self) -> None:
        self._engines.dispose()

    # -- for assertions, at once and in the event loop ---------------------------------------------------------

    def head(self, session: str) -> Head:
        with self._engines.read.connect() as connection:
            return reading.read_head(connection, session)

    def read(self, session: str, after: int, limit: int) -> list[StoredBatch]:
        with self._engines.read.connect() as connection:
            return reading.read_batches(connection, session, after, min(limit, 10**6))

    def records(self, session: str) -> tuple[Record, ...]:
        return tuple(record for batch in self.read(session, 0, 10**6) for record in batch.records)

    # -- for servers -------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """Everything else waits within the block, and so does the clock."""
        with clock_held():
            async with self._turn:
                await trio.testing.wait_all_tasks_blocked()
                yield

    @asynccontextmanager
    async def open(self, policy: FaultPolicy) -> AsyncIterator[FaultyStore]:
        """One server's store. Leaving the block is a crash: what waits is lost and never answered."""
        opened, over, closed = trio.Event(), trio.Event(), trio.Event()
        stores: list[Store] = []

        async def keep_open() -> None:
            """In a task of its own, whose cancel scopes are nobody else's."""
            async with open_sql_store(self.url, "normal", group=AT_ONCE) as inner:
                stores.append(inner)
                opened.set()
                await over.wait()
            closed.set()

        async with self.still():
            trio.lowlevel.spawn_system_task(keep_open)
            await opened.wait()
        store = FaultyStore(self, stores[0], policy)
        writer = trio.CancelScope()
        stopped = trio.Event()

        async def write_all() -> None:
            with writer:
                await store.write_all()
            stopped.set()

        trio.lowlevel.spawn_system_task(write_all)
        try:
            yield store
        finally:
            writer.cancel()
            with trio.CancelScope(shield=True):
                await stopped.wait()
                async with self.still():
                    over.set()
                    await closed.wait()


@attrs.define(eq=False)
class FaultyStore:
    """A Store with the faults of a policy before it and behind it."""

    database: SqliteDatabase
    inner: Store
    policy: FaultPolicy
    _queue: deque[tuple[AppendBatch, AppendDone]] = attrs.field(factory=deque)
    _wake: trio.Event = attrs.field(factory=trio.Event)

    async def create(self, session: str, server: str, opened: SessionOpened, now_ns: int) -> Owned:
        request = CreateLog(session, server, opened, now_ns)
        return await self._suffer(request, lambda: self.inner.create(session, server, opened, now_ns))

    async def take_term(self, session: str, server: str, now_ns: int, position: int | None = None) -> Owned:
        request = TakeTerm(session, server, now_ns, position)
        return await self._suffer(request, lambda: self.inner.take_term(session, server, now_ns, position))

    async def survey(self, server: str, expiry_ms: int) -> Survey:
        return await self._suffer(Beat(server), lambda: self.inner.survey(server, expiry_ms))

    async def release(self, server: str) -> None:
        await self._suffer(Beat(server, leaving=True), lambda: self.inner.release(server))

    async def read(self, session: str, after: int = 0, limit: int = 10_000) -> Sequence[StoredBatch]:
        async with self.database.still():
            return await self.inner.read(session, after, limit)

    async def scan(self, session: str, after: int, upto: int, take: TakeRecords) -> None:
        async with self.database.still():
            await self.inner.scan(session, after, upto, take)

    async def picked(self, session: str, kinds: Sequence[type[Event]]) -> Sequence[Record]:
        async with self.database.still():
            return await self.inner.picked(session, kinds)

    async def body(self, session: str, digest: str) -> bytes:
        async with self.database.still():
            return await self.inner.body(session, digest)

    async def bodies(
        self, session: str, digests: Sequence[str], limit_bytes: int = BODIES_BYTES
    ) -> Mapping[str, bytes | None]:
        async with self.database.still():
            return await self.inner.bodies(session, digests, limit_bytes)

    async def sessions(self, limit: int = 100, after: str = "") -> Sequence[SessionRow]:
        async with self.database.still():
            return await self.inner.sessions(limit, after)

    async def session(self, session: str) -> SessionRow:
        async with self.database.still():
            return await self.inner.session(session)

    def watch_terms(self, told: TermGiven | None) -> None:
        self.inner.watch_terms(told)

    def fault(self) -> str | None:
        return self.inner.fault()

    def append_nowait(self, batch: Batch, done: AppendDone) -> None:
        self._queue.append((encode_batch(batch), done))
        self._wake.set()

    async def write_all(self) -> None:
        """The appends, in order; in a task of the store's own."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._queue:
                request, done = self._queue.popleft()
                fault = self.policy(request)
                await trio.sleep(fault.before_s)
                error = StoreFailed("injected: not written") if fault.fail_before else await self._write(request.batch)
                if error is None and fault.fail_after:
                    error = StoreFailed("injected: written, its answer lost")
                done(error)

    async def _write(self, batch: Batch) -> StoreError | None:
        async with self.database.still():
            answers: list[StoreError | None] = []
            answered = trio.Event()

            def answer(error: StoreError | None) -> None:
                answers.append(error)
                answered.set()

            self.inner.append_nowait(batch, answer)
            await answered.wait()
        return answers[0]

    async def _suffer(self, request: Request, ask: Callable[[], Awaitable[T]]) -> T:
        fault: Fault = self.policy(request)
        await trio.sleep(fault.before_s)
        if fault.fail_before:
            raise StoreFailed("injected: not written")
        async with self.database.still():
            return await ask()
