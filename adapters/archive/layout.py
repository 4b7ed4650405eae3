"""What is in an archive. It is a zip file:

``manifest.json``
    format and version, the session, a SHA-256 of ``events.jsonl``, and each body: its digest (which is its name in the
    log), its file, its size.
``events.jsonl``
    one line a record, as rows of the store are: position, epoch, at_ns, type, version and the event. The last record of a
    batch carries ``batch_id``, ``term`` and ``chain`` too.
``bodies/DIGEST.wav`` or ``.bin``
    pcm16 as WAV, so that it can be listened to; anything else (floats, companded audio, images) as it is.

Bodies that the log names and the store has no more (they were erased) are not in the manifest.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Iterable, Mapping

import attrs

from core.session import events as e

FORMAT = "duologue-session"
VERSION = 1

MANIFEST = "manifest.json"
EVENTS = "events.jsonl"
FOLDER = "bodies"

BODY_BYTES_MAX = 256 * 1024 * 1024
EVENTS_BYTES_MAX = 1024 * 1024 * 1024
MANIFEST_BYTES_MAX = 256 * 1024 * 1024


@attrs.frozen
class BodyEntry:
    """One body in an archive. ``size_bytes`` is of the body, not of its file."""

    digest: str
    file: str
    size_bytes: int


@attrs.frozen
class Manifest:
    """``manifest.json``."""

    session: str
    events: int
    events_sha256: str
    bodies: tuple[BodyEntry, ...]
    exported_by: str = ""
    format: str = FORMAT
    version: int = VERSION


def named_bodies(events: Iterable[e.Event]) -> dict[str, int | None]:
    """Digest -> the rate in Hz where it is pcm16, else None; in the order in which the log names them."""
    named: dict[str, int | None] = {}
    for event in events:
        if isinstance(event, e.Append) and event.digest:
            is_pcm16 = event.kind == "audio" and event.encoding == "pcm16"
            named.setdefault(event.digest, event.rate if is_pcm16 else None)
        elif isinstance(event, e.Output) and event.digest:
            named.setdefault(event.digest, event.rate)
    return named


def to_file(data: bytes, rate: int | None) -> tuple[str, bytes]:
    """(ending, content) of a body's file. Odd bytes are no pcm16, whatever the log says."""
    if rate is None or len(data) % 2:
        return "bin", data
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(data)
    return "wav", written.getvalue()


def from_file(name: str, content: bytes) -> bytes:
    """The body in a file. Raises wave.Error, EOFError."""
    if not name.endswith(".wav"):
        return content
    with wave.open(io.BytesIO(content), "rb") as file:
        return file.readframes(file.getnframes())


def manifest_of(raw: Mapping[str, object]) -> str:
    """A sentence that says what is wrong with a manifest's head; empty when nothing is."""
    if raw.get("format") != FORMAT:
        return "this is not an archive of a session"
    if raw.get("version") != VERSION:
        return f"the archive is of version {raw.get('version')}, this command reads {VERSION}"
    return ""
