"""OpenAI's own Python SDK, unmodified, holds a spoken conversation with the server."""

from __future__ import annotations

import base64
import math
import re
import socket
import struct
import subprocess
import sys
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from adapters.server.settings import ServerSettings
from adapters.wire.served import OPENAI_MODELS
from tests.interop.servers import Served, served
from tests.server.servers import PNG

pytestmark = [
    pytest.mark.interop,
    # The SDK's own use of websockets, not ours.
    pytest.mark.filterwarnings(r"ignore:connect\(\) must be used as a context manager:DeprecationWarning"),
]

RATE = 24_000


def tone(ms: int) -> str:
    count = ms * RATE // 1000
    return base64.b64encode(struct.pack(f"<{count}h", *(int(8_000 * math.sin(i * 0.3)) for i in range(count)))).decode()


def silence(ms: int) -> str:
    return base64.b64encode(bytes(ms * RATE // 500)).decode()


@pytest.fixture
def server() -> Iterator[Served]:
    settings = ServerSettings(port=0, model="scripted", model_aliases=(*OPENAI_MODELS, "cascade"))
    with served(settings, answer_units=8, rtf=0.2) as running:
        yield running


@pytest.fixture
def connect(server: Served) -> Callable[[], Any]:
    client = openai.OpenAI(base_url=server.base_url, api_key="sk-none")
    return lambda: client.realtime.connect(model="gpt-realtime")


def until(connection: Any, kind: str) -> list[Any]:
    """Every event up to the first of that type."""
    seen = []
    while True:
        event = connection.recv()
        seen.append(event)
        if event.type == kind:
            return seen


def say(connection: Any, ms: int = 400) -> None:
    for audio in (tone(ms), silence(600)):
        connection.input_audio_buffer.append(audio=audio)


def transcript(seen: list[Any]) -> str:
    return "".join(e.delta for e in seen if e.type == "response.output_audio_transcript.delta")


def ask(folder: Path, base_url: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run the program of the page about clients as it stands, but for ``changes``."""
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "clients.md").read_text("utf-8")
    program = re.findall(r"^```python\n(# ask\.py.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    for old, new in {"http://localhost:8765/v1": base_url, **changes}.items():
        assert old in program
        program = program.replace(old, new)
    (folder / "ask.py").write_text(program)
    question = root / re.findall(r"^\$ python ask\.py (\S+) answer\.wav$", page, re.MULTILINE)[0]
    command = [sys.executable, "ask.py", str(question), "answer.wav"]
    return subprocess.run(command, cwd=folder, check=False, timeout=100, capture_output=True, text=True)


def test_the_program_on_the_page_says_why_it_is_refused_and_what_to_do(server: Served, tmp_path: Path) -> None:
    ran = ask(tmp_path, server.base_url, cascade="moshi")
    assert ran.returncode == 1
    assert "HTTP 404" in ran.stderr
    assert "There is no model 'moshi' here; there is: " in ran.stderr
    assert "--model-alias" in ran.stderr
    assert "Traceback" not in ran.stderr
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # and nobody listens
        ran = ask(tmp_path, f"http://127.0.0.1:{probe.getsockname()[1]}/v1")
    assert ran.returncode == 1
    assert "make serve" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_program_on_the_page_says_that_a_key_is_asked_for(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, model="scripted", model_aliases=("cascade",), api_keys=("sk-one",))
    with served(settings) as server:
        ran = ask(tmp_path, server.base_url)
    assert ran.returncode == 1
    assert "HTTP 401" in ran.stderr
    assert "API key" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_program_on_the_page_about_clients_works_as_it_stands(server: Served, tmp_path: Path) -> None:
    ran = ask(tmp_path, server.base_url)
    assert ran.returncode == 0, ran.stderr
    assert "turn 1" in ran.stdout
    with wave.open(str(tmp_path / "answer.wav")) as answer:
        assert answer.getframerate() == RATE
        assert answer.getnframes() == 8 * 200 * RATE // 1_000


def test_it_speaks_hears_an_answer_goes_on_and_closes(server: Served, connect: Callable[[], Any]) -> None:
    with connect() as connection:
        created = connection.recv()
        assert created.type == "session.created"
        assert created.session.audio.input.format.rate == RATE
        connection.session.update(session={"type": "realtime", "instructions": "Be kind."})
        assert until(connection, "session.updated")[-1].session.instructions == "Be kind."
        for turn in (1, 2):
            say(connection)
            seen = until(connection, "response.done")
            response = seen[-1].response
            assert response.status == "completed"
            assert response.output[0].content[0].transcript == transcript(seen)
            assert f"turn {turn}" in transcript(seen)
            audio = b"".join(base64.b64decode(e.delta) for e in seen if e.type == "response.output_audio.delta")
            assert len(audio) == 8 * 200 * RATE // 500
            heard = [e for e in seen if e.type == "conversation.item.input_audio_transcription.completed"]
            assert [e.transcript for e in heard] == [f"turn {turn}"]
    assert server.is_left(), "its session has ended with its connection"


def test_every_event_is_one_that_the_sdk_knows(connect: Callable[[], Any]) -> None:
    from openai.types.realtime import RealtimeServerEvent
    from pydantic import TypeAdapter

    known = TypeAdapter(RealtimeServerEvent)
    with connect() as connection:
        say(connection)
        seen = until(connection, "response.done")
        item_id = seen[-1].response.output[0].id
        connection.conversation.item.truncate(item_id=item_id, content_index=0, audio_end_ms=300)
        seen += until(connection, "conversation.item.truncated")
        connection.conversation.item.retrieve(item_id=item_id)
        seen += until(connection, "conversation.item.retrieved")
        connection.response.cancel()
        seen += until(connection, "error")
    for event in seen:
        known.validate_python(event.to_dict(mode="json"))


def test_speaking_over_the_answer_cuts_it_off() -> None:
    with served(long_units=200, rtf=0.2, transcript="a long question") as running:
        client = openai.OpenAI(base_url=running.base_url, api_key="sk-none")
        with client.realtime.connect(model="gpt-realtime") as connection:
            say(connection)
            until(connection, "response.output_audio.delta")
            say(connection, 1_500)
            seen = until(connection, "response.done")
            assert "input_audio_buffer.speech_started" in [event.type for event in seen]
            response = seen[-1].response
            assert (response.status, response.status_details.reason) == ("cancelled", "turn_detected")
            item_id = response.output[0].id
            connection.conversation.item.truncate(item_id=item_id, content_index=0, audio_end_ms=200)
            after = until(connection, "conversation.item.truncated")
            assert after[-1].audio_end_ms <= 200
            after += until(connection, "response.output_audio.delta")  # the next answer speaks
            assert not [event for event in after if getattr(event, "item_id", "") == item_id and "delta" in event.type]


def test_cancelling_ends_an_answer_and_with_nothing_to_cancel_is_forgiven(connect: Callable[[], Any]) -> None:
    with connect() as connection:
        connection.response.cancel()
        error = until(connection, "error")[-1].error
        assert (error.code, error.message.startswith("Cancellation failed")) == ("response_cancel_not_active", True)
        say(connection)
        until(connection, "response.output_audio.delta")
        connection.response.cancel()
        assert until(connection, "response.done")[-1].response.status_details.reason == "client_cancelled"


def test_items_typed_and_asked_for(connect: Callable[[], Any]) -> None:
    with connect() as connection:
        connection.conversation.item.create(
            item={"type": "message", "role": "user", "content": [{"type": "input_text", "text": "units=2 please"}]}
        )
        added = until(connection, "conversation.item.done")[-1].item
        connection.response.create(response={"metadata": {"client_event_id": "abc"}})
        seen = until(connection, "response.done")
        assert seen[-1].response.metadata == {"client_event_id": "abc"}
        assert len([e for e in seen if e.type == "response.output_audio.delta"]) == 2
        connection.conversation.item.delete(item_id=added.id)
        assert until(connection, "conversation.item.deleted")[-1].item_id == added.id


def test_a_key_is_asked_for_where_one_is_set() -> None:
    settings = ServerSettings(port=0, model="scripted", api_keys=("sk-right",))
    with served(settings) as running:
        for key, lets_in in (("sk-right", True), ("sk-wrong", False)):
            client = openai.OpenAI(base_url=running.base_url, api_key=key)
            if lets_in:
                with client.realtime.connect(model="scripted") as connection:
                    assert connection.recv().type == "session.created"
            else:
                with pytest.raises(Exception, match="401"), client.realtime.connect(model="scripted"):
                    pass


def test_the_async_client_too(server: Served) -> None:
    import asyncio

    async def talk() -> str:
        client = openai.AsyncOpenAI(base_url=server.base_url, api_key="sk-none")
        async with client.realtime.connect(model="gpt-realtime") as connection:
            await connection.input_audio_buffer.append(audio=tone(400))
            await connection.input_audio_buffer.append(audio=silence(600))
            async for event in connection:
                if event.type == "response.done":
                    return str(event.response.status)
        return "closed"

    assert asyncio.run(talk()) == "completed"


@pytest.mark.parametrize("after_deltas", [1, 4, 8])
def test_cancels_and_truncates_may_come_together_in_any_order_and_twice(after_deltas: int) -> None:
    """What voice clients do when their user speaks, while the answer may just be over."""
    with served(answer_units=8, rtf=0.05) as running:
        client = openai.OpenAI(base_url=running.base_url, api_key="sk-none")
        with client.realtime.connect(model="gpt-realtime") as connection:
            say(connection)
            seen = []
            while sum(event.type == "response.output_audio.delta" for event in seen) < after_deltas:
                seen.append(connection.recv())
            item_id = next(event.item_id for event in seen if event.type == "response.output_audio.delta")
            connection.response.cancel()
            connection.conversation.item.truncate(item_id=item_id, content_index=0, audio_end_ms=150)
            connection.response.cancel()
            connection.conversation.item.truncate(item_id=item_id, content_index=0, audio_end_ms=100)
            for _ in range(2):
                seen += until(connection, "conversation.item.truncated")
            connection.conversation.item.retrieve(item_id=item_id)
            seen += until(connection, "conversation.item.retrieved")
            kept = seen[-1].item.content[0].transcript
            say(connection)
            seen += until(connection, "response.created")
            seen += until(connection, "response.done")
        created = [event.response.id for event in seen if event.type == "response.created"]
        done = [event.response.id for event in seen if event.type == "response.done"]
        assert sorted(created) == sorted(done)
        assert len(set(done)) == len(done) == 2
        codes = {event.error.code for event in seen if event.type == "error"}
        assert codes <= {"response_cancel_not_active"}
        assert [e.audio_end_ms for e in seen if e.type == "conversation.item.truncated"] == [150, 100]
        first_cut = next(i for i, event in enumerate(seen) if event.type == "conversation.item.truncated")
        told = "".join(e.delta for e in seen[:first_cut] if e.type == "response.output_audio_transcript.delta")
        assert told.startswith(kept)
        late = [e for e in seen[first_cut:] if getattr(e, "item_id", "") == item_id and e.type.endswith(".delta")]
        assert not [e for e in late if e.delta]


LOOK_UP: dict[str, Any] = {
    "type": "function",
    "name": "look_up",
    "description": "Looks something up.",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
}


def type_in(connection: Any, *content: dict[str, Any]) -> None:
    connection.conversation.item.create(item={"type": "message", "role": "user", "content": list(content)})


def text(words: str) -> dict[str, Any]:
    return {"type": "input_text", "text": words}


def test_a_function_is_called_and_its_result_is_told(connect: Callable[[], Any]) -> None:
    from openai.types.realtime import RealtimeServerEvent
    from pydantic import TypeAdapter

    known = TypeAdapter(RealtimeServerEvent)
    with connect() as connection:
        connection.session.update(session={"type": "realtime", "tools": [LOOK_UP], "tool_choice": "auto"})
        updated = until(connection, "session.updated")[-1]
        assert [tool.name for tool in updated.session.tools] == ["look_up"]
        type_in(connection, text("call=look_up"))
        connection.response.create()
        seen = until(connection, "response.done")
        (done,) = (e for e in seen if e.type == "response.function_call_arguments.done")
        call = seen[-1].response.output[-1]
        assert (call.type, call.name, call.call_id) == ("function_call", "look_up", done.call_id)
        assert done.arguments == call.arguments == '{"text": "call=look_up"}'
        assert "".join(e.delta for e in seen if e.type == "response.function_call_arguments.delta") == done.arguments
        connection.conversation.item.create(
            item={"type": "function_call_output", "call_id": done.call_id, "output": "it is 42"}
        )
        connection.response.create()
        seen += until(connection, "response.done")
        assert "got it is 42" in transcript(seen)
        assert len([e for e in seen if e.type == "response.function_call_arguments.done"]) == 1
        for event in seen:
            known.validate_python(event.to_dict(mode="json"))


def test_a_picture_is_shown_to_a_model_that_sees_and_refused_by_one_that_does_not(connect: Callable[[], Any]) -> None:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}
    with connect() as connection:
        type_in(connection, text("what is this"), image)
        added = until(connection, "conversation.item.done")[-1].item
        assert [part.type for part in added.content] == ["input_text", "input_image"]
        connection.response.create()
        assert "saw=1" in transcript(until(connection, "response.done"))
    with served(answer_units=8, rtf=0.2, inputs="audio,text,tool_result") as running:
        client = openai.OpenAI(base_url=running.base_url, api_key="sk-none")
        with client.realtime.connect(model="gpt-realtime") as connection:
            type_in(connection, text("what is this"), image)
            error = until(connection, "error")[-1].error
            assert (error.code, error.param) == ("unsupported", "item.content[1].type")
            type_in(connection, text("well then"))
            connection.response.create()
            assert "1 well then" in transcript(until(connection, "response.done"))


def test_a_call_is_made_or_not_when_it_is_cut_off() -> None:
    """The user speaks while the model is about to call: what the client was told of the call, the model is told, too."""
    with served(answer_units=40, call_at_unit=4, rtf=0.1) as running:
        client = openai.OpenAI(base_url=running.base_url, api_key="sk-none")
        with client.realtime.connect(model="gpt-realtime") as connection:
            connection.session.update(session={"type": "realtime", "tools": [LOOK_UP]})
            type_in(connection, text("call=look_up units=40"))
            connection.response.create()
            seen = until(connection, "response.output_audio.delta")
            connection.response.cancel()
            seen += until(connection, "response.done")
            assert seen[-1].response.status == "cancelled"
            told = [e.call_id for e in seen if e.type == "response.function_call_arguments.done"]
            assert [item.call_id for item in seen[-1].response.output if item.type == "function_call"] == told
            type_in(connection, text("units=2"))
            connection.response.create()
            seen = until(connection, "response.done")
            heard = int(transcript(seen).split()[0])
            assert heard in (2 + len(told), 3 + len(told)), (
                "the two questions, what was heard, and the call if it was made"
            )
