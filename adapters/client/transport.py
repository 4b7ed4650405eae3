"""What the shells need of the world: a WebSocket's text frames, and an event loop's few verbs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from adapters.client.streams import Flag

T = TypeVar("T")

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""The largest frame that a server may send."""

CLOSE_WAIT_S = 1.0
"""How long a goodbye may take, whatever the peer does."""

RETRY_AFTER_MS_MAX = 30_000
"""A server that asks for a longer pause is asked again after this one."""
RETRY_AFTER_CHARS_MAX = 9


class TransportClosed(Exception):
    """The connection is gone. ``code`` is the WebSocket's close code where one came."""

    def __init__(self, code: int | None, reason: str) -> None:
        super().__init__(reason or f"closed with code {code}")
        self.code = code
        self.reason = reason


class TransportRefused(Exception):
    """The upgrade was answered with an HTTP status instead. ``retry_after_ms``: the pause that the answer asked for."""

    def __init__(self, status: int, body: bytes, retry_after: str = "") -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.body = body
        seconds = int(retry_after) if retry_after.isdecimal() and len(retry_after) < RETRY_AFTER_CHARS_MAX else 0
        self.retry_after_ms = min(RETRY_AFTER_MS_MAX, seconds * 1_000)


class Transport(Protocol):
    """One open WebSocket, text frames only. ``send`` and ``receive`` raise TransportClosed."""

    async def send(self, text: str) -> None:
        """Write one frame, waiting for the peer to take it."""

    async def receive(self) -> str:
        """The next frame."""

    async def close(self, code: int, reason: str) -> None:
        """Close; never raises."""


ConnectFn = Callable[[str, Mapping[str, str]], Awaitable[Transport]]
"""(url, headers) -> an open transport. Raises TransportClosed (TransportMismatch), TransportRefused or OSError."""


Stop = Callable[[], Awaitable[None]]
"""Cancels background work and waits for its end. Raises what it failed with."""


class Loop(Protocol):
    """The verbs that trio and asyncio both have."""

    def flag(self) -> Flag:
        """A new event."""

    def now_ns(self) -> int:
        """The loop's monotonic clock."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def within(self, seconds: float, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work``, at most so long. Raises TimeoutError."""

    async def in_haste(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        """The same for last words: also while the caller is being cancelled, where the loop can do that; a time-out is no
        error."""

    async def start(self, work: Callable[[], Awaitable[None]]) -> Stop:
        """Begin ``work`` in the background."""

    async def race(self, *works: Callable[[], Awaitable[None]]) -> None:
        """Run all until the first one returns or raises, then cancel the others and wait for them."""


def duplex_url(url: str, model: str | None) -> str:
    """``url`` with ``duplex=1`` and ``autostart=0`` (the first frame decides what is opened) and the model's name.
    Raises ValueError when it is no ws:// or wss:// address."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("ws", "wss") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        raise ValueError(f"{url!r} is not a WebSocket address: it must look like ws://host:8765/v1/realtime")
    query = dict(parse_qsl(parts.query, keep_blank_values=True)) | {"duplex": "1", "autostart": "0"}
    if model:
        query["model"] = model
    return urlunsplit(parts._replace(query=urlencode(query)))
