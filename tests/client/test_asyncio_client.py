"""The asyncio shell: the same stories, briefly, on a fake network inside asyncio, and one over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import pytest
from websockets.asyncio.server import ServerConnection, serve

from adapters.client.asyncio_client import DuplexClient
from adapters.client.credentials import ReconnectPolicy
from adapters.client.errors import ConnectionLost, HandshakeRefused
from adapters.client.transport import Transport, TransportClosed, TransportRefused
from adapters.wire.schema import names
from tests.client.fake_server import tone
from tests.client.fake_session import FakeSession

LIMIT_S = 20
QUICK = ReconnectPolicy(initial_ms=1, attempts_max=3)


class Link:
    """A connection to the model session, inside asyncio. Each frame from the client is answered at once."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.lost = False
        self.bell = asyncio.Event()
        network.session.drop()

    async def send(self, text: str) -> None:
        await asyncio.sleep(0)
        if self.lost:
            raise TransportClosed(None, "cut")
        self.network.session.receive(text)
        self.bell.set()

    async def receive(self) -> str:
        while not self.lost:
            if self.network.session.frames:
                return self.network.session.frames.pop(0)
            if self.network.session.closed:
                raise TransportClosed(1_000, "")
            self.bell.clear()
            await self.bell.wait()
        raise TransportClosed(None, "cut")

    async def close(self, code: int, reason: str) -> None:
        self.lost = True

    def cut(self) -> None:
        self.lost = True
        self.network.session.drop()
        self.bell.set()


class Network:
    def __init__(self) -> None:
        self.session = FakeSession()
        self.links: list[Link] = []
        self.down = False

    async def connect(self, url: str, headers: Mapping[str, str]) -> Transport:
        if self.down:
            raise ConnectionRefusedError("connection refused")
        self.links.append(Link(self))
        return self.links[-1]

    def answer(self, *chunks: bytes, end: bool = True) -> None:
        if self.session.active is None:
            self.session.start_answer()
        for chunk in chunks:
            self.session.delta(chunk, "word ")
        self.session.pump(1_000)
        if end:
            self.session.end_answer()
        self.links[-1].bell.set()


def story(test: Callable[[Network], Awaitable[None]]) -> Callable[[], None]:
    """Run an asyncio story against a network of its own, within a time limit."""

    def run() -> None:
        async def limited() -> None:
            async with asyncio.timeout(LIMIT_S):
                await test(Network())

        asyncio.run(limited())

    run.__name__ = test.__name__  # type: ignore[attr-defined]
    return run


@story
async def test_speak_and_hear_an_answer(net: Network) -> None:
    async with DuplexClient("ws://s/v1/realtime", model="m", connect=net.connect) as client:
        await client.stream_pcm(tone(400), realtime=False)
        await client.commit()
        await client.wait_for(names.AUDIO_COMMITTED, timeout_s=5)
        net.answer(tone(100), tone(100))
        async for response in client.responses():
            heard = b"".join([chunk async for chunk in response.audio()])
            break
        assert heard == tone(100) * 2
        await client.ack_playback(150, response_id=response.response_id)
        while not net.session.played:
            await asyncio.sleep(0.001)
        assert net.session.played == {"resp_1": 150}
    assert b"".join(net.session.input) == tone(400)
    assert net.session.closed


@story
async def test_a_drop_is_resumed(net: Network) -> None:
    async with DuplexClient("ws://s/v1/realtime", connect=net.connect, reconnect=QUICK) as client:
        responses = client.responses()
        net.answer(tone(100), end=False)
        response = await anext(responses)
        net.links[-1].cut()
        await client.append_audio(tone(20))
        while len(net.links) < 2 or not client.is_connected:
            await asyncio.sleep(0.001)
        net.answer(tone(100))
        assert b"".join([chunk async for chunk in response.audio()]) == tone(100) * 2
        while not net.session.input:
            await asyncio.sleep(0.001)
        assert net.session.input == [tone(20)]
        assert client.statistics().lost_events == 0


@story
async def test_giving_up(net: Network) -> None:
    async with DuplexClient("ws://s/v1/realtime", connect=net.connect, reconnect=QUICK) as client:
        net.down = True
        net.links[-1].cut()
        with pytest.raises(ConnectionLost):
            await client.wait_for(names.RESPONSE_DONE, timeout_s=5)


@story
async def test_waiting_has_a_limit(net: Network) -> None:
    async with DuplexClient("ws://s/v1/realtime", connect=net.connect) as client:
        with pytest.raises(TimeoutError):
            await client.wait_for(names.RESPONSE_DONE, timeout_s=0.01)


@story
async def test_a_refused_upgrade(net: Network) -> None:
    async def refuse(url: str, headers: Mapping[str, str]) -> Transport:
        assert headers == {"Authorization": "Bearer key"}
        raise TransportRefused(503, b'{"error": {"code": "resource_exhausted", "message": "full", "retryable": true}}')

    with pytest.raises(HandshakeRefused) as caught:
        async with DuplexClient("ws://s/v1/realtime", connect=refuse, api_key="key"):
            pass
    assert (caught.value.code, caught.value.retryable) == ("resource_exhausted", True)


@story
async def test_cancellation_passes_through(net: Network) -> None:
    async def talk() -> None:
        async with DuplexClient("ws://s/v1/realtime", connect=net.connect):
            await asyncio.sleep(60)

    task = asyncio.create_task(talk())
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.realtime
def test_over_a_real_socket() -> None:
    async def serve_one(session: FakeSession, connection: ServerConnection) -> None:
        async for text in connection:
            session.receive(text)
            if session.commands and session.answers == 0:
                session.start_answer()
                session.delta(tone(100), "word ")
                session.pump(100)
                session.end_answer()
            for frame in session.frames:
                await connection.send(frame)
            session.frames.clear()
            if session.closed:
                return

    async def main() -> None:
        session = FakeSession()
        async with asyncio.timeout(LIMIT_S), serve(partial(serve_one, session), "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with DuplexClient(f"ws://127.0.0.1:{port}/v1/realtime", model="m") as client:
                await client.commit()
                async for response in client.responses():
                    assert b"".join([chunk async for chunk in response.audio()]) == tone(100)
                    break
            assert session.closed
            with pytest.raises(ConnectionLost):
                async with DuplexClient("ws://127.0.0.1:9/v1/realtime"):
                    pass

    asyncio.run(main())
