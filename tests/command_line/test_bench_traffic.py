"""The load of `duologue bench wire` speaks WebSocket by itself: against the library, and against a real server."""

from __future__ import annotations

import socket

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, Ping, TextMessage

from adapters.bench.own_server import own_server
from adapters.bench.traffic import PING, TEXT, Voice, frame
from adapters.bench.wire import barge_ins, real_time, traffic

SIZES = (0, 1, 125, 126, 127, 65_535, 65_536, 70_000)


@given(st.lists(st.sampled_from(SIZES), max_size=5), st.lists(st.integers(1, 70_000), max_size=8))
def test_it_reads_what_a_server_writes_wherever_the_network_cuts_it(sizes: list[int], cuts: list[int]) -> None:
    server = Connection(ConnectionType.SERVER)
    data = bytearray()
    for size in sizes:
        data += server.send(TextMessage(data="x" * size)) + server.send(Ping(payload=b"p"))
    ours, theirs = socket.socketpair()
    voice, got = Voice(ours), []
    for cut in [*cuts, len(data)]:
        voice.received += data[:cut]
        del data[:cut]
        got += [(opcode, bytes(payload)) for opcode, payload in voice.frames()]
    assert got == [pair for size in sizes for pair in ((TEXT, b"x" * size), (PING, b"p"))]
    assert not voice.received
    ours.close()
    theirs.close()


@pytest.mark.parametrize("size", SIZES)
def test_a_server_reads_what_it_writes(size: int) -> None:
    server = Connection(ConnectionType.SERVER)
    server.receive_data(frame(b"x" * size) + frame(b"y" * size, opcode=2))
    texts, blobs = "", b""
    for event in server.events():
        assert isinstance(event, TextMessage | BytesMessage)
        if isinstance(event, TextMessage):
            texts += event.data
        else:
            blobs += event.data
    assert (texts, blobs) == ("x" * size, b"y" * size)


@pytest.mark.realtime
async def test_a_small_load_is_carried_and_cut() -> None:
    options = {"rtf": "1", "unit_ms": "200", "first_audio_ms": "0", "sessions_max": "8"}
    async with own_server("scripted", options, ("--max-sessions", "8")) as server:
        cuts = await barge_ins(server.url, sessions=3, rounds=2)
        assert (cuts.talking, len(cuts.latencies_ms), cuts.stale, cuts.why) == (2, 2, 0, "")
        await trio.sleep(0.1)
        load = await real_time(server, sessions=2, seconds=1.0)
    assert (load.sessions, load.why) == (2, "")
    assert load.report.deltas > 0
    assert load.report.appends > 0
    assert len(load.report.lateness_ms) == load.report.deltas
    assert load.event_us > 0
    assert load.commits > 0


@pytest.mark.realtime
async def test_a_session_may_talk_at_a_slower_pace() -> None:
    options = {"rtf": "1", "unit_ms": "500", "first_audio_ms": "0", "sessions_max": "8"}
    async with own_server("scripted", options, ("--max-sessions", "8")) as server:
        async with traffic(server.url, 2, every_ms=500) as slow:
            await slow.reset()
            await trio.sleep(2.0)
            report = await slow.report()
        assert 2 <= report.appends <= 16  # 8 on a machine that keeps up; at the usual pace 20
        cuts = await barge_ins(server.url, sessions=2, rounds=1, every_ms=500)
    assert (cuts.talking, len(cuts.latencies_ms), cuts.why) == (1, 1, "")


@pytest.mark.realtime
async def test_a_server_with_too_little_room_is_measured_as_far_as_it_goes() -> None:
    options = {"rtf": "1", "unit_ms": "200", "first_audio_ms": "0"}
    async with own_server("scripted", options, ("--max-sessions", "2")) as server:
        load = await real_time(server, sessions=3, seconds=1.0)
    assert load.sessions == 2
    assert "2 of 3 sessions opened" in load.why
