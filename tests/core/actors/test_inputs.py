"""What was shown, typed and called lives through the deaths of workers and servers."""

from __future__ import annotations

import attrs
import pytest

from core.ports.store import Body
from core.session import commands as c
from core.session import events as e
from core.session.config import Tool
from core.session.digest import body_digest
from tests.core.actors.stories import OPEN_MICROPHONE, PUSH_TO_TALK, Story, open_story

TOOLS = attrs.evolve(PUSH_TO_TALK, tools=(Tool("look_up"),))


def show_item(story: Story, data: bytes) -> None:
    """A typed message with a picture."""
    body = Body(body_digest(data), data)
    image = c.ImageBody(body.digest, len(data), "image/png")
    story.client.post(c.CreateItem("user", "look", "{}", images=(image,)), (body,))


def said(story: Story) -> str:
    """All words of the newest answer."""
    outputs = story.events(e.Output)
    return "".join(output.text for output in outputs if output.response_id == outputs[-1].response_id)


async def ended(story: Story, count: int) -> None:
    await story.until(lambda: len(story.events(e.ResponseEnded)) >= count)


async def replace(story: Story, death: str) -> None:
    """Something dies, and another has taken its place."""
    if death == "runtime":
        story.kill_runtime()
        await story.wait(500)
    elif death == "server":
        story.kill_server()
        await story.start_server()
        await story.resume()
        await story.wait(500)


@pytest.mark.parametrize("death", ["none", "runtime", "server"])
async def test_a_new_worker_is_shown_the_conversations_pictures(death: str) -> None:
    async with open_story(answer_units=3, rtf=0.01) as story:
        show_item(story, b"one")
        story.show()
        await story.wait(50)
        await replace(story, death)
        story.ask()
        await ended(story, 1)
        words = said(story)
    assert "saw=2" in words
    assert "missing" not in words


async def test_a_call_that_a_dying_server_had_made_durable_is_delivered_and_told() -> None:
    async with open_story(TOOLS, answer_units=6, rtf=0.5, call_at_unit=1, transcript="call=look_up") as story:
        story.ask()
        await story.until(lambda: story.events(e.ToolCalled))
        story.kill_server()
        await story.start_server()
        await story.resume()
        await story.wait(500)
        (called,) = story.events(e.ToolCalled)
        story.client.post(c.CreateItem("function_call_output", "it is 42", "{}", call_id=called.call_id))
        story.create()
        await ended(story, 2)
        words = said(story)
    assert "got it is 42" in words
    assert [frame.payload["call_id"] for frame in story.client.got.values() if frame.payload["type"] == "call"] == [
        called.call_id
    ]


async def test_a_picture_is_paid_for_once_however_often_it_is_sent_again() -> None:
    async with open_story(latency_s=0.05) as story:
        story.show()
        await story.wait(20)
        story.drop_link()
        story.client.unconfirmed = list(story.client.sent)
        await story.wait(20)
        await story.resume()
        await story.wait(200)
    assert len([event for event in story.events(e.Append) if event.kind == "image"]) == 1


@pytest.mark.parametrize("death", ["runtime", "server"])
async def test_a_new_worker_reads_the_turn_whose_transcript_died_with_the_old_one(death: str) -> None:
    """The answer is asked for again, and so is the transcript: the turn's audio is fed anew, once, and read."""
    script = {"transcript": "said for {ms} ms", "hear_ms": 2_000, "first_audio_ms": 1_000}
    async with open_story(answer_units=3, rtf=0.01, **script) as story:
        story.ask(600)
        await story.until(lambda: story.events(e.ResponseStarted))
        assert not story.events(e.InputTranscript)
        await replace(story, death)
        await ended(story, 2)
        words = said(story)
        await story.until(lambda: story.events(e.InputTranscript))
        await story.wait(5_000)
    assert "said for 600 ms" in words
    assert [event.text for event in story.events(e.InputTranscript)] == ["said for 600 ms"]


async def test_a_turn_that_is_read_again_is_not_found_again() -> None:
    """The client committed it although a detector listens: the new ear hears the same speech, and no second turn in it."""
    script = {"transcript": "{ms} ms", "hear_ms": 2_000, "first_audio_ms": 1_000}
    async with open_story(OPEN_MICROPHONE, answer_units=3, rtf=0.01, **script) as story:
        story.say(600)
        story.client.post(c.CommitInput(True))
        await story.until(lambda: story.events(e.ResponseStarted))
        await replace(story, "runtime")
        story.say(1_000, loud=False)
        await ended(story, 2)
        await story.wait(5_000)
        story.ask(400)  # and the detector still listens
        await story.until(lambda: len(story.events(e.Commit)) == 2)
    assert [commit.by for commit in story.events(e.Commit)] == ["client", "detector"]
    assert [event.text for event in story.events(e.InputTranscript)] == ["600 ms", "400 ms"]
