"""One client's WebSocket as the session's actor sees it (core.ports.socket.Socket)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from adapters.server.patience import Patience
from adapters.server.upgraded import UpgradedStream
from adapters.wire.encoding import Encoder
from core.ports.projection import Frame
from core.ports.socket import SocketClosed

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
        stream: UpgradedStream,
        *,
        patience: Patience,
        send_timeout_s: float,
        farewell: Farewell,
        encoder: Encoder,
        on_encoded: Callable[[Frame], None],
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._patience = patience
        self._send_timeout_s = send_timeout_s
        self._farewell = farewell
        self._on_encoded = on_encoded
        self._encoder = encoder

    def encode(self, frame: Frame, body: bytes | None) -> bytes | str:
        """The frame as its dialect writes it; empty when there is nothing to send yet."""
        self._on_encoded(frame)
        return self._encoder.frame(frame, body)

    def encode_event(self, payload: object) -> bytes | str:
        """An unnumbered event."""
        assert isinstance(payload, Mapping)
        return self._encoder.event(payload)

    async def send(self, messages: Sequence[bytes | str]) -> None:
        """Write messages, all in one write. Raises SocketClosed, also when the peer takes nothing for too long."""
        whole = [message for message in messages if message]
        if not whole:
            return
        if self._connection.closed is not None:
            raise SocketClosed
        with self._patience.move_on_after(self._send_timeout_s) as scope:
            try:
                await self._stream.send_messages(whole)
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
