"""An ear of fakes: loud audio is speech, and a transcript tells exactly how much audio was read."""

from __future__ import annotations

import time
from typing import cast

import numpy as np
import pytest

from core.ports.runtime import (
    ClearTurn,
    CloseSession,
    CommitTurn,
    ConfigureSession,
    Feed,
    Heard,
    HistoryTurn,
    OpenLane,
    OpenSession,
    Produced,
    Respond,
    SpeechBegan,
    SpeechEnded,
    SpeechGoesOn,
)
from core.session.config import AudioFormat, TurnDetection
from gpu_runtime.models.cascade import hearing
from gpu_runtime.models.cascade.ear import Ear
from gpu_runtime.models.cascade.hearing import Hearing
from tests.gpu_runtime.cascade.fakes import LOUD, Sink, Studio

FRAME_MS = 32


def test_a_turn_is_found_on_the_input_clock() -> None:
    with Studio() as studio:
        studio.open(input_ms=10_000)
        studio.hush(320)
        studio.say(640)
        studio.hush(400)
        [ended] = studio.heard.wait_for(SpeechEnded)
        [began] = studio.heard.of(SpeechBegan)
    assert (began.segment, ended.segment) == (1, 1)
    assert began.start_ms == ended.start_ms
    assert abs(began.start_ms - 10_320) <= FRAME_MS
    assert abs(ended.end_ms - 10_960) <= FRAME_MS
    goes_on = studio.heard.of(SpeechGoesOn)
    assert 4 <= len(goes_on) <= 8
    assert [said.speech_ms for said in goes_on] == sorted(said.speech_ms for said in goes_on)
    assert studio.heard.said.index(began) == 0
    assert studio.heard.said[-1] is ended


def test_the_stages_are_timed() -> None:
    before_ns = time.time_ns()
    with Studio() as studio:
        studio.open()
        studio.say(400)
        studio.hush(400)
        [ended] = studio.heard.wait_for(SpeechEnded)
    times = dict(ended.timings)
    assert list(times) == ["last_speech", "endpoint", "transcript"]
    assert before_ns <= times["last_speech"] <= times["endpoint"] <= time.time_ns()
    assert times["last_speech"] <= times["transcript"]


def hear(rate: int, chunk_ms: int) -> list[tuple[int, int, str | None]]:
    with Studio() as studio:
        studio.open(rate=rate)
        for speech_ms, silence_ms in ((500, 100), (700, 600), (1_000, 500)):
            studio.hush(120, chunk_ms=chunk_ms)
            studio.say(speech_ms, chunk_ms=chunk_ms)
            studio.hush(silence_ms, chunk_ms=chunk_ms)
        studio.hush(500, chunk_ms=chunk_ms)
        studio.heard.wait_for(SpeechEnded, 2)
        return [(ended.start_ms, ended.end_ms, ended.text) for ended in studio.heard.of(SpeechEnded)]


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 44_100, 48_000])
def test_turns_and_texts_do_not_depend_on_the_chunks(rate: int) -> None:
    assert hear(rate, 20) == hear(rate, 100) == hear(rate, 60_000)


def test_a_pause_is_read_on_trial_and_again_when_speech_goes_on() -> None:
    with Studio() as studio:
        studio.open()
        studio.say(500)
        studio.hush(160)
        deadline_s = time.monotonic() + 10
        while not studio.recogniser.calls and time.monotonic() < deadline_s:
            time.sleep(0.005)
        assert len(studio.recogniser.calls) == 1
        assert studio.heard.of(SpeechEnded) == []
        studio.say(500)
        studio.hush(400)
        [ended] = studio.heard.wait_for(SpeechEnded)
    assert len(studio.recogniser.calls) == 2
    assert studio.recogniser.calls[1] > studio.recogniser.calls[0] + 0.6
    assert ended.text is not None
    assert ended.text.startswith("heard ")


