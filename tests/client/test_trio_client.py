"""The trio shell: stories on a fake network under a mock clock, and one over a real socket."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing

from adapters.client.credentials import ReconnectPolicy
from adapters.client.errors import (
    ClientMisuse,
    ConnectionLost,
    DuplexProtocolError,
    HandshakeRefused,
    SendBufferFull,
    SessionEnded,
    SessionReplaced,
)
from adapters.client.transport import TransportRefused
from adapters.client.trio_client import DuplexClient
from adapters.wire.schema import names
from tests.client.fake_server import FakeServer, MemoryNetwork, network, serve, silence, tone

URL = "ws://server.test/v1/realtime?x=1"


def client_of(net: MemoryNetwork, **options: object) -> DuplexClient:
    return DuplexClient(URL, model="cascade", connect=net.connect, **options)


async def test_speak_and_hear_an_answer() -> None:
    async with network() as net, client_of(net) as client:
        assert client.session_id == "sess_1"
        await client.stream_pcm(tone(600))
        await client.commit()
        async for response in client.responses():
            assert response.decision == "speak"
            heard = b""
            async for chunk in response.audio():
                heard += chunk
                await client.ack_playback(response.played_ms, response_id=response.response_id)
            assert heard == b"".join(net.server.session.produced["resp_1"])
            assert response.status == "completed"
            assert response.transcript.split() == [f"word{place}" for place in range(10)]
            break
        await trio.sleep(1)
        assert net.server.session.played == {"resp_1": 1_000}
        assert net.server.session.input == [tone(600)[i : i + 9_600] for i in range(0, 28_800, 9_600)]
    assert net.server.session.closed
    assert "duplex=1" in net.urls[0]
    assert "autostart=0" in net.urls[0]
    assert "x=1" in net.urls[0]


async def test_streaming_takes_as_long_as_the_speech() -> None:
    async with network() as net, client_of(net) as client:
        began = trio.current_time()
        await client.stream_pcm(silence(1_000), chunk_ms=200)
        assert trio.current_time() - began == pytest.approx(1.0)
        await client.stream_pcm(silence(5_000), realtime=False)
        assert trio.current_time() - began == pytest.approx(1.0)
        assert client.input_ms == 6_000


async def test_a_dropped_connection_is_resumed_and_nothing_is_lost_or_doubled() -> None:
    async with network(answer_ms=3_000) as net, client_of(net) as client:
        await client.commit()
        heard = b""
        async for response in client.responses():
            async for chunk in response.audio():
                heard += chunk
                if len(heard) == len(tone(1_000)):
                    net.cut()
                    await client.append_audio(tone(100))
            break
        assert heard == b"".join(net.server.session.produced["resp_1"])
        await trio.sleep(0.1)
        assert net.server.connections == 2
        assert net.server.session.input == [tone(100)]
        assert client.statistics().lost_events == 0
        assert client.statistics().reconnects == 1
        assert client.generation == 2


async def test_input_said_in_a_gap_arrives_in_order_after_it() -> None:
    async with network() as net, client_of(net) as client:
        await client.append_audio(tone(20, 100))
        net.down = True
        net.cut()
        for hertz in (200, 300, 400):
            await client.append_audio(tone(20, hertz))
            await trio.sleep(0.3)
        assert not client.is_connected
        net.down = False
        await trio.sleep(10)
        assert net.server.session.input == [tone(20, hertz) for hertz in (100, 200, 300, 400)]


async def test_a_gap_buffers_within_a_bound() -> None:
    async with network() as net, client_of(net) as client:
        net.down = True
        net.cut()
        await trio.sleep(0.01)

        async def say_too_much() -> None:
            for _ in range(1_000):
                await client.append_audio(silence(1_000))

        with pytest.raises(SendBufferFull):
            await say_too_much()
        assert client.statistics().outbox.waiting_bytes <= 8 * 1024 * 1024


async def test_giving_up_is_a_typed_error_everywhere() -> None:
    async with network() as net:
        client = client_of(net, reconnect=ReconnectPolicy(attempts_max=3))
        async with client:
            net.down = True
            net.cut()
            with pytest.raises(ConnectionLost) as caught:
                await client.wait_for("response.done", timeout_s=100)
            assert caught.value.attempts == 3
            with pytest.raises(ConnectionLost):
                await client.append_audio(b"\0\0")
            with pytest.raises(ConnectionLost):
                async for _ in client.responses():
                    pass


async def test_no_reconnect_policy_means_a_drop_is_the_end() -> None:
    async with network() as net, client_of(net, reconnect=None) as client:
        net.cut()
        with pytest.raises(ConnectionLost):
            await client.wait_for("response.done", timeout_s=100)
        assert net.attempts == 1


async def test_another_process_resumes_with_exported_credentials() -> None:
    async with network(answer_ms=2_000) as net:
        async with client_of(net) as first:
            await first.commit()
            async for response in first.responses():
                async for _ in response.audio():
                    break
                break
            credentials = await first.detach()
            with pytest.raises(ClientMisuse):
                await first.commit()
        assert not net.server.session.closed
        async with client_of(net, resume=credentials) as second:
            heard = b""
            async for response in second.responses():
                async for chunk in response.audio():
                    heard += chunk
                break
            whole = b"".join(net.server.session.produced["resp_1"])
            assert whole.endswith(heard)
            assert len(heard) < len(whole)
            assert response.received_ms == 2_000
            assert second.statistics().lost_events == 0


async def test_detaching_sends_what_is_queued_first() -> None:
    async with network() as net, client_of(net) as client:
        await client.stream_pcm(tone(600), realtime=False)
        await client.detach()
        assert b"".join(net.server.session.input) == tone(600)
        assert not net.server.session.closed


async def test_the_old_client_is_told_that_it_was_replaced() -> None:
    async with network() as net, client_of(net) as client:
        net.server.session.frames.append(
            json.dumps({"type": names.SESSION_REPLACED, "session_id": "sess_1", "attachment_generation": 1})
        )
        net.server.ring()
        with pytest.raises(SessionReplaced):
            await client.wait_for("response.done", timeout_s=1)
        assert net.attempts == 1


@pytest.mark.parametrize("code", ["invalid_resume_token", "session_resume_expired"])
async def test_a_refused_resume_ends_the_client(code: str) -> None:
    async with network() as net, client_of(net) as client:
        net.server.session.refuse_resume = {"code": code, "message": "no"}
        net.cut()
        with pytest.raises(HandshakeRefused) as caught:
            await client.wait_for("response.done", timeout_s=100)
        assert caught.value.code == code


async def test_a_resume_conflict_is_tried_again() -> None:
    async with network() as net, client_of(net) as client:
        net.server.session.refuse_resume = {"code": "session_resume_conflict", "message": "busy"}
        net.cut()
        await trio.sleep(0.3)
        net.server.session.refuse_resume = None
        await trio.sleep(5)
        assert client.is_connected


async def test_a_resume_that_is_refused_is_no_word_to_who_waits_for_responses() -> None:
    """Who asks anew at each error would queue a turn for each attempt."""
    async with network() as net, client_of(net) as client:
        events = client.events()
        net.server.session.refuse_resume = {"code": "session_resume_conflict", "message": "busy"}
        net.cut()
        for _ in range(2):
            while (await anext(events)).type != "error":
                continue
        net.server.session.refuse_resume = None
        await trio.sleep(20)
        assert client.is_connected
        await client.send_text("hello")
        async for response in client.responses():
            assert response.decision == "speak"
            break


async def test_what_ends_a_client_is_raised_once_where_responses_are_waited_for() -> None:
    async with network() as net, client_of(net) as client:
        net.server.session.refuse_resume = {"code": "session_resume_expired", "message": "no"}
        net.cut()
        with pytest.raises(HandshakeRefused, match="no"):
            async for _ in client.responses():
                pass


async def test_a_server_that_is_not_there() -> None:
    async with network() as net:
        net.down = True
        with pytest.raises(ConnectionLost, match="refused"):
            async with client_of(net):
                pass


async def test_a_refused_upgrade_names_the_servers_reason() -> None:
    async with network() as net:
        body = json.dumps({"error": {"code": "invalid_api_key", "message": "who are you?"}}).encode()
        net.server.refuse = TransportRefused(401, body)
        with pytest.raises(HandshakeRefused) as caught:
            async with client_of(net):
                pass
        assert (caught.value.code, caught.value.status) == ("invalid_api_key", 401)


async def test_a_silent_server_is_given_up_after_two_heartbeats() -> None:
    async with network() as net, client_of(net, heartbeat_interval_s=10) as client:
        await trio.sleep(25)
        assert net.server.session.heartbeats == 2
        assert client.is_connected
        net.server.session.receive = lambda text: None  # type: ignore[method-assign]
        net.down = True
        await trio.sleep(31)
        assert not client.is_connected


async def test_a_client_that_was_busy_itself_reads_what_came_before_it_gives_the_server_up() -> None:
    """Half of the time the watchdog runs before the reader does."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    for _ in range(20):
        async with network() as net, client_of(net, heartbeat_interval_s=10) as client:
            await trio.sleep(1)
            net.server.session.frames.append('{"type": "session.heartbeat_ack", "event_id": "event_y"}')
            clock.jump(100)  # nothing of this program runs for so long
            net.server.ring()
            await trio.sleep(0.1)
            assert client.is_connected
            assert client.statistics().reconnects == 0


