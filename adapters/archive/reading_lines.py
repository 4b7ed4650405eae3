"""A log as lines of JSON, read back: those of an archive's ``events.jsonl`` and of the golden logs."""

from __future__ import annotations

import attrs
import msgspec

from core.ports.store import LogUnreadable, Row, StoredBatch
from store.codec import decode_row


class ArchiveInvalid(Exception):
    """The file is no archive, is damaged, or is of a newer version. The message says which."""


@attrs.frozen
class _Line:
    """The last line of a batch has the last three. ``event`` stays as it is: the chain is over its bytes."""

    position: int
    epoch: int
    at_ns: int
    type: str
    version: int
    event: msgspec.Raw
    batch_id: str | None = None
    term: int = 0
    chain: str = ""


_decode = msgspec.json.Decoder(_Line).decode


def read_lines(content: bytes) -> list[StoredBatch]:
    """The batches, of events of any version that this server reads. Raises ArchiveInvalid, naming the line."""
    batches: list[StoredBatch] = []
    rows: list[Row] = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            read = _decode(line)
            body = bytes(read.event).decode()
            rows.append(Row(read.position, read.epoch, read.at_ns, read.type, read.version, body))
            if read.batch_id is not None:
                records = tuple(map(decode_row, rows))
                chain = bytes.fromhex(read.chain)
                batches.append(StoredBatch(read.batch_id, read.term, records, chain, tuple(rows)))
                rows = []
        except (ValueError, msgspec.DecodeError, LogUnreadable) as fault:
            raise ArchiveInvalid(f"line {number} cannot be read: {fault}") from fault
    if rows or not batches:
        raise ArchiveInvalid("the log does not end with a whole batch")
    return batches
