"""What users of other full-duplex servers complain of, each tried on this one. A test's name is the complaint, in their
words; it passes when there is nothing to complain of. ``docs/comparison.md`` has the whole list, with where it was said.

The scripted model says how many turns it was told of, then the user's words, then fillers: two words and 200 ms a unit.
"""

from __future__ import annotations

import base64
from typing import Any

import attrs
import pytest
import trio

from adapters.server.settings import ServerSettings
from adapters.wire.dialects import DIALECTS
from core.actors.session import Session
from core.session import events as e
from core.session.history import history
from tests.core.actors.stories import open_story
from tests.server.servers import Client, Server, loud, open_test_server, quiet

GA, DUPLEX = "/v1/realtime?model=scripted", "/v1/realtime?duplex=1&model=scripted"
BOTH = pytest.mark.parametrize("path", [GA, DUPLEX])
WORD_MS = 100
LEAD_MS, UNIT_MS = 1_500, 200
DELTA = "response.output_audio.delta"


async def ask(client: Client, text: str = "hello") -> dict[str, Any]:
    """A typed question; the first audio of its answer."""
    content = [{"type": "input_text", "text": text}]
    await client.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
    await client.send("response.create")
    return await client.until(DELTA)


async def answered(client: Client, text: str = "hello") -> dict[str, Any]:
    """The same, made and heard to its end: its response.done."""
    await ask(client, text)
    done = await client.until("response.done")
    await trio.sleep(15)
    return done


async def listen(client: Client, s: float) -> list[dict[str, Any]]:
    """All that comes in so long a time."""
    before = len(client.seen)
    with trio.move_on_after(s):
        while True:
            await client.receive()
    return client.seen[before:]


async def retrieve(client: Client, item_id: str) -> str:
    await client.send("conversation.item.retrieve", item_id=item_id)
    item = (await client.until("conversation.item.retrieved"))["item"]
    return str(item["content"][0]["transcript"])


def words(done: dict[str, Any]) -> list[str]:
    """What was said, or of a cut answer heard, as response.done has it."""
    return [word for item in done["response"]["output"] for word in item["content"][0]["transcript"].split()]


def the_session(server: Server) -> Session:
    (session,) = server.supervisor.sessions.values()
    return session


def said(server: Server) -> list[str | None]:
    """What the assistant said, as the next answer would be told it."""
    return [turn.text for turn in history(the_session(server).state) if turn.role == "assistant"]


# -- what is in the history, and what was heard -----------------------------------------------------------------------


async def test_the_server_does_not_know_that_the_user_did_not_hear_the_rest() -> None:
    """openai-agents-python 2009 and 1999, agent-squad 562: the client never truncates anything."""
    async with open_test_server(answer_units=60, rtf=0.1) as server, server.connect(GA) as client:
        await client.say()
        first = await client.until(DELTA)
        await listen(client, 1.0)
        await client.say(2_500)
        cut = await client.until("response.done")
        assert cut["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        assert 8 <= len(words(cut)) <= 10, "a second was heard, and more was sent"
        assert (await retrieve(client, first["item_id"])).split() == words(cut)
        assert words(await client.until("response.done"))[0] == "3", "question, what was heard, question"


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_wall_clock_that_is_set_moves_the_truncation_point(hours: int) -> None:
    """openai-agents-python 3776."""
    async with open_story(rtf=0.01) as story:
        story.ask()
        await story.answering()
        await story.wait(200)
        story.step_clock_back(-hours * 3_600)
        await story.wait(200)
        story.barge_in()
        await story.wait(10)
        (heard,) = story.events(e.PlaybackAck)
        assert 400 <= heard.committed_ms <= 500


async def test_the_start_is_not_reset_when_the_item_changes() -> None:
    """speech-assistant-openai-realtime-api-python 45: positions are an item's own."""
    async with open_test_server(answer_units=5) as server, server.connect(GA) as client:
        await answered(client)
        second = await answered(client)
        item_id = second["response"]["output"][0]["id"]
        await client.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=3 * WORD_MS)
        assert (await client.until("conversation.item.truncated"))["audio_end_ms"] == 3 * WORD_MS
        assert [len(str(text).split()) for text in said(server)] == [10, 3]


