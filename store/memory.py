"""A store in memory: the same contract, no disk. Simulations and tests run on it under virtual time, with scripted
faults.

A ``MemoryDatabase`` is what survives a crash; a ``MemoryStore`` is one server's way to it, and several may share one
database. Everything happens in the event loop and in the order of the queue, so a run is as deterministic as its clock.
``done`` is called from a task of the store's own, never from inside ``append_nowait``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from core.ports.keeping import Usage
from core.ports.store import (
    BODIES_BYTES,
    Body,
    Owned,
    Row,
    SessionExists,
    SessionRow,
    SessionUnknown,
    StoredBatch,
    StoreError,
    StoreFailed,
    Survey,
    TakeRecords,
    TermGiven,
)
from core.session.events import Event, Record
from core.session.time_units import NS_PER_MS
from store.codec import decode_row, rows_to_keep
from store.planning import (
    OWNERLESS_MAX,
    Addition,
    Beat,
    CreateLog,
    Head,
    Request,
    TakeTerm,
    check_replacing,
    head_of,
    plan,
)
from store.queued import QueuedStore
from store.queueing import DEFAULT_LIMITS, Item, Outcome, QueueLimits

PAGE_RECORDS = 1_000
"""So many are given to a scan at a stretch."""


@attrs.frozen
class Fault:
    """What happens to one request. Times in s of trio's clock.

    ``before_s`` passes before it is written, ``after_s`` between its being durable and its answer. ``fail_before``:
    it is not written and answered with StoreFailed. ``fail_after``: it is written, and answered with StoreFailed all
    the same.
    """

    before_s: float = 0.0
    after_s: float = 0.0
    fail_before: bool = False
    fail_after: bool = False


NO_FAULT = Fault()
FaultPolicy = Callable[[Request], Fault]
"""Asked once for each request, in the order in which they are written."""


def no_faults(request: Request) -> Fault:
    """The policy of a store that works."""
    return NO_FAULT


@attrs.frozen
class _Stored:
    batch_id: str
    term: int
    rows: tuple[Row, ...]
    chain: bytes

    @property
    def position(self) -> int:
        return self.rows[-1].position


@attrs.define
class MemoryDatabase:
    """The durable part. Its clock is trio's, set by the first session that is created."""

    watchers: list[TermGiven] = attrs.field(factory=list)
    tells_terms: bool = True
    _clock_base_ns: int | None = None
    _servers: dict[str, int] = attrs.field(factory=dict)
    """Server -> when it called last."""
    _heads: dict[str, Head] = attrs.field(factory=dict)
    _batches: dict[str, list[_Stored]] = attrs.field(factory=dict)
    _bodies: dict[tuple[str, str], bytes] = attrs.field(factory=dict)

    def write(self, request: Request) -> Outcome:
        """Carry a request out, all or nothing."""
        if isinstance(request, Beat):
            self._beat(request)
            return None
        if isinstance(request, CreateLog) and self._clock_base_ns is None:
            self._clock_base_ns = request.now_ns - _trio_ns()
        try:
            addition = plan(request, self._heads.get(request.session), self._batch_id)
        except StoreError as refusal:
            return refusal.with_traceback(None)
        if addition is not None:
            self._add(addition)
        if isinstance(request, TakeTerm) and self.tells_terms:
            for told in tuple(self.watchers):
                told(request.session, self._heads[request.session].term)
        return self._heads[request.session].owned() if isinstance(request, CreateLog | TakeTerm) else None

    def _beat(self, beat: Beat) -> None:
        if beat.leaving:
            self._servers.pop(beat.server, None)
        else:
            self._servers[beat.server] = self.now_ns()

    def put_log(self, batches: Sequence[StoredBatch], replacing: Owned | None) -> None:
        """As Keeper.put_log."""
        head = head_of(batches)
        stored = [_Stored(batch.batch_id, batch.term, rows_to_keep(batch), batch.chain) for batch in batches]
        check_replacing(head.session, self._heads.get(head.session), replacing)
        if replacing is not None:
            self.delete(head.session)
        self._heads[head.session], self._batches[head.session] = head, stored

    def delete(self, session: str) -> None:
        """As Keeper.delete."""
        self.head(session)
        del self._heads[session], self._batches[session]
        self.delete_bodies(session)

    def delete_bodies(self, session: str) -> None:
        """All of a session's."""
        self._bodies = {key: data for key, data in self._bodies.items() if key[0] != session}

    def put_body(self, session: str, body: Body) -> None:
        """As Keeper.put_bodies, for one."""
        self._bodies.setdefault((session, body.digest), body.data)

    def usage(self) -> list[Usage]:
        """As Keeper.usage."""
        found = []
        for session, head in self._heads.items():
            events = sum(len(row.body.encode()) for batch in self._batches[session] for row in batch.rows)
            bodies = sum(len(data) for key, data in self._bodies.items() if key[0] == session)
            found.append(Usage(session, head.updated_ns, head.closed, events, bodies))
        return sorted(found, key=lambda usage: (usage.updated_ns, usage.session))

    def now_ns(self) -> int:
        """The database's clock."""
        return (self._clock_base_ns or 0) + _trio_ns()

    def survey(self, server: str, expiry_ms: int) -> Survey:
        """As Store.survey, without the word that the server lives."""
        now_ns = self.now_ns()
        live = {name for name, at_ns in self._servers.items() if at_ns > now_ns - expiry_ms * NS_PER_MS}
        heads = [head for head in self._heads.values() if not head.closed]
        ownerless = sorted(
            (head for head in heads if head.server not in live), key=lambda head: (head.updated_ns, head.session)
        )
        return Survey(
            now_ns,
            tuple(head.listed() for head in heads if head.server == server),
            tuple(head.listed() for head in ownerless[:OWNERLESS_MAX]),
        )

    def _batch_id(self, session: str, position: int) -> str | None:
        ids = (stored.batch_id for stored in reversed(self._batches[session]) if stored.position == position)
        return next(ids, None)

    def _add(self, addition: Addition) -> None:
        head = addition.head
        for body in addition.bodies:
            self._bodies.setdefault((head.session, body.digest), body.data)
        stored = _Stored(addition.batch_id, head.term, addition.rows, head.chain)
        self._batches.setdefault(head.session, []).append(stored)
        self._heads[head.session] = head

    def head(self, session: str) -> Head:
        """Raises SessionUnknown."""
        head = self._heads.get(session)
        if head is None:
            raise SessionUnknown(session)
        return head

    def has(self, session: str) -> bool:
        """Whether there is such a session."""
        return session in self._heads

    def heads(self) -> list[Head]:
        """All sessions, newest first."""
        return sorted(self._heads.values(), key=lambda head: (head.created_ns, head.session), reverse=True)

    def body(self, session: str, digest: str) -> bytes:
        """Raises KeyError."""
        return self._bodies[session, digest]

    def bodies(self, session: str, digests: Sequence[str], limit_bytes: int) -> dict[str, bytes | None]:
        """As Store.bodies."""
        found, size_bytes = dict[str, bytes | None](), 0
        for digest in digests:
            data = self._bodies.get((session, digest))
            size_bytes += len(data or b"")
            if found and size_bytes > limit_bytes:
                break
            found[digest] = data
        return found

    def read(self, session: str, after: int, limit: int) -> list[StoredBatch]:
        """As Store.read."""
        self.head(session)
        batches: list[StoredBatch] = []
        for stored in self._batches[session]:
            if stored.position <= after:
                continue
            if batches and stored.position - after > limit:
                break
            rows = tuple(row for row in stored.rows if row.position > after)
            records = tuple(map(decode_row, rows))
            batches.append(StoredBatch(stored.batch_id, stored.term, records, stored.chain, rows))
        return batches

    def records(self, session: str) -> tuple[Record, ...]:
        """A whole log, for assertions. Raises SessionUnknown."""
        return tuple(record for batch in self.read(session, 0, 2**62) for record in batch.records)


