"""What OpenAI's clients see of a session: order, cuts, truncation, errors."""

from __future__ import annotations

import json
from itertools import permutations

import pytest

from adapters.wire.duplex.projection import DuplexProjection
from adapters.wire.openai.projection import _PROJECT, OpenAIProjection
from core.session import commands as c
from core.session.config import SessionConfig
from core.session.events import EVENT_TYPES
from core.session.state import short_id
from tests.wire.stories import Story, only, types

BOTH = pytest.mark.parametrize("make", [OpenAIProjection, DuplexProjection])


@pytest.fixture
def story() -> Story:
    return Story(OpenAIProjection())


def test_a_turn_and_its_answer_come_in_the_order_that_clients_need(story: Story) -> None:
    story.ask()
    story.answer("It is ", 200)
    story.answer("blue.", 300)
    story.done()
    assert types(story.deliver()) == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.completed",
        "response.created",
        "rate_limits.updated",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    done = only(story.seen, "response.done")["response"]
    assert (done["status"], done["status_details"]) == ("completed", None)
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "It is blue."}]
    assert done["usage"]["total_tokens"] == 12


def test_every_event_has_an_id_made_of_session_and_number(story: Story) -> None:
    story.ask()
    for number, frame in enumerate(story.frames, start=1):
        assert frame.number == number
        assert frame.payload["event_id"] == f"event_{story.state.session_id}_{number}"


def test_items_name_their_predecessor(story: Story) -> None:
    story.ask("one")
    story.answer("First.")
    story.done()
    story.ask("two")
    added = [p for p in story.deliver() if p["type"] == "conversation.item.added"]
    assert [p["previous_item_id"] for p in added] == [None, added[0]["item"]["id"], added[1]["item"]["id"]]


def test_an_item_never_names_a_predecessor_that_the_client_does_not_know(story: Story) -> None:
    story.ask("one")  # its answer has not begun to come: its item is in the machine, not at the client
    story.do(c.CreateItem("user", "two", '{"type": "message", "role": "user", "content": []}', "mine"))
    story.answer("First.")
    added = [p for p in story.deliver() if p["type"] == "conversation.item.added"]
    question, mine, answer = added
    assert mine["previous_item_id"] == question["item"]["id"]
    assert answer["previous_item_id"] == question["item"]["id"]


def test_metadata_is_echoed_in_created_and_done(story: Story) -> None:
    story.do(c.CreateResponse(json.dumps({"client_event_id": "abc"})))
    story.answer("Hello.")
    story.done()
    story.deliver()
    for kind in ("response.created", "response.done"):
        assert only(story.seen, kind)["response"]["metadata"] == {"client_event_id": "abc"}


def test_a_cut_answer_ends_with_what_was_heard_and_names_the_numbers_that_died(story: Story) -> None:
    response_id = story.ask()
    for word in ("one ", "two ", "three ", "four "):
        story.answer(word, 200)
    story.deliver(13)  # up to the delta of "one"
    cursor = story.outbox.number
    story.wait(200)
    story.do(c.CancelOutput("client_cancelled", response_id))
    after = story.deliver()
    done = only(after, "response.done")["response"]
    assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "client_cancelled")
    assert only(after, "response.output_audio_transcript.done")["transcript"] == "one "
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "one "}]
    assert done["output"][0]["status"] == "incomplete"
    first, last = map(int, done["metadata"]["skipped"].split("-"))
    assert first == cursor + 1
    assert [n for n in range(1, story.projection.number + 1) if n not in _numbers(story)] == list(
        range(first, last + 1)
    )
    assert not any(p["type"].endswith(".delta") for p in after)


def test_speech_over_an_answer_is_shown_only_when_it_takes_the_turn(story: Story) -> None:
    story.ask()
    story.answer("A long story.", 5_000)
    story.deliver()
    story.wait(300)
    story.speech_begins()
    story.speech_ends("mm-hmm", 300)
    assert story.deliver() == []
    story.speech_begins()
    assert story.deliver() == []
    story.speech_ends("stop, what is that?", 900)
    assert types(story.deliver())[:2] == ["input_audio_buffer.speech_started", "response.output_audio.done"]
    done = only(story.seen, "response.done")["response"]
    assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}


