"""What a request adds to a log, decided inside the transaction that will write it. Pure: every backend shares it.

A ``Head`` is what the session's row says once it is locked. Three requests are about a log: create it, take its term,
append a batch (a fourth says that a server lives, and needs no plan). ``plan`` compares the request with the head and
answers with an ``Addition`` (rows to write and the head after them), with None (this very batch is in the log already),
or by raising what the port promises:

* the term is compared first. An owner that lost its term is told so even when its batch is in: it must stop either way;
* then the position. A batch that starts where the log ends is added. A batch that lies wholly inside the log is the
  same batch again if a batch of its id ends at the same position, else a conflict;
* take_term may name a position too: it is for who goes by what the log said when it ended there;
* create and take_term write ``owner_changed`` with the compare-and-set: there is no term in the row without its record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from core.ports.store import (
    Batch,
    Body,
    Owned,
    PositionConflict,
    Row,
    SessionExists,
    SessionRow,
    SessionUnknown,
    StoredBatch,
    TermRefused,
)
from core.session.digest import CHAIN_START, NOTHING_CAUSED, chain_link
from core.session.events import Event, OwnerChanged, Record, SessionClosed, SessionOpened
from store.codec import RecordInvalid, encode_record, is_storable

OWNERLESS_MAX = 100
"""How many sessions that nobody owns one survey names."""


@attrs.frozen
class Head:
    """Where a session's log stands: the last record's position, epoch and at_ns, the last batch's chain, the owner."""

    session: str
    dialect: str
    created_ns: int
    updated_ns: int
    position: int
    epoch: int
    term: int
    server: str
    chain: bytes
    closed: bool

    def owned(self) -> Owned:
        return Owned(session=self.session, term=self.term, position=self.position)

    def listed(self) -> SessionRow:
        return SessionRow(
            session=self.session,
            dialect=self.dialect,
            created_ns=self.created_ns,
            updated_ns=self.updated_ns,
            position=self.position,
            term=self.term,
            server=self.server,
            closed=self.closed,
            chain=self.chain,
        )


@attrs.frozen
class CreateLog:
    """Store.create as data."""

    session: str
    server: str
    opened: SessionOpened
    now_ns: int


@attrs.frozen
class TakeTerm:
    """Store.take_term as data."""

    session: str
    server: str
    now_ns: int
    position: int | None = None


@attrs.frozen
class AppendBatch:
    """A batch with its records encoded. ``size_bytes`` is what it holds in memory, about."""

    batch: Batch
    rows: tuple[Row, ...]
    size_bytes: int

    @property
    def session(self) -> str:
        return self.batch.session


@attrs.frozen
class Beat:
    """Store.survey's and Store.release's word that ``server`` is there, or is not any more. Of no session."""

    server: str
    leaving: bool = False
    session: str = ""


CREATED = "created"
"""The id of every log's first batch."""

Request = CreateLog | TakeTerm | AppendBatch | Beat

BATCH_OVERHEAD_BYTES = 512
ROW_OVERHEAD_BYTES = 256


@attrs.frozen
class Addition:
    """One batch to write: ``head`` is the session's row after it."""

    head: Head
    batch_id: str
    rows: tuple[Row, ...]
    bodies: tuple[Body, ...] = ()


FindBatch = Callable[[str, int], str | None]
"""(session, position) -> the id of the batch whose last record lies there."""


def head_of(batches: Sequence[StoredBatch]) -> Head:
    """The session's row for a whole log. Raises RecordInvalid: not a log."""
    records = [record for batch in batches for record in batch.records]
    opened = records[0].event if records else None
    if not isinstance(opened, SessionOpened):
        raise RecordInvalid("a log begins with session_opened")
    if any(record.position != position for position, record in enumerate(records, start=1)):
        raise RecordInvalid("positions are not dense from 1")
    servers = [record.event.server for record in records if isinstance(record.event, OwnerChanged)]
    if not all(map(is_storable, (opened.session_id, opened.dialect, *servers))):
        raise RecordInvalid("a session's, dialect's or server's name has a NUL or a lone surrogate")
    return Head(
        session=opened.session_id,
        dialect=opened.dialect,
        created_ns=records[0].at_ns,
        updated_ns=records[-1].at_ns,
        position=len(records),
        epoch=records[-1].epoch,
        term=batches[-1].term,
        server=servers[-1] if servers else "",
        chain=batches[-1].chain,
        closed=any(isinstance(record.event, SessionClosed) for record in records),
    )


def _of_log(head: Head | None) -> Head | None:
    """None also for a place that is kept for a log (store.sql.keeping): there is none at it."""
    return None if head is None or not head.position else head


def check_replacing(session: str, head: Head | None, replacing: Owned | None) -> None:
    """Whether a whole log may be put. Raises SessionExists, SessionUnknown, TermRefused, PositionConflict."""
    if replacing is None:
        if head is not None:
            raise SessionExists(session)
        return
    head = _of_log(head)
    if head is None:
        raise SessionUnknown(session)
    if head.term != replacing.term:
        raise TermRefused(f"{session}: term {replacing.term} was named, {head.term} was given out")
    if head.position != replacing.position:
        raise PositionConflict(f"{session}: position {replacing.position} was named, the log is at {head.position}")


