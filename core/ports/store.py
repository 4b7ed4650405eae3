"""The store port: one append-only log a session, bodies beside it, terms for owners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import attrs

from core.session.events import Event, Record, SessionOpened


class StoreError(Exception):
    """Root of what a store can answer but success."""


class SessionUnknown(StoreError):
    """No such session."""


class SessionExists(StoreError):
    """A session of that id is there already."""


class PositionConflict(StoreError):
    """The log's head is not where the writer thought: another writer was here, or the batch was lost."""


class TermRefused(StoreError):
    """A newer term was given out: this server no longer owns the session."""


class StoreFailed(StoreError):
    """The database failed (disk, connection). Whether the batch is in is unknown until it is appended again."""


class StoreDamaged(StoreFailed):
    """The database says that what it keeps is damaged, or that its file is none of its own: trying again does not help."""


class LogUnreadable(StoreError):
    """A log that this server cannot read: of another version, or with something missing. It stays so."""


class BodyDamaged(StoreDamaged):
    """A body's bytes are not those that were stored. It stays so."""


class StoreBusy(StoreError):
    """The writer's queue is full in items or bytes; nothing was queued."""


@attrs.frozen
class Body:
    """Bytes beside the log. ``digest`` is core.session.digest.body_digest of ``data``."""

    digest: str
    data: bytes


@attrs.frozen
class Batch:
    """What one step of a session adds to its log, all or nothing.

    ``batch_id`` makes a repeat of the same batch a success that adds nothing. ``expected_position`` is the log's head
    before it. ``caused`` is core.session.digest.caused_digest of the effects and wire events that it caused; the store makes
    the batch's link of the chain from it.
    """

    session: str
    term: int
    batch_id: str
    expected_position: int
    records: tuple[Record, ...]
    caused: bytes
    bodies: tuple[Body, ...] = ()
    urgent: bool = False
    """Close the group-commit window now."""
    patient: bool = False
    """Nobody waits for it to be durable (a chunk of the user's audio): it may share a later commit."""


@attrs.frozen
class Row:
    """A record as it is stored. ``body`` is the event as a JSON object, of schema ``version``; ``position``, ``epoch`` and
    ``at_ns`` as in Record."""

    position: int
    epoch: int
    at_ns: int
    type: str
    version: int
    body: str

    def line(self) -> str:
        """What the chain holds of it. The lengths keep any two rows apart."""
        head = f" {self.position} {self.epoch} {self.at_ns} {self.version}"
        return f"{head} {len(self.type)} {self.type}{len(self.body)} {self.body}"


@attrs.frozen
class StoredBatch:
    """A batch as read back: ``records`` as this version understands them, ``rows`` as they are stored. ``chain`` is the link
    of the session's chain that ends it (core.session.digest)."""

    batch_id: str
    term: int
    records: tuple[Record, ...]
    chain: bytes
    rows: tuple[Row, ...]


@attrs.frozen
class Owned:
    """A term that was taken: every append names ``term``; ``position`` is the log's head, after ``owner_changed``."""

    session: str
    term: int
    position: int


@attrs.frozen
class SessionRow:
    """One line of a listing. ``closed``: the log's last word was session_closed."""

    session: str
    dialect: str
    created_ns: int
    updated_ns: int
    position: int
    term: int
    server: str
    closed: bool
    chain: bytes
    """Of the last batch."""


@attrs.frozen
class Survey:
    """The open sessions that a server must know of. Times in ns on the store's clock.

    ``owned``: its own. ``ownerless``: those whose server has not called for a while, at most a hundred, those that have
    been silent longest first."""

    now_ns: int
    owned: tuple[SessionRow, ...]
    ownerless: tuple[SessionRow, ...]


BODIES_BYTES = 8 * 1024 * 1024
"""So much of many bodies is read at a time."""
BODIES_AT_ONCE = 256
"""Of so many that is asked at a time, by who goes through all of a log; and so many are thrown away."""

