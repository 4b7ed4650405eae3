"""Function calls in the stream, and what a cut between their events means to the client and to the model."""

from __future__ import annotations

from typing import Any

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
@pytest.mark.parametrize("answers_on", [False, True])
def test_whatever_of_a_call_was_lost_on_its_way_the_client_and_the_model_agree(
    projection: type[OpenAIProjection], answers_on: bool
) -> None:
    """A cut after each of the call's events, and then the line tears before any of them arrived. A call that was made
    comes at the resume, whole; of one that was begun its beginning comes, and that it is deleted. What was said does not
    come again. Another cut, while all that waits to be sent again, changes nothing."""
    for handed in range(20):
        for again in (False, True):
            story = Story(projection())
            response_id = story.ask()
            story.answer("well")
            story.deliver()
            calling(story, response_id)
            if answers_on:
                story.answer("and so")
            begun = story.deliver(handed)
            story.do(c.CancelOutput("barge_in", always=True))
            behind = story.deliver()
            made = called(story)
            before = list(story.seen)
            story.resume(len(begun) + len(behind) + 2)
            if again:
                story.do(c.CancelOutput("barge_in", always=True))
            resumed = story.deliver()
            assert called(story) == made
            assert not [event for event in resumed if event["type"].endswith("delta") and "call_id" not in event]
            standing = [event for event in before if "function_call" in str(event) or "deleted" in event["type"]]
            assert [event for event in resumed if event in standing] == standing
            done = [event for event in resumed if event["type"] == "response.function_call_arguments.done"]
            deleted = [event for event in resumed if event["type"] == "conversation.item.deleted"]
            assert [event["call_id"] for event in done if not deleted] == made
            assert [event["type"] for event in outputs_of(resumed)[-1:]] == ["message", "function_call"][
                : 1 + len(made)
            ][-1:]


def outputs_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for event in events if event["type"] == "response.done" for item in event["response"]["output"]]


@BOTH
def test_an_answer_whose_call_stands_is_cut_again_and_again_and_the_call_stands(
    projection: type[OpenAIProjection],
) -> None:
    """The first cut finds it played out and hits nothing; the second comes while the call is sent again."""
    story = Story(projection())
    response_id = story.ask()
    story.answer("well", 80)
    calling(story, response_id)
    story.done()
    story.deliver()
    story.wait(5_000)
    story.do(c.CancelOutput("barge_in", always=True))
    story.deliver()
    story.resume(1_000)
    story.do(c.CancelOutput("barge_in", always=True))
    resumed = story.deliver()
    assert called(story) == ["call-1"]
    assert [event["call_id"] for event in resumed if event["type"] == "response.function_call_arguments.done"] == [
        "call-1"
    ]
    assert not [event for event in resumed if event["type"] == "conversation.item.deleted"]


@pytest.mark.parametrize("version", [1, 2])
@BOTH
def test_the_first_version_skips_a_calls_events_at_a_resume_as_its_logs_say(
    projection: type[OpenAIProjection], version: int
) -> None:
    story = Story(projection(version))
    calling(story, story.ask())
    kinds = {frame.kind for frame in story.frames if "function_call" in str(frame.payload)}
    assert kinds == {"delta" if version == 1 else "terminal"}


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
