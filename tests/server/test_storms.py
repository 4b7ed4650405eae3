"""A client that asks for much at once, of what is useless or has an answer each: it gets every answer, in order, however slow
the store is. It is no slow reader: it reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sphn
import trio
import trio.testing
from trio_websocket import wrap_client_stream

from store.memory import Fault
from tests.server.servers import Client, Server, open_test_server
from tests.server.test_minicpmo import PATH as DEMO
from tests.server.test_minicpmo import chunk

STORM = 1_500
"""Nearly three times the frames that may wait for a socket."""

GA, DUPLEX, MOSHI = "/v1/realtime?model=gpt-realtime", "/v1/realtime?duplex=1&model=scripted", "/api/chat"
SLOW = Fault(after_s=0.002)


@pytest.mark.parametrize(
    ("path", "event", "answer"),
    [
        (GA, {"type": "response.cancel"}, "error"),
        (DUPLEX, {"type": "response.cancel"}, "error"),
        (DUPLEX, {"type": "barge_in"}, "input_audio_buffer.cleared"),
        (DUPLEX, {"type": "input.cancel"}, "input_audio_buffer.cleared"),
        (DUPLEX, {"type": "session.heartbeat"}, "session.heartbeat_ack"),
        (DEMO, {"type": "interrupt"}, "interrupted"),
        (DEMO, {"type": "audio_chunk", "audio_base64": chunk(20, False)}, "result"),
    ],
    ids=lambda value: value if isinstance(value, str) and "/" not in value else None,
)
async def test_each_of_a_storm_is_answered(path: str, event: dict[str, Any], answer: str) -> None:
    async with open_test_server() as server:
        server.store.policy = lambda request: SLOW
        async with server.connect(path) as client:
            await client.receive()
            for _ in range(STORM):
                await client.send(**event)
            for _ in range(STORM):
                await client.until(answer)
            await still_there(server, client)


async def test_playback_that_is_told_over_and_over_is_acknowledged_each_time() -> None:
    async with open_test_server(answer_units=2, rtf=0.01) as server, server.connect(DUPLEX, 16_000) as client:
        await client.until("session.created")
        await client.send("input_text.append", text="hello")
        await client.send("input.commit")
        done = (await client.until("response.done"))["response"]
        server.store.policy = lambda request: SLOW
        for _ in range(STORM):
            await client.send("playback.ack", played_ms=100, response_id=done["id"])
        for _ in range(STORM):
            await client.until("playback.acknowledged")
        await still_there(server, client)


async def test_what_was_recorded_meanwhile_may_come_at_once_in_moshis_dialect() -> None:
    """A minute and more of sound, as of a client that had to wait and sent all the same."""
    async with open_test_server() as server:
        server.store.policy = lambda request: SLOW
        async with server.connect(MOSHI) as client:
            assert await client.socket.get_message() == b"\x00"
            writer, reader = sphn.OpusStreamWriter(24_000), sphn.OpusStreamReader(24_000)
            silence = np.zeros(1_920, np.float32)
            for _ in range(STORM):
                await client.socket.send_message(b"\x01" + writer.append_pcm(silence))
            heard_ms = 0.0
            while heard_ms < STORM * 80 - 500:  # the codec holds a little back
                message = await client.socket.get_message()
                assert message[:1] == b"\x01", message[:80]
                heard_ms += len(reader.append_bytes(message[1:])) / 24
            assert len(server.supervisor.sessions) == 1


async def test_a_cut_is_heard_at_once_while_much_waits_to_be_taken() -> None:
    """What waits is the answer itself: the cut that ends it does not wait for that to be taken."""
    long = {"answer_units": 900, "long_units": 900, "unit_ms": 50, "rtf": 0.001}
    async with open_test_server(**long) as server, trio.open_nursery() as nursery:
        ours, theirs = trio.testing.lockstep_stream_pair()
        server.nursery.start_soon(server.application.handle, theirs)
        client = Client(await wrap_client_stream(nursery, ours, "localhost", DUPLEX), 16_000)
        await client.until("session.created")
        await client.send("input_text.append", text="hello")
        await client.send("input.commit")
        await client.until("response.output_audio.delta")
        (session,) = server.supervisor.sessions.values()
        await trio.sleep(5)  # it does not read: the answer piles up
        assert session.outbox.crowded
        began = trio.current_time()
        await client.send("barge_in")
        while session.state.active is not None:
            await trio.sleep(0.01)
        assert trio.current_time() - began < 0.5
        nursery.cancel_scope.cancel()


async def still_there(server: Server, client: Client) -> None:
    (session,) = server.supervisor.sessions.values()
    assert session.attachment is not None
    assert session.attachment.stop is None
