"""Lanes of fakes: a model that answers by the word, a voice of 50 ms a character."""

from __future__ import annotations

import threading
import time

import pytest

from core.ports.runtime import (
    AbortLane,
    CommitTurn,
    HistoryTurn,
    LaneEnded,
    LaneFailed,
    OpenLane,
    PauseLane,
    Produced,
    Respond,
    ResumeLane,
    SpeechEnded,
)
from gpu_runtime.models.cascade.answer import NOTHING_TO_SAY
from gpu_runtime.models.cascade.lanes import NOT_UNDERSTOOD
from gpu_runtime.models.cascade.parts import Cancel, PartFailed, Speech
from tests.gpu_runtime.cascade.fakes import Studio

ANSWER = "Fine, thank you. And how are you today?"


def user(text: str | None, item: str = "u") -> HistoryTurn:
    return HistoryTurn("user", text, item)


def assistant(text: str) -> HistoryTurn:
    return HistoryTurn("assistant", text, "a")


def respond(
    studio: Studio,
    *history: HistoryTurn,
    epoch: int = 1,
    response: str = "r",
    modalities: tuple[str, ...] = ("audio",),
    limit: int | None = None,
    session: str = "s",
) -> None:
    studio.cascade.handle(Respond(session, epoch, response, "", history, modalities, limit))


def spoken(studio: Studio, response: str = "r") -> list[Produced]:
    return [unit for unit in studio.heard.of(Produced) if unit.response_id == response]


def until(condition: object, seconds: float = 10.0) -> None:
    assert callable(condition)
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.003)