def test_an_answer_that_is_complete_in_the_log_is_cut_where_it_is_delivered(story: Story) -> None:
    response_id = story.ask()
    for word in ("one ", "two ", "three."):
        story.answer(word, 400)
    story.done()
    story.deliver(13)
    story.wait(400)
    story.do(c.CancelOutput("client_cancelled"))
    story.deliver()
    done = only(story.seen, "response.done")["response"]
    assert (done["id"], done["status"]) == (response_id, "cancelled")
    assert done["output"][0]["content"][0]["transcript"] == "one "


def test_an_answer_whose_end_was_handed_over_is_cleared_and_ends_only_once(story: Story) -> None:
    response_id = story.ask()
    story.answer("A long answer.", 5_000)
    story.done()
    story.deliver()
    story.wait(1_000)
    story.do(c.CancelOutput("barge_in"))
    assert types(story.deliver()) == ["output_audio_buffer.cleared"]
    assert only(story.seen, "output_audio_buffer.cleared")["response_id"] == response_id
    assert only(story.seen, "response.done")["response"]["status"] == "completed"


def test_an_answer_cut_before_its_first_unit_leaves_no_item(story: Story) -> None:
    story.ask()
    story.do(c.CancelOutput("client_cancelled"))
    story.deliver()
    done = only(story.seen, "response.done")["response"]
    assert (done["status"], done["output"]) == ("cancelled", [])
    assert types(story.seen)[-1] == "response.done"


def test_a_lost_runtime_drains_what_was_made(story: Story) -> None:
    story.ask()
    story.answer("Half an", 400)
    story.do(c.LoseRuntime("killed"))
    story.deliver()
    done = only(story.seen, "response.done")["response"]
    assert (done["status"], done["status_details"]) == (
        "incomplete",
        {"type": "incomplete", "reason": "runtime_lost"},
    )
    assert done["output"][0]["content"][0]["transcript"] == "Half an"
    assert len([p for p in story.seen if p["type"] == "response.output_audio.delta"]) == 1


def test_a_failed_answer_says_why(story: Story) -> None:
    story.ask()
    story.done("failed", "model_error")
    story.deliver()
    details = only(story.seen, "response.done")["response"]["status_details"]
    assert (details["type"], details["error"]["code"]) == ("failed", "model_error")


@pytest.mark.parametrize("order", tuple(permutations(("truncate", "cancel", "end"))), ids="-".join)
def test_whichever_comes_first_of_truncate_cancel_and_end(story: Story, order: tuple[str, ...]) -> None:
    """The last that a client is told of the item is what was heard, and nothing after the truncate says more."""
    story.ask()
    for word in ("one ", "two ", "three "):
        story.answer(word, 400)
    story.deliver()
    response = story.state.active
    assert response is not None
    epoch = story.state.epoch
    story.wait(1_000)
    for step in order:
        match step:
            case "truncate":
                story.deliver()
                story.do(c.AckPlayback(450, item_id=response.item_id, truncate=True))
                truncated = len(story.seen)
            case "cancel":
                story.do(c.CancelOutput("client_cancelled"))
            case "end":
                story.do(c.ModelDone(epoch, response.response_id))
    story.do(c.RetrieveItem(response.item_id))
    story.deliver()
    assert only(story.seen, "conversation.item.retrieved")["item"]["content"][0]["transcript"] == "one "
    assert [event["response"]["status"] for event in story.seen if event["type"] == "response.done"] in (
        ["cancelled"],
        ["completed"],
    )
    after = json.dumps(story.seen[truncated:])
    assert not any(word in after for word in ("two", "three"))


def test_after_a_truncate_no_event_carries_what_was_not_heard(story: Story) -> None:
    story.ask()
    for word in ("one ", "two ", "three "):
        story.answer(word, 400)
    story.deliver()
    item_id = story.state.responses[story.state.active.response_id].item_id  # type: ignore[union-attr]
    story.do(c.AckPlayback(450, item_id=item_id, truncate=True))
    story.do(c.RetrieveItem(item_id))
    story.answer("four", 400)
    story.done()
    after = story.deliver()
    assert only(after, "conversation.item.truncated")["audio_end_ms"] == 450
    assert only(after, "conversation.item.retrieved")["item"]["content"][0]["transcript"] == "one "
    text = json.dumps(after)
    assert not any(word in text for word in ("two", "three", "four"))


