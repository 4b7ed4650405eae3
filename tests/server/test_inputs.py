"""Images, texts and function calls through the front, in OpenAI's dialect and the duplex one, to the model and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from store.memory import Fault
from tests.server.servers import PNG, Client, open_test_server, quiet

TOOL = {"type": "function", "name": "look_up", "description": "Looks things up.", "parameters": {"type": "object"}}
OPENAI, DUPLEX = "/v1/realtime?model=scripted", "/v1/realtime?duplex=1&model=scripted"
BOTH = pytest.mark.parametrize("path", [OPENAI, DUPLEX])


async def ask(client: Client, text: str, *parts: dict[str, Any], **response: Any) -> dict[str, Any]:
    """A typed turn and its whole answer."""
    content = [{"type": "input_text", "text": text}, *parts]
    item = {"type": "message", "role": "user", "content": content}
    await client.send("conversation.item.create", item=item)
    return await answer(client, **response)


async def answer(client: Client, **response: Any) -> dict[str, Any]:
    await client.send("response.create", response=response)
    done = await client.until("response.done")
    await trio.sleep(5)  # all of it is heard
    return done


def words(done: dict[str, Any]) -> str:
    message = next(item for item in done["response"]["output"] if item["type"] == "message")
    return str(message["content"][0]["transcript"])


def image(data: str = PNG) -> dict[str, Any]:
    return {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}


@BOTH
async def test_a_picture_reaches_the_model_and_is_not_echoed(path: str) -> None:
    async with open_test_server(rtf=0.01) as server, server.connect(path) as client:
        done = await ask(client, "what is this", image())
        assert words(done).startswith("1 what is this saw=1")
        assert words(await ask(client, "and now")).startswith("3 and now saw=1")
        sent = json.dumps(client.seen)
        assert PNG not in sent
        added = next(event for event in client.seen if event["type"] == "conversation.item.added")
        assert [part["type"] for part in added["item"]["content"]] == ["input_text", "input_image"]


@BOTH
async def test_a_model_that_does_not_see_says_so_and_the_session_lives(path: str) -> None:
    async with open_test_server(rtf=0.01, inputs="audio,text") as server, server.connect(path) as client:
        item = {"type": "message", "role": "user", "content": [image()]}
        await client.send("conversation.item.create", item=item, event_id="mine")
        error = (await client.until("error"))["error"]
        assert (error["code"], error["event_id"], error["param"]) == ("unsupported", "mine", "item.content[0].type")
        assert words(await ask(client, "hello")).startswith("1 hello")


@BOTH
@pytest.mark.parametrize(
    "url", ["https://example.org/a.png", "data:image/png,abc", "data:image/png;base64,AAAA", "data:image/png;base64,?"]
)
async def test_what_is_no_picture_is_refused_by_its_place(path: str, url: str) -> None:
    async with open_test_server(rtf=0.01) as server, server.connect(path) as client:
        item = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]}
        await client.send("conversation.item.create", item=item)
        error = (await client.until("error"))["error"]
        assert (error["code"], error["param"]) == ("invalid_image", "item.content[0].image_url")


async def test_frames_of_a_camera_go_with_the_turn_that_is_said() -> None:
    async with open_test_server(rtf=0.01) as server, server.connect(DUPLEX, 16_000) as client:
        created = await client.until("session.created")
        assert created["session"]["capabilities"]["supports_image_input"] is True
        await client.send("session.update", session={"turn_detection": {"type": "server_vad"}})
        await client.send("input_audio_buffer.append", audio="", video_frames=[PNG, PNG])
        await client.say()
        done = await client.until("response.done")
        assert words(done).startswith("1 turn 1 saw=2")
        await client.send("input_audio_buffer.append", audio=quiet(20, 16_000), video_frames=["AAAA"])
        error = (await client.until("error"))["error"]
        assert (error["code"], error["param"]) == ("invalid_video_frames", "video_frames[0]")
        await client.send("input_audio_buffer.append", audio=quiet(20, 16_000), video_frames=[PNG] * 3)
        assert (await client.until("error"))["error"]["code"] == "invalid_video_frames"


async def test_frames_for_a_model_that_does_not_see_cost_the_whole_append() -> None:
    async with open_test_server(inputs="audio,text") as server, server.connect(DUPLEX, 16_000) as client:
        created = await client.until("session.created")
        assert created["session"]["capabilities"]["supports_image_input"] is False
        await client.send("input_audio_buffer.append", audio=quiet(20, 16_000), video_frames=[PNG])
        error = (await client.until("error"))["error"]
        assert (error["code"], error["param"]) == ("invalid_input_modality", "video_frames")
        (session,) = server.supervisor.sessions.values()
        assert session.state.input.now_ms == 0


async def test_typed_words_are_part_of_the_turn_that_is_closed_next() -> None:
    async with open_test_server(rtf=0.01) as server, server.connect(DUPLEX, 16_000) as client:
        for text in ("units=3 he", "llo"):
            await client.send("input.text.append", text=text)
        await client.send("input.commit")
        done = await client.until("response.done")
        assert words(done).startswith("1 units=3 hello")
        committed = next(event for event in client.seen if event["type"] == "conversation.item.added")
        assert committed["item"]["content"][0] == {"type": "input_text", "text": "units=3 hello"}
    async with open_test_server(inputs="audio") as server, server.connect(DUPLEX, 16_000) as client:
        await client.send("push_text", text="hello")
        assert (await client.until("error"))["error"]["code"] == "native_text_append_unsupported"


CALL_EVENTS = [
    "response.output_item.added",
    "conversation.item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
    "conversation.item.done",
]


@BOTH
async def test_a_function_call_and_its_result(path: str) -> None:
    async with open_test_server(rtf=0.01, answer_units=4) as server, server.connect(path) as client:
        await client.send("session.update", session={"tools": [TOOL], "tool_choice": "auto"})
        shown = (await client.until("session.updated"))["session"]
        while not shown.get("tools"):
            shown = (await client.until("session.updated"))["session"]
        assert (shown["tools"], shown["tool_choice"]) == ([TOOL], "auto")
        client.seen.clear()
        done = await ask(client, "call=look_up")
        call = done["response"]["output"][1]
        assert (call["type"], call["name"], call["status"]) == ("function_call", "look_up", "completed")
        assert json.loads(call["arguments"]) == {"text": "call=look_up"}
        about = [
            event
            for event in client.seen
            if event.get("item_id") == call["id"] or event.get("item", {}).get("id") == call["id"]
        ]
        kinds = [event["type"] for event in about if event["type"] != "conversation.item.created"]
        assert sorted(kinds[:2]) == sorted(CALL_EVENTS[:2])
        assert kinds[2:] == CALL_EVENTS[2:]
        assert {event["call_id"] for event in about if "call_id" in event} == {call["call_id"]}
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "it is 42"}
        await client.send("conversation.item.create", item=output)
        told = await answer(client)
        assert words(told).startswith("4 call=look_up got it is 42"), "user, message, call, result"
        assert [item["type"] for item in told["response"]["output"]] == ["message"]


@BOTH
async def test_one_answer_may_have_tools_of_its_own(path: str) -> None:
    async with open_test_server(rtf=0.01, answer_units=2) as server, server.connect(path) as client:
        choice = {"type": "function", "name": "look_up"}
        done = await ask(client, "hello", tools=[TOOL], tool_choice=choice)
        assert [item["type"] for item in done["response"]["output"]] == ["message", "function_call"]
        assert len((await ask(client, "hello"))["response"]["output"]) == 1


@BOTH
@pytest.mark.parametrize(
    ("settings", "code", "param"),
    [
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "unsupported", "session.tools[0].type"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "session.tools[0].name"),
        ({"tools": [{"name": "x", "parameters": 5}]}, "invalid_value", "session.tools[0].parameters"),
        ({"tools": [{"name": "x"}] * 129}, "invalid_value", "session.tools"),
        ({"tool_choice": "maybe"}, "invalid_value", "session.tool_choice"),
        ({"tool_choice": {"type": "function"}}, "missing_required_parameter", "session.tool_choice.name"),
    ],
)
async def test_wrong_tools_are_refused_by_their_place(
    path: str, settings: dict[str, Any], code: str, param: str
) -> None:
    async with open_test_server() as server, server.connect(path) as client:
        await client.send("session.update", session=settings)
        error = (await client.until("error"))["error"]
        duplex = {"missing_required_parameter": "bad_event", "invalid_value": "bad_event"}
        assert (error["code"], error["param"]) == (duplex.get(code, code) if path == DUPLEX else code, param)


async def test_a_session_may_be_opened_with_the_voice_to_speak_with() -> None:
    path = "/v1/realtime?duplex=1"
    voice = "data:audio/wav;base64,UklGRgAAAABXQVZF"
    async with open_test_server(rtf=0.01) as server:
        for place in ({"ref_audio": voice}, {"extra_body": {"ref_audio": voice}}):
            async with server.connect(path, 16_000) as client:
                await client.send("session.update", session=place)
                done = await ask(client, "hello")
                (session,) = server.supervisor.sessions.values()
                reference = session.state.reference
                assert reference is not None
                assert (reference.media_type, reference.size_bytes) == ("audio/wav", 12)
                assert f"voice={reference.digest[:4]}" in words(done)
                assert voice not in json.dumps(client.seen)
                await client.send("session.close")
                await client.closed()
        async with server.connect(path, 16_000) as client:
            await client.send("session.update", session={"ref_audio": "https://example.org/voice.wav"})
            error = (await client.until("error"))["error"]
            assert (error["code"], error["param"]) == ("bad_audio", "session.ref_audio")
    async with open_test_server(rtf=0.01, inputs="audio,text") as server, server.connect(path, 16_000) as client:
        await client.send("session.update", session={"ref_audio": "https://example.org/voice.wav"})
        assert words(await ask(client, "hello")).startswith("1 hello a1w2"), "a model that takes none is not asked"


@BOTH
async def test_a_long_history_at_once_is_taken_however_slow_the_store(path: str) -> None:
    """A client that reads is no slow reader, whatever it asks for."""
    async with open_test_server() as server:
        server.store.policy = lambda request: Fault(after_s=0.002)
        async with server.connect(path) as client:
            await client.until("session.created")
            for number in range(600):
                await client.send("conversation.item.create", item=typed(f"line {number}"))
            await client.send("conversation.item.create", item=typed("x" * 1_000_000))
            done = [await client.until("conversation.item.done") for _ in range(601)]
            assert [one["item"]["content"][0]["text"][:8] for one in done[:-1]] == [f"line {n}"[:8] for n in range(600)]
            assert len(done[-1]["item"]["content"][0]["text"]) == 1_000_000


def typed(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


async def test_a_call_that_was_on_its_way_when_its_answer_was_cut_comes_again() -> None:
    """The line tears with the call, the cut and the answer's end in flight: the model was told of the call, so its client
    must be. What was said of the cut answer does not come again."""
    async with open_test_server(answer_units=20, rtf=0.5, call_at_unit=3) as server:
        async with server.connect(DUPLEX) as client:
            created = await client.until("session.created")
            await client.send("session.update", session={"tools": [TOOL]})
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "call=look_up"}]}
            await client.send("conversation.item.create", item=item)
            await client.send("response.create")
            last = (await client.until("response.output_audio.delta"))["server_event_seq"]
            called = await client.until("response.function_call_arguments.done")
            await client.until("response.output_audio.delta")
            await client.send("barge_in")
            await client.until("response.done")
        async with server.connect("/v1/realtime?duplex=1&resume=1") as again:
            token, session_id = created["resume_token"], created["session"]["id"]
            await again.send(
                "session.resume", session_id=session_id, resume_token=token, last_received_server_event_seq=last
            )
            done = await again.until("response.done")
            assert [part["type"] for part in done["response"]["output"]] == ["message", "function_call"]
            assert "response.output_audio.delta" not in again.types()
            assert [event for event in again.seen if event["type"] == called["type"]] == [called]
            numbers = {event["server_event_seq"] for event in again.seen if "server_event_seq" in event}
            skipped = again.seen[0]["skipped"] + done["response"]["metadata"].get("skipped", [])
            skipped = {n for first, end in skipped for n in range(first, end + 1)}
            assert numbers.isdisjoint(skipped)
            assert numbers | skipped >= set(range(last + 1, done["server_event_seq"] + 1))
            output = {"type": "function_call_output", "call_id": called["call_id"], "output": "it is 42"}
            await again.send("conversation.item.create", item=output)
            assert "got it is 42" in words(await answer(again))