async def test_the_transcript_comes_twice_after_an_interruption() -> None:
    """livekit/agents 2094."""
    async with open_test_server(answer_units=60) as server, server.connect(GA) as client:
        first = await ask(client)
        await listen(client, 1.0)
        await client.send("response.cancel")
        await listen(client, 5.0)
        about = [event for event in client.seen if event.get("item_id") == first["item_id"]]
        assert [event["type"] for event in about].count("response.output_audio_transcript.done") == 1
        assert len(said(server)) == 1


async def test_an_answer_of_which_nothing_was_played_is_an_empty_assistant_message() -> None:
    """livekit/agents 1994, agents-js 1269: the client's word that it played nothing counts."""
    async with open_test_server(answer_units=60) as server, server.connect(DUPLEX) as client:
        first = await ask(client)
        await client.send("playback.ack", response_id=first["response_id"], played_ms=0)
        await listen(client, 1.0)
        await client.send("response.cancel")
        await client.until("response.done")
        assert said(server) == []
        assert words(await answered(client))[0] == "2", "two questions and nothing between"


async def test_speech_is_dropped_from_the_history_if_it_was_paused_before_its_first_frame() -> None:
    """livekit/agents 5038."""
    async with open_test_server(answer_units=5) as server, server.connect(DUPLEX) as client:
        first = await ask(client)
        await client.send("playback.ack", response_id=first["response_id"], played_ms=0)
        await client.until("response.done")
        assert said(server) == []
        await trio.sleep(20)
        await client.send("playback.ack", response_id=first["response_id"], played_ms=1_000)
        await client.until("playback.acknowledged")
        assert [len(str(text).split()) for text in said(server)] == [10]


async def test_any_speech_makes_the_client_truncate_and_retrieve_and_the_transcript_is_gone() -> None:
    """openai-agents-js 523, openai-agents-python 2374 and 2385."""
    async with open_test_server(answer_units=5) as server, server.connect(GA) as client:
        done = await answered(client)
        item_id = done["response"]["output"][0]["id"]
        for end_ms in (1_000, 5_000):
            await client.send("input_audio_buffer.append", audio=loud(100, client.rate))
            await client.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=end_ms)
            assert (await retrieve(client, item_id)).split() == words(done)


async def test_played_words_are_lost_because_the_interruption_overtakes_them() -> None:
    """pipecat 4996 and 5426: exactly what was played, no word less and none more."""
    async with open_test_server(answer_units=60, rtf=0.1) as server, server.connect(DUPLEX) as client:
        first = await ask(client)
        await listen(client, 1.0)
        await client.send("playback.ack", response_id=first["response_id"], played_ms=7 * WORD_MS)
        await client.send("barge_in")
        cut = await client.until("response.done")
        assert len(words(cut)) == 7
        assert [str(text).split() for text in said(server)] == [words(cut)]


async def test_what_was_partly_said_is_not_in_the_context_and_the_bot_repeats_itself() -> None:
    """pipecat 2791 and 1591."""
    async with open_test_server(answer_units=20) as server, server.connect(GA) as client:
        assert words(await answered(client))[0] == "1"
        assert words(await answered(client))[0] == "3"
        await ask(client)
        await listen(client, 1.0)
        await client.send("response.cancel")
        await client.until("response.done")
        assert words(await answered(client))[0] == "7", "three questions, two answers, what was heard of a third"


async def test_an_ack_after_the_next_commit_is_too_late() -> None:
    """vllm-omni 7457, 7251, 6716: a fact for the log, whenever it comes and however often."""
    async with open_test_server(answer_units=5) as server, server.connect(DUPLEX, 16_000) as client:
        first = await ask(client)
        await client.until("response.done")
        await client.send("input_audio_buffer.append", audio=loud(400, 16_000))
        await client.send("input.commit")
        await client.until(DELTA)
        for played_ms in (600, 600, 300):
            await client.send("playback.ack", response_id=first["response_id"], played_ms=played_ms)
            effective = (await client.until("playback.acknowledged"))["event"]["playback"]
            assert effective["committed_ms"] == 600, "the client's word, and not what was assumed without it"
        await client.send("playback.ack", response_id=first["response_id"], played_ms=300, truncate=True)
        assert (await client.until("playback.acknowledged"))["event"]["playback"]["committed_ms"] == 300
        assert "error" not in client.types()


