"""The client and the real server (scripted model, store in memory), over memory streams in virtual time."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.client.errors import DuplexProtocolError, HandshakeRefused, SessionReplaced
from adapters.wire.schema import names
from tests import virtual_time
from tests.client.fake_server import silence, tone
from tests.client.talking import Line, client_on, hear_all, hear_and_cut, history_of
from tests.server.servers import open_test_server


async def test_a_spoken_turn() -> None:
    async with open_test_server() as server, client_on(Line(server)) as client:
        await client.stream_pcm(tone(500) + silence(800))
        audio, status, text = await hear_all(client)
        assert (status, len(audio) > 0) == ("completed", True)
        assert "turn 1" in text
        assert client.statistics().lost_events == 0


async def test_a_listener_cuts_the_answer_and_the_server_knows_what_was_heard() -> None:
    async with open_test_server() as server, client_on(Line(server)) as client:
        await client.send_text("a long answer please")
        events = client.events()
        response, heard_ms = await hear_and_cut(client, 500)
        assert response.was_cut
        async for event in events:
            if event.type == names.RESPONSE_DONE:
                break
        playback = event.payload["response"]["metadata"]["playback"]
        assert playback["committed_ms"] == heard_ms
        assert client.statistics().stale_audio_deltas == 0
        assert client.statistics().lost_events == 0
        assert len(response.heard_text) < len(response.transcript)


@pytest.mark.parametrize("late_ms", [0, 400, 900])
async def test_what_was_heard_of_a_cut_answer_is_what_history_says_when_the_last_ack_came_late(late_ms: int) -> None:
    """The cut's own text lacked the words that only the ack behind it told of."""
    async with open_test_server() as server, client_on(Line(server)) as client:
        await client.send_text("a long answer please")
        async for response in client.responses():
            async for _ in response.audio():
                if response.received_ms >= 1_600:
                    break
            break
        await client.barge_in(played_ms=500, response_id=response.response_id)
        await response.wait_done()
        at_cut = response.heard_text
        await client.ack_playback(500 + late_ms, response_id=response.response_id, at_once=True)
        state = client.response_state(response.response_id)
        assert state is not None
        history = await history_of(client, state.item_id)
        assert response.heard_text == history
        assert history.startswith(at_cut)
        assert (len(history) > len(at_cut)) == (late_ms > 0)


async def test_what_was_heard_of_a_whole_answer_is_all_of_it() -> None:
    async with open_test_server() as server, client_on(Line(server)) as client:
        await client.send_text("hello")
        async for response in client.responses():
            async for _ in response.audio():
                pass
            break
        await response.wait_done()
        state = client.response_state(response.response_id)
        assert state is not None
        await client.ack_playback(response.received_ms // 2, response_id=response.response_id, at_once=True)
        history = await history_of(client, state.item_id)
        assert response.heard_text == response.transcript[: len(response.heard_text)] != response.transcript
        await client.ack_playback(response.received_ms, response_id=response.response_id, at_once=True)
        history = await history_of(client, state.item_id)
        assert response.heard_text == history == response.transcript


async def test_a_call_that_was_on_its_way_when_the_line_was_cut_is_published_once_and_its_answer_stays_itself() -> None:
    """The client's own item of an answer is what it says, whatever it calls beside it."""
    tool = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}
    async with open_test_server(answer_units=20, rtf=0.5, call_at_unit=3) as server:
        line = Line(server)
        async with client_on(line) as client:
            events = client.events()
            await client.update_session({"tools": [tool]})
            await client.send_text("call=look_up")
            async for event in events:
                if event.type == names.AUDIO_DELTA:
                    break
            credentials = client.credentials()  # what came until here; the rest is lost with the line
            said, response_id = event.payload["item_id"], event.payload["response_id"]
            async for event in events:
                if event.type == names.ARGUMENTS_DONE:
                    break
            state = client.response_state(response_id)
            assert state is not None
            assert state.item_id == said != event.payload["item_id"]
            await client.barge_in(played_ms=100, response_id=response_id)
            await client.wait_for(names.RESPONSE_DONE, timeout_s=5)
            second, heard = client_on(line, resume=credentials), []
            resent = second.events()
            async with second:
                async for event in resent:
                    heard.append(event.type)
                    if event.type == names.RESPONSE_DONE:
                        break
                assert heard.count(names.ARGUMENTS_DONE) == 1
                assert names.AUDIO_DELTA not in heard
                assert [item["type"] for item in event.payload["response"]["output"]] == ["message", "function_call"]
                assert second.statistics().lost_events == 0
                assert await history_of(second, said) == "1", "what was played, and not the call's arguments"


