"""Function calls in the stream, and what a cut between their events means to the client and to the model."""

from __future__ import annotations

import pytest

from adapters.wire.duplex.projection import DuplexProjection
from adapters.wire.openai.projection import OpenAIProjection
from core.session import commands as c
from core.session.history import history
from tests.wire.stories import Story

BOTH = pytest.mark.parametrize("projection", [OpenAIProjection, DuplexProjection])


def calling(story: Story, response_id: str) -> None:
    story.do(c.ModelCall(story.state.epoch, response_id, "call-1", "look_up", '{"a":1}'))


def called(story: Story) -> list[str]:
    return [turn.call_id for turn in history(story.state) if turn.name]


def outputs(story: Story) -> list[list[str]]:
    return [
        [item["type"] for item in event["response"]["output"]]
        for event in story.seen
        if event["type"] == "response.done"
    ]


@BOTH
def test_whatever_was_handed_over_of_a_call_the_client_and_the_model_agree(projection: type[OpenAIProjection]) -> None:
    """A cut after each of the call's events: either it was made, and both know it, or it never was."""
    fates = []
    for handed in range(20):
        story = Story(projection())
        response_id = story.ask()
        story.answer("well")
        story.deliver()
        calling(story, response_id)
        begun = story.deliver(handed)
        story.do(c.CancelOutput("barge_in"))
        story.deliver()
        made = any(event["type"] == "conversation.item.done" for event in begun)
        announced = any("added" in event["type"] or "created" in event["type"] for event in begun)
        deleted = [event["item_id"] for event in story.seen if event["type"] == "conversation.item.deleted"]
        assert called(story) == (["call-1"] if made else [])
        assert outputs(story) == [["message", "function_call"] if made else ["message"]]
        assert bool(deleted) == (announced and not made)
        assert all(item_id not in story.state.items for item_id in deleted)
        done = [event for event in story.seen if event["type"] == "response.function_call_arguments.done"]
        assert len(done) <= 1
        fates.append(made)
    assert fates == sorted(fates)
    assert set(fates) == {True, False}


@BOTH
def test_an_answer_of_calls_alone_that_waits_is_cancelled_whole(projection: type[OpenAIProjection]) -> None:
    story = Story(projection())
    response_id = story.ask()
    story.deliver()
    calling(story, response_id)
    story.done()
    story.do(c.CancelOutput("barge_in", always=True))
    story.deliver()
    assert called(story) == []
    assert outputs(story) == [[]]
    assert [event["response"]["status"] for event in story.seen if event["type"] == "response.done"] == ["cancelled"]


@BOTH
def test_a_call_is_retrieved_as_it_was_made(projection: type[OpenAIProjection]) -> None:
    story = Story(projection())
    response_id = story.ask()
    calling(story, response_id)
    story.done()
    item_id = next(reversed(story.state.items))
    story.do(c.RetrieveItem(item_id))
    shown = story.deliver()[-1]["item"]
    assert (shown["type"], shown["name"], shown["call_id"], shown["arguments"]) == (
        "function_call",
        "look_up",
        "call-1",
        '{"a":1}',
    )


def test_a_refusal_that_only_the_machine_could_make_has_the_dialects_name() -> None:
    """The wire looks first; a model that changed meanwhile is noticed by the machine."""
    for projection, names in ((OpenAIProjection, ["unsupported"] * 2), (DuplexProjection, MODALITY)):
        story = Story(projection())
        image = c.ImageBody("pic", 10, "image/png")
        story.do(c.AppendAudio("", 0, 0, images=(image,)))
        story.do(c.CreateItem("user", "look", "{}", images=(image,)))
        assert [event["error"]["code"] for event in story.deliver() if event["type"] == "error"] == names


MODALITY = ["invalid_input_modality", "unsupported"]
