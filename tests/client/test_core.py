"""The core, event by event: the handshake, acks, answers, and what the server may do wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.client.core import ENDED, GAP, LIVE, ClientCore
from adapters.client.credentials import ReconnectPolicy, ResumeCredentials
from adapters.client.errors import (
    ClientMisuse,
    ConnectionLost,
    DuplexProtocolError,
    HandshakeRefused,
    ResyncRequired,
    SessionEnded,
    SessionExpired,
    SessionReplaced,
    StreamGap,
)
from adapters.client.options import CoreOptions
from adapters.wire.schema import audio, names

MS = 1_000_000
CREATED = {
    "type": names.SESSION_CREATED,
    "session": {"id": "s1", "audio": {"input": {"format": {"type": "audio/pcm", "rate": 16_000}}}},
    "attachment_generation": 1,
    "resume_token": "t1",
}
RESUMED = {
    "type": names.SESSION_RESUMED,
    "session_id": "s1",
    "session": {"id": "s1"},
    "attachment_generation": 2,
    "resume_token": "t2",
    "input_ms": 0,
    "last_event_id": None,
}


class Story:
    """A core and the frames it was given and gave."""

    def __init__(self, credentials: ResumeCredentials | None = None, **options: Any) -> None:
        self.core = ClientCore(CoreOptions(**{"heartbeat_ms": None, **options}), "c", credentials)
        self.now_ns = 0
        self.number = 0
        self.core.connected(0)

    def live(self) -> Story:
        self.said()
        self.hear(CREATED)
        return self

    def hear(self, *payloads: dict[str, Any]) -> list[Any]:
        return [
            event
            for payload in payloads
            for event in self.core.receive(json.dumps({"event_id": "x", **payload}), self.now_ns)
        ]

    def numbered(self, type_: str, **fields: Any) -> list[Any]:
        self.number += 1
        return self.hear({"type": type_, names.NUMBER: self.number, **fields})

    def said(self) -> list[dict[str, Any]]:
        self.core.tick(self.now_ns)
        return [json.loads(frame) for frame in iter(self.core.next_frame, None)]

    def wait(self, ms: int) -> None:
        self.now_ns += ms * MS

    def begin(self, response_id: str = "r1") -> None:
        self.numbered(names.RESPONSE_CREATED, response={"id": response_id, "status": "in_progress"})

    def delta(self, ms: int, response_id: str = "r1", marks: tuple[tuple[int, int], ...] = ()) -> list[Any]:
        listed = [{"text_chars": chars, "audio_end_ms": at_ms} for chars, at_ms in marks]
        data = audio.encode_base64(bytes(audio.size_of_ms(ms, audio.PCM16, 24_000)))
        return self.numbered(
            names.AUDIO_DELTA, response_id=response_id, delta=data, metadata={"audio_text_marks": listed}
        )

    def text(self, delta: str, response_id: str = "r1") -> None:
        self.numbered(names.TRANSCRIPT_DELTA, response_id=response_id, delta=delta)

    def done(self, status: str = "completed", text: str | None = None, **metadata: Any) -> None:
        output = [] if text is None else [{"content": [{"type": "audio", "transcript": text}]}]
        response = {"id": "r1", "status": status, "output": output, "metadata": metadata}
        self.numbered(names.RESPONSE_DONE, response=response)


def test_the_first_frame_opens_a_session() -> None:
    story = Story(config={"model": "m"})
    (frame,) = story.said()
    assert (frame["type"], frame["session"]) == (names.SESSION_UPDATE, {"model": "m"})
    assert frame["event_id"]
    story.hear(CREATED)
    assert story.core.phase == LIVE
    assert story.core.credentials() == ResumeCredentials("s1", "t1", 0, 1)
    assert story.core.input_format == ("pcm16", 16_000)


def test_the_first_frame_of_one_who_comes_back() -> None:
    story = Story(ResumeCredentials("s1", "t0", 41, 1))
    (frame,) = story.said()
    assert frame["type"] == names.SESSION_RESUME
    assert (frame["session_id"], frame["resume_token"], frame["last_received_server_event_seq"]) == ("s1", "t0", 41)
    story.hear(RESUMED | {"input_ms": 900})
    assert story.core.input_ms == 900
    assert [frame["type"] for frame in story.said()] == [names.SESSION_EVENT_ACK]


def test_nothing_is_said_before_the_handshake_is_over() -> None:
    story = Story()
    story.said()
    story.core.send({"type": names.AUDIO_COMMIT})
    assert story.said() == []
    story.hear(CREATED)
    assert [frame["type"] for frame in story.said()] == [names.AUDIO_COMMIT]


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"code": "resource_exhausted", "message": "full", "type": "rate_limit_error", "retryable": True}},
        {"error": "full", "code": "resource_exhausted"},
    ],
)
def test_a_refused_session(error: dict[str, Any]) -> None:
    story = Story()
    story.hear({"type": names.ERROR, **error})
    assert isinstance(story.core.failure, HandshakeRefused)
    assert (story.core.failure.code, story.core.failure.message) == ("resource_exhausted", "full")


@pytest.mark.parametrize(
    ("event", "failure"),
    [
        ({"type": names.SESSION_REPLACED, "attachment_generation": 1}, SessionReplaced),
        ({"type": names.SESSION_CLOSED, "reason": "shutdown"}, SessionEnded),
        ({"type": names.SESSION_EXPIRED, "reason": "idle_ttl_expired"}, SessionExpired),
    ],
)
def test_the_session_ends(event: dict[str, Any], failure: type[Exception]) -> None:
    story = Story().live()
    assert [heard.type for heard in story.hear(event)] == [event["type"]]
    assert type(story.core.failure) is failure
    with pytest.raises(failure):
        story.core.send({"type": names.AUDIO_COMMIT})


def test_a_stream_that_cannot_go_on() -> None:
    story = Story(ResumeCredentials("s1", "t0", 41, 1))
    story.hear({"type": names.SESSION_RESYNC_REQUIRED, "session_id": "s1", "reason": "journal_gap"})
    assert isinstance(story.core.failure, ResyncRequired)


def test_the_old_token_is_kept_until_the_new_one_is_here() -> None:
    story = Story().live()
    story.core.disconnected(None, "cut")
    story.core.connected(1)
    story.said()
    story.core.disconnected(None, "cut again: the server's answer was lost")
    assert story.core.resume_token == "t1"
    story.core.connected(2)
    assert story.said()[0]["resume_token"] == "t1"
    story.hear(RESUMED)
    assert story.core.resume_token == "t2"


def test_back_off_and_giving_up() -> None:
    story = Story(reconnect=ReconnectPolicy(attempts_max=3, initial_ms=100, jitter=0.5)).live()
    story.core.disconnected(None, "cut")
    assert [story.core.retry_delay_ms(0, chance) for chance in (0.0, 1.0, 0.5)] == [50, 200, 300]
    assert story.core.retry_delay_ms(0, 0.5, "no route") is None
    assert isinstance(story.core.failure, ConnectionLost)
    assert story.core.failure.attempts == 3


def test_a_server_that_loads_again_is_waited_for_up_to_a_limit() -> None:
    story = Story(reconnect=ReconnectPolicy(jitter=0.0)).live()
    story.core.disconnected(None, "killed")
    now_ms, tries = 5_000, []
    while (delay_ms := story.core.retry_delay_ms(now_ms * MS, 0.5, "loading", retry_after_ms=2_000)) is not None:
        tries.append(delay_ms)
        now_ms += delay_ms
    assert tries[0] == 2_000, "the server asked for it"
    assert max(tries) == 5_000
    assert 110_000 < now_ms - 5_000 <= 120_000
    assert isinstance(story.core.failure, ConnectionLost)


def test_the_limit_is_one_of_each_outage() -> None:
    story = Story(reconnect=ReconnectPolicy(outage_ms_max=1_000)).live()
    for lost_ms in (0, 50_000):
        story.core.disconnected(None, "cut")
        assert story.core.retry_delay_ms(lost_ms * MS, 0.5) is not None
        story.core.connected(lost_ms * MS)
        story.hear(RESUMED)


def test_a_policy_violation_is_not_tried_again() -> None:
    story = Story().live()
    story.core.disconnected(1_008, "go away")
    assert isinstance(story.core.failure, ConnectionLost)


def test_a_session_without_a_token_cannot_be_resumed() -> None:
    story = Story()
    story.hear({key: value for key, value in CREATED.items() if key != "resume_token"})
    with pytest.raises(ClientMisuse):
        story.core.credentials()
    story.core.disconnected(None, "cut")
    assert story.core.phase == ENDED


def test_events_are_acked_in_batches() -> None:
    story = Story().live()
    for _ in range(10):
        story.numbered(names.RATE_LIMITS)
    assert story.said() == []
    assert story.core.next_tick_ns() == 250 * MS
    story.wait(250)
    assert [frame[names.NUMBER] for frame in story.said()] == [10]
    for _ in range(64):
        story.numbered(names.RATE_LIMITS)
    assert [frame[names.NUMBER] for frame in story.said()] == [74]


def test_playback_is_acked_at_once_then_in_batches_and_at_the_end() -> None:
    story = Story(ack_ms=250).live()
    story.begin()
    story.delta(1_000)
    acks: list[tuple[int, int]] = []
    for played_ms in range(0, 1_001, 100):
        story.core.note_played(played_ms)
        story.wait(100)
        acks += [
            (story.now_ns // MS, frame["played_ms"]) for frame in story.said() if frame["type"] == names.PLAYBACK_ACK
        ]
    assert acks == [(100, 0), (400, 300), (700, 600), (1_000, 900)]
    story.done()
    assert [frame["played_ms"] for frame in story.said() if frame["type"] == names.PLAYBACK_ACK] == [1_000]


def test_nobody_hears_more_than_came() -> None:
    story = Story().live()
    story.begin()
    story.delta(500)
    story.core.note_played(9_000)
    assert [frame["played_ms"] for frame in story.said() if frame["type"] == names.PLAYBACK_ACK] == [500]
    story.core.note_played(100)
    assert story.core.responses["r1"].played_ms == 500


def test_playback_without_any_response_is_misuse() -> None:
    story = Story().live()
    with pytest.raises(ClientMisuse):
        story.core.note_played(10)
    with pytest.raises(ValueError, match="negative"):
        story.core.note_played(-1)


def test_acks_are_made_afresh_after_a_resume() -> None:
    story = Story().live()
    story.begin()
    story.delta(500)
    story.core.note_played(400)
    story.said()
    story.core.disconnected(None, "cut")
    story.core.connected(story.now_ns)
    story.said()
    story.hear(RESUMED)
    assert [frame["played_ms"] for frame in story.said() if frame["type"] == names.PLAYBACK_ACK] == [400]


def test_heard_text_follows_the_marks() -> None:
    story = Story().live()
    story.begin()
    story.delta(600, marks=((6, 300), (12, 600)))
    story.text("Hello there ")
    state = story.core.responses["r1"]
    assert (state.decision, state.transcript) == ("speak", "Hello there ")
    story.core.note_played(299)
    assert state.heard_text == ""
    story.core.note_played(450)
    assert state.heard_text == "Hello "
    story.done("cancelled", text="Hello")
    assert state.heard_text == "Hello"
    assert state.was_cut


def test_audio_after_the_end_is_for_nobody() -> None:
    story = Story().live()
    story.begin()
    story.delta(100)
    story.done("cancelled")
    assert story.delta(100) == []
    assert story.core.statistics().stale_audio_deltas == 1
    assert story.core.responses["r1"].received_ms == 100


def test_a_listening_model_is_an_answer_too() -> None:
    story = Story().live()
    story.numbered(names.RESPONSE_LISTEN, response={"status": "listening", "metadata": {"reason": "model_listen"}})
    (state,) = story.core.take_announced()
    assert (state.decision, state.reason, state.response_id) == ("listen", "model_listen", "")


def test_a_hole_that_is_announced_is_no_gap() -> None:
    story = Story().live()
    story.begin()
    story.delta(100)
    story.number += 3
    story.done("cancelled", skipped=[[3, 5]])
    assert story.core.phase == LIVE
    assert story.core.statistics().skipped_events == 3


def test_a_hole_that_is_not_announced_is_a_gap() -> None:
    story = Story().live()
    story.begin()
    story.delta(100)
    story.number += 3
    story.done("cancelled")
    assert isinstance(story.core.failure, StreamGap)
    assert story.core.failure.ranges == ((3, 5),)


def test_a_gap_may_only_be_counted() -> None:
    story = Story(strict_stream=False).live()
    story.begin()
    story.number += 3
    story.done()
    assert story.core.phase == LIVE
    assert story.core.statistics().lost_events == 3


def test_a_refused_command_confirms_what_was_before_it() -> None:
    story = Story().live()
    story.core.append_audio(bytes(320))
    event_id = story.core.send({"type": names.RESPONSE_CANCEL})
    story.said()
    story.numbered(names.ERROR, error={"code": "response_not_active", "message": "no", "event_id": event_id})
    assert story.core.statistics().outbox.unconfirmed_items == 0


@pytest.mark.parametrize(
    "frame",
    [
        "not json",
        "[]",
        '{"no": "type"}',
        "[" * 100_000,
        '{"type": "response.output_audio.delta", "response_id": "r", "delta": "%%"}',
        '{"type": "response.output_audio.delta", "response_id": "r"}',
        '{"type": "response.done", "response": {}}',
        '{"type": "response.created"}',
        '{"type": "response.done", "response_id": "r", "response": {"metadata": {"skipped": [[2, 1]]}}}',
    ],
)
def test_a_broken_frame_ends_the_client_with_a_code(frame: str) -> None:
    story = Story().live()
    story.core.receive(frame, 0)
    assert isinstance(story.core.failure, DuplexProtocolError)
    assert story.core.failure.code == "invalid_event"


def test_unknown_events_pass_through() -> None:
    story = Story().live()
    assert [event.type for event in story.hear({"type": "duplex.something_new"})] == ["duplex.something_new"]


def test_half_a_sample_is_the_callers_fault() -> None:
    story = Story().live()
    with pytest.raises(ValueError, match="whole samples"):
        story.core.append_audio(b"\0")


def test_input_is_counted_in_the_sessions_own_format() -> None:
    story = Story().live()
    story.core.append_audio(bytes(32_000))
    assert story.core.input_ms == 1_000


def test_silence_from_the_server_is_a_lost_connection() -> None:
    story = Story(heartbeat_ms=1_000).live()
    story.wait(1_000)
    assert [frame["type"] for frame in story.said()] == [names.SESSION_HEARTBEAT]
    assert story.core.overdue_at_ns() == 2_000 * MS
    story.hear({"type": names.SESSION_HEARTBEAT_ACK})
    assert story.core.overdue_at_ns() == 3_000 * MS


def test_closing() -> None:
    story = Story().live()
    story.core.close("bye")
    assert [frame["reason"] for frame in story.said()] == ["bye"]
    with pytest.raises(SessionEnded):
        story.core.send({"type": names.AUDIO_COMMIT})
    story.numbered(names.SESSION_CLOSED, reason="bye")
    assert (story.core.phase, story.core.failure) == (ENDED, None)


def test_closing_in_a_gap_just_leaves() -> None:
    story = Story().live()
    story.core.disconnected(None, "cut")
    assert story.core.phase == GAP
    story.core.close("bye")
    assert (story.core.phase, story.core.failure) == (ENDED, None)


def test_credentials_travel_as_text_and_hide_their_secret() -> None:
    credentials = ResumeCredentials("s1", "secret", 7, 2)
    assert ResumeCredentials.from_json(credentials.to_json()) == credentials
    assert "secret" not in repr(credentials)
    for text in ("[]", "{", '{"session_id": 1}'):
        with pytest.raises(ValueError, match="resume credentials"):
            ResumeCredentials.from_json(text)