@BOTH
async def test_a_late_clear_or_cancel_hits_the_newer_answer(path: str) -> None:
    """vllm-omni 7791, openai-agents-python 4135: what names an answer reaches that one only."""
    async with open_test_server(answer_units=8) as server, server.connect(path) as client:
        old = (await answered(client))["response"]
        await ask(client)
        await client.send("output_audio_buffer.clear", response_id=old["id"])
        await client.send("response.cancel", response_id=old["id"])
        item_id = old["output"][0]["id"]
        await client.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=100)
        done = await client.until("response.done")
        assert done["response"]["status"] == "completed"
        assert "error" in client.types()


@BOTH
async def test_a_clear_after_the_answer_leaves_a_response_already_active(path: str) -> None:
    """vllm-omni 7864."""
    async with open_test_server(answer_units=8) as server, server.connect(path) as client:
        for _ in range(3):
            await ask(client)
            await client.until("response.done")
            await client.send("output_audio_buffer.clear")
        assert "error" not in client.types()


async def test_a_client_that_never_acks_is_answered_once_only() -> None:
    """vllm-omni 3907: commits after the first turn."""
    async with open_test_server(answer_units=3) as server, server.connect(DUPLEX, 16_000) as client:
        for turn in range(1, 5):
            await client.send("input_audio_buffer.append", audio=loud(400, 16_000))
            await client.send("input.commit")
            assert f"turn {turn}" in " ".join(words(await client.until("response.done")))


# -- audio after an interruption --------------------------------------------------------------------------------------


async def test_audio_goes_on_to_the_end_after_a_cancel() -> None:
    """openai-realtime-console 501, pipecat 4151: little is sent ahead, and nothing more after the cut."""
    async with open_test_server(answer_units=100, rtf=0.01) as server, server.connect(GA) as client:
        await ask(client)
        await listen(client, 3.0)
        sent_ms = UNIT_MS * client.types().count(DELTA)
        assert sent_ms <= 3_000 + LEAD_MS + 2 * UNIT_MS
        await client.send("response.cancel")
        await client.until("response.done")
        assert DELTA not in [event["type"] for event in await listen(client, 30.0)]


async def test_the_old_answer_is_played_to_its_end_and_then_the_new_one() -> None:
    """livekit/agents 563, vllm-omni 6101: no stale delta, one end, and what was said over it is heard from its beginning."""
    async with (
        open_test_server(answer_units=60, rtf=0.05, transcript="{ms} ms") as server,
        server.connect(GA) as client,
    ):
        first = await ask(client)
        await listen(client, 1.0)
        await client.say(2_000)
        await client.until("response.done")
        since = len(client.seen)
        new = await client.until("response.done")
        assert first["response_id"] != new["response"]["id"]
        assert {event["response_id"] for event in client.seen[since:] if "response_id" in event} == {
            new["response"]["id"]
        }
        assert words(new)[1:3] == ["2000", "ms"]


async def test_the_speaker_is_flushed_only_while_an_answer_is_generated() -> None:
    """azure-sdk-for-python 48965, pipecat 456: the answer is complete, and still plays."""
    detect = {"turn_detection": {"type": "server_vad"}}
    async with open_test_server(answer_units=40, rtf=0.01) as server, server.connect(DUPLEX, 16_000) as client:
        await client.send("session.update", session=detect)
        await client.say()
        done = await client.until("response.done")
        await trio.sleep(1)
        await client.say(2_000)
        cleared = await client.until("output_audio_buffer.cleared")
        assert cleared["response_id"] == done["response"]["id"]
        assert 10 <= len(str(said(server)[0]).split()) <= 12, "a second, and what it took to be sure"


@BOTH
async def test_the_users_words_are_gone_with_the_cancelled_answer(path: str) -> None:
    """sglang-omni 1344."""
    async with open_test_server(answer_units=20) as server, server.connect(path) as client:
        await ask(client, "my name is Ada")
        await client.send("response.cancel")
        await client.until("response.done")
        told = history(the_session(server).state)
        assert [turn.text for turn in told if turn.role == "user"] == ["my name is Ada"]
        assert words(await answered(client, "and yours"))[0] in ("2", "3")


