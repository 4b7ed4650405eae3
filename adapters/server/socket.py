"""One client's WebSocket as the session's actor sees it (core.ports.socket.Socket)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pybase64
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from adapters.wire.audio import OutputEncoder
from core.ports.projection import Frame
from core.ports.socket import SocketClosed
from core.session.config import AudioFormat

CLOSE_TIMEOUT_S = 5.0
REASON_BYTES_MAX = 123

Farewell = Callable[[int, str], Mapping[str, Any] | None]
"""(close code, reason) -> what the dialect says before it closes, if anything."""

_GONE = (ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError)


class WebSocket:
    """Encodes frames for one attachment and writes them, one at a time."""

    def __init__(
        self,
        connection: WebSocketConnection,
        stream: trio.abc.Stream,
        *,
        send_timeout_s: float,
        farewell: Farewell,
        on_encoded: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._send_timeout_s = send_timeout_s
        self._farewell = farewell
        self._on_encoded = on_encoded
        self._encoder = OutputEncoder()
        self._prefix = secrets.token_hex(6)
        self._asides = 0

    def encode(self, frame: Frame, body: bytes | None) -> str:
        """JSON text; audio in the format that the payload names, base64."""
        payload = dict(frame.payload)
        if frame.audio_field:
            wanted = AudioFormat(payload["format"], payload["sample_rate_hz"])
            data = self._encoder.encode(frame.response_id, body or b"", frame.rate, wanted)
            payload["format"], payload["sample_rate_hz"] = self._encoder.target.encoding, self._encoder.target.rate
            payload[frame.audio_field] = pybase64.b64encode_as_string(data)
        self._on_encoded(payload)
        return msgspec.json.encode(payload).decode()

    def encode_event(self, payload: object) -> str:
        """JSON text; an unnumbered event gets an id of this attachment's own."""
        assert isinstance(payload, Mapping)
        event = dict(payload)
        if "event_id" not in event:
            self._asides += 1
            event["event_id"] = f"event_{self._prefix}_{self._asides}"
        return msgspec.json.encode(event).decode()

    async def send(self, data: bytes | str) -> None:
        """Write one message. Raises SocketClosed, also when the peer takes nothing for too long."""
        with trio.move_on_after(self._send_timeout_s) as scope:
            try:
                await self._connection.send_message(data)
            except _GONE:
                raise SocketClosed from None
        if scope.cancelled_caught:
            await trio.aclose_forcefully(self._stream)  # half a frame is out: nothing can follow it
            raise SocketClosed

    async def close(self, code: int, reason: str) -> None:
        """Say the dialect's farewell and close; at most ``CLOSE_TIMEOUT_S``."""
        with trio.move_on_after(CLOSE_TIMEOUT_S):
            try:
                words = self._farewell(code, reason)
                if words is not None:
                    await self._connection.send_message(self.encode_event(words))
                short = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
                await self._connection.aclose(code, short)
            except _GONE:
                return