def test_refusals_have_the_names_that_clients_forgive(story: Story) -> None:
    story.do(c.CancelOutput("client_cancelled", event_id="mine"))
    story.do(c.CommitInput())
    story.do(c.RetrieveItem("nope", event_id="rci_nope"))
    story.do(c.DeleteItem("nope"))
    story.do(c.AckPlayback(10, item_id="nope", truncate=True))
    codes = [(p["error"]["code"], p["error"]["event_id"]) for p in story.deliver()]
    assert codes == [
        ("response_cancel_not_active", "mine"),
        ("input_audio_buffer_commit_empty", None),
        ("item_retrieve_invalid_item_id", "rci_nope"),
        ("item_delete_invalid_item_id", None),
        ("item_truncate_invalid_item_id", None),
    ]
    assert story.seen[0]["error"]["message"].startswith("Cancellation failed")


def test_an_answer_in_text_has_text_events() -> None:
    story = Story(OpenAIProjection(), SessionConfig(output_modalities=("text",)))
    story.ask()
    story.answer("Blue.", 0)
    story.done()
    story.deliver()
    assert [t for t in types(story.seen) if "output_text" in t] == [
        "response.output_text.delta",
        "response.output_text.done",
    ]
    assert only(story.seen, "response.done")["response"]["output"][0]["content"] == [
        {"type": "output_text", "text": "Blue."}
    ]
    assert not any("output_audio" in t for t in types(story.seen))


@pytest.mark.parametrize(("version", "seconds"), [(1, 0.0), (2, 0.8)])
@BOTH
def test_a_transcript_tells_how_long_its_turn_was(make: type[OpenAIProjection], version: int, seconds: float) -> None:
    story = Story(make(version))
    story.append(200)
    story.append(600)
    story.do(c.CommitInput(create_response=False))
    (item_id,) = story.state.items
    story.do(c.TurnHeard(item_id, "how long was this"))
    said = only(story.deliver(), "conversation.item.input_audio_transcription.completed")
    assert said["usage"] == {"type": "duration", "seconds": seconds}


@BOTH
def test_answers_that_play_one_behind_the_other_are_both_cleared(make: type[OpenAIProjection]) -> None:
    story = Story(make())
    first = story.ask()
    story.answer("A long answer.", 5_000)
    story.done()
    story.do(c.CreateResponse())
    second = story.state.active
    assert second is not None
    story.answer("And more.", 5_000)
    story.done()
    story.deliver()
    story.wait(1_000)
    story.do(c.CancelOutput("client_cancelled"))
    cleared = [p["response_id"] for p in story.deliver() if p["type"] == "output_audio_buffer.cleared"]
    assert sorted(cleared) == sorted((first, second.response_id))


@BOTH
def test_a_client_that_clears_what_still_plays_is_told_so_once(make: type[OpenAIProjection]) -> None:
    story = Story(make())
    response_id = story.ask()
    story.answer("A long answer.", 5_000)
    story.done()
    story.deliver()
    story.wait(1_000)
    story.do(c.CancelOutput("output_audio_buffer_clear"))
    assert [p["response_id"] for p in story.deliver() if p["type"] == "output_audio_buffer.cleared"] == [response_id]


def test_an_answer_of_which_only_the_end_waits_is_cut_and_one_before_it_is_complete(story: Story) -> None:
    first = story.ask()
    story.answer("one ", 400)
    at_the_last_delta = len(story.frames)
    story.done()
    story.do(c.CreateResponse())
    story.answer("two ", 400)
    story.deliver(at_the_last_delta)
    story.wait(400)
    story.do(c.CancelOutput("client_cancelled"))
    story.deliver()
    done = [p["response"] for p in story.seen if p["type"] == "response.done"]
    assert [(d["id"] == first, d["status"]) for d in done] == [(True, "completed"), (False, "cancelled")]
    assert done[0]["output"][0]["content"][0]["transcript"] == "one "


