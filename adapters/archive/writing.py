"""Export: a session as one file."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import attrs
import msgspec

from adapters.archive.layout import EVENTS, FOLDER, MANIFEST, BodyEntry, Manifest, named_bodies, to_file
from core.ports.store import BODIES_AT_ONCE, SessionRow, Store, StoredBatch, StoreFailed
from core.session.events import Erased, Event

Progress = Callable[[str, int, int], None]
"""(what, done, of how many)."""

READ_RECORDS = 2_000
EPOCH = (1980, 1, 1, 0, 0, 0)
"""Every file's date: the same session makes the same archive."""


def silent(what: str, done: int, total: int) -> None:
    """Shows nothing."""


async def export_session(store: Store, session: str, path: Path, progress: Progress = silent) -> Manifest:
    """Write ``session`` to ``path``, which appears only when it is whole. Raises SessionUnknown, StoreError (StoreFailed
    when the log was erased meanwhile), OSError."""
    row = await store.session(session)
    part = path.with_name(path.name + ".part")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            events, digest = await _write_events(store, session, row.position, archive, progress)
            bodies = await _write_bodies(store, session, events, archive, progress)
            await _check_kept(store, row, events)
            manifest = Manifest(session, len(events), digest, tuple(bodies), f"duologue {metadata.version('duologue')}")
            _write(archive, MANIFEST, json.dumps(attrs.asdict(manifest), indent=1).encode())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return manifest


async def _check_kept(store: Store, row: SessionRow, events: list[Event]) -> None:
    """An erasure rewrites the log before its bodies go, so what was read before this look is of one log. The chain is the
    same where nothing was there to be masked."""
    found = await store.read(row.session, row.position - 1, 1)
    erased = await store.picked(row.session, [Erased])
    is_same = bool(found) and found[0].chain == row.chain
    if not is_same or len(erased) > sum(isinstance(event, Erased) for event in events):
        raise StoreFailed(f"{row.session} was erased or replaced while it was exported; export it again")


async def _write_events(
    store: Store, session: str, count: int, archive: zipfile.ZipFile, progress: Progress
) -> tuple[list[Event], str]:
    events: list[Event] = []
    digest = hashlib.sha256()
    with archive.open(zipfile.ZipInfo(EVENTS, EPOCH), "w") as file:
        while batches := await store.read(session, len(events), READ_RECORDS):
            for batch in batches:
                for line in lines_of(batch):
                    file.write(line)
                    digest.update(line)
                events.extend(record.event for record in batch.records)
            progress("events", len(events), max(count, len(events)))
    return events, digest.hexdigest()


def lines_of(batch: StoredBatch) -> Iterator[bytes]:
    """A batch as lines of JSON; its events byte for byte as they are stored."""
    for row in batch.rows:
        line = {
            "position": row.position,
            "epoch": row.epoch,
            "at_ns": row.at_ns,
            "type": row.type,
            "version": row.version,
            "event": msgspec.Raw(row.body.encode()),
        }
        if row is batch.rows[-1]:
            line |= {"batch_id": batch.batch_id, "term": batch.term, "chain": batch.chain.hex()}
        yield msgspec.json.encode(line) + b"\n"


async def _write_bodies(
    store: Store, session: str, events: list[Event], archive: zipfile.ZipFile, progress: Progress
) -> list[BodyEntry]:
    named = named_bodies(events)
    written: list[BodyEntry] = []
    left = tuple(named)
    while left:
        found = await store.bodies(session, left[:BODIES_AT_ONCE])
        for digest, data in found.items():
            if data is None:  # it was erased
                continue
            ending, content = to_file(data, named[digest])
            name = f"{FOLDER}/{digest}.{ending}"
            _write(archive, name, content)
            written.append(BodyEntry(digest, name, len(data)))
        left = left[len(found) :]
        progress("bodies", len(named) - len(left), len(named))
    return written


def _write(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, content)
