"""Client events as commands: what is understood, what is refused and by which name, and that refusals change nothing."""

from __future__ import annotations

import base64
import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.wire.dialect import Answer, Ask, Dialect, Request
from adapters.wire.dialects import DUPLEX, OPENAI
from adapters.wire.fields import DEPTH_MAX, FRAME_BYTES_MAX
from adapters.wire.problems import Problem
from adapters.wire.seen import Seen
from core.session import commands as c
from core.session.config import AudioFormat, SessionConfig, Tool
from tests.wire.stories import Story
from tests.wire.translated import ANY_JSON, BOTH, PCM, command, fresh, problem, said, updated

# -- frames -------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("frame", "code", "param"),
    [
        (b"\0\1", "bad_event", None),
        ("{", "invalid_json", None),
        ("", "invalid_json", None),
        ("nonsense", "invalid_json", None),
        ('{"a": NaN}', "invalid_json", None),
        ('{"a": 1e999}', "invalid_json", None),
        ("[" * 100_000, "invalid_json", None),
        ('{"type": "x", "a": ' + "[" * DEPTH_MAX + "]" * DEPTH_MAX + "}", "invalid_json", None),
        ("[]", "bad_event", None),
        ("null", "bad_event", None),
        ("{}", "bad_event", "type"),
        ('{"type": 5}', "bad_event", "type"),
        ('{"type": "x", "event_id": {}}', "bad_event", "event_id"),
        ('{"type": "x", "event_id": "' + "e" * 513 + '"}', "bad_event", "event_id"),
        ('{"type": "session.fly", "event_id": "e"}', "unknown_event", "type"),
        ('"' + "a" * FRAME_BYTES_MAX + '"', "event_too_large", None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_frames_that_are_no_events(dialect: Dialect, frame: str | bytes, code: str, param: str | None) -> None:
    found = problem(dialect, frame)
    assert (found.code, found.param) == (code, param)


@BOTH
def test_a_problem_names_the_event_that_it_answers(dialect: Dialect) -> None:
    found = problem(dialect, {"type": "input_audio_buffer.append", "event_id": "mine", "audio": 5})
    error = dialect.problem(found)["error"]
    assert (error["event_id"], error["param"], error["type"]) == ("mine", "audio", "invalid_request_error")


_NAMES = sorted(set(DUPLEX.handlers) | set(DUPLEX.aliases))
_FIELDS = """
session audio delta item item_id response response_id audio_end_ms played_ms committed_ms truncate event payload event_id
reason format sample_rate_hz video_frames vad final create_response previous_item_id server_event_seq
""".split()  # noqa: SIM905


@BOTH
@given(name=st.sampled_from(_NAMES), fields=st.dictionaries(st.sampled_from(_FIELDS), ANY_JSON, max_size=6))
def test_whatever_comes_is_understood_or_refused(dialect: Dialect, name: str, fields: dict[str, Any]) -> None:
    state = fresh(dialect)
    position = state.position
    try:
        dialect.translate(json.dumps({"type": name, **fields}), state, 7)
    except Problem as found:
        json.dumps(dialect.problem(found))
    assert state.position == position


def test_what_a_thread_reads_of_a_session_does_not_change_with_it() -> None:
    story = Story(DUPLEX.make_projection(), DUPLEX.defaults)
    seen = Seen.of(story.state, 7)
    before = attrs.asdict(seen), hash(seen)
    story.append()
    story.speech_begins()
    assert Seen.of(story.state, 7) != seen
    assert (attrs.asdict(seen), hash(seen)) == before
    assert attrs.fields(Request).state.type == "Seen", "and nothing else of the session goes along"


# -- audio --------------------------------------------------------------------------------------------------------


@BOTH
def test_audio_becomes_an_append_with_its_body(dialect: Dialect) -> None:
    (step,) = said(dialect, {"type": "input_audio_buffer.append", "audio": PCM, "event_id": "e1"})
    assert isinstance(step, Ask)
    assert isinstance(step.command, c.AppendAudio)
    assert (step.command.samples, step.command.size_bytes, step.command.event_id) == (160, 320, "e1")
    assert step.bodies[0].data == bytes(320)
    assert step.bodies[0].digest == step.command.digest


@BOTH
def test_audio_is_read_in_the_sessions_format(dialect: Dialect) -> None:
    state = fresh(dialect, SessionConfig(input_format=AudioFormat("g711_ulaw", 8_000)))
    assert command(dialect, {"type": "input_audio_buffer.append", "audio": PCM}, state).samples == 320


def test_duplex_clients_may_call_their_audio_a_delta() -> None:
    assert command(DUPLEX, {"type": "input_audio_buffer.append", "delta": PCM}).samples == 160


@pytest.mark.parametrize("extra", [False, True])
def test_no_path_of_the_servers_is_read_for_a_voice(extra: bool) -> None:
    voice = {"ref_audio_path": "/etc/passwd"}
    with pytest.raises(Problem) as caught:
        DUPLEX.reference_voice({"extra_body": voice} if extra else voice)
    assert caught.value.code == "unsupported_ref_audio_path"
    assert caught.value.param == ("session.extra_body.ref_audio_path" if extra else "session.ref_audio_path")


@BOTH
def test_no_audio_is_no_append(dialect: Dialect) -> None:
    assert said(dialect, {"type": "input_audio_buffer.append", "audio": ""}) == []
    assert problem(dialect, {"type": "input_audio_buffer.append"}).param == "audio"


@pytest.mark.parametrize(
    ("extra", "code", "param"),
    [
        ({"format": "mp3"}, "unsupported_audio_format", "format"),
        ({"format": "g711_ulaw"}, "unsupported_audio_format", "format"),
        ({"sample_rate_hz": 8_000}, "unsupported_audio_format", "sample_rate_hz"),
        ({"format": {"type": "audio/pcm", "rate": 24_000}}, "unsupported_audio_format", "format.rate"),
        ({"video_frames": ["AAAA"]}, "invalid_input_modality", "video_frames"),
    ],
)
def test_an_append_of_another_kind_is_refused(extra: dict[str, Any], code: str, param: str) -> None:
    found = problem(DUPLEX, {"type": "input_audio_buffer.append", "audio": PCM, **extra})
    assert (found.code, found.param) == (code, param)


def test_an_append_may_name_the_format_that_it_has() -> None:
    event = {"type": "input_audio_buffer.append", "audio": PCM, "format": "pcm16", "sample_rate_hz": 16_000}
    assert command(DUPLEX, event).samples == 160


@pytest.mark.parametrize(
    ("hints", "speech"),
    [
        ({}, None),
        ({"is_speech": True}, True),
        ({"is_speech": False, "speech_probability": 0.9}, False),
        ({"vad": {"is_speech": True}}, True),
        ({"vad": {"probability": 0.4}}, False),
        ({"speech_probability": 0.6}, True),
        ({"speech_probability": 0.5}, True),
        ({"speech_probability": True}, None),
    ],
)
def test_speech_hints(hints: dict[str, Any], speech: bool | None) -> None:
    assert command(DUPLEX, {"type": "input_audio_buffer.append", "audio": PCM, **hints}).is_speech is speech


@pytest.mark.parametrize(
    ("fields", "action", "reason"),
    [
        ({"overlap_action": "interrupt"}, "barge_in", "client_overlap_action"),
        ({"overlap": "continue_output"}, "listen", "client_overlap_action"),
        ({"overlap_action": "ignore", "force_barge_in": True}, "drop", "client_overlap_action"),
        ({"force_barge_in": True, "force_listen": True}, "barge_in", "client_force_barge_in"),
        ({"force_listen": True}, "listen", "client_force_listen"),
    ],
)
def test_an_append_may_say_what_becomes_of_speech_over_an_answer(
    fields: dict[str, Any], action: str, reason: str
) -> None:
    steps = said(DUPLEX, {"type": "input_audio_buffer.append", "audio": PCM, **fields})
    assert isinstance(steps[1], Ask)
    assert steps[1].command == c.JudgeOverlap(action, reason)


@pytest.mark.parametrize("action", [["interrupt"], {"interrupt": True}, 5])
def test_an_overlap_action_of_another_kind_is_none(action: object) -> None:
    (step,) = said(DUPLEX, {"type": "input_audio_buffer.append", "audio": PCM, "overlap_action": action})
    assert isinstance(step, Ask)


@BOTH
@pytest.mark.parametrize("kind", [["input_text"], {}, 5, None])
def test_a_part_of_an_item_names_its_type_with_a_string(dialect: Dialect, kind: object) -> None:
    item = {"type": "message", "role": "user", "content": [{"type": kind, "text": "a"}]}
    assert problem(dialect, {"type": "conversation.item.create", "item": item}).param == "item.content[0].type"


# -- cuts, playback, items ----------------------------------------------------------------------------------------


def test_every_way_to_cut_is_one_command() -> None:
    assert command(OPENAI, {"type": "response.cancel", "response_id": "r", "event_id": "e"}) == c.CancelOutput(
        "client_cancelled", "r", unsent_only=True, event_id="e"
    )
    assert command(DUPLEX, {"type": "response.cancel"}) == c.CancelOutput("client_cancelled")
    assert command(DUPLEX, {"type": "barge_in"}) == c.CancelOutput("barge_in", always=True)
    assert command(DUPLEX, {"type": "input.cancel"}) == c.CancelOutput(
        "client_cancelled", None, True, True, always=True
    )
    clear = c.CancelOutput("output_audio_buffer_clear", quiet=True)
    assert command(OPENAI, {"type": "output_audio_buffer.clear"}) == clear
    assert command(DUPLEX, {"type": "turn.signal", "event": "barge_in"}) == c.CancelOutput("barge_in", always=True)


def test_playback() -> None:
    ack = {"type": "playback.ack", "played_ms": 120.7, "response_id": "r", "event_id": "e"}
    assert command(DUPLEX, ack) == c.AckPlayback(120, response_id="r", event_id="e")
    assert problem(DUPLEX, {"type": "audio.playback_ack"}).param == "played_ms"
    assert problem(DUPLEX, {"type": "playback.ack", "played_ms": -1}).param == "played_ms"
    assert problem(DUPLEX, {"type": "playback.ack", "played_ms": True}).param == "played_ms"
    truncate = {"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 0}
    assert command(OPENAI, truncate) == c.AckPlayback(0, item_id="i", truncate=True)
    assert problem(OPENAI, {"type": "conversation.item.truncate", "item_id": "i"}).param == "audio_end_ms"


def test_commits_ask_for_an_answer_where_the_dialect_says_so() -> None:
    assert command(OPENAI, {"type": "input_audio_buffer.commit"}).create_response is None
    assert command(DUPLEX, {"type": "input_audio_buffer.commit"}).create_response is None
    assert command(DUPLEX, {"type": "input.commit"}).create_response is True
    assert command(DUPLEX, {"type": "input.commit", "create_response": False}).create_response is False
    auto = updated(DUPLEX, {"extra_body": {"auto_response": True}})
    state = fresh(DUPLEX, auto)
    event = {"type": "input_audio_buffer.commit", "create_response": False}
    assert command(DUPLEX, event, state).create_response is True
    detected = updated(DUPLEX, {"extra_body": {"auto_response": True}, "turn_detection": {"type": "server_vad"}})
    assert command(DUPLEX, event, fresh(DUPLEX, detected)).create_response is False


def test_a_chunk_is_measured_where_nobody_says_what_it_is() -> None:
    append = {"type": "input_audio_buffer.append", "audio": PCM}
    measured = command(DUPLEX, append)
    assert measured.is_speech is None
    assert measured.rms is not None
    hinted = command(DUPLEX, {**append, "is_speech": False})
    assert (hinted.is_speech, hinted.rms) == (False, None)
    assert command(OPENAI, append).rms is None
    detected = fresh(DUPLEX, updated(DUPLEX, {"turn_detection": {"type": "server_vad"}}))
    assert command(DUPLEX, append, detected).rms is None


def test_items() -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    made = command(OPENAI, {"type": "conversation.item.create", "item": item, "previous_item_id": "root"})
    assert (made.role, made.text, made.previous_item_id) == ("user", "hello", "root")
    assert json.loads(made.item) == item
    output = {"type": "function_call_output", "call_id": "c", "output": "42"}
    made = command(OPENAI, {"type": "conversation.item.create", "item": output})
    assert (made.role, made.call_id) == ("function_call_output", "c")
    call = {"type": "function_call", "call_id": "c", "name": "look_up", "arguments": "{}"}
    made = command(OPENAI, {"type": "conversation.item.create", "item": call})
    assert (made.role, made.call_id, made.name) == ("function_call", "c", "look_up")
    image = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}
    found = problem(OPENAI, {"type": "conversation.item.create", "item": image})
    assert (found.code, found.param) == ("unsupported", "item.content[0].type")


def test_a_spoken_item_is_input_that_is_committed() -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": PCM}]}
    steps = said(OPENAI, {"type": "conversation.item.create", "item": item, "event_id": "e"})
    appended, committed = (step.command for step in steps if isinstance(step, Ask))
    assert isinstance(appended, c.AppendAudio)
    assert (appended.is_speech, appended.event_id) == (True, None)
    assert committed == c.CommitInput(False, "e"), "it is answered when the client asks for it"


def test_what_an_assistant_said_is_an_item_by_its_words_and_its_sound_is_not_kept() -> None:
    for kind in ("input_audio", "output_audio"):
        part = {"type": kind, "audio": PCM, "transcript": "hello"}
        item = {"type": "message", "role": "assistant", "content": [part]}
        made = command(OPENAI, {"type": "conversation.item.create", "item": item})
        assert (made.role, made.text) == ("assistant", "hello")
        assert json.loads(made.item)["content"] == [{"type": kind, "transcript": "hello"}]


@BOTH
def test_items_and_metadata_are_bounded_and_sound_in_an_item_does_not_count(dialect: Dialect) -> None:
    def item(part: dict[str, Any]) -> dict[str, Any]:
        message = {"type": "message", "role": "user", "content": [part]}
        return {"type": "conversation.item.create", "item": message}

    text = {"type": "input_text", "text": "x" * 999_999, "more": "y" * 100_000}
    assert problem(dialect, item(text)).param == "item"
    assert said(dialect, item({"type": "input_audio", "audio": base64.b64encode(bytes(1_200_000)).decode()}))
    metadata = {"k": "v" * 16_384}
    found = problem(dialect, {"type": "response.create", "response": {"metadata": metadata}})
    assert (found.code, found.param) == ("invalid_value", "response.metadata")


def test_a_response_is_asked_for_with_what_it_may_say() -> None:
    wanted = {"instructions": "be brief", "metadata": {"k": "v"}, "output_modalities": ["text"], "conversation": "none"}
    made = command(OPENAI, {"type": "response.create", "response": wanted})
    assert made == c.CreateResponse('{"k":"v"}', "be brief", ("text",), None, True)
    assert problem(OPENAI, {"type": "response.create", "response": {"input": [{}]}}).param == "response.input"


@BOTH
@pytest.mark.parametrize(
    ("wanted", "made"),
    [
        ({"output_modalities": ["text", "audio"]}, c.CreateResponse(modalities=("audio",))),
        ({"modalities": ["text"]}, c.CreateResponse(modalities=("text",))),
        ({"max_output_tokens": "inf"}, c.CreateResponse()),
        ({"max_response_output_tokens": 7}, c.CreateResponse(max_output_tokens=7)),
        ({"tools": [{"type": "function", "name": "f"}]}, c.CreateResponse(tools=(Tool("f"),))),
        ({"tools": [], "tool_choice": "none"}, c.CreateResponse(tools=(), tool_choice="none")),
    ],
)
def test_an_answer_may_differ_from_its_session(
    dialect: Dialect, wanted: dict[str, Any], made: c.CreateResponse
) -> None:
    assert command(dialect, {"type": "response.create", "response": wanted}) == made


# -- transport ----------------------------------------------------------------------------------------------------


def test_transport_events_never_become_commands() -> None:
    beat, touch = said(DUPLEX, {"type": "session.heartbeat"})
    assert isinstance(beat, Answer)
    assert touch == Ask(c.Touch())  # a sign of life is all that it is for the session
    assert beat.payload["type"] == "session.heartbeat_ack"
    assert said(DUPLEX, {"type": "session.event_ack", "server_event_seq": 7}) == []
    for number in (8, -1, True, 1.0, None):
        assert problem(DUPLEX, {"type": "session.event_ack", "server_event_seq": number}).code == "invalid_event_ack"
    assert problem(DUPLEX, {"type": "session.resume"}).code == "unsupported_session_resume"
    assert problem(OPENAI, {"type": "session.heartbeat"}).code == "unknown_event"
    (signal,) = said(DUPLEX, {"type": "signal_turn", "event": "user_started"})
    assert isinstance(signal, Answer)
    assert (signal.payload["type"], signal.payload["turn_state"]) == ("turn.event", "idle")