def check_owner(request: CreateLog | TakeTerm | Beat) -> None:
    """What does not depend on the log. Raises RecordInvalid: a name or an event that no backend could hold."""
    if not (is_storable(request.session) and is_storable(request.server)):
        raise RecordInvalid("a session's or server's name has a NUL or a lone surrogate")
    if isinstance(request, CreateLog):
        if not is_storable(request.opened.dialect):
            raise RecordInvalid("the dialect's name has a NUL or a lone surrogate")
        encode_record(Record(position=1, epoch=0, at_ns=request.now_ns, event=request.opened))


def encode_batch(batch: Batch) -> AppendBatch:
    """Encode and check what does not depend on the log. Raises RecordInvalid: no records, not dense, not encodable."""
    if not batch.records:
        raise RecordInvalid("a batch holds at least one record")
    if not is_storable(batch.batch_id):
        raise RecordInvalid("a batch's id has a NUL or a lone surrogate")
    expected = range(batch.expected_position + 1, batch.expected_position + 1 + len(batch.records))
    if any(record.position != position for record, position in zip(batch.records, expected, strict=True)):
        raise RecordInvalid(f"positions are not dense from {batch.expected_position + 1}")
    rows = tuple(encode_record(record) for record in batch.records)
    size_bytes = BATCH_OVERHEAD_BYTES + sum(ROW_OVERHEAD_BYTES + len(row.body) for row in rows)
    return AppendBatch(batch, rows, size_bytes + sum(len(body.data) for body in batch.bodies))


def plan(request: CreateLog | TakeTerm | AppendBatch, head: Head | None, find_batch: FindBatch) -> Addition | None:
    """What ``request`` adds to the log at ``head`` (None: no such session). Raises SessionExists, SessionUnknown,
    TermRefused, PositionConflict."""
    if not isinstance(request, CreateLog):
        head = _of_log(head)
    match request:
        case CreateLog():
            return _plan_create(request, head)
        case TakeTerm():
            return _plan_take_term(request, head)
        case AppendBatch():
            return _plan_append(request, head, find_batch)


def _plan_create(request: CreateLog, head: Head | None) -> Addition:
    if head is not None:
        raise SessionExists(request.session)
    events: tuple[Event, ...] = (request.opened, OwnerChanged(term=1, server=request.server))
    rows = tuple(
        encode_record(Record(position=position, epoch=0, at_ns=request.now_ns, event=event))
        for position, event in enumerate(events, start=1)
    )
    after = Head(
        session=request.session,
        dialect=request.opened.dialect,
        created_ns=request.now_ns,
        updated_ns=request.now_ns,
        position=len(rows),
        epoch=0,
        term=1,
        server=request.server,
        chain=_link(CHAIN_START, CREATED, 1, rows, NOTHING_CAUSED),
        closed=False,
    )
    return Addition(after, CREATED, rows)


def _plan_take_term(request: TakeTerm, head: Head | None) -> Addition:
    if head is None:
        raise SessionUnknown(request.session)
    if request.position is not None and request.position != head.position:
        raise PositionConflict(f"{request.session}: the log is at {head.position}, not at {request.position}")
    # The log's clock never runs backwards, whatever this server's clock says.
    at_ns = max(request.now_ns, head.updated_ns)
    event = OwnerChanged(term=head.term + 1, server=request.server)
    row = encode_record(Record(position=head.position + 1, epoch=head.epoch, at_ns=at_ns, event=event))
    batch_id = f"term-{event.term}"
    chain = _link(head.chain, batch_id, event.term, (row,), NOTHING_CAUSED)
    after = attrs.evolve(
        head, position=row.position, updated_ns=at_ns, term=event.term, server=event.server, chain=chain
    )
    return Addition(after, batch_id, (row,))


def _plan_append(request: AppendBatch, head: Head | None, find_batch: FindBatch) -> Addition | None:
    batch = request.batch
    if head is None:
        raise SessionUnknown(batch.session)
    if batch.term != head.term:
        raise TermRefused(f"{batch.session}: term {batch.term} was named, {head.term} was given out")
    last = batch.records[-1]
    if batch.expected_position != head.position:
        if last.position <= head.position and find_batch(batch.session, last.position) == batch.batch_id:
            return None
        raise PositionConflict(
            f"{batch.session}: position {batch.expected_position} was named, the log is at {head.position}"
        )
    # Made as it is and not by attrs.evolve, which took a tenth of the writer's time.
    after = Head(
        session=head.session,
        dialect=head.dialect,
        created_ns=head.created_ns,
        updated_ns=last.at_ns,
        position=last.position,
        epoch=last.epoch,
        term=head.term,
        server=head.server,
        chain=_link(head.chain, batch.batch_id, head.term, request.rows, batch.caused),
        closed=head.closed or any(isinstance(record.event, SessionClosed) for record in batch.records),
    )
    return Addition(after, batch.batch_id, request.rows, batch.bodies)


def _link(previous: bytes, batch_id: str, term: int, rows: Sequence[Row], caused: bytes) -> bytes:
    """Here, where the row of the session is locked, so that a link follows what is really before it."""
    return chain_link(previous, batch_id, term, map(Row.line, rows), caused)
