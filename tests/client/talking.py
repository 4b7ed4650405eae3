"""Clients of the real server (scripted model, store in memory) over memory streams in virtual time, and how they listen."""

from __future__ import annotations

from collections.abc import Mapping

import trio
from wsproto import ConnectionType, WSConnection

from adapters.client.credentials import ReconnectPolicy
from adapters.client.handle import ResponseHandle
from adapters.client.player import Player
from adapters.client.session_config import cascade_session_config
from adapters.client.transport import Transport
from adapters.client.trio_client import DuplexClient
from adapters.client.trio_transport import TrioTransport
from adapters.wire.schema import names
from tests.server.servers import Server

URL = "ws://localhost/v1/realtime"
QUICK = ReconnectPolicy(initial_ms=20, attempts_max=20)


class Line:
    """The way to a server; ``cut`` breaks the latest connection."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.streams: list[trio.abc.Stream] = []

    async def connect(self, url: str, headers: Mapping[str, str]) -> Transport:
        self.streams.append(self.server.dial())
        transport = TrioTransport(self.streams[-1], WSConnection(ConnectionType.CLIENT))
        await transport.open("localhost", url.removeprefix("ws://localhost"), headers)
        return transport

    async def cut(self) -> None:
        await trio.aclose_forcefully(self.streams[-1])


def client_on(line: Line, **options: object) -> DuplexClient:
    config = cascade_session_config()
    return DuplexClient(URL, connect=line.connect, config=config, reconnect=QUICK, **options)  # type: ignore[arg-type]


async def hear_all(client: DuplexClient) -> tuple[bytes, str | None, str]:
    """The next answer: its audio, its status, its text."""
    async for response in client.responses():
        audio = b"".join([chunk async for chunk in response.audio()])
        await response.wait_done()
        return audio, response.status, response.transcript
    raise AssertionError("the session ended without an answer")


async def hear_and_cut(client: DuplexClient, heard_ms: int) -> tuple[ResponseHandle, int]:
    """The next answer, cut as soon as ``heard_ms`` of it were played, and how much had been played then, in ms."""
    player = Player(int(trio.current_time() * 1e9))
    played_ms = 0
    async for response in client.responses():
        async for chunk in response.audio():
            now_ns = int(trio.current_time() * 1e9)
            player.feed(response.response_id, chunk, now_ns)
            if player.played_ms(response.response_id) >= heard_ms:
                played_ms = player.cut(now_ns)
                await client.barge_in(played_ms=played_ms, response_id=response.response_id)
                await response.wait_done()
        return response, played_ms
    raise AssertionError("the session ended without an answer")


async def history_of(client: DuplexClient, item_id: str | None) -> str:
    """What the server's history says was said in an answer."""
    await client.send({"type": names.ITEM_RETRIEVE, "item_id": item_id})
    event = await client.wait_for(names.ITEM_RETRIEVED, timeout_s=5)
    return str(event.payload["item"]["content"][0]["transcript"])
