"""The trio client's WebSocket against a peer on a memory stream."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

from adapters.client import trio_transport
from adapters.client.transport import TransportClosed, TransportRefused
from adapters.client.trio_transport import TrioTransport


class Peer:
    """The server's end: reads events, answers by hand."""

    def __init__(self, stream: trio.StapledStream) -> None:
        self.stream = stream
        self.protocol = WSConnection(ConnectionType.SERVER)
        self.events: list[object] = []

    async def read(self) -> object:
        while not self.events:
            self.protocol.receive_data(await self.stream.receive_some(65_536) or None)
            self.events += list(self.protocol.events())
        return self.events.pop(0)

    async def send(self, *events: object) -> None:
        for event in events:
            await self.stream.send_all(self.protocol.send(event))  # type: ignore[arg-type]


def pair() -> tuple[TrioTransport, Peer]:
    ours, theirs = trio.testing.memory_stream_pair()
    return TrioTransport(ours, WSConnection(ConnectionType.CLIENT)), Peer(theirs)


async def opened() -> tuple[TrioTransport, Peer]:
    transport, peer = pair()

    async def accept() -> None:
        assert isinstance(await peer.read(), Request)
        await peer.send(AcceptConnection())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        await transport.open("server:8765", "/v1/realtime?duplex=1", {"Authorization": "Bearer key"})
    return transport, peer


async def test_frames_travel_both_ways() -> None:
    transport, peer = await opened()
    await transport.send("question")
    event = await peer.read()
    assert isinstance(event, TextMessage)
    assert event.data == "question"
    await peer.send(TextMessage(data="ans", message_finished=False), TextMessage(data="wer"), BytesMessage(data=b"2"))
    assert [await transport.receive(), await transport.receive()] == ["answer", "2"]


async def test_the_request_carries_path_and_headers() -> None:
    transport, peer = pair()

    async def refuse() -> None:
        request = await peer.read()
        assert isinstance(request, Request)
        assert request.target == "/v1/realtime?duplex=1"
        assert (b"authorization", b"Bearer key") in request.extra_headers
        await peer.send(
            RejectConnection(status_code=401, headers=[(b"content-length", b"2")], has_body=True),
            RejectData(data=b"{}", body_finished=True),
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refuse)
        with pytest.raises(TransportRefused) as caught:
            await transport.open("server", "/v1/realtime?duplex=1", {"Authorization": "Bearer key"})
    assert (caught.value.status, caught.value.body) == (401, b"{}")


async def test_a_server_that_hangs_up_during_the_handshake() -> None:
    transport, peer = pair()
    await peer.stream.aclose()
    with pytest.raises(TransportClosed):
        await transport.open("server", "/", {})


async def test_a_peer_that_speaks_no_http() -> None:
    transport, peer = pair()
    await peer.stream.send_all(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    with pytest.raises(TransportClosed, match="speaks no WebSocket"):
        await transport.open("server", "/", {})


async def test_pings_are_answered_while_reading() -> None:
    transport, peer = await opened()
    await peer.send(Ping(payload=b"42"), TextMessage(data="x"))
    assert await transport.receive() == "x"
    event = await peer.read()
    assert isinstance(event, Pong)
    assert bytes(event.payload) == b"42"


async def test_a_close_carries_its_code() -> None:
    transport, peer = await opened()
    await peer.send(TextMessage(data="last"), CloseConnection(code=1_012, reason="restart"))
    assert await transport.receive() == "last"
    with pytest.raises(TransportClosed) as caught:
        await transport.receive()
    assert (caught.value.code, caught.value.reason) == (1_012, "restart")
    with pytest.raises(TransportClosed):
        await transport.send("too late")
    await transport.close(1_000, "")


async def test_a_broken_connection() -> None:
    transport, peer = await opened()
    await peer.stream.aclose()
    with pytest.raises(TransportClosed) as caught:
        await transport.receive()
    assert caught.value.code == 1_006


async def test_a_frame_beyond_the_bound_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trio_transport, "MESSAGE_BYTES_MAX", 100)
    transport, peer = await opened()
    await peer.send(TextMessage(data="x" * 101))
    with pytest.raises(TransportClosed) as caught:
        await transport.receive()
    assert caught.value.code == 1_009


@pytest.mark.parametrize("cancelled", [False, True])
async def test_closing_a_peer_that_does_not_answer_takes_a_second(cancelled: bool) -> None:
    transport, peer = await opened()
    began = trio.current_time()
    with trio.CancelScope() as scope:
        if cancelled:
            scope.cancel()
        await transport.close(1_000, "bye")
    assert trio.current_time() - began == pytest.approx(1.0)
    assert isinstance(await peer.read(), CloseConnection)
    assert await peer.stream.receive_some(1) == b""


async def test_writers_take_turns() -> None:
    transport, peer = await opened()
    send: Callable[[str], object] = transport.send
    async with trio.open_nursery() as nursery:
        for place in range(20):
            nursery.start_soon(send, str(place) * 100)  # type: ignore[arg-type]
        received = {getattr(await peer.read(), "data", None) for _ in range(20)}
    assert received == {str(place) * 100 for place in range(20)}