def test_the_lead_in_is_read_too() -> None:
    with Studio() as studio:
        studio.open(detection=TurnDetection(prefix_padding_ms=160))
        studio.hush(960)
        studio.say(320)
        studio.hush(400)
        studio.heard.wait_for(SpeechEnded)
    # lead-in, speech, and the 32 ms of silence that made the trial
    assert abs(studio.recogniser.calls[0] * 1000 - (160 + 320 + 32)) <= FRAME_MS


def test_speech_ended_waits_for_its_text_and_the_next_turn_waits_for_it() -> None:
    with Studio() as studio:
        studio.recogniser.gate.clear()
        studio.open()
        studio.say(400)
        studio.hush(400)
        studio.say(400)
        time.sleep(0.1)
        assert len(studio.heard.of(SpeechBegan)) == 1
        studio.recogniser.gate.set()
        studio.heard.wait_for(SpeechBegan, 2)
    kinds = [type(said) for said in studio.heard.said if not isinstance(said, SpeechGoesOn)]
    assert kinds == [SpeechBegan, SpeechEnded, SpeechBegan]


def test_very_fast_input_does_not_pile_up_unread_turns() -> None:
    with Studio() as studio:
        studio.recogniser.gate.clear()
        studio.open()
        for _ in range(12):
            studio.say(300)
            studio.hush(400)
        time.sleep(0.2)
        assert studio.cascade._reading.statistics().waiting <= 8
        studio.recogniser.gate.set()
        ended = studio.heard.wait_for(SpeechEnded, 12)
    assert [message.segment for message in ended] == list(range(1, 13))


def test_a_recogniser_that_fails_costs_the_text_and_not_the_turn() -> None:
    with Studio() as studio:
        studio.recogniser.fails = True
        studio.open()
        studio.say(400)
        studio.hush(400)
        [ended] = studio.heard.wait_for(SpeechEnded)
    assert ended.text == ""


def test_a_client_that_stops_in_mid_speech_is_given_silence() -> None:
    with Studio(idle_fill_ms=100) as studio:
        studio.open()
        studio.say(640, chunk_ms=640)  # at once: the test itself must not be the client that stops
        sent_s = time.monotonic()
        [ended] = studio.heard.wait_for(SpeechEnded)
        took_s = time.monotonic() - sent_s
        assert ended.end_ms <= 640
        speech, silence = np.full(16 * 320, LOUD, "<i2").tobytes(), bytes(2 * 16 * 400)
        studio.feed(speech + silence, chunk_ms=720)
        _, again = studio.heard.wait_for(SpeechEnded, 2)
    assert took_s >= 0.1 + 0.25
    assert abs(again.start_ms - 640) <= FRAME_MS
    assert abs(again.end_ms - 960) <= FRAME_MS


def test_a_lost_stretch_moves_the_clock() -> None:
    with Studio() as studio:
        studio.open()
        studio.hush(500)
        studio.sent_ms = 60_000
        studio.say(640)
        studio.hush(400)
        [ended] = studio.heard.wait_for(SpeechEnded)
    assert abs(ended.start_ms - 60_000) <= FRAME_MS


def test_without_turn_detection_the_client_commits() -> None:
    with Studio() as studio:
        studio.open(detection=None)
        studio.hush(500)
        studio.say(1_000)
        studio.hush(500)
        studio.cascade.handle(CommitTurn("s", "item", 500, 1_500))
        [heard] = studio.heard.wait_for(Heard)
    assert heard.item_id == "item"
    samples, loud = map(int, heard.text.removeprefix("heard ").split("/"))
    assert samples == loud == 16_000
    assert studio.heard.of(SpeechBegan) == []


def test_a_commit_of_nothing_is_heard_as_nothing() -> None:
    with Studio() as studio:
        studio.open(detection=None)
        studio.cascade.handle(CommitTurn("s", "item", 0, 0))
        [heard] = studio.heard.wait_for(Heard)
    assert heard.text == ""