def test_an_answer_is_units_that_add_up() -> None:
    with Studio() as studio:
        studio.open()
        respond(studio, user("How are you?"))
        [ended] = studio.heard.wait_for(LaneEnded)
    units = spoken(studio)
    assert "".join(unit.text for unit in units) == ANSWER
    assert [unit.unit for unit in units] == list(range(len(units)))
    assert ended == LaneEnded("s", 1, "r", "completed", 10, 8)
    played_ms = 0
    for unit in units:
        assert (unit.epoch, unit.kind, unit.rate) == (1, "speak", 24_000)
        played_ms += len(unit.audio) // 48
        assert all(mark.audio_end_ms <= played_ms for mark in unit.marks)
    assert units[-1].marks[-1].chars == len(ANSWER)
    assert played_ms == len(ANSWER) * 50
    assert max(len(unit.audio) // 48 for unit in units) <= 320
    assert [name for name, _ in units[0].timings] == ["first_token", "clause", "audio"]
    assert studio.voice.said == ["Fine, thank you.", " And how are you today?"]


def test_the_first_piece_is_out_while_the_model_still_thinks() -> None:
    with Studio() as studio:
        studio.open()
        studio.model.gates[5] = threading.Event()
        respond(studio, user("How are you?"))
        studio.heard.wait_for(Produced)
        until(lambda: "".join(unit.text for unit in spoken(studio)) == "Fine, thank you.")
        studio.model.gates[5].set()
        studio.heard.wait_for(LaneEnded)


def test_an_aborted_lane_says_nothing_more() -> None:
    with Studio() as studio:
        studio.open()
        studio.model.gates[5] = threading.Event()
        respond(studio, user("How are you?"))
        studio.heard.wait_for(Produced)
        studio.cascade.handle(AbortLane("s", 1))
        said = len(studio.heard.said)
        until(lambda: studio.model.cancelled == 1)
        studio.model.gates[5].set()
        respond(studio, user("Late."), response="late")
        time.sleep(0.05)
        assert len(studio.heard.said) == said


def test_an_abort_does_not_wait_for_a_voice_that_cannot_be_stopped() -> None:
    begun, going_on = threading.Event(), threading.Event()
    in_time: list[bool] = []
    with Studio() as studio:
        speak = studio.voice.speak

        def deaf(text: str, cancel: Cancel) -> Speech:
            begun.set()
            in_time.append(going_on.wait(10))
            return speak(text, Cancel())

        studio.voice.speak = deaf  # type: ignore[method-assign]
        studio.open()
        respond(studio, user("How are you?"))
        assert begun.wait(10)
        studio.cascade.handle(AbortLane("s", 1))
        going_on.set()
        studio.cascade.handle(OpenLane("s", 2, "", "", ()))
        respond(studio, user("How are you?"), epoch=2, response="r2")
        studio.heard.wait_for(LaneEnded)
    assert in_time[0]
    assert {unit.response_id for unit in studio.heard.of(Produced)} == {"r2"}


def test_a_new_epoch_kills_the_old_one_and_is_answered() -> None:
    with Studio() as studio:
        studio.open()
        studio.voice.gate.clear()
        respond(studio, user("One?"))
        until(lambda: studio.model.prompts)
        studio.cascade.handle(OpenLane("s", 2, "", "", (user("One?"), assistant("Fi"))))
        respond(studio, user("One?"), assistant("Fi"), user("Two?"), epoch=2, response="r2")
        studio.voice.gate.set()
        studio.heard.wait_for(LaneEnded)
    assert {unit.response_id for unit in studio.heard.of(Produced)} == {"r2"}
    assert [message.content for message in studio.model.prompts[-1][1:]] == ["One?", "Fi", "Two?"]


def test_opening_a_lane_warms_the_heard_history() -> None:
    with Studio() as studio:
        studio.open()
        studio.cascade.handle(OpenLane("s", 3, "Be kind.", "", (user("One?"), assistant("Yes"))))
        until(lambda: studio.model.warmed)
    assert [message.content for message in studio.model.warmed[0]] == ["Be kind.", "One?", "Yes"]


def test_warming_never_delays_an_answer() -> None:
    with Studio() as studio:
        studio.open()
        studio.model.warm_gate = threading.Event()
        studio.cascade.handle(OpenLane("s", 1, "", "", (user("One?"),)))
        assert studio.model.warming.wait(10)
        respond(studio, user("One?"))
        studio.heard.wait_for(LaneEnded)


def test_a_paused_lane_produces_nothing_until_it_goes_on() -> None:
    with Studio() as studio:
        studio.open()
        studio.cascade.handle(PauseLane("s", 1))
        respond(studio, user("How are you?"))
        until(lambda: studio.model.prompts)
        time.sleep(0.05)
        assert spoken(studio) == []
        studio.cascade.handle(ResumeLane("s", 1))
        studio.heard.wait_for(LaneEnded)
    assert "".join(unit.text for unit in spoken(studio)) == ANSWER


def test_written_answers_have_no_audio() -> None:
    with Studio() as studio:
        studio.open()
        respond(studio, user("How are you?"), modalities=("text",))
        studio.heard.wait_for(LaneEnded)
    units = spoken(studio)
    assert "".join(unit.text for unit in units) == ANSWER
    assert all(unit.audio == b"" and unit.marks == () for unit in units)
    assert studio.voice.said == []


@pytest.mark.parametrize(
    ("limit", "reason", "text"), [(6, "max_output_tokens", "Fine, thank you. And how are"), (None, "completed", ANSWER)]
)
def test_a_limit_of_the_clients_is_told(limit: int | None, reason: str, text: str) -> None:
    with Studio() as studio:
        studio.open()
        respond(studio, user("How are you?"), limit=limit)
        [ended] = studio.heard.wait_for(LaneEnded)
    assert ended.reason == reason
    assert "".join(unit.text for unit in spoken(studio)) == text


def test_our_own_limit_ends_at_a_sentence() -> None:
    with Studio(max_tokens=6) as studio:
        studio.open()
        respond(studio, user("How are you?"))
        [ended] = studio.heard.wait_for(LaneEnded)
    assert ended.reason == "completed"
    assert "".join(unit.text for unit in spoken(studio)) == "Fine, thank you."


def test_a_model_that_fails_fails_this_answer_only() -> None:
    with Studio() as studio:
        studio.open()
        studio.model.failure = PartFailed("lane_full", "too long")
        respond(studio, user("How are you?"))
        [failed] = studio.heard.wait_for(LaneFailed)
        assert (failed.response_id, failed.code) == ("r", "lane_full")
        studio.model.failure = None
        respond(studio, user("How are you?"), response="again")
        studio.heard.wait_for(LaneEnded)


def test_a_model_without_a_word_is_spoken_for() -> None:
    with Studio() as studio:
        studio.open()
        studio.model.default = ""
        respond(studio, user("How are you?"))
        studio.heard.wait_for(LaneEnded)
    assert "".join(unit.text for unit in spoken(studio)) == NOTHING_TO_SAY


def test_a_turn_without_words_is_asked_about() -> None:
    with Studio() as studio:
        studio.open(detection=None)
        studio.hush(500)
        studio.cascade.handle(CommitTurn("s", "u", 0, 500))
        respond(studio, user(None))
        studio.heard.wait_for(LaneEnded)
    assert "".join(unit.text for unit in spoken(studio)) == NOT_UNDERSTOOD
    assert studio.model.prompts == []


def test_a_turn_that_was_typed_into_a_silence_is_answered() -> None:
    """Its microphone was open: what was said is a turn of its own, of the same item, and empty."""
    with Studio() as studio:
        studio.open(detection=None)
        studio.hush(500)
        studio.cascade.handle(CommitTurn("s", "u", 0, 500))
        respond(studio, user("How are you?"), user(None))
        studio.heard.wait_for(LaneEnded)
    assert len(studio.model.prompts) == 1
    assert studio.model.prompts[0][-1].content == "How are you?"


def test_sessions_are_answered_side_by_side() -> None:
    with Studio() as studio:
        for session in ("a", "b"):
            studio.open(session)
        for session in ("a", "b"):
            respond(studio, user("How are you?"), session=session, response=session)
        studio.heard.wait_for(LaneEnded, 2)
    for session in ("a", "b"):
        units = spoken(studio, session)
        assert {unit.session for unit in units} == {session}
        assert "".join(unit.text for unit in units) == ANSWER


# --- answers on trial -------------------------------------------------------------------------------------------------


def ask_by_voice(studio: Studio, history: tuple[HistoryTurn, ...] = (), count: int = 1) -> SpeechEnded:
    """Speak, wait until the answer has been begun on trial, then let the hang-over pass."""
    prompts = len(studio.model.prompts)
    studio.say(500)
    studio.hush(160)
    until(lambda: len(studio.model.prompts) > prompts)
    studio.hush(400)
    return studio.heard.wait_for(SpeechEnded, count)[-1]


def test_an_answer_on_trial_is_used_and_nothing_of_it_is_emitted_before() -> None:
    with Studio() as studio:
        studio.open()
        studio.cascade.handle(OpenLane("s", 1, "", "", ()))
        ended = ask_by_voice(studio)
        until(lambda: studio.voice.said)
        time.sleep(0.05)
        assert spoken(studio) == []
        assert studio.voice.said == ["Fine, thank you."]
        respond(studio, user(ended.text))
        studio.heard.wait_for(LaneEnded)
    assert len(studio.model.prompts) == 1
    assert "".join(unit.text for unit in spoken(studio)) == ANSWER


def test_an_answer_on_trial_to_another_history_is_thrown_away() -> None:
    with Studio() as studio:
        studio.open()
        studio.cascade.handle(OpenLane("s", 1, "", "", ()))
        ended = ask_by_voice(studio)
        respond(studio, user("Something else before."), assistant("Yes."), user(ended.text))
        studio.heard.wait_for(LaneEnded)
    assert len(studio.model.prompts) == 2
    assert "".join(unit.text for unit in spoken(studio)) == ANSWER


def test_an_answer_on_trial_is_cancelled_when_speech_goes_on() -> None:
    with Studio() as studio:
        studio.open()
        studio.cascade.handle(OpenLane("s", 1, "", "", ()))
        studio.model.gates[0] = threading.Event()
        studio.say(500)
        studio.hush(160)
        until(lambda: studio.model.prompts)
        studio.say(500)
        until(lambda: studio.model.cancelled)
        studio.model.gates[0].set()
        ended = ask_by_voice(studio)
        respond(studio, user(ended.text))
        studio.heard.wait_for(LaneEnded)
    assert studio.model.prompts[0] != studio.model.prompts[1]
    assert len(studio.model.prompts) == 2


def test_the_second_turn_is_anticipated_once_the_first_answer_was_heard() -> None:
    with Studio(unit_ms=40) as studio:
        studio.voice.per_character = 24
        studio.open()
        studio.cascade.handle(OpenLane("s", 1, "", "", ()))
        first = ask_by_voice(studio)
        respond(studio, user(first.text, "u1"))
        studio.heard.wait_for(LaneEnded)
        time.sleep(0.1)
        second = ask_by_voice(studio, count=2)
        respond(studio, user(first.text, "u1"), assistant(ANSWER), user(second.text, "u2"), response="r2")
        studio.heard.wait_for(LaneEnded, 2)
    assert len(studio.model.prompts) == 2
    assert "".join(unit.text for unit in spoken(studio, "r2")) == ANSWER


def test_a_turn_over_an_answer_is_not_anticipated() -> None:
    with Studio() as studio:
        studio.open()
        studio.cascade.handle(OpenLane("s", 1, "", "", ()))
        respond(studio, user("How are you?"))
        studio.heard.wait_for(LaneEnded)
        studio.say(500)
        studio.hush(500)
        studio.heard.wait_for(SpeechEnded)
        time.sleep(0.03)
    assert len(studio.model.prompts) == 1


def test_an_answer_on_trial_that_failed_is_made_again() -> None:
    with Studio() as studio:
        studio.open()
        studio.cascade.handle(OpenLane("s", 1, "", "", ()))
        studio.model.failure = PartFailed("model_error", "no")
        ended = ask_by_voice(studio)
        studio.model.failure = None
        respond(studio, user(ended.text))
        studio.heard.wait_for(LaneEnded)
    assert studio.heard.of(LaneFailed) == []
    assert len(studio.model.prompts) == 2