# -- races of an answer's life ----------------------------------------------------------------------------------------


async def test_ends_cannot_be_told_apart_by_their_answers() -> None:
    """codex 17306: every event of an answer names it."""
    async with open_test_server(answer_units=6) as server, server.connect(GA) as client:
        for _ in range(2):
            await ask(client)
            await client.send("response.cancel")
            await client.until("response.done")
        await answered(client)
        of_answers = [event for event in client.seen if str(event["type"]).startswith("response.")]
        names = {event["response_id"] if "response_id" in event else event["response"]["id"] for event in of_answers}
        assert len(names) == 3


async def test_a_tool_that_finishes_after_the_interruption_starts_a_new_answer() -> None:
    """pydantic-ai 6324."""
    tool = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}
    async with open_test_server(answer_units=40, call_at_unit=1) as server, server.connect(GA) as client:
        await client.send("session.update", session={"tools": [tool]})
        await ask(client, "call=look_up")
        call = await client.until("response.function_call_arguments.done")
        await client.send("response.cancel")
        await client.until("response.done")
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "42"}
        await client.send("conversation.item.create", item=result)
        assert "response.created" not in [event["type"] for event in await listen(client, 20.0)]
        await client.send("response.create")
        assert "42" in words(await client.until("response.done")), "asked for, it is told"


async def test_the_agent_hangs_after_small_interruptions() -> None:
    """livekit 4484, openai-realtime-api-beta 26: remarks let the answer go on, and it ends once."""
    async with open_test_server(answer_units=30, transcript="mm-hmm") as server, server.connect(GA) as client:
        first = await ask(client)
        for _ in range(4):
            await client.say(200)
            await listen(client, 0.5)
        done = await client.until("response.done")
        assert (done["response"]["id"], done["response"]["status"]) == (first["response_id"], "completed")
        assert client.types().count("response.done") == 1
        assert "input_audio_buffer.speech_started" not in client.types()
        await trio.sleep(10)
        await answered(client)


# -- coming back, limits, room ----------------------------------------------------------------------------------------


async def test_after_a_resume_audio_is_read_in_the_default_format() -> None:
    """vllm-omni 7413."""
    async with open_test_server() as server:
        async with server.connect(DUPLEX) as client:
            created = await client.until("session.created")
            ulaw = {"input_audio_format": {"type": "audio/pcmu", "rate": 8_000}}
            await client.send("session.update", session=ulaw)
            await client.until("session.updated")
        async with server.connect("/v1/realtime?duplex=1&resume=1") as again:
            await resume(again, created)
            shown = (await again.until("session.resumed"))["session"]["audio"]["input"]
            assert "pcmu" in str(shown) or "ulaw" in str(shown)
            await again.send("input_audio_buffer.append", audio=base64.b64encode(b"\xff" * 777).decode())
            await again.send("session.heartbeat")
            await again.until("session.heartbeat_ack")
            await trio.sleep(0.1)
            assert the_session(server).state.input.samples == 777


async def resume(client: Client, created: dict[str, Any]) -> None:
    await client.send(
        "session.resume",
        session_id=created["session"]["id"],
        resume_token=created["resume_token"],
        last_received_server_event_seq=1,
    )


async def test_two_resumes_race_and_the_newer_one_loses() -> None:
    """vllm-omni 7785 and 7636: whoever comes last has the stream, the others are told so."""
    async with open_test_server() as server:
        async with server.connect(DUPLEX) as client:
            created = await client.until("session.created")
        path = "/v1/realtime?duplex=1&resume=1"
        async with server.connect(path) as one, server.connect(path) as two, server.connect(path) as three:
            clients = (one, two, three)
            for client in clients:
                await resume(client, created)
            await trio.sleep(1)
            session = the_session(server)
            for client in clients:
                if client.socket.closed is None:
                    await client.until("session.resumed")
            assert session.state.attachment.generation == 4
            await one.until("session.replaced")
            await two.until("session.replaced")
            assert words(await answered(three))[0] == "1"


@pytest.mark.limit(virtual_s=7_200)
async def test_the_call_is_cut_after_an_hour() -> None:
    """livekit/agents 2358, 2341, 1252, pipecat 3170, twilio-demo 7, moshi 51: no limit but the operator's."""
    async with open_test_server(rtf=0.01, answer_units=2) as server, server.connect(GA) as client:
        for turn in range(15):
            assert words(await answered(client))[0] == str(2 * turn + 1)
            await trio.sleep(280)
        assert trio.current_time() > 3_600