@pytest.mark.parametrize(("version", "heard_ms", "is_cleared"), [(1, 100, False), (2, 100, True), (2, 1_000, False)])
@BOTH
def test_an_answer_before_the_newest_that_still_plays_is_cleared_though_its_end_waited(
    make: type[OpenAIProjection], version: int, heard_ms: int, is_cleared: bool
) -> None:
    """Its words were all handed over, so it is complete; what its client has not played yet must go all the same."""
    story = Story(make(version))
    first = story.ask()
    story.answer("one ", 1_000)
    at_the_last_delta = len(story.frames)
    story.done()
    story.do(c.CreateResponse())
    story.answer("two ", 1_000)
    story.deliver(at_the_last_delta)
    story.wait(heard_ms)
    story.do(c.CancelOutput("client_cancelled"))
    told = [
        (p["type"], p.get("response_id") or p["response"]["id"])
        for p in story.deliver()
        if p["type"] in ("response.done", "output_audio_buffer.cleared")
    ]
    cleared = ("output_audio_buffer.cleared", first)
    assert told.count(cleared) == int(is_cleared)
    assert not is_cleared or told.index(("response.done", first)) < told.index(cleared)


def test_an_answer_that_plays_and_of_which_only_the_end_waits_is_cancelled(story: Story) -> None:
    story.ask()
    story.answer("one ", 400)
    story.answer("two ", 400)
    at_the_last_delta = len(story.frames)
    story.done()
    story.deliver(at_the_last_delta)
    story.wait(400)
    story.do(c.CancelOutput("client_cancelled"))
    story.deliver()
    done = only(story.seen, "response.done")["response"]
    assert (done["status"], done["output"][0]["content"][0]["transcript"]) == ("cancelled", "one ")


def test_speech_that_the_client_lets_the_answer_go_on_under_is_a_turn_and_shown(story: Story) -> None:
    story.ask()
    story.answer("A long story.", 5_000)
    story.deliver()
    story.wait(300)
    story.speech_begins()
    assert story.deliver() == []
    story.do(c.JudgeOverlap("listen", "client_force_listen"))
    assert types(story.deliver()) == ["input_audio_buffer.speech_started"]
    story.speech_ends("and the other one?", 900)
    assert types(story.deliver())[:2] == ["input_audio_buffer.speech_stopped", "input_audio_buffer.committed"]


def test_a_conversation_that_the_model_cannot_hold_ends_with_its_code(story: Story) -> None:
    story.deliver()
    story.do(c.GainRuntime(lane_tokens_max=50))
    story.do(c.CreateItem("user", "word " * 200, '{"type": "message", "role": "user", "content": []}', "mine"))
    story.do(c.CreateResponse())
    assert story.deliver()[-1]["error"]["code"] == "lane_full"
    assert story.state.close_reason == "lane_full"


def test_an_answer_out_of_band_belongs_to_no_conversation(story: Story) -> None:
    for apart in (True, False):
        story.do(c.CreateResponse(out_of_band=apart))
        story.answer("Hello.")
        story.done()
        created = only(story.deliver(), "response.created")["response"]
        assert created["conversation_id"] == (None if apart else f"conv_{short_id(story.state.session_id)}")


def test_a_cut_answer_is_retrieved_as_incomplete_though_the_model_had_finished_it(story: Story) -> None:
    story.ask()
    for word in ("one ", "two "):
        story.answer(word, 400)
    story.done()
    story.deliver()
    story.wait(400)
    story.do(c.CancelOutput("barge_in"))
    (response,) = story.state.responses.values()
    story.do(c.RetrieveItem(response.item_id))
    item = only(story.deliver(), "conversation.item.retrieved")["item"]
    assert (item["status"], item["content"][0]["transcript"]) == ("incomplete", "one ")


def test_an_item_keeps_the_status_that_its_maker_gave_it(story: Story) -> None:
    said = {"type": "message", "role": "assistant", "status": "incomplete", "content": []}
    story.do(c.CreateItem("assistant", "", json.dumps(said), "mine"))
    assert only(story.deliver(), "conversation.item.added")["item"]["status"] == "incomplete"


def test_session_expiry_is_told_as_openai_tells_it() -> None:
    story = Story(OpenAIProjection(), SessionConfig(max_session_ms=60_000))
    story.wait(60_000)
    story.do(c.FireDeadline())
    assert only(story.deliver(), "error")["error"]["code"] == "session_expired"


def _numbers(story: Story) -> set[int]:
    return {int(payload["event_id"].rpartition("_")[2]) for payload in story.seen}


@pytest.mark.parametrize("projection", [OpenAIProjection, DuplexProjection])
def test_each_event_s_method_is_there(projection: type) -> None:
    """The table names them; a name that is wrong would be found by the first session with such an event."""
    assert set(_PROJECT) <= set(EVENT_TYPES.values())
    assert [name for name in _PROJECT.values() if not callable(getattr(projection, name, None))] == []
