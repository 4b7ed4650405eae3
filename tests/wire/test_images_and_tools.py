"""What comes beside sound: images, voices, tools; and what goes out beside the stream: ids, formats, where a turn stands."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from adapters.wire.encoding import JsonEncoder
from adapters.wire.images import IMAGE_CHARS_MAX, of_data_url, of_frames, voice_of_data_url
from adapters.wire.openai.projection import OpenAIProjection
from adapters.wire.problems import OWN_EVENT_PREFIX, Problem, error_body
from adapters.wire.seen import turn_state
from adapters.wire.tools import TOOL_BYTES_MAX, tool_choice_of, tools_of
from core.ports.projection import DELTA, Frame
from core.session import commands as c
from core.session.decisions.items import TOOLS_MAX
from core.session.state import REFERENCE_BYTES_MAX
from tests.wire.stories import Story


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


PNG, JPEG = b"\x89PNG\r\n\x1a\n" + bytes(8), b"\xff\xd8\xff" + bytes(8)
WEBP, WAVE = b"RIFF\0\0\0\0WEBP" + bytes(8), b"RIFF\0\0\0\0WAVE" + bytes(8)


@pytest.mark.parametrize(("data", "kind"), [(PNG, "image/png"), (JPEG, "image/jpeg"), (WEBP, "image/webp")])
def test_an_image_is_what_its_bytes_say(data: bytes, kind: str) -> None:
    image, body = of_data_url("data:image/gif;base64," + b64(data), "p")
    assert (image.media_type, image.size_bytes, body.data, body.digest) == (kind, len(data), data, image.digest)


@pytest.mark.parametrize(
    "value",
    ["http://a/b.png", "data:image/png," + b64(PNG), "data:x;base64," + b64(WAVE), "data:x;base64,!", "data:", 5],
)
def test_what_is_no_image_is_refused(value: object) -> None:
    with pytest.raises(Problem) as caught:
        of_data_url(value, "p")
    assert (caught.value.code, caught.value.param) == ("invalid_image", "p")


def test_images_are_bounded_each_and_in_number() -> None:
    assert len(of_frames([b64(PNG)] * 2, "p", 2)) == 2
    for frames, param in (([b64(PNG)] * 3, "p"), ([b64(PNG), b64(PNG + bytes(IMAGE_CHARS_MAX))], "p[1]")):
        with pytest.raises(Problem) as caught:
            of_frames(frames, "p", 2)
        assert (caught.value.code, caught.value.param) == ("invalid_video_frames", param)


@pytest.mark.parametrize(
    "value",
    [
        "data:image/png;base64," + b64(PNG),
        "data:audio/wav;base64,",
        "data:audio/wav;base64,!",
        "data:audio/wav;base64," + b64(bytes(REFERENCE_BYTES_MAX + 1)),
        "/etc/passwd",
    ],
    ids=lambda value: value[:30],
)
def test_a_voice_is_a_sound_that_is_not_too_long(value: str) -> None:
    with pytest.raises(Problem) as caught:
        voice_of_data_url(value, "p")
    assert (caught.value.code, caught.value.param) == ("bad_audio", "p")


def tool(**more: object) -> dict[str, object]:
    return {"type": "function", "name": "f", **more}


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([tool(type="mcp")], "p[0].type"),
        ([tool(), tool(name="")], "p[1].name"),
        ([tool(parameters={"description": "x" * TOOL_BYTES_MAX})], "p[0]"),
        ([tool()] * (TOOLS_MAX + 1), "p"),
    ],
    ids=["type", "name", "schema", "number"],
)
def test_a_tool_that_cannot_be_is_named(tools: list[Any], param: str) -> None:
    with pytest.raises(Problem) as caught:
        tools_of(tools, "p")
    assert caught.value.param == param
    assert len(tools_of([tool()] * TOOLS_MAX, "p")) == TOOLS_MAX


@pytest.mark.parametrize("value", ["any", {"type": "mcp", "name": "f"}, {"name": "f"}, {"type": "function"}, 5, None])
def test_a_tool_choice_that_cannot_be_is_refused(value: object) -> None:
    with pytest.raises(Problem):
        tool_choice_of(value, "p")


def test_events_beside_the_stream_have_ids_of_their_own() -> None:
    first, second = JsonEncoder(), JsonEncoder()
    ids = [json.loads(encoder.event({"type": "x"}))["event_id"] for encoder in (first, first, second)]
    assert len(set(ids)) == 3


def test_a_delta_names_the_format_that_it_is_in() -> None:
    """An answer keeps the format with which it began, whatever the session says by then."""
    encoder = JsonEncoder()
    for wanted in (("pcm16", 24_000), ("g711_ulaw", 8_000)):
        payload = {"type": "delta", "format": wanted[0], "sample_rate_hz": wanted[1]}
        told = json.loads(encoder.frame(Frame(1, 1, 1, DELTA, payload, "r", "d", "delta"), bytes(480)))
        assert (told["format"], told["sample_rate_hz"]) == ("pcm16", 24_000)
        assert base64.b64decode(told["delta"]) == bytes(480)


def test_ids_that_the_server_gave_are_shown_to_nobody() -> None:
    assert error_body("bad_event", "x", None, f"{OWN_EVENT_PREFIX}1")["event_id"] is None
    assert error_body("bad_event", "x", None, "mine")["event_id"] == "mine"


def test_where_a_turn_stands() -> None:
    story = Story(OpenAIProjection())
    seen = [turn_state(story.state)]
    story.speech_begins()
    seen.append(turn_state(story.state))
    story.speech_ends()
    seen.append(turn_state(story.state))
    story.answer("one ", 400)
    story.deliver()
    response = story.state.active
    assert response is not None
    story.do(c.AckPlayback(100, response_id=response.response_id))
    seen.append(turn_state(story.state))
    story.append()
    story.do(c.CommitInput(create_response=True))
    story.do(c.LoseRuntime("killed"))
    seen.append(turn_state(story.state))
    assert seen == ["idle", "user_speaking", "assistant_generating", "assistant_playing", "user_committed"]