def test_an_answer_waits_for_the_text_of_its_turn() -> None:
    with Studio() as studio:
        studio.recogniser.gate.clear()
        studio.open(detection=None)
        studio.say(1_000)
        studio.cascade.handle(CommitTurn("s", "item", 0, 1_000))
        history = (HistoryTurn("user", None, "item"),)
        studio.cascade.handle(Respond("s", 1, "r", "", history, ("audio",), None))
        time.sleep(0.05)
        assert studio.model.prompts == []
        studio.recogniser.gate.set()
        studio.heard.wait_for(Produced)
    assert studio.model.prompts[0][-1].content == "heard 16000/16000"


def test_the_text_of_a_segment_is_known_at_its_commit() -> None:
    with Studio(anticipate=False) as studio:
        studio.open()
        studio.say(500)
        studio.hush(400)
        [ended] = studio.heard.wait_for(SpeechEnded)
        studio.cascade.handle(CommitTurn("s", "item", ended.start_ms, ended.end_ms, ended.segment))
        history = (HistoryTurn("user", None, "item"),)
        studio.cascade.handle(Respond("s", 1, "r", "", history, ("audio",), None))
        studio.heard.wait_for(Produced)
        assert studio.heard.of(Heard) == []
    assert studio.model.prompts[0][-1].content == ended.text
    assert len(studio.recogniser.calls) == 1


def test_cleared_audio_is_no_turn() -> None:
    with Studio() as studio:
        studio.open()
        studio.say(500)
        studio.heard.wait_for(SpeechBegan)
        studio.cascade.handle(ClearTurn("s"))
        studio.hush(1_000)
        studio.say(400)
        studio.hush(400)
        [ended] = studio.heard.wait_for(SpeechEnded)
    assert ended.segment == 2
    assert ended.start_ms >= 1_500 - FRAME_MS


def test_a_long_speech_is_read_while_it_goes_on() -> None:
    with Studio() as studio:
        studio.open()
        for _ in range(4):
            studio.say(14_000)
            studio.hush(160)
        studio.hush(300)
        [ended] = studio.heard.wait_for(SpeechEnded)
    assert max(studio.recogniser.calls) < 28
    assert ended.text is not None
    assert len(ended.text.split("heard ")) - 1 == 4
    assert studio.recogniser.calls[-1] < 15


def test_speech_without_a_pause_is_read_in_parts() -> None:
    with Studio() as studio:
        studio.open()
        studio.say(70_000)
        studio.hush(400)
        [ended] = studio.heard.wait_for(SpeechEnded)
    assert ended.text is not None
    loud = [int(part.split("/")[1]) for part in ended.text.split("heard ")[1:]]
    assert len(loud) == 3
    assert abs(sum(loud) / 16_000 - 70) < 0.1


