"""How the stream's frames become messages: one encoder for each connection, since codecs have state."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
import pybase64

from adapters.wire.audio import OutputEncoder
from core.ports.projection import Frame
from core.session.config import AudioFormat


class Encoder(Protocol):
    """Frames and events in, whole WebSocket messages out; an empty message is not sent."""

    def frame(self, frame: Frame, body: bytes | None) -> bytes | str:
        """A numbered frame; ``body`` is its audio, pcm16 at ``frame.rate``."""

    def event(self, payload: Mapping[str, Any]) -> bytes | str:
        """An event without a number."""


class JsonEncoder:
    """JSON with base64 audio in the format that the payload names: OpenAI's dialect and the duplex one. An unnumbered
    event gets an id of this connection's own."""

    def __init__(self) -> None:
        self._audio = OutputEncoder()
        self._prefix = secrets.token_hex(6)
        self._asides = 0

    def frame(self, frame: Frame, body: bytes | None) -> str:
        """See Encoder."""
        payload = frame.payload
        if frame.audio_field:
            wanted = AudioFormat(payload["format"], payload["sample_rate_hz"])
            data = self._audio.encode(frame.response_id, body or b"", frame.rate, wanted)
            used = self._audio.target
            coded = {"format": used.encoding, "sample_rate_hz": used.rate}
            payload = {**payload, **coded, frame.audio_field: pybase64.b64encode_as_string(data)}
        return msgspec.json.encode(payload).decode()

    def event(self, payload: Mapping[str, Any]) -> str:
        """See Encoder."""
        if "event_id" not in payload:
            self._asides += 1
            payload = {**payload, "event_id": f"event_{self._prefix}_{self._asides}"}
        return msgspec.json.encode(payload).decode()
