"""A whole server over memory streams: scripted model in the loop, store in memory, the application's own front."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
import trio.testing
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from adapters.server.application import Application
from adapters.server.metrics import Metrics
from adapters.server.service import Service
from adapters.server.settings import ServerSettings
from adapters.wire.caused import encode_caused
from adapters.wire.projections import make_projection
from core.actors.session import Ports
from core.actors.supervisor import Supervisor, open_supervisor
from gpu_runtime.host.inline import open_inline
from gpu_runtime.models.scripted import machine
from store.memory import MemoryStore, open_memory_store
from store.queueing import DEFAULT_LIMITS, QueueLimits

WALL_START_NS = 1_700_000_000_000_000_000


def loud(ms: int, rate: int) -> str:
    """Base64 of a tone that the scripted ear takes for speech."""
    count = ms * rate // 1000
    return base64.b64encode(struct.pack(f"<{count}h", *(int(8_000 * math.sin(i * 0.3)) for i in range(count)))).decode()


def quiet(ms: int, rate: int) -> str:
    """Base64 of silence."""
    return base64.b64encode(bytes(ms * rate // 500)).decode()


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNgAAAAAgAB5Sfe/AAAAABJRU5ErkJggg=="
"""An image of one pixel."""


@attrs.define
class Client:
    """One WebSocket client with verbs. ``seen`` is every event it got."""

    socket: WebSocketConnection
    rate: int
    seen: list[dict[str, Any]] = attrs.field(factory=list)

    async def send(self, type: str, **fields: Any) -> None:
        await self.socket.send_message(json.dumps({"type": type, **fields}))

    async def receive(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(await self.socket.get_message())
        self.seen.append(event)
        return event

    async def until(self, kind: str) -> dict[str, Any]:
        """The next event of that type. Raises ConnectionClosed when none comes."""
        while True:
            event = await self.receive()
            if event["type"] == kind:
                return event

    async def say(self, ms: int = 400) -> None:
        """Speak and fall silent, faster than real time."""
        for part in (loud(ms, self.rate), quiet(800, self.rate)):
            await self.send("input_audio_buffer.append", audio=part)

    async def closed(self) -> tuple[int, str | None]:
        """Read to the end: the close code and reason."""
        try:
            while True:
                await self.receive()
        except ConnectionClosed:
            gone = self.socket.closed
        assert gone is not None
        return gone.code, gone.reason

    def types(self) -> list[str]:
        return [event["type"] for event in self.seen]


@attrs.define
class Server:
    """One server. ``connect`` and ``get`` are what a browser would do, without a network."""

    application: Application
    supervisor: Supervisor
    store: MemoryStore
    nursery: trio.Nursery

    def dial(self) -> trio.abc.Stream:
        """A raw connection."""
        ours, theirs = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self.application.handle, theirs)
        return ours

    @asynccontextmanager
    async def connect(
        self, path: str = "/v1/realtime", rate: int = 24_000, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> AsyncIterator[Client]:
        async with trio.open_nursery() as nursery:
            socket = await wrap_client_stream(
                nursery, self.dial(), "localhost", path, extra_headers=list(headers), max_message_size=2**25
            )
            yield Client(socket, rate)
            with trio.move_on_after(5):
                await socket.aclose()
            nursery.cancel_scope.cancel()

    async def ask(self, raw: bytes) -> bytes:
        """Send bytes, read until the server is done."""
        stream = self.dial()
        await stream.send_all(raw)
        got = b""
        while part := await stream.receive_some(65_536):
            got += part
        return got

    async def get(self, path: str, *lines: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body) of one request."""
        head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *lines]
        got = await self.ask("\r\n".join([*head, "", ""]).encode())
        top, _, body = got.partition(b"\r\n\r\n")
        first, *rest = top.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in rest)
        return int(first.split()[1]), headers, body


@asynccontextmanager
async def open_test_server(
    settings: ServerSettings | None = None, *, queue: QueueLimits = DEFAULT_LIMITS, **script: Any
) -> AsyncIterator[Server]:
    """A server with the scripted model, under whatever clock the test has."""
    settings = settings or ServerSettings(model="scripted")
    metrics = Metrics()
    application = Application(settings, metrics)

    def now_ns() -> int:
        return WALL_START_NS + round(trio.current_time() * 1e9)

    async with (
        open_memory_store(limits=queue) as store,
        open_inline(lambda: machine(WALL_START_NS, **script)) as runtime,
        open_supervisor(
            Ports(store, runtime, now_ns, encode_caused, metrics, settings.silent_s),
            server_id="test",
            make_projection=make_projection,
            sessions_max=settings.sessions_max,
        ) as supervisor,
        trio.open_nursery() as nursery,
    ):
        while runtime.capabilities is None:
            await trio.sleep(0.01)
        metrics.watch_service(supervisor, runtime, store)
        application.service = Service(supervisor, runtime, metrics, settings, application.patience)
        nursery.start_soon(application.patience.look)
        yield Server(application, supervisor, store, nursery)
        nursery.cancel_scope.cancel()
