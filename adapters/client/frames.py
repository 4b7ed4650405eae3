"""Server frames, read: text -> event, and the few nested objects that a client must understand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adapters.client.errors import HandshakeRefused
from adapters.client.transport import TransportRefused
from adapters.wire.schema import audio


@dataclass(frozen=True, slots=True)
class DuplexEvent:
    """One server event. ``number`` is None for what is not numbered; ``audio`` holds a delta's decoded bytes;
    ``at_ns`` is the client's clock when the frame came in."""

    type: str
    payload: Mapping[str, Any] = field(repr=False)
    at_ns: int
    number: int | None = None
    audio: bytes = field(default=b"", repr=False)
    size_bytes: int = 0


def decode_frame(text: str) -> dict[str, Any] | None:
    """The frame as a JSON object with a string ``type``; None when it is anything else."""
    try:
        payload = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return None
    if not isinstance(payload, dict) or not isinstance(payload.get("type"), str):
        return None
    return payload


def read_error(payload: Mapping[str, Any]) -> HandshakeRefused:
    """An ``error`` event, nested as in the GA API or flat as some servers send before a session stands."""
    body = payload.get("error")
    if not isinstance(body, Mapping):
        body = {"code": payload.get("code"), "message": body}
    param, event_id = body.get("param"), body.get("event_id")
    return HandshakeRefused(
        str(body.get("code") or "unknown"),
        str(body.get("message") or "no message"),
        retryable=body.get("retryable") is True,
        param=str(param) if param is not None else None,
        event_id=str(event_id) if event_id is not None else None,
    )


def read_refusal(refused: TransportRefused) -> HandshakeRefused:
    """An HTTP answer to the upgrade, with the JSON reason in its body where there is one."""
    try:
        body = json.loads(refused.body)
    except (ValueError, UnicodeDecodeError):
        body = {}
    error = read_error(body if isinstance(body, dict) else {})
    code = error.code if error.code != "unknown" else f"http_{refused.status}"
    message = error.message if error.code != "unknown" else f"the server answered HTTP {refused.status}"
    retryable = error.retryable or refused.status in (429, 502, 503, 504)
    return HandshakeRefused(
        code, message, retryable=retryable, status=refused.status, retry_after_ms=refused.retry_after_ms
    )


def pictures_of(units: range, frames: Sequence[str], stacked: Sequence[str | None]) -> list[str]:
    """What goes with the chunk that closes these units: of each its frame, and its stack of frames, where it has one."""
    pairs = [(*frames[unit : unit + 1], *stacked[unit : unit + 1]) for unit in units]
    return [picture for pair in pairs for picture in pair if picture is not None]


def output_format(session: Mapping[str, Any]) -> tuple[str, int]:
    """(encoding, rate in Hz) of the audio that a session object promises; pcm16 at 24 kHz where it does not say."""
    return read_format(session, "output") or (audio.PCM16, 24_000)


def read_format(session: Mapping[str, Any], side: str) -> tuple[str, int] | None:
    """(encoding, rate in Hz) of a session object's ``input`` or ``output`` side, in any of the shapes that are in use;
    None where it does not say."""
    encoding, rate = audio.PCM16, 24_000
    nested = session.get("audio")
    nested_side = nested.get(side) if isinstance(nested, Mapping) else None
    given = nested_side if isinstance(nested_side, Mapping) else {}
    if side == "input" and "sample_rate_hz" in session and "sample_rate_hz" not in given:
        given = {**given, "sample_rate_hz": session["sample_rate_hz"]}
    form = given.get("format", session.get(f"{side}_audio_format"))
    if isinstance(form, Mapping):
        encoding = audio.ENCODING_NAMES.get(str(form.get("type")), encoding)
        rate = int(form.get("rate") or given.get("sample_rate_hz") or (8_000 if encoding.startswith("g711") else rate))
    elif isinstance(form, str):
        encoding = audio.ENCODING_NAMES.get(form, encoding)
        rate = int(given.get("sample_rate_hz") or (8_000 if encoding.startswith("g711") else rate))
    else:
        return None
    return encoding, rate