async def test_one_picture_goes_with_each_unit_and_behind_it_the_units_own_stack() -> None:
    async with network() as net, client_of(net) as client:
        sent: list[dict[str, Any]] = []
        append = client.append_audio

        async def noted(pcm: bytes, **hints: Any) -> str:
            sent.append(hints)
            return await append(pcm, **hints)

        client.append_audio = noted  # type: ignore[method-assign]
        _, rate = client.input_format
        client.session_info["capabilities"] = {"chunk_period_ms": 400}
        went = await client.stream_pcm(
            bytes(rate * 2 * 2), chunk_ms=200, video_frames=["a", "b", "c"], stacked_video_frames=["x", None, "z", "w"]
        )
        assert went == 3
        assert [hints["video_frames"] for hints in sent] == [
            *([], ["a", "x"], [], ["b"], [], ["c", "z"], [], ["w"]),
            *([], []),
        ]


async def test_refusals_reach_the_one_who_waits_for_responses() -> None:
    async with network() as net, client_of(net) as client:
        event_id = await client.cancel_response()
        with pytest.raises(DuplexProtocolError) as caught:
            async for _ in client.responses():
                pass
        assert caught.value.code == "response_not_active"
        assert caught.value.event_id == event_id
        await client.commit()
        async for response in client.responses():
            assert response.response_id == "resp_1"
            break