def test_every_encoding_is_heard() -> None:
    loud = np.full(16_000 * 640 // 1000, LOUD / 32_768, "<f4")
    with Studio() as studio:
        studio.cascade.handle(OpenSession("s", AudioFormat("pcm_f32le", 16_000), TurnDetection()))
        studio.cascade.handle(Feed("s", 1, 0, 640, loud.tobytes()))
        studio.heard.wait_for(SpeechBegan)
        studio.cascade.handle(ConfigureSession("s", AudioFormat("g711_ulaw", 8_000), TurnDetection()))
        studio.cascade.handle(Feed("s", 1, 640, 400, b"\xff" * 3_200))
        [ended] = studio.heard.wait_for(SpeechEnded)
        studio.cascade.handle(Feed("s", 1, 1_040, 640, b"\x90" * 5_120))
        studio.cascade.handle(Feed("s", 1, 1_680, 400, b"\xff" * 3_200))
        _, again = studio.heard.wait_for(SpeechEnded, 2)
    assert abs(ended.end_ms - 640) <= FRAME_MS
    assert abs(again.start_ms - 1_040) <= FRAME_MS


def test_switching_the_detector_off_forgets_the_open_turn() -> None:
    with Studio() as studio:
        studio.open()
        studio.say(500)
        studio.heard.wait_for(SpeechBegan)
        studio.cascade.handle(ConfigureSession("s", AudioFormat("pcm16", 16_000), None))
        studio.hush(1_000)
        studio.cascade.handle(CommitTurn("s", "item", 0, 500))
        studio.heard.wait_for(Heard)
    assert studio.heard.of(SpeechEnded) == []


def test_two_sessions_are_heard_side_by_side() -> None:
    with Studio() as studio:
        studio.open("a")
        studio.open("b")
        for _ in range(50):
            for session in ("a", "b"):
                studio.sent_ms = 0
                studio.say(20, session)
        for session in ("a", "b"):
            studio.hush(400, session)
        ended = studio.heard.wait_for(SpeechEnded, 2)
    assert {message.session for message in ended} == {"a", "b"}


def test_a_closed_session_says_nothing_more() -> None:
    with Studio() as studio:
        studio.open("a")
        studio.open("b")
        studio.say(500, "a")
        studio.heard.wait_for(SpeechBegan)
        studio.cascade.handle(CloseSession("a"))
        studio.hush(500, "a")
        studio.say(400, "b")
        studio.hush(400, "b")
        studio.heard.wait_for(SpeechEnded)
    assert [message.session for message in studio.heard.of(SpeechEnded)] == ["b"]


def test_an_inbox_that_is_full_loses_audio_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with Studio() as studio:
        studio.recogniser.gate.clear()
        studio.open()
        for _ in range(5):
            studio.say(300)
            studio.hush(400)
        time.sleep(0.1)
        minute = bytes(16_000 * 2 * 60)
        for _ in range(20):
            studio.cascade.handle(Feed("s", 1, studio.sent_ms, 60_000, minute))
            studio.sent_ms += 60_000
        statistics = studio.cascade._hearing.statistics()
        studio.recogniser.gate.set()
    assert statistics.lost_chunks > 0
    assert statistics.inbox_bytes <= 32 * 2**20
    assert caplog.text.count("too far behind") == 1, "said when it begins, not for each chunk"


class _Deaf:
    """An ear that stands still."""

    blocked, has_work = True, False

    def __init__(self, session: str) -> None:
        self.session = session

    def fill_due_s(self) -> None:
        return None


def test_all_inboxes_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "ALL_BYTES_MAX", 10_000)
    ears = Hearing()
    try:
        for name in "abcd":
            ears.add(cast(Ear, _Deaf(name)))
            for _ in range(4):
                ears.put(Feed(name, 1, 0, 100, bytes(1_000)))
        now = ears.statistics()
        assert (now.inbox_bytes, now.lost_chunks) == (10_000, 6)
        ears.remove("a")
        ears.put(Feed("d", 1, 0, 100, bytes(1_000)))
        now = ears.statistics()
        assert (now.inbox_bytes, now.lost_chunks) == (7_000, 6), "who leaves makes room"
    finally:
        ears.close()


def test_words_that_steer_are_bounded_too(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(hearing, "INBOX_ITEMS_MAX", 4)
    monkeypatch.setattr(hearing, "INBOX_RESERVE_ITEMS", 2)
    ears = Hearing()
    try:
        ears.add(cast(Ear, _Deaf("s")))
        for _ in range(1_000):
            ears.put(ClearTurn("s"))
        assert ears.statistics().inbox_items == 1, "two say no more than one"
        for number in range(10):
            ears.put(CommitTurn("s", f"item-{number}", 0, 10))
        now = ears.statistics()
        assert (now.inbox_items, now.lost_words) == (6, 5)
        assert caplog.text.count("too far behind") == 1
    finally:
        ears.close()


def test_messages_for_unknown_sessions_are_ignored() -> None:
    with Studio() as studio:
        studio.cascade.handle(OpenLane("nobody", 1, "", "", ()))
        studio.cascade.handle(Feed("nobody", 1, 0, 20, b"\0" * 640))
        studio.open()
        sink = Sink()
        assert sink.said == []
