"""Import: a session from its file, into any store. Everything is checked before the log is put: digests, density, and that
the log folds. Bodies go first, and nobody sees the session before all of it is there. An import that fails, or is told to
stop, takes back what it has put; what one that was killed has left goes with the next one, or is pruned."""

from __future__ import annotations

import errno
import hashlib
import json
import wave
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import msgspec
import trio

from adapters.archive.layout import (
    BODY_BYTES_MAX,
    EVENTS,
    EVENTS_BYTES_MAX,
    MANIFEST,
    MANIFEST_BYTES_MAX,
    Manifest,
    from_file,
    manifest_of,
)
from adapters.archive.reading_lines import ArchiveInvalid, read_lines
from adapters.archive.writing import Progress, silent
from adapters.replay.replaying import Replay, Replayer, SessionUnreadable
from adapters.wire.caused import encode_caused
from adapters.wire.projections import make_projection
from core.ports.keeping import Keeper
from core.ports.store import Body, SessionExists, SessionUnknown, StoredBatch, StoreFailed
from core.session.digest import body_digest
from store.codec import RecordInvalid

GROUP_BYTES = 1024 * 1024
"""A server that writes to the same SQLite file waits for so much, some 15 ms."""

DAMAGE = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    wave.Error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)
"""What the library raises for bytes that are none of a zip file, or of a sound: it depends on which byte it is. RuntimeError:
the bit that says that a file is encrypted, or a chunk longer than its sound; ValueError: a place before the file."""

METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})


@attrs.frozen
class Imported:
    """What was brought in. ``replay`` tells whether effects and stream are those that were recorded."""

    manifest: Manifest
    replay: Replay


async def import_session(store: Keeper, path: Path, progress: Progress = silent) -> Imported:
    """Bring the archive at ``path`` in. Raises ArchiveInvalid, SessionExists, StoreError, OSError."""
    with _opened(path) as archive:
        manifest = _read_manifest(archive)
        batches = _read_batches(archive, manifest)
        replay = _fold(batches, manifest, progress)
        if await _is_there(store, manifest.session):
            raise SessionExists(manifest.session)
        try:
            await _put_bodies(store, archive, manifest, progress)
            await _put_log(store, batches)
        except BaseException:
            # What went wrong first is what counts; what stays then is pruned.
            with trio.CancelScope(shield=True), suppress(StoreFailed):
                await store.withdraw(manifest.session)
            raise
    return Imported(manifest, replay)


async def _put_log(store: Keeper, batches: Sequence[StoredBatch]) -> None:
    try:
        await store.put_log(batches)
    except RecordInvalid as fault:
        raise ArchiveInvalid(str(fault)) from fault


async def _is_there(store: Keeper, session: str) -> bool:
    try:
        await store.session(session)
    except SessionUnknown:
        return False
    return True


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Only the library's reading goes in here: a ValueError of the store's, say, is no damage of the archive."""
    try:
        yield
    except DAMAGE as fault:
        raise ArchiveInvalid(f"{what} cannot be read: {str(fault) or type(fault).__name__}") from fault
    except OSError as fault:
        if fault.errno == errno.EINVAL:  # the archive says that something lies where no file can have it
            raise ArchiveInvalid(f"{what} cannot be read: {fault.strerror}") from fault
        raise


def _opened(path: Path) -> zipfile.ZipFile:
    with _reading("the archive (a file that `duologue sessions export` wrote)"):
        return zipfile.ZipFile(path)


def _content(archive: zipfile.ZipFile, name: str, bytes_max: int) -> bytes:
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise ArchiveInvalid(f"the archive has no {name}") from None
    if info.file_size > bytes_max:
        raise ArchiveInvalid(f"{name} is larger than {bytes_max} bytes")
    if info.compress_type not in METHODS:
        raise ArchiveInvalid(f"{name} is compressed in a way that is not ours")
    with _reading(name):
        return archive.read(info)


def _read_manifest(archive: zipfile.ZipFile) -> Manifest:
    content = _content(archive, MANIFEST, MANIFEST_BYTES_MAX)
    try:
        raw: Any = json.loads(content)
        problem = manifest_of(raw) if isinstance(raw, dict) else "the manifest is no object"
        if problem:
            raise ArchiveInvalid(problem)
        return msgspec.convert(raw, Manifest)
    except (ValueError, RecursionError, msgspec.ValidationError) as fault:
        raise ArchiveInvalid(f"the manifest cannot be read: {fault}") from fault


def _read_batches(archive: zipfile.ZipFile, manifest: Manifest) -> list[StoredBatch]:
    content = _content(archive, EVENTS, EVENTS_BYTES_MAX)
    if hashlib.sha256(content).hexdigest() != manifest.events_sha256:
        raise ArchiveInvalid("the events are not those of the manifest: the archive is damaged")
    return read_lines(content)


def _fold(batches: Sequence[StoredBatch], manifest: Manifest, progress: Progress) -> Replay:
    replayer = Replayer(make_projection, encode_caused)
    try:
        for batch in batches:
            replayer.fold(batch)
            progress("events", len(replayer.replay.records), manifest.events)
    except SessionUnreadable as fault:
        raise ArchiveInvalid(f"the log does not fold: {fault}") from fault
    if replayer.replay.state.session_id != manifest.session or len(replayer.replay.records) != manifest.events:
        raise ArchiveInvalid("the log is not the one that the manifest names")
    return replayer.replay


async def _put_bodies(store: Keeper, archive: zipfile.ZipFile, manifest: Manifest, progress: Progress) -> None:
    group: list[Body] = []
    for done, entry in enumerate(manifest.bodies, start=1):
        content = _content(archive, entry.file, BODY_BYTES_MAX)
        with _reading(entry.file):
            data = from_file(entry.file, content)
        if len(data) != entry.size_bytes or body_digest(data) != entry.digest:
            raise ArchiveInvalid(f"{entry.file} is not the body that the manifest names: the archive is damaged")
        group.append(Body(entry.digest, data))
        if sum(len(body.data) for body in group) >= GROUP_BYTES or done == len(manifest.bodies):
            await store.put_bodies(manifest.session, group)
            group = []
        progress("bodies", done, len(manifest.bodies))