async def test_nobody_ends_a_session_that_goes_on_for_too_long() -> None:
    """openai-agents-js 1278, openai-realtime-agents 119."""
    bounded = attrs.evolve(DIALECTS["openai"].defaults, max_session_ms=60_000)
    settings = ServerSettings(model="scripted", defaults={"openai": bounded})
    async with open_test_server(settings, answer_units=1_000) as server, server.connect(GA) as client:
        await ask(client)
        error = await client.until("error")
        assert error["error"]["code"] == "session_expired"
        assert "response.done" in client.types(), "its answer ends first"
        assert await client.closed() == (1000, "session_expired")
        assert trio.current_time() == pytest.approx(60, abs=1)


async def test_session_created_cannot_be_delivered_and_the_place_stays_taken() -> None:
    """vllm-omni 7636."""
    settings = ServerSettings(model="scripted", sessions_max=1)
    async with open_test_server(settings) as server:
        for _ in range(3):
            async with server.connect(GA) as client:
                await trio.aclose_forcefully(client.socket._stream)  # type: ignore[attr-defined]
            await trio.sleep(0.1)
        assert not server.supervisor.sessions
        async with server.connect(GA) as client:
            await client.until("session.created")


async def test_the_answer_never_finishes_and_nothing_says_why() -> None:
    """vllm-omni 6474, DuplexOmni 4: generating, but silent."""
    async with open_test_server(silent_at_unit=2, fault_epoch=1) as server, server.connect(GA) as client:
        await ask(client)
        done = (await client.until("response.done"))["response"]
        assert (done["status"], done["status_details"]["error"]["code"]) == ("failed", "model_silent")
        assert (await answered(client))["response"]["status"] == "completed"


# -- who has the turn -------------------------------------------------------------------------------------------------


async def test_a_noise_cuts_the_answer() -> None:
    """AVA-AI-Voice-Agent-for-Asterisk 467, pipecat 1391, vllm-omni 6154."""
    async with open_test_server(answer_units=20, transcript="") as server, server.connect(GA) as client:
        first = await ask(client)
        await client.say(600)
        done = await client.until("response.done")
        assert (done["response"]["id"], done["response"]["status"]) == (first["response_id"], "completed")
        assert "input_audio_buffer.speech_started" not in client.types()
        assert [event.action for event in await overlaps(server)] == ["drop"]


async def overlaps(server: Server) -> list[e.OverlapDecided]:
    session_id = the_session(server).session_id
    batches = await server.store.read(session_id, 0, 10_000)
    records = [record for batch in batches for record in batch.records]
    return [record.event for record in records if isinstance(record.event, e.OverlapDecided)]


async def test_interruptions_cannot_be_switched_off() -> None:
    """pipecat 1391, openai-realtime-api-beta 26: then what is said waits for its turn."""
    detection = {"type": "server_vad", "interrupt_response": False}
    async with open_test_server(answer_units=20) as server, server.connect(GA) as client:
        await client.send("session.update", session={"audio": {"input": {"turn_detection": detection}}})
        first = await ask(client)
        await client.say(3_000)
        done = await client.until("response.done")
        assert (done["response"]["id"], done["response"]["status"]) == (first["response_id"], "completed")
        assert "turn 1" in " ".join(words(await client.until("response.done")))


async def test_it_listens_for_ever_and_speech_stopped_never_comes() -> None:
    """vllm-omni 5526: in a noise without end, the client's own commit ends the turn, and it is answered."""
    async with open_test_server(idle_fill_ms=10**6) as server, server.connect(GA) as client:
        for _ in range(30):
            await client.send("input_audio_buffer.append", audio=loud(1_000, client.rate))
        await client.until("input_audio_buffer.speech_started")
        await client.send("input_audio_buffer.commit")
        await client.send("response.create")
        assert (await client.until("response.done"))["response"]["status"] == "completed"
        await client.send("input_audio_buffer.append", audio=quiet(1_000, client.rate))
        await client.say()
        assert (await client.until("response.done"))["response"]["status"] == "completed"
