"""The socket port: where a session's frames go, and how it ends. The wire adapters implement it over WebSocket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from core.ports.projection import Frame


class SocketClosed(Exception):
    """The peer is gone; nothing more can be written."""


class Socket(Protocol):
    """One attached client. ``encode`` is pure but for codec state, which restarts at each response and attachment."""

    def encode(self, frame: Frame, body: bytes | None) -> bytes | str:
        """The frame as it goes over the wire; ``body`` is its audio (pcm16 at ``frame.rate``) when it names one."""

    def encode_event(self, payload: object) -> bytes | str:
        """An unnumbered event."""

    async def send(self, messages: Sequence[bytes | str]) -> None:
        """Write these messages, in one write where the transport can, waiting for the peer to take them; empty ones are
        left out. Raises SocketClosed."""

    async def close(self, code: int, reason: str) -> None:
        """Close; never raises."""
