"""The Store on SQLAlchemy: what waits for the database waits in threads, what must not wait goes to the writer's
queue."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from core.ports.keeping import Usage
from core.ports.store import (
    BODIES_BYTES,
    Body,
    LogUnreadable,
    Owned,
    SessionRow,
    SessionUnknown,
    StoredBatch,
    StoreFailed,
    Survey,
    TakeRecords,
    TermGiven,
    TermRefused,
)
from core.session.events import Event, Record
from store.codec import is_storable
from store.queued import QueuedStore
from store.queueing import DEFAULT_LIMITS, Item, Outcome, QueueLimits
from store.sql import keeping, owners, pages, reading, stalls
from store.sql.checkpoint import Checkpointer
from store.sql.engines import READERS_MAX, SCANS_MAX, Durability, Engines, failure, failure_of, make_engines
from store.sql.file import StoreFile
from store.sql.listener import TermListener
from store.sql.stalls import StallGuard
from store.sql.statements import statements_for
from store.sql.transaction import Database, commit_group, whole_log
from store.sql.writer import GroupLimits, GroupWriter

T = TypeVar("T")

UNDECODABLE = "Could not decode to UTF-8"
"""SQLite's driver says so of what it reads, with an error that has no code, as if there were no connection."""

LEAVE_S = 0.03
"""SQLite's lock goes to whoever asks when it is free, and another process that waits for it asks every 25 ms: a long import
or prune leaves it free for so long after each of its transactions."""

LOW = "the disk is nearly full; make room, or throw sessions away with: duologue sessions prune"


