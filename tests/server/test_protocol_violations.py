"""Whoever breaks the WebSocket protocol is told with the Close code that RFC 6455 names, in every dialect; its session can be
resumed where the dialect resumes, with nothing half-applied; and nobody else notices."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio

from tests.server.servers import Server, open_test_server
from tests.server.test_front import UPGRADE

DUPLEX = "/v1/realtime?duplex=1&autostart=0"
PATHS = {
    "openai": "/v1/realtime?model=gpt-realtime",
    "duplex": "/v1/realtime?duplex=1&model=scripted",
    "minicpmo": "/ws/duplex/adx_1",
    "moshi": "/api/chat",
}
TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9
MASK = b"\x01\x02\x03\x04"


def frame(opcode: int, payload: bytes, *, fin: bool = True, rsv: int = 0, masked: bool = True) -> bytes:
    """One frame of a client, as wrong as it is asked to be."""
    first = (0x80 if fin else 0) | rsv << 4 | opcode
    bit = 0x80 if masked else 0
    size = struct.pack("!B", bit | len(payload)) if len(payload) < 126 else struct.pack("!BH", bit | 126, len(payload))
    body = bytes(byte ^ MASK[at % 4] for at, byte in enumerate(payload)) if masked else payload
    return bytes([first]) + size + (MASK if masked else b"") + body


VIOLATIONS = {
    "text that is no UTF-8": (frame(TEXT, b'{"type": "\xff\xfe"}'), 1007),
    "half a character at the end": (frame(TEXT, b'{"type": "\xc3'), 1007),
    "a surrogate in UTF-8": (frame(TEXT, b"\xed\xa0\x80"), 1007),
    "no UTF-8 in a later fragment": (frame(TEXT, b'{"a', fin=False) + frame(0, b"\xff"), 1007),
    "an opcode that is reserved": (frame(3, b""), 1002),
    "a bit that is reserved": (frame(TEXT, b"{}", rsv=4), 1002),
    "no mask": (frame(TEXT, b"{}", masked=False), 1002),
    "a continuation of nothing": (frame(0, b"{}"), 1002),
    "a message within a message": (frame(TEXT, b"{", fin=False) + frame(TEXT, b"}"), 1002),
    "a ping in pieces": (frame(PING, b"", fin=False), 1002),
    "a long ping": (frame(PING, bytes(126)), 1002),
    "a close of one byte": (frame(CLOSE, b"\x03"), 1002),
    "a close code that must not be sent": (frame(CLOSE, struct.pack("!H", 1006)), 1002),
}


def frames_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    """A server's frames: (opcode, payload)."""
    while data:
        first, size, at = data[0], data[1], 2
        if size == 126:
            size, at = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            size, at = int.from_bytes(data[2:10], "big"), 10
        yield first & 0x0F, data[at : at + size]
        data = data[at + size :]


@asynccontextmanager
async def upgraded(server: Server, path: str) -> AsyncIterator[trio.abc.Stream]:
    """A raw connection behind its handshake."""
    stream = server.dial()
    head = [f"GET {path} HTTP/1.1", "Host: localhost", *UPGRADE, "", ""]
    await stream.send_all("\r\n".join(head).encode())
    got = b""
    while b"\r\n\r\n" not in got:
        got += bytes(await stream.receive_some(1))
    assert got.startswith(b"HTTP/1.1 101 ")
    async with stream:
        yield stream


async def rest_of(stream: trio.abc.Stream) -> bytes:
    got = b""
    while part := await stream.receive_some(65_536):
        got += bytes(part)
    return got


@pytest.mark.parametrize("path", list(PATHS.values()), ids=list(PATHS))
@pytest.mark.parametrize(("sent", "code"), list(VIOLATIONS.values()), ids=list(VIOLATIONS))
async def test_it_is_told_with_the_codes_of_the_standard(path: str, sent: bytes, code: int) -> None:
    async with open_test_server() as server, server.connect() as other:
        await other.until("session.created")
        began = trio.current_time()
        async with upgraded(server, path) as stream:
            await trio.sleep(0.1)
            await stream.send_all(sent)
            opcode, payload = list(frames_of(await rest_of(stream)))[-1]
        assert (opcode, int.from_bytes(payload[:2], "big")) == (CLOSE, code)
        assert trio.current_time() - began < 1
        await other.say()
        await other.until("response.done")


async def test_a_peer_that_goes_on_sending_reads_its_close_code_all_the_same() -> None:
    async with (
        open_test_server() as server,
        upgraded(server, PATHS["openai"]) as stream,
        trio.open_nursery() as nursery,
    ):
        await trio.sleep(0.1)
        await stream.send_all(frame(3, b""))

        async def babble() -> None:
            try:
                while True:
                    await stream.send_all(bytes(1_000))
                    await trio.sleep(0.05)
            except trio.BrokenResourceError:
                return

        nursery.start_soon(babble)
        began = trio.current_time()
        opcode, payload = list(frames_of(await rest_of(stream)))[-1]
        assert (opcode, int.from_bytes(payload[:2], "big")) == (CLOSE, 1002)
        assert 1 < trio.current_time() - began < 10, "heard out, but not for ever"


async def test_its_session_can_be_resumed_and_nothing_is_half_applied() -> None:
    async with open_test_server() as server, server.connect(DUPLEX) as client:
        await client.send("session.update", session={"instructions": "as agreed"})
        created = await client.until("session.created")
        await client.until("session.updated")
        (session,) = server.supervisor.sessions.values()
        before = session.state.config, session.state.input.samples, session.state.position
        torn = frame(TEXT, b'{"type":"session.update","session":{"instructions":"half', fin=False)
        await client.socket._stream.send_all(torn + frame(0, b'\xff"}}'))  # type: ignore[attr-defined]
        assert (await client.closed())[0] == 1007
        assert (session.state.config, session.state.input.samples) == before[:2]
        async with server.connect("/v1/realtime?duplex=1&resume=1") as again:
            credentials = {"session_id": created["session"]["id"], "resume_token": created["resume_token"]}
            await again.send("session.resume", **credentials, last_received_server_event_seq=1)
            assert (await again.receive())["type"] == "session.resumed"
            await again.send("session.update", session={"instructions": "still here"})
            assert (await again.until("session.updated"))["session"]["instructions"] == "still here"


async def test_what_comes_before_the_handshake_is_answered_waits_for_the_answer() -> None:
    """A client should not, but what it says is not lost for it, nor read from the middle of a frame: it is more than one
    read takes."""
    asked = 3_000
    head = "\r\n".join([f"GET {PATHS['openai']} HTTP/1.1", "Host: localhost", *UPGRADE, "", ""]).encode()
    cancels = b"".join(
        frame(TEXT, b'{"type": "response.cancel", "event_id": "e%d"}' % number) for number in range(asked)
    )
    assert len(cancels) > 2 * 64 * 1024
    async with open_test_server() as server:
        stream = server.dial()
        await stream.send_all(head + cancels)
        got = b""
        while got.count(b"response_cancel_not_active") < asked:
            data = bytes(await stream.receive_some(65_536))
            assert data, got[-100:]
            got += data
        assert [b'"e%d"' % number in got for number in (0, asked - 1)] == [True, True]
        await stream.aclose()
