"""The client for trio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from adapters.client import trio_transport
from adapters.client.shell import DuplexClientBase
from adapters.client.streams import Flag
from adapters.client.transport import ConnectFn, Stop

T = TypeVar("T")


class TrioLoop:
    """The event loop's verbs in trio."""

    def flag(self) -> Flag:
        """A new event."""
        return trio.Event()

    def now_ns(self) -> int:
        """trio's clock, so that a mock clock rules here too."""
        return int(trio.current_time() * 1e9)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await trio.sleep(seconds)

    async def within(self, seconds: float, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work``, at most so long. Raises TimeoutError."""
        with trio.move_on_after(seconds):
            return await work()
        raise TimeoutError(f"nothing within {seconds:g} s")

    async def in_haste(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work``, at most so long, whatever is cancelled around it."""
        with trio.move_on_after(seconds, shield=True):
            await work()

    async def start(self, work: Callable[[], Awaitable[None]]) -> Stop:
        """In a nursery of its own. It is left without the caller's exception, which so stays what it is instead of arriving
        inside a group."""
        manager = trio.open_nursery()
        nursery = await manager.__aenter__()
        nursery.start_soon(work)

        async def stop() -> None:
            nursery.cancel_scope.cancel()
            await manager.__aexit__(None, None, None)

        return stop

    async def race(self, *works: Callable[[], Awaitable[None]]) -> None:
        """Run all until the first returns, then cancel the others."""

        async def run(work: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
            await work()
            scope.cancel()

        async with trio.open_nursery() as nursery:
            for work in works:
                nursery.start_soon(run, work, nursery.cancel_scope)


class DuplexClient(DuplexClientBase):
    """A duplex session for trio. See ``DuplexClientBase`` for what it does once entered::

        async with DuplexClient("ws://localhost:8765/v1/realtime", model="cascade") as client:
            await client.stream_pcm(pcm)
            async for response in client.responses():
                async for chunk in response.audio():
                    play(chunk)
                    await client.ack_playback(response.played_ms, response_id=response.response_id)

    Arguments: ``model``, ``config`` (the session object), ``resume`` (credentials of a session to go on with),
    ``reconnect`` (None: a drop ends the client), ``heartbeat_interval_s``, ``handshake_timeout_s``, ``api_key``,
    ``strict_stream``, ``connect`` (another transport).
    """

    def __init__(self, url: str, *, connect: ConnectFn | None = None, **options: Any) -> None:
        super().__init__(url, loop=TrioLoop(), connect=connect or trio_transport.connect, **options)