class SqlStore(QueuedStore):
    """One server's Store in a database. Made by open_sql_store; every method is called in its event loop."""

    def __init__(
        self, engines: Engines, queue: QueueLimits, group: GroupLimits, patience_s: float, useful: trio.CancelScope
    ) -> None:
        super().__init__(queue)
        self._useful = useful
        """What the store is open for: cancelled when it can write nothing any more."""
        self._engines = engines
        self._readers = trio.CapacityLimiter(READERS_MAX)
        self._scanners = trio.CapacityLimiter(SCANS_MAX)
        self._loop = trio.lowlevel.current_trio_token()
        is_sqlite = engines.write.dialect.name == "sqlite"
        self._file = StoreFile(Path(str(engines.write.url.database))) if is_sqlite else None
        self._guard = None if is_sqlite else StallGuard(engines.read.dialect.loaded_dbapi.Error)
        if self._guard is not None:
            self._guard.watch(engines.read)
        self._database = Database(
            engines.write,
            statements_for(engines.write.dialect),
            patience_s,
            self._file.lost if self._file is not None else lambda: None,
            self._guard,
        )
        self._checkpointer = Checkpointer(engines.read, self._file.measure) if self._file is not None else None
        self._listener = None if self._guard is None else TermListener(engines.read, self._hear, self._guard)
        self._told: TermGiven | None = None
        self._claims: dict[str, Owned] = {}
        """The places that are kept for logs which come in here (store.sql.keeping)."""
        self._writer = GroupWriter(self._execute, self._deliver, group, self._give_up)

    async def read(self, session: str, after: int = 0, limit: int = 10_000) -> Sequence[StoredBatch]:
        """See Store.read. A batch that ``after`` lies within comes without the records up to it. Raises StoreFailed,
        LogUnreadable."""
        return await self._read(partial(reading.read_batches, session=_known(session), after=after, limit=limit))

    async def scan(self, session: str, after: int, upto: int, take: TakeRecords) -> None:
        """See Store.scan. In a thread; others wait for their turn."""
        query = partial(pages.scan, session=_known(session), after=after, upto=upto, take=take)
        await self._read(query, self._scanners)

    async def picked(self, session: str, kinds: Sequence[type[Event]]) -> Sequence[Record]:
        """See Store.picked. Raises StoreFailed, LogUnreadable."""
        return await self._read(partial(reading.read_picked, session=_known(session), kinds=kinds))

    async def body(self, session: str, digest: str) -> bytes:
        """See Store.body. Raises StoreFailed too; BodyDamaged when the bytes are not those that were stored."""
        if not (is_storable(session) and is_storable(digest)):
            raise KeyError(digest)
        return await self._read(partial(reading.read_body, session=session, digest=digest))

    async def bodies(
        self, session: str, digests: Sequence[str], limit_bytes: int = BODIES_BYTES
    ) -> Mapping[str, bytes | None]:
        """See Store.bodies. Raises StoreFailed too; BodyDamaged when bytes are not those that were stored."""
        if not is_storable(session):
            return dict.fromkeys(digests)
        query = partial(reading.read_bodies, session=session, digests=digests, limit_bytes=limit_bytes)
        return await self._read(query)

    async def sessions(self, limit: int = 100, after: str = "") -> Sequence[SessionRow]:
        """See Store.sessions. Newest by creation. Raises SessionUnknown for an ``after`` that is not there,
        StoreFailed."""
        return await self._read(partial(reading.read_sessions, limit=limit, after=_known(after)))

    async def session(self, session: str) -> SessionRow:
        """See Store.session. Raises StoreFailed too."""
        head = await self._read(partial(reading.read_head, session=_known(session)))
        return head.listed()

    async def survey(self, server: str, expiry_ms: int) -> Survey:
        """See Store.survey."""
        await self._beat(server)
        return await self._read(partial(owners.read_survey, server=server, expiry_ms=expiry_ms))

    def watch_terms(self, told: TermGiven | None) -> None:
        """See Store.watch_terms. On PostgreSQL by LISTEN; on SQLite, where another server is a rarity, by survey only."""
        self._told = told

    # -- logs as wholes (core.ports.keeping.Keeper) ------------------------------------------------------------------

    async def put_bodies(self, session: str, bodies: Sequence[Body]) -> None:
        """See Keeper.put_bodies."""
        statements = self._database.statements
        async with self._place(_known(session)) as place:
            await self._keep(partial(keeping.put_bodies, statements=statements, place=place, found=bodies))

    async def put_log(self, batches: Sequence[StoredBatch], replacing: Owned | None = None) -> None:
        """See Keeper.put_log. Raises RecordInvalid."""
        statements = self._database.statements
        log = await trio.to_thread.run_sync(whole_log, batches, limiter=self._readers)
        session = log.head.session
        if replacing is not None:
            await self._keep(partial(keeping.replace_log, statements=statements, log=log, replacing=replacing))
            await self._all_of(keeping.delete_bodies, log.head.owned())
            return
        async with self._place(session) as place:
            await self._all_of(keeping.delete_events, place)  # of an import that was broken off
            put = partial(keeping.put_events, statements=statements, place=place)
            for begin in range(0, len(log.events), keeping.EVENTS_AT_ONCE):
                await self._keep(partial(put, rows=log.events[begin : begin + keeping.EVENTS_AT_ONCE]))
            await self._keep(partial(keeping.end_log, log=log, place=place))
            self._claims.pop(session, None)

    async def delete(self, session: str, *, unfinished: bool = False) -> None:
        """See Keeper.delete."""
        self._claims.pop(session, None)
        begin = partial(keeping.begin_delete, session=_known(session), unfinished=unfinished)
        await self._delete(await self._keep(begin))

    async def withdraw(self, session: str) -> None:
        """See Keeper.withdraw."""
        place = self._claims.pop(session, None)
        if place is not None:
            with suppress(TermRefused):  # somebody else has it, and threw away what was put
                await self._delete(place)

    @asynccontextmanager
    async def _place(self, session: str) -> AsyncIterator[Owned]:
        """The place that is kept here for a log."""
        try:
            place = self._claims.get(session) or await self._claim(session)
            yield place
        except TermRefused:
            self._claims.pop(session, None)
            raise

    async def _claim(self, session: str) -> Owned:
        work = partial(keeping.claim, statements=self._database.statements, session=session)
        place = self._claims[session] = await self._keep(work)
        try:
            # Of an import or a deletion that was broken off: the log that comes may be one that was erased.
            await self._all_of(keeping.delete_bodies, place)
        except StoreFailed:
            self._claims.pop(session, None)  # whoever asks again begins anew
            raise
        return place

    async def _delete(self, place: Owned) -> None:
        await self._all_of(keeping.delete_events, place)
        await self._all_of(keeping.delete_bodies, place)
        await self._keep(partial(keeping.end_delete, place=place))

    async def _all_of(self, piece: Callable[[Connection, Owned], bool], owned: Owned) -> None:
        while await self._keep(lambda connection: piece(connection, owned)):
            pass

    async def usage(self) -> Sequence[Usage]:
        """See Keeper.usage."""
        return await self._read(keeping.read_usage)

    async def compact(self) -> None:
        """See Keeper.compact."""
        if self._guard is not None:
            await trio.to_thread.run_sync(self._vacuum_in_thread, self._guard, limiter=self._readers)
            return
        engine = self._engines.write
        try:
            await trio.to_thread.run_sync(keeping.compact_file, engine, limiter=self._readers)
        except PoolTimeout as fault:
            raise failure(fault) from fault
        except engine.dialect.loaded_dbapi.Error as fault:
            raise failure_of(fault) from fault

    def _vacuum_in_thread(self, guard: StallGuard) -> None:
        try:
            # Outside of any transaction, as VACUUM wants it.
            with (
                self._engines.write.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
                guard.over(connection.connection.driver_connection, stalls.VACUUM_LIMIT_S),
            ):
                keeping.vacuum(connection)
        except (DBAPIError, PoolTimeout) as fault:
            raise failure(fault) from fault

    async def _keep(self, work: Callable[[Connection], T]) -> T:
        """One transaction."""
        found = await trio.to_thread.run_sync(self._keep_in_thread, work, limiter=self._readers)
        if self._file is not None:
            with trio.CancelScope(shield=True):  # what was done must be known to whoever is cancelled
                await trio.sleep(LEAVE_S)
        return found

    def _keep_in_thread(self, work: Callable[[Connection], T]) -> T:
        try:
            with self._engines.write.connect() as connection, self._guarded(connection), connection.begin():
                return work(connection)
        except (DBAPIError, PoolTimeout) as fault:
            raise failure(fault) from fault

    def _guarded(self, connection: Connection) -> AbstractContextManager[None]:
        """A whole log's work, its commit or rollback with it."""
        if self._guard is None:
            return nullcontext()
        return self._guard.over(connection.connection.driver_connection, stalls.WORK_LIMIT_S)

    # -- the writer --------------------------------------------------------------------------------------------------

    def _enqueue(self, item: Item) -> bool:
        return self._writer.submit(item)

    def _queue_clock(self) -> float:
        return time.monotonic()

    def _is_away(self) -> bool:
        return self._database.away

    def fault(self) -> str | None:
        """See Store.fault."""
        return LOW if self._file is not None and self._file.low else super().fault()

    def _execute(self, items: Sequence[Item]) -> list[Outcome]:
        """In the writer's thread."""
        if self._checkpointer is not None:
            self._checkpointer.before_group()
        return commit_group(self._database, items)

    def _deliver(self, outcomes: list[tuple[Item, Outcome]]) -> None:
        """In the writer's thread."""
        try:
            self._loop.run_sync_soon(self._settle, outcomes)
        except trio.RunFinishedError:
            # The event loop is gone, and everyone who waited with it.
            return

    def _settle(self, outcomes: list[tuple[Item, Outcome]]) -> None:
        self._admission.settle_group(outcomes, time.monotonic())

    def _give_up(self) -> None:
        """In the writer's thread."""
        try:
            self._loop.run_sync_soon(self._useful.cancel)
        except trio.RunFinishedError:
            return

    def _hear(self, session: str, term: int) -> None:
        """In the listener's thread."""
        try:
            self._loop.run_sync_soon(self._tell, session, term)
        except trio.RunFinishedError:
            return

    def _tell(self, session: str, term: int) -> None:
        if self._told is not None:
            self._told(session, term)

    def start(self) -> None:
        """Start the threads; call once."""
        self._writer.start()
        if self._guard is not None:
            self._guard.start()
        if self._listener is not None:
            self._listener.start()
        if self._checkpointer is not None:
            self._checkpointer.start()

    def close(self) -> None:
        """Write what is queued, answer it and let go of the database. Blocks; not in the event loop."""
        self._database.hurry.set()
        self._writer.close()
        if self._listener is not None:
            self._listener.close()
        if self._checkpointer is not None:
            self._checkpointer.close()
        if self._guard is not None:
            self._guard.close()
        self._engines.dispose()

    async def _read(self, query: Callable[[Connection], T], limiter: trio.CapacityLimiter | None = None) -> T:
        return await trio.to_thread.run_sync(self._read_in_thread, query, limiter=limiter or self._readers)

    def _read_in_thread(self, query: Callable[[Connection], T]) -> T:
        try:
            with self._engines.read.connect() as connection:
                if self._guard is not None:
                    _bring_to_life(connection)
                return query(connection)
        except (DBAPIError, PoolTimeout) as fault:
            if isinstance(fault, DBAPIError) and UNDECODABLE in str(fault.orig):
                raise LogUnreadable("a text in it is no UTF-8") from fault
            raise failure(fault) from fault