TermGiven = Callable[[str, int], None]
"""Called in the event loop with a session and its new term."""

TakeRecords = Callable[[Sequence[Record]], None]
"""Called with the next records of a log, in order, one page at a time."""

AppendDone = Callable[[StoreError | None], None]
"""Called in the event loop, once for each batch: None when it is durable."""


@attrs.frozen
class StoreStatistics:
    """The writer's queue and its work so far."""

    queue_items: int
    queue_bytes: int
    appended_batches: int
    commits: int


class Store(Protocol):
    """Logs of many sessions. Async methods wait for the database; ``append_nowait`` never does."""

    async def create(self, session: str, server: str, opened: SessionOpened, now_ns: int) -> Owned:
        """A new log: session_opened at position 1, owner_changed (term 1) at 2. Raises SessionExists, StoreFailed."""

    async def take_term(self, session: str, server: str, now_ns: int, position: int | None = None) -> Owned:
        """Take the next term by compare-and-set; owner_changed is committed with it. ``position``: only while the log ends
        there. Raises SessionUnknown, PositionConflict, StoreFailed."""

    def append_nowait(self, batch: Batch, done: AppendDone) -> None:
        """Queue a batch. Batches of a session are written in order; after one fails, those queued behind it fail too.
        ``done`` gets TermRefused, PositionConflict or StoreFailed. Raises StoreBusy."""

    async def read(self, session: str, after: int = 0, limit: int = 10_000) -> Sequence[StoredBatch]:
        """Batches whose records lie above position ``after``, in order, at most ``limit`` records (but one batch at
        least). Empty at the head. Raises SessionUnknown, LogUnreadable."""

    async def scan(self, session: str, after: int, upto: int, take: TakeRecords) -> None:
        """Give the records above position ``after``, up to and with ``upto``, to ``take``: for folds, without what their
        batches say beside them. Ends where the log does. ``take`` may be called in another thread, so that a long log keeps
        nobody waiting in the event loop, and must share nothing with it; what it raises ends the scan. Raises
        SessionUnknown, StoreFailed."""

    async def picked(self, session: str, kinds: Sequence[type[Event]]) -> Sequence[Record]:
        """All records of a log whose events are of these ``kinds``, in order: what seldom events say, without reading the
        rest. Raises SessionUnknown, LogUnreadable."""

    async def body(self, session: str, digest: str) -> bytes:
        """Raises KeyError when there is no such body (it was erased, say)."""

    async def bodies(
        self, session: str, digests: Sequence[str], limit_bytes: int = BODIES_BYTES
    ) -> Mapping[str, bytes | None]:
        """The bodies of the first of ``digests``: as many as ``limit_bytes`` holds, but one at least. None for one that is
        not there. Who wants them all asks again for those that the answer lacks."""

    async def sessions(self, limit: int = 100, after: str = "") -> Sequence[SessionRow]:
        """Newest first."""

    async def session(self, session: str) -> SessionRow:
        """Raises SessionUnknown."""

    async def survey(self, server: str, expiry_ms: int) -> Survey:
        """Say that ``server`` lives, and look around. A session is ownerless when its server has not said so for
        ``expiry_ms`` of the store's clock, or has said goodbye. Raises StoreFailed, StoreBusy."""

    async def release(self, server: str) -> None:
        """Goodbye: the open sessions of ``server`` are ownerless from now on. Raises StoreFailed, StoreBusy."""

    def watch_terms(self, told: TermGiven | None) -> None:
        """Tell of terms that any server takes, as they are taken. A help and no more: some may be missed, and some stores
        tell of none; ``survey`` and the next append find out anyway. One watcher; None: no more."""

    def fault(self) -> str | None:
        """Why writes fail or hang at the moment, for people to read; None when they do not. One failure is no fault. Never
        waits, and tells only what ``survey`` and the appends of the last seconds came to."""

    def statistics(self) -> StoreStatistics:
        """Now."""
