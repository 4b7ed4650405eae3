"""What duplex clients see beyond OpenAI's events: numbers, credentials, overlap, playback, silence."""

from __future__ import annotations

import pytest

from adapters.wire.duplex.projection import DuplexProjection
from adapters.wire.schema.shapes import skipped_of_done
from core.ports.projection import Credentials, Resumption
from core.session import commands as c
from core.session.config import SessionConfig
from core.session.events import PlaybackAck
from tests.wire.stories import Story, only, types


@pytest.fixture
def story() -> Story:
    return Story(DuplexProjection())


def test_every_numbered_event_shows_its_number(story: Story) -> None:
    story.ask()
    story.answer("Hi.")
    story.done()
    assert [p["server_event_seq"] for p in story.deliver()] == list(range(1, story.projection.number + 1))


def test_a_fresh_client_gets_its_credentials_and_its_stream_begins_with_the_session(story: Story) -> None:
    (created,) = story.projection.greeting(story.state, Credentials("s", 1, "secret"))
    assert (created["type"], created["attachment_generation"], created["resume_token"]) == (
        "session.created",
        1,
        "secret",
    )
    assert "server_event_seq" not in created
    (updated,) = story.deliver()
    assert (updated["type"], updated["server_event_seq"]) == ("session.updated", 1)
    assert updated["session"] == {**created["session"], "epoch": 1}


def test_a_resumed_client_learns_what_died_and_what_of_its_input_is_safe(story: Story) -> None:
    resumed = story.projection.resumed(story.state, Credentials("s", 2, "new"), Resumption(((3, 5),), 1_200, "mine"))
    assert resumed["type"] == "session.resumed"
    assert resumed["resume_token"] == "new"
    assert resumed["skipped"] == [[3, 5]]
    assert (resumed["input_ms"], resumed["last_event_id"]) == (1_200, "mine")
    assert "server_event_seq" not in resumed


def test_the_order_of_an_answer(story: Story) -> None:
    story.ask()
    story.deliver()
    story.answer("Hi.")
    story.done()
    assert types(story.deliver()) == [
        "conversation.item.added",
        "conversation.item.created",
        "response.output_item.added",
        "response.content_part.added",
        "response.speak",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
        "rate_limits.updated",
    ]


def test_a_delta_says_where_it_lies_and_where_its_words_end(story: Story) -> None:
    story.ask()
    story.answer("one ", 200)
    story.answer("two", 300)
    deltas = [p for p in story.deliver() if p["type"] == "response.output_audio.delta"]
    assert [d["metadata"]["audio_duration_ms"] for d in deltas] == [200, 500]
    assert deltas[1]["metadata"]["audio_text_marks"] == [{"text_chars": 7, "audio_end_ms": 500}]
    assert (deltas[0]["format"], deltas[0]["sample_rate_hz"]) == ("pcm16", 24_000)
    assert deltas[0]["metadata"]["playback"]["generated_ms"] == 200


def test_a_barge_in_names_the_dead_as_ranges(story: Story) -> None:
    story.ask()
    for _ in range(3):
        story.answer("word ", 400)
    story.deliver()
    for _ in range(3):
        story.answer("more ", 400)
    cursor = story.outbox.number
    story.do(c.CancelOutput("barge_in"))
    story.deliver()
    done = only(story.seen, "response.done")
    assert done["response"]["status_details"] == {"type": "cancelled", "reason": "barge_in"}
    assert skipped_of_done(done) == ((cursor + 1, cursor + 6),)
    assert done["response"]["metadata"]["epoch"] == 1


def test_clearing_the_output_says_so_before_the_end(story: Story) -> None:
    story.ask()
    story.answer("word ", 400)
    story.deliver()
    story.do(c.CancelOutput("output_audio_buffer_clear"))
    after = types(story.deliver())
    assert after[0] == "output_audio_buffer.cleared"
    assert after.count("output_audio_buffer.cleared") == 1
    reason = only(story.seen, "response.done")["response"]["status_details"]["reason"]
    assert reason == "output_audio_buffer_clear"


def test_overlap_is_always_judged_aloud(story: Story) -> None:
    story.ask()
    story.answer("A long story.", 5_000)
    story.deliver()
    story.wait(300)
    story.speech_begins()
    story.speech_ends("mm-hmm", 300)
    decision = only(story.deliver(), "overlap.decision")
    assert (decision["action"], decision["reason"], decision["policy"]) == (
        "listen",
        "short_ack_transcript",
        "barge_in_on_speech",
    )