def _bring_to_life(connection: Connection) -> None:
    """A pooled connection may have broken since it was last used; then it becomes a new one. (The pool's own ping would be
    watched over by nobody.)"""
    try:
        connection.exec_driver_sql("SELECT 1")
    except DBAPIError as fault:
        if not fault.connection_invalidated:
            raise
    connection.rollback()


def _known(session: str) -> str:
    """A name that no backend can hold names no session."""
    if not is_storable(session):
        raise SessionUnknown("a name with a NUL or a lone surrogate")
    return session


@asynccontextmanager
async def open_sql_store(
    url: str,
    durability: Durability = "full",
    queue: QueueLimits = DEFAULT_LIMITS,
    group: GroupLimits | None = None,
    patience_s: float = 0.0,
) -> AsyncIterator[SqlStore]:
    """A store in the database at ``url``; its tables are made where they are missing. Leaving it writes what is queued.
    ``patience_s``: how long appends wait for a database server that is away before they fail.

    Raises StoreUrlInvalid, StoreFailed: also, with the block cancelled, when the writer has ended by a fault of ours.
    """
    engines = await trio.to_thread.run_sync(make_engines, url, durability)
    useful = trio.CancelScope()
    store = SqlStore(engines, queue, group or GroupLimits(), patience_s, useful)
    store.start()
    try:
        with useful:
            yield store
        if useful.cancelled_caught:
            raise StoreFailed("the store's writer has ended by a fault of its own: nothing can be written any more")
    finally:
        # What is queued was promised to be tried, and a cancelled server has time for one more group.
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(store.close)