class MemoryStore(QueuedStore):
    """One server's Store on a MemoryDatabase. Made by open_memory_store."""

    def __init__(self, database: MemoryDatabase, policy: FaultPolicy, limits: QueueLimits) -> None:
        self.database = database
        self.policy = policy
        """May be replaced at any time."""
        super().__init__(limits)
        self._queue: deque[Item] = deque()
        """Invariant: bounded by the admission."""
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._closed = False
        self._told: TermGiven | None = None

    async def read(self, session: str, after: int = 0, limit: int = 10_000) -> Sequence[StoredBatch]:
        """See Store.read. A batch that ``after`` lies within comes without the records up to it."""
        await trio.lowlevel.checkpoint()
        return self.database.read(session, after, limit)

    async def scan(self, session: str, after: int, upto: int, take: TakeRecords) -> None:
        """See Store.scan."""
        self.database.head(session)
        while after < upto:
            await trio.lowlevel.checkpoint()
            batches = self.database.read(session, after, PAGE_RECORDS)
            page = [record for batch in batches for record in batch.records if record.position <= upto]
            if not page:
                break
            take(page)
            after = page[-1].position

    async def picked(self, session: str, kinds: Sequence[type[Event]]) -> Sequence[Record]:
        """See Store.picked."""
        await trio.lowlevel.checkpoint()
        return [record for record in self.database.records(session) if type(record.event) in kinds]

    async def body(self, session: str, digest: str) -> bytes:
        """See Store.body."""
        await trio.lowlevel.checkpoint()
        return self.database.body(session, digest)

    async def bodies(
        self, session: str, digests: Sequence[str], limit_bytes: int = BODIES_BYTES
    ) -> Mapping[str, bytes | None]:
        """See Store.bodies."""
        await trio.lowlevel.checkpoint()
        return self.database.bodies(session, digests, limit_bytes)

    async def sessions(self, limit: int = 100, after: str = "") -> Sequence[SessionRow]:
        """See Store.sessions. Newest by creation. Raises SessionUnknown for an ``after`` that is not there."""
        await trio.lowlevel.checkpoint()
        heads = self.database.heads()
        if after:
            heads = heads[heads.index(self.database.head(after)) + 1 :]
        return [head.listed() for head in heads[:limit]]

    async def session(self, session: str) -> SessionRow:
        """See Store.session."""
        await trio.lowlevel.checkpoint()
        return self.database.head(session).listed()

    async def survey(self, server: str, expiry_ms: int) -> Survey:
        """See Store.survey."""
        await self._beat(server)
        return self.database.survey(server, expiry_ms)

    def watch_terms(self, told: TermGiven | None) -> None:
        """See Store.watch_terms."""
        if self._told is not None:
            self.database.watchers.remove(self._told)
        if told is not None:
            self.database.watchers.append(told)
        self._told = told

    async def put_bodies(self, session: str, bodies: Sequence[Body]) -> None:
        """See Keeper.put_bodies."""
        await trio.lowlevel.checkpoint()
        if self.database.has(session):
            raise SessionExists(session)
        for body in bodies:
            self.database.put_body(session, body)

    async def put_log(self, batches: Sequence[StoredBatch], replacing: Owned | None = None) -> None:
        """See Keeper.put_log. Raises RecordInvalid."""
        await trio.lowlevel.checkpoint()
        self.database.put_log(batches, replacing)

    async def withdraw(self, session: str) -> None:
        """See Keeper.withdraw."""
        await trio.lowlevel.checkpoint()
        if not self.database.has(session):
            self.database.delete_bodies(session)

    async def delete(self, session: str, *, unfinished: bool = False) -> None:
        """See Keeper.delete. What an import has put has no head, and ``usage`` tells of none."""
        await trio.lowlevel.checkpoint()
        if unfinished:
            raise SessionUnknown(session)
        self.database.delete(session)

    async def usage(self) -> Sequence[Usage]:
        """See Keeper.usage."""
        await trio.lowlevel.checkpoint()
        return self.database.usage()

    async def compact(self) -> None:
        """See Keeper.compact. Nothing to do."""
        await trio.lowlevel.checkpoint()

    def _enqueue(self, item: Item) -> bool:
        if self._closed:
            return False
        self._queue.append(item)
        self._idle = trio.Event() if self._idle.is_set() else self._idle
        self._wake.set()
        return True

    def _queue_clock(self) -> float:
        return trio.current_time()

    async def _write_all(self) -> None:
        """The writer task."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._queue:
                item = self._queue.popleft()
                outcome = item.inherited() or await self._write(item.request)
                item.note(outcome)
                self._admission.settle_group([(item, outcome)], trio.current_time())
            self._idle.set()

    async def _write(self, request: Request) -> Outcome:
        fault = self.policy(request)
        # With a delay of 0 the answer still comes from another turn of the loop.
        await trio.sleep(fault.before_s)
        if fault.fail_before:
            return StoreFailed("injected: not written")
        outcome = self.database.write(request)
        if fault.after_s:
            await trio.sleep(fault.after_s)
        if fault.fail_after and not isinstance(outcome, StoreError):
            return StoreFailed("injected: written, its answer lost")
        return outcome

    async def drained(self) -> None:
        """Wait until all that was queued is answered."""
        await self._idle.wait()


@asynccontextmanager
async def open_memory_store(
    database: MemoryDatabase | None = None,
    policy: FaultPolicy = no_faults,
    limits: QueueLimits = DEFAULT_LIMITS,
) -> AsyncIterator[MemoryStore]:
    """A store on ``database`` (None: an empty one). Leaving it in peace writes what is queued; leaving it cancelled
    or by an error is a crash: what is queued is lost and never answered."""
    store = MemoryStore(MemoryDatabase() if database is None else database, policy, limits)
    writer = trio.CancelScope()
    stopped = trio.Event()

    async def write_all() -> None:
        try:
            with writer:
                await store._write_all()
        finally:
            stopped.set()

    # A system task, so that no exception group is put around the errors of the caller's own block.
    trio.lowlevel.spawn_system_task(write_all)
    try:
        yield store
        store._closed = True
        await store.drained()
    finally:
        store._closed = True
        store.watch_terms(None)
        writer.cancel()
        with trio.CancelScope(shield=True):
            await stopped.wait()


def _trio_ns() -> int:
    return round(trio.current_time() * 1e9)
