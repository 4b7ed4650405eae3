"""What goes out in one write: a delta of audio and its transcript together, never two of audio."""

from __future__ import annotations

import json
from collections import Counter

import attrs
import pytest
import trio
import trio.testing
from trio_websocket import wrap_client_stream

from adapters.server.upgraded import UpgradedStream
from tests.server.servers import Client, open_test_server
from tests.server.test_protocol_violations import frames_of

AUDIO, TRANSCRIPT = "response.output_audio.delta", "response.output_audio_transcript.delta"


@attrs.define(eq=False)
class Recorder(trio.abc.Stream):
    """A server's end of a connection; ``writes`` is what was written, each write by itself."""

    stream: trio.abc.Stream
    writes: list[bytes] = attrs.field(factory=list)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self.stream.receive_some(max_bytes))

    async def aclose(self) -> None:
        await self.stream.aclose()


async def test_a_delta_and_its_transcript_share_a_write_and_two_of_audio_do_not() -> None:
    async with open_test_server(answer_units=20, rtf=0.01) as server, trio.open_nursery() as nursery:
        ours, theirs = trio.testing.memory_stream_pair()
        recorder = Recorder(theirs)
        server.nursery.start_soon(server.application.handle, recorder)
        client = Client(await wrap_client_stream(nursery, ours, "localhost", "/v1/realtime?model=scripted"), 24_000)
        await client.until("session.created")
        await client.say()
        done = await client.until("response.done")
        assert done["response"]["status"] == "completed"
        nursery.cancel_scope.cancel()
    spoken = 0
    for write in recorder.writes[1:]:  # behind the handshake
        kinds = [json.loads(payload)["type"] for opcode, payload in frames_of(write) if opcode == 1]
        count = Counter(kinds)
        assert count[AUDIO] <= 1
        if count[AUDIO]:
            spoken += 1
            assert count[TRANSCRIPT] == 1
            assert kinds.index(AUDIO) < kinds.index(TRANSCRIPT)
    assert spoken == 20


async def test_nothing_is_sent_behind_a_close_frame() -> None:
    """A session's messages go past the WebSocket library, which would have known that it said goodbye."""
    ours, theirs = trio.testing.memory_stream_pair()
    recorder = Recorder(theirs)
    stream = UpgradedStream(recorder, b"")
    await stream.send_messages(["one", b"two"])
    await stream.send_all(b"\x88\x02\x03\xe8")
    with pytest.raises(trio.ClosedResourceError):
        await stream.send_messages(["three"])
    await stream.send_all(b"\x8a\x00")  # a pong still may, as the library sees fit
    assert list(frames_of(b"".join(recorder.writes))) == [(1, b"one"), (2, b"two"), (8, b"\x03\xe8"), (10, b"")]
    await ours.aclose()
