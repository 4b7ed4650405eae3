"""The client for asyncio, over the ``websockets`` library (an optional extra)."""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from adapters.client.mismatch import NO_WEBSOCKET, TransportMismatch, tls_failure
from adapters.client.shell import DuplexClientBase
from adapters.client.streams import Flag
from adapters.client.transport import (
    CLOSE_WAIT_S,
    MESSAGE_BYTES_MAX,
    ConnectFn,
    Stop,
    Transport,
    TransportClosed,
    TransportRefused,
)

T = TypeVar("T")


class AsyncioLoop:
    """The event loop's verbs in asyncio."""

    def flag(self) -> Flag:
        """A new event."""
        return asyncio.Event()

    def now_ns(self) -> int:
        """The monotonic clock."""
        return time.monotonic_ns()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def within(self, seconds: float, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work``, at most so long. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            return await work()

    async def in_haste(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work``, at most so long."""
        with suppress(TimeoutError):
            await self.within(seconds, work)

    async def start(self, work: Callable[[], Awaitable[None]]) -> Stop:
        """In a task of its own."""
        task = asyncio.ensure_future(work())

        async def stop() -> None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

        return stop

    async def race(self, *works: Callable[[], Awaitable[None]]) -> None:
        """Run all until the first returns or raises, then cancel the others."""
        tasks = [asyncio.ensure_future(work()) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()


class WebsocketsTransport:
    """A ``websockets`` client connection as a Transport."""

    def __init__(self, connection: Any, closed: type[Exception]) -> None:
        self._connection = connection
        self._closed = closed

    async def send(self, text: str) -> None:
        """Write one frame. Raises TransportClosed."""
        try:
            await self._connection.send(text)
        except self._closed as error:
            raise _read_close(error) from None

    async def receive(self) -> str:
        """The next frame. Raises TransportClosed."""
        try:
            message = await self._connection.recv()
        except self._closed as error:
            raise _read_close(error) from None
        return message if isinstance(message, str) else bytes(message).decode("utf-8", "replace")

    async def close(self, code: int, reason: str) -> None:
        """Close within a second, whatever the peer does."""
        try:
            async with asyncio.timeout(CLOSE_WAIT_S):
                await self._connection.close(code, reason)
        except (TimeoutError, OSError):
            return


class DuplexClient(DuplexClientBase):
    """A duplex session for asyncio; the interface is that of ``trio_client.DuplexClient``.

    Raises ImportError, saying what to install, when ``websockets`` is missing and no ``connect`` is given.
    """

    def __init__(self, url: str, *, connect: ConnectFn | None = None, **options: Any) -> None:
        super().__init__(url, loop=AsyncioLoop(), connect=connect or websockets_connect(), **options)


def websockets_connect() -> ConnectFn:
    """A ConnectFn over ``websockets``. Raises ImportError, saying what to install."""
    try:
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
    except ImportError:
        raise ImportError(
            "the asyncio client needs the websockets library (the extra asyncio-client): "
            f"{sys.executable} -m pip install websockets"
        ) from None

    async def opened(url: str, headers: Mapping[str, str]) -> Transport:
        try:
            connection = await connect(
                url, additional_headers=dict(headers), max_size=MESSAGE_BYTES_MAX, compression=None, open_timeout=None
            )
        except InvalidStatus as error:
            answer = error.response
            retry_after = answer.headers.get("Retry-After", "")
            raise TransportRefused(answer.status_code, bytes(answer.body or b""), retry_after) from None
        except (InvalidHandshake, EOFError):
            raise TransportMismatch(NO_WEBSOCKET) from None
        except ssl.SSLError as error:
            raise tls_failure(error) from None
        except ConnectionClosed as error:
            raise _read_close(error) from None
        return WebsocketsTransport(connection, ConnectionClosed)

    return opened


def _read_close(error: Any) -> TransportClosed:
    received = error.rcvd
    if received is None:
        return TransportClosed(None, "connection closed")
    return TransportClosed(received.code, received.reason)