async def test_taking_over_from_another_client() -> None:
    async with open_test_server() as server:
        line = Line(server)
        async with client_on(line) as first:
            await first.send_text("hello")
            await hear_all(first)
            credentials = first.credentials()
            async with client_on(line, resume=credentials) as second:
                assert second.session_id == first.session_id
                with pytest.raises(SessionReplaced):
                    await first.wait_for(names.RESPONSE_DONE, timeout_s=5)
                await second.send_text("still there?")
                assert (await hear_all(second))[1] == "completed"
        async with open_test_server():
            with pytest.raises(HandshakeRefused) as caught:
                async with client_on(line, resume=credentials):
                    pass
            assert caught.value.code in ("invalid_resume_token", "session_resume_expired")


async def test_refusals_name_the_event() -> None:
    async with open_test_server() as server, client_on(Line(server)) as client:
        event_id = await client.cancel_response()
        with pytest.raises(DuplexProtocolError) as caught:
            await anext(client.responses())
        assert caught.value.event_id == event_id


FEW = settings(max_examples=max(5, settings.default.max_examples // 10))  # type: ignore[union-attr]
"""Each example is two whole conversations."""


@FEW
@given(cut_ms=st.integers(1, 2_500), drops_ms=st.lists(st.integers(1, 700), max_size=5))
def test_an_answer_that_is_cut_while_the_line_breaks(cut_ms: int, drops_ms: list[int]) -> None:
    """The cut holds, nothing stale arrives, every hole is announced, and the conversation goes on."""

    async def talk() -> None:
        async with open_test_server() as server:
            line = Line(server)
            async with client_on(line) as client, trio.open_nursery() as nursery:

                async def break_the_line() -> None:
                    for wait_ms in drops_ms:
                        await trio.sleep(wait_ms / 1_000)
                        await line.cut()

                async def barge_in() -> None:
                    await trio.sleep(cut_ms / 1_000)
                    await client.barge_in()

                await client.send_text("a long answer please")
                nursery.start_soon(break_the_line)
                nursery.start_soon(barge_in)
                audio, status, _ = await hear_all(client)
                assert status == "cancelled"
                await trio.sleep(5)
                await client.send_text("and now?")
                assert (await hear_all(client))[1] == "completed"
                statistics = client.statistics()
                assert statistics.lost_events == statistics.stale_audio_deltas == 0
                assert len(audio) <= 48 * 60 * 200

    virtual_time.run(talk)


@FEW
@given(drops_ms=st.lists(st.integers(1, 900), min_size=1, max_size=5), chunk_ms=st.sampled_from([20, 100, 200]))
def test_a_talk_with_drops_is_the_talk_without(drops_ms: list[int], chunk_ms: int) -> None:
    """Whenever the connection breaks: the same answers arrive, whole, and the input is neither lost nor doubled."""

    async def talk(drops: list[int]) -> tuple[bytes, str | None, str, int]:
        async with open_test_server() as server:
            line = Line(server)
            async with client_on(line) as client, trio.open_nursery() as nursery:

                async def break_the_line() -> None:
                    for wait_ms in drops:
                        await trio.sleep(wait_ms / 1_000)
                        await line.cut()

                nursery.start_soon(break_the_line)
                await client.stream_pcm(tone(500) + silence(800), chunk_ms=chunk_ms)
                audio, status, text = await hear_all(client)
                await trio.sleep(5)
                statistics = client.statistics()
                assert statistics.lost_events == 0
                assert statistics.outbox.lost_input_ms == 0
                assert (statistics.reconnects > 0) == bool(drops)
                await client.send({"type": names.AUDIO_CLEAR})
                await client.wait_for(names.AUDIO_CLEARED, timeout_s=5)
                nursery.cancel_scope.cancel()
            async with client_on(line) as other:
                assert other.session_id != client.session_id
        return audio, status, text, client.input_ms

    without = virtual_time.run(talk, [])
    withal = virtual_time.run(talk, drops_ms)
    assert withal == without
