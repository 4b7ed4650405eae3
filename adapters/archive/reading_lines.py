"""A log as lines of JSON, read back: those of an archive's ``events.jsonl`` and of the golden logs."""

from __future__ import annotations

import json

import msgspec

from core.ports.store import LogUnreadable, StoredBatch
from core.session.events import Record
from store.codec import Row, decode_row


class ArchiveInvalid(Exception):
    """The file is no archive, is damaged, or is of a newer version. The message says which."""


def read_lines(content: bytes) -> list[StoredBatch]:
    """The batches, of events of any version that this server reads. Raises ArchiveInvalid, naming the line."""
    batches: list[StoredBatch] = []
    records: list[Record] = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            raw = json.loads(line)
            body = msgspec.json.encode(raw["event"]).decode()
            row = Row(raw["position"], raw["epoch"], raw["at_ns"], raw["type"], raw["version"], body)
            records.append(decode_row(row))
            if "batch_id" in raw:
                chain = bytes.fromhex(raw["chain"])
                batches.append(StoredBatch(raw["batch_id"], raw["term"], tuple(records), chain))
                records = []
        except (ValueError, KeyError, TypeError, LogUnreadable) as fault:
            raise ArchiveInvalid(f"line {number} cannot be read: {fault}") from fault
    if records or not batches:
        raise ArchiveInvalid("the log does not end with a whole batch")
    return batches