def test_playback_is_acknowledged_with_the_ledger(story: Story) -> None:
    response_id = story.ask()
    story.answer("one two", 400)
    story.deliver()
    story.do(c.AckPlayback(9_000, response_id=response_id, event_id="ack"))
    event = only(story.deliver(), "playback.acknowledged")["event"]
    assert (event["played_ms"], event["committed_ms"], event["truncate"]) == (400, 400, False)
    assert event["playback"] == {"generated_ms": 400, "sent_ms": 400, "played_ms": 400, "committed_ms": 400}


def test_silence_of_the_model_is_shown(story: Story) -> None:
    response_id = story.ask()
    story.deliver()
    story.do(c.ModelOutput(1, response_id, 0, "listen"))
    listen = only(story.deliver(), "response.listen")
    assert (listen["response"]["status"], listen["response_id"]) == ("listening", response_id)
    story.done()
    assert only(story.deliver(), "response.done")["response"]["output"] == []


def test_noise_is_committed_and_listened_to() -> None:
    story = Story(DuplexProjection(), SessionConfig())
    story.speech_begins()
    story.speech_ends("", 300)
    story.deliver()
    assert only(story.seen, "input_audio_buffer.committed")["event"]["is_speech"] is False
    assert only(story.seen, "response.listen")["response"]["metadata"]["reason"] == "silence_or_noise"


def test_the_end_of_a_session_is_told(story: Story) -> None:
    story.do(c.Close("bye"))
    closed = only(story.deliver(), "session.closed")
    assert closed["reason"] == "bye"


def test_a_session_that_idles_away_expires(story: Story) -> None:
    story.deliver()
    story.wait(300_000)
    story.do(c.FireDeadline())
    assert types(story.deliver()) == ["session.expired", "session.closed"]


def test_refusals_have_the_dialects_names(story: Story) -> None:
    story.deliver()
    story.do(c.CommitInput())
    story.do(c.DeleteItem("nope"))
    assert [p["error"]["code"] for p in story.deliver()] == ["input_audio_buffer_empty", "item_not_found"]


def test_a_barge_in_with_nothing_to_cut_begins_a_new_epoch_and_keeps_the_input(story: Story) -> None:
    story.append()
    story.deliver()
    story.do(c.CancelOutput("barge_in", always=True))
    assert types(story.deliver()) == ["input_audio_buffer.cleared"]
    assert story.state.epoch == 2
    story.do(c.CommitInput(True))
    assert only(story.deliver(), "input_audio_buffer.committed")["event"]["is_speech"] is True


@pytest.mark.parametrize("answering", [False, True])
def test_input_cancel_is_answered_once(story: Story, answering: bool) -> None:
    if answering:
        story.ask()
        story.answer("Hi.")
    story.append()
    story.deliver()
    story.do(c.CancelOutput("client_cancelled", None, True, True, always=True))
    assert types(story.deliver()).count("input_audio_buffer.cleared") == 1
    assert (story.state.epoch, story.state.input.pending_bytes) == (2, 0)


def test_what_is_only_assumed_to_be_heard_is_acknowledged_to_nobody(story: Story) -> None:
    story.ask()
    story.answer("one two", 400)
    story.done()
    story.deliver()
    story.wait(1_000)
    story.ask()
    assert [event.source for event in _acks(story)] == ["assumed"]
    assert "playback.acknowledged" not in types(story.deliver())


def _acks(story: Story) -> list[PlaybackAck]:
    return [record.event for record in story.records if isinstance(record.event, PlaybackAck)]


def test_a_barge_in_that_cuts_an_answer_leaves_the_input_alone(story: Story) -> None:
    story.ask()
    story.answer("Hi.")
    story.deliver()
    story.do(c.CancelOutput("barge_in", always=True))
    assert "input_audio_buffer.cleared" not in types(story.deliver())


def test_an_answer_that_the_sessions_end_cuts_has_one_of_the_four_reasons(story: Story) -> None:
    story.ask()
    story.answer("Hi.")
    story.do(c.Close("bye"))
    details = only(story.deliver(), "response.done")["response"]["status_details"]
    assert details == {"type": "cancelled", "reason": "client_cancelled"}


def test_a_resumed_client_is_not_told_its_session_anew(story: Story) -> None:
    story.deliver()
    story.do(c.Attach("other", resumed_from=story.outbox.number))
    assert story.deliver() == []