async def test_a_cut_ends_the_audio_and_the_rest_is_not_handed_out() -> None:
    async with network(answer_ms=5_000, lead=100) as net, client_of(net) as client:
        await client.commit()
        async for response in client.responses():
            async for _ in response.audio():
                await client.barge_in(played_ms=80, response_id=response.response_id)
                await response.wait_done()
            assert response.was_cut
            break
        assert net.server.session.played["resp_1"] == 80
        assert client.statistics().stale_audio_deltas == 0
        assert client.statistics().lost_events == 0


async def test_slow_subscribers_lose_the_oldest_and_know_it() -> None:
    async with network(answer_ms=60_000, lead=1_000) as net, client_of(net) as client:
        await trio.sleep(0.1)
        lazy = client.events()
        await client.commit()
        await client.wait_for(names.RESPONSE_DONE, timeout_s=100)
        assert lazy.dropped > 100
        assert (await anext(lazy)).number == lazy.dropped + 2


async def test_events_end_when_the_session_is_closed() -> None:
    async with network() as net:
        async with client_of(net) as client:
            stream = client.events()
        kinds = [event.type async for event in stream]
        assert kinds[-1] == names.SESSION_CLOSED
        with pytest.raises(SessionEnded):
            await client.commit()


async def test_an_error_in_the_block_stays_what_it_is() -> None:
    async with network() as net:
        with pytest.raises(KeyError):
            async with client_of(net):
                raise KeyError("mine")
        assert net.server.session.closed


async def test_events_are_acknowledged_in_batches() -> None:
    async with network(answer_ms=10_000, lead=10) as net, client_of(net) as client:
        await client.commit()
        await client.wait_for(names.RESPONSE_DONE, timeout_s=100)
        await trio.sleep(1)
        acks = net.server.session.event_acks
        assert acks[-1] == client.statistics().received_events - 1
        assert len(acks) <= 8
        assert acks == sorted(set(acks))


@pytest.mark.realtime
async def test_over_a_real_socket() -> None:
    server = FakeServer(answer_ms=500, lead=20)
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve, server)
        async with DuplexClient(url, model="cascade") as client:
            await client.stream_pcm(tone(400), realtime=False)
            await client.commit()
            async for response in client.responses():
                heard = b"".join([chunk async for chunk in response.audio()])
                break
            assert heard == tone(100) * 5
        assert server.session.closed
        nursery.cancel_scope.cancel()


@pytest.mark.realtime
async def test_nobody_listens_on_that_port() -> None:
    with pytest.raises(ConnectionLost):
        async with DuplexClient("ws://127.0.0.1:9/v1/realtime", model="cascade"):
            pass


def test_a_wrong_address_is_named() -> None:
    with pytest.raises(ValueError, match="http://x"):
        DuplexClient("http://x")
