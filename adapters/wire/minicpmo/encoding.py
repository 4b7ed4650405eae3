"""The demo's messages: JSON, sound as base64 of little-endian float32 at 24 kHz."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pybase64

from adapters.wire.audio import OutputEncoder
from core.ports.projection import Frame
from core.session.config import AudioFormat

OUTPUT = AudioFormat("pcm_f32le", 24_000)


class MiniCPMOEncoder:
    """See adapters.wire.encoding.Encoder."""

    def __init__(self) -> None:
        self._audio = OutputEncoder()

    def frame(self, frame: Frame, body: bytes | None) -> str:
        """See Encoder."""
        payload = frame.payload
        if frame.audio_field:
            data = self._audio.encode(frame.response_id, body or b"", frame.rate, OUTPUT)
            payload = {**payload, frame.audio_field: pybase64.b64encode_as_string(data)}
        return msgspec.json.encode(payload).decode()

    def event(self, payload: Mapping[str, Any]) -> str:
        """See Encoder."""
        return msgspec.json.encode(payload).decode()
