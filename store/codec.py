"""Records <-> rows. An event is stored as a JSON object beside its tag and schema version, so that a log can be read
with the sqlite3 shell; attrs classes are encoded directly.

A row of an older schema version is read through one-step upcasters, each ``(tag, version) -> raw -> raw of version +
1``. Upcasters are total over what that version could hold. Events are never rewritten: only reading knows of
versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import msgspec

from core.ports.store import LogUnreadable, Row, StoredBatch
from core.session.digest import chain_link
from core.session.events import EVENT_TYPES, SCHEMA_VERSIONS, TAGS, ConfigChanged, Event, Record, SessionOpened

Raw = dict[str, Any]
Upcaster = Callable[[Raw], Raw]

UPCASTERS: dict[tuple[str, int], Upcaster] = {}
"""(tag, from version) -> the step to the next version. Empty while every schema version is 1."""

INT64_MAX = 2**63 - 1


class RecordInvalid(ValueError):
    """A record that a log cannot hold (our fault, not the database's): nothing was queued."""


@attrs.frozen
class Columns:
    """The next events of a log, column by column, each a JSON array without its brackets: how a long log is read. ``kinds``
    are ``TYPE VERSION``, and are no JSON; ``bodies`` are the events."""

    positions: str
    epochs: str
    times_ns: str
    kinds: str
    bodies: str


class ColumnsOdd(Exception):
    """Columns that must be read as rows: an event of an older version is among them, or one that cannot be read."""


_encode = msgspec.json.Encoder().encode
_decoders: dict[str, msgspec.json.Decoder[Any]] = {tag: msgspec.json.Decoder(cls) for tag, cls in EVENT_TYPES.items()}

_current: dict[str, Callable[[msgspec.Raw], Any]] = {
    f"{tag} {SCHEMA_VERSIONS[tag]}": decoder.decode for tag, decoder in _decoders.items()
}
_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_whole_numbers = msgspec.json.Decoder(list[int]).decode


def is_storable(text: str) -> bool:
    """Whether every backend can hold ``text`` in a column: it has no NUL and no lone surrogate. (Inside an event's
    JSON a NUL is escaped and harmless.)"""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def encode_record(record: Record) -> Row:
    """The row that holds ``record``. Raises RecordInvalid (lone surrogates, numbers that JSON or the database cannot
    hold)."""
    event = record.event
    tag = TAGS[type(event)]
    if not (0 < record.position <= INT64_MAX and 0 <= record.epoch <= INT64_MAX and 0 <= record.at_ns <= INT64_MAX):
        raise RecordInvalid(f"{tag} at position {record.position}: position, epoch or at_ns is out of range")
    try:
        body = _encode(event)
    except UnicodeEncodeError as fault:
        raise RecordInvalid(f"{tag} at position {record.position}: a text has a lone surrogate") from fault
    # JSON has no infinity and no NaN: msgspec writes null, and the log could not be read again. Only these hold floats.
    if isinstance(event, SessionOpened | ConfigChanged) and not _reads_back(tag, body, event):
        raise RecordInvalid(f"{tag} at position {record.position}: a number is not finite")
    return Row(record.position, record.epoch, record.at_ns, tag, SCHEMA_VERSIONS[tag], body.decode())


def stored_batch(batch_id: str, term: int, records: Sequence[Record], previous: bytes, caused: bytes) -> StoredBatch:
    """A batch as it will read back. ``previous``: the link of the chain before it; ``caused`` as in Batch. Raises
    RecordInvalid."""
    rows = tuple(map(encode_record, records))
    chain = chain_link(previous, batch_id, term, map(Row.line, rows), caused)
    return StoredBatch(batch_id, term, tuple(records), chain, rows)


def rows_to_keep(batch: StoredBatch) -> tuple[Row, ...]:
    """The rows of a batch that comes from elsewhere, as they are: an event of an older version stays one, and the chain says
    what it said. Raises RecordInvalid for what no backend can hold."""
    if not (is_storable(batch.batch_id) and 0 < batch.term <= INT64_MAX):
        raise RecordInvalid(f"the batch at position {batch.rows[0].position}: its id or its term is none")
    for record, row in zip(batch.records, batch.rows, strict=True):
        encode_record(record)
        if not is_storable(row.body):
            raise RecordInvalid(f"{row.type} at position {row.position}: a NUL, or a lone surrogate")
    return batch.rows


def _reads_back(tag: str, body: bytes, event: Event) -> bool:
    try:
        return bool(_decoders[tag].decode(body) == event)
    except msgspec.ValidationError:
        return False


def decode_row(row: Row, upcasters: Mapping[tuple[str, int], Upcaster] = UPCASTERS) -> Record:
    """The record in ``row``. Raises LogUnreadable."""
    if row.type not in EVENT_TYPES:
        raise LogUnreadable(f"position {row.position}: unknown event type {row.type!r}")
    try:
        event: Any
        if row.version == SCHEMA_VERSIONS[row.type]:
            event = _decoders[row.type].decode(row.body)
        else:
            event = msgspec.convert(upcast(row, SCHEMA_VERSIONS[row.type], upcasters), EVENT_TYPES[row.type])
    except msgspec.DecodeError as fault:  # ValidationError is one of them
        raise LogUnreadable(f"position {row.position}: {row.type} version {row.version}: {fault}") from fault
    return Record(position=row.position, epoch=row.epoch, at_ns=row.at_ns, event=event)


def decode_columns(columns: Columns, after: int) -> list[Record]:
    """The records of ``columns``, which follow position ``after``; the shortest way, for the longest logs. Raises
    ColumnsOdd."""
    kinds = columns.kinds.split(",")
    try:
        positions, epochs, times_ns = map(_numbers, (columns.positions, columns.epochs, columns.times_ns))
        raws = _parts(f"[{columns.bodies}]")
        events = [_current[kind](raw) for kind, raw in zip(kinds, raws, strict=True)]
        if positions != list(range(after + 1, after + 1 + len(events))):
            raise ColumnsOdd("the positions are not dense")
        return [Record(*fields) for fields in zip(positions, epochs, times_ns, events, strict=True)]
    except (KeyError, ValueError, msgspec.DecodeError) as fault:  # a kind, a count, a body
        raise ColumnsOdd(type(fault).__name__) from fault


def _numbers(column: str) -> list[int]:
    return _whole_numbers(f"[{column}]")


def upcast(row: Row, version: int, upcasters: Mapping[tuple[str, int], Upcaster]) -> Raw:
    """The event in ``row`` as raw JSON of schema ``version``, one step at a time. Raises LogUnreadable for a gap in the
    steps, which is also how a row from a newer server reads."""
    raw: Raw = msgspec.json.decode(row.body, type=dict[str, Any])
    for step in range(row.version, version):
        upcaster = upcasters.get((row.type, step))
        if upcaster is None:
            raise LogUnreadable(f"position {row.position}: no upcaster for {row.type} version {step}")
        raw = upcaster(raw)
    if row.version > version:
        raise LogUnreadable(
            f"position {row.position}: {row.type} version {row.version} is newer than this server's {version}"
        )
    return raw
