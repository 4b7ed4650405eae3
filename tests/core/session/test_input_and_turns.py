"""The user's side: appends, commits, clears, who answers when, and what speech over an answer does."""

from __future__ import annotations

import attrs
import pytest

from core.session import commands as c
from core.session import effects as fx
from core.session import events as e
from core.session.config import AudioFormat, TurnDetection
from core.session.machine import Step
from core.session.overlap import is_short_ack
from tests.core.session.reading import kinds
from tests.core.session.world import CLIENT_VAD, RATE, SERVER_VAD, UNIT_MS, World

# -- appends ----------------------------------------------------------------------------------------------------------


def test_the_input_clock_counts_samples_and_does_not_drift() -> None:
    world = World()
    for _ in range(1_000):
        world.do(c.AppendAudio("d", 2, 1))  # 1/24 ms each
    assert world.state.input.now_ms == 1_000 // 24
    world.say(100)
    assert world.events(e.Append)[-1].start_ms == 41


def test_the_clock_goes_on_from_a_new_rate() -> None:
    world = World()
    world.ask(100)
    world.do(c.UpdateConfig(attrs.evolve(CLIENT_VAD, input_format=AudioFormat("pcm16", 8_000))))
    world.do(c.AppendAudio("d", 1_600, 800))
    assert world.state.input.now_ms == 200
    assert world.events(e.Append)[-1].rate == 8_000


def test_pending_input_is_bounded_in_bytes() -> None:
    world = World(attrs.evolve(CLIENT_VAD, max_pending_input_bytes=10_000))
    assert world.say(200).refusal is None
    refused = world.say(200).refusal
    assert refused is not None
    assert refused.code == "input_too_large"
    world.do(c.ClearInput())
    assert world.say(200).refusal is None


def test_pending_input_is_bounded_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.session.decisions.input.PENDING_CHUNKS_MAX", 3)
    world = World()
    refusals = [world.do(c.AppendAudio("d", 2, 1)).refusal for _ in range(4)]
    assert [refusal.code for refusal in refusals if refusal] == ["input_too_large"]


def test_with_a_detector_silence_is_forgotten_but_for_the_preroll() -> None:
    world = World(SERVER_VAD)
    for _ in range(50):
        world.say(100)
    assert 2_000 <= sum(chunk.audio_ms for chunk in world.state.input.pending) <= 2_100


def test_what_is_pending_is_fed_again_to_a_new_ear() -> None:
    world = World()
    world.say(100)
    world.do(c.LoseRuntime("killed"))
    world.say(100)
    effects = world.do(c.GainRuntime()).effects
    assert isinstance(effects[0], fx.OpenSession)
    assert effects[0].input_ms == 0
    assert [effect.start_ms for effect in effects if isinstance(effect, fx.FeedAudio)] == [0, 100]


# -- commits ----------------------------------------------------------------------------------------------------------


def test_a_commit_that_asks_is_answered() -> None:
    world = World()
    result = world.ask()
    assert kinds(result) == ["commit", "response_started"]
    (respond,) = [effect for effect in result.effects if isinstance(effect, fx.Respond)]
    assert [turn.item_id for turn in respond.history] == [world.events(e.Commit)[0].item_id]


@pytest.mark.parametrize("create_response", [None, False])
def test_a_commit_that_does_not_ask_is_not_answered(create_response: bool | None) -> None:
    world = World()
    world.say()
    assert kinds(world.do(c.CommitInput(create_response))) == ["commit"]
    assert world.state.active is None
    assert kinds(world.do(c.CreateResponse())) == ["response_started"]


def test_an_empty_commit_is_refused() -> None:
    world = World()
    for _ in range(2):
        refusal = world.do(c.CommitInput(True)).refusal
        assert refusal is not None
        assert refusal.code == "input_empty"
        world.ask()


def test_a_commit_without_speech_is_silent() -> None:
    world = World()
    world.say(is_speech=False)
    assert kinds(world.do(c.CommitInput(True))) == ["commit"]
    assert world.events(e.Commit)[0].speech is False
    assert world.history() == []


@pytest.mark.parametrize("hints", [(True, False), (False, True), (None, False), (None, None)])
def test_a_commit_of_which_something_may_be_speech_is_answered(hints: tuple[bool | None, ...]) -> None:
    world = World()
    for hint in hints:
        world.say(is_speech=hint)
    world.do(c.CommitInput(True))
    assert world.active.answers == world.events(e.Commit)[0].item_id


def test_the_speech_of_an_earlier_turn_is_not_this_ones() -> None:
    world = World()
    world.answered()
    world.say(is_speech=False)
    world.do(c.CommitInput(True))
    assert world.state.active is None


def test_commits_while_an_answer_plays_wait_and_are_answered_in_order() -> None:
    world = World()
    world.ask()
    first = world.active
    world.ask()
    world.ask()
    assert world.active is first
    second, third = tuple(world.state.queued)
    world.make()
    assert kinds(world.finish()) == ["response_ended", "response_started"]
    assert world.active.answers == second
    world.finish()
    assert world.active.answers == third
    world.finish()
    assert world.state.active is None


def test_at_most_so_many_commits_wait() -> None:
    world = World(attrs.evolve(CLIENT_VAD, max_pending_commits=2))
    refusals = [world.ask().refusal for _ in range(4)]
    assert [refusal.code if refusal else None for refusal in refusals] == [None, None, None, "too_many_pending_commits"]
    world.finish()
    assert world.ask().refusal is None


def test_of_too_many_detected_turns_the_last_is_told_and_not_answered_by_itself() -> None:
    world = World(attrs.evolve(SERVER_VAD, overlap_policy="listen_only"))
    for segment in range(1, 7):
        speak(world, segment, 300, f"number {segment}")
    assert [commit.create_response for commit in world.events(e.Commit)] == [True] * 5 + [False]
    assert len(world.state.queued) == world.state.config.max_pending_commits == 4
    for _ in range(5):
        world.finish()
    assert world.state.active is None
    assert world.history()[-1] == ("user", "number 6")


def test_a_commit_that_does_not_ask_needs_no_room() -> None:
    world = World(attrs.evolve(CLIENT_VAD, max_pending_commits=1))
    world.ask()
    world.ask()
    world.say()
    assert world.do(c.CommitInput(False)).refusal is None


def test_a_turn_that_was_deleted_is_not_answered() -> None:
    world = World()
    world.ask()
    world.ask()
    world.do(c.DeleteItem(world.state.queued[0]))
    world.finish()
    assert world.state.active is None


def test_clear_throws_pending_input_away() -> None:
    world = World()
    world.say()
    result = world.do(c.ClearInput())
    assert result.effects == (fx.ClearTurn("duplex-abc"),)
    assert world.do(c.CommitInput(True)).refusal is not None


def test_a_transcript_comes_once() -> None:
    world = World()
    world.ask()
    item_id = world.events(e.Commit)[0].item_id
    world.do(c.TurnHeard(item_id, "what is it"))
    assert world.do(c.TurnHeard(item_id, "what was it")).records == ()
    assert world.do(c.TurnHeard("item_none", "eh")).records == ()
    assert world.history() == [("user", "what is it")]


# -- the detector -----------------------------------------------------------------------------------------------------


def speak(world: World, segment: int, ms: int, text: str | None = "hello") -> Step:
    start_ms = world.state.input.now_ms
    world.say(ms)
    world.do(c.SpeechHeard(segment, start_ms))
    return world.do(c.SpeechFinished(segment, start_ms, start_ms + ms, text))


def test_the_detector_closes_a_turn_and_it_is_answered() -> None:
    world = World(SERVER_VAD)
    result = speak(world, 1, 500)
    assert kinds(result) == ["speech_stopped", "commit", "input_transcript", "response_started"]
    assert world.history() == [("user", "hello")]


def test_noise_is_committed_and_not_answered() -> None:
    world = World(SERVER_VAD)
    assert kinds(speak(world, 1, 500, "  ")) == ["speech_stopped", "commit", "input_transcript"]
    assert world.events(e.Commit)[0].speech is False


def test_create_response_false_only_commits() -> None:
    world = World(attrs.evolve(SERVER_VAD, turn_detection=TurnDetection(create_response=False)))
    assert "response_started" not in kinds(speak(world, 1, 500))


def test_prefix_padding_reaches_back_but_not_into_the_last_turn() -> None:
    world = World(SERVER_VAD)
    speak(world, 1, 500)
    world.say(1_000)
    world.do(c.SpeechHeard(2, 600))
    assert world.events(e.SpeechStarted)[-1].start_ms == 500


def test_the_detector_is_not_heard_when_it_is_off() -> None:
    world = World()
    assert world.do(c.SpeechHeard(1, 0)).records == ()


def test_a_segment_whose_end_was_lost_does_not_leave_the_session_deaf() -> None:
    """The client clears its input while the ear's words are on their way: the ear never ends that segment."""
    world = World(SERVER_VAD)
    world.do(c.ClearInput())
    world.do(c.SpeechHeard(1, 0))
    assert world.do(c.SpeechHeard(1, 0)).records == ()
    assert kinds(speak(world, 2, 500))[-1] == "response_started"
    assert [stopped.segment for stopped in world.events(e.SpeechStopped)] == [1, 2]


def test_speech_that_a_pause_falls_into_is_still_a_turn() -> None:
    world = World(SERVER_VAD)
    world.say(500)
    world.do(c.SpeechHeard(1, 0))
    world.do(c.Pause())
    world.do(c.SpeechFinished(1, 0, 500, "hello"))
    assert world.state.active is None
    assert kinds(world.do(c.Unpause())) == ["unpaused", "response_started"]


# -- speech over an answer --------------------------------------------------------------------------------------------


def talking(config: object = SERVER_VAD) -> World:
    """A world in which the assistant speaks: two seconds are made, one was handed over half a second ago."""
    world = World(config)  # type: ignore[arg-type]
    speak(world, 1, 300)
    world.make(20)
    world.deliver(frames=len(world.records) - 10 - world.place)
    world.wait(500)
    return world


def decision(world: World) -> tuple[str, str]:
    decided = world.events(e.OverlapDecided)[-1]
    return decided.action, decided.reason


@pytest.mark.parametrize(
    ("ms", "text", "action", "reason"),
    [
        (400, "mm-hmm", "listen", "short_ack_transcript"),
        (400, "Yeah, okay.", "listen", "short_ack_transcript"),
        (400, "stop", "barge_in", "overlap_speech"),
        (1_100, "oh i see", "listen", "short_ack_transcript"),
        (700, None, "listen", "short_ack"),
        (701, None, "barge_in", "overlap_speech"),
        (900, "", "drop", "silence_or_noise"),
    ],
)
def test_short_speech_over_an_answer_is_judged_at_its_end(ms: int, text: str | None, action: str, reason: str) -> None:
    world = talking()
    epoch = world.state.epoch
    result = speak(world, 2, ms, text)
    assert decision(world) == (action, reason)
    assert world.state.epoch == epoch + (action == "barge_in")
    assert ("commit" in kinds(result)) == (action == "barge_in")


def test_long_speech_cuts_before_it_ends() -> None:
    world = talking()
    world.do(c.SpeechHeard(2, 300))
    assert world.do(c.SpeechContinues(2, 1_199)).records == ()
    result = world.do(c.SpeechContinues(2, 1_200))
    assert decision(world) == ("barge_in", "long_overlap_speech")
    assert kinds(result)[-1] == "lane_opened"
    assert world.events(e.EpochBump)[0].reason == "turn_detected"
    assert world.do(c.SpeechContinues(2, 1_300)).records == ()
    finished = world.do(c.SpeechFinished(2, 300, 1_700, "no, wait"))
    assert kinds(finished) == ["speech_stopped", "commit", "input_transcript", "response_started"]


def test_speech_that_outlives_the_answer_is_an_ordinary_turn() -> None:
    world = talking()
    world.do(c.SpeechHeard(2, 300))
    world.finish()
    world.deliver()
    world.wait(5_000)
    epoch = world.state.epoch
    world.do(c.SpeechContinues(2, 400))
    assert decision(world) == ("barge_in", "answer_over")
    assert world.state.epoch == epoch
    assert "commit" in kinds(world.do(c.SpeechFinished(2, 300, 700, "mm-hmm")))


def test_a_remark_that_outlives_the_answer_is_still_no_turn() -> None:
    world = talking()
    world.do(c.SpeechHeard(2, 300))
    world.finish()
    world.deliver()
    world.wait(5_000)
    world.do(c.SpeechFinished(2, 300, 600, "mm-hmm"))
    assert decision(world) == ("listen", "short_ack_transcript")


def test_a_client_may_cut_by_its_own_judgement() -> None:
    pressed = World()
    pressed.ask()
    pressed.make(5)
    for world in (talking(), pressed):
        world.do(c.SpeechHeard(2, 300))  # not heard where there is no detector
        result = world.do(c.JudgeOverlap("barge_in", "client_force_barge_in"))
        assert decision(world) == ("barge_in", "client_force_barge_in")
        assert kinds(result)[0] == "overlap_decided"
        (bump,) = world.events(e.EpochBump)
        assert (bump.reason, bump.disposition) == ("barge_in", "cut")
        assert world.do(c.JudgeOverlap("barge_in", "client_force_barge_in")).records == (), "nothing is left to cut"


def test_a_client_may_let_the_answer_go_on_and_the_turn_wait() -> None:
    world = talking()
    epoch, first = world.state.epoch, world.active
    world.do(c.SpeechHeard(2, 300))
    world.do(c.JudgeOverlap("listen", "client_force_listen"))
    assert decision(world) == ("listen", "client_force_listen")
    assert world.do(c.SpeechContinues(2, 5_000)).records == ()
    assert "commit" in kinds(world.do(c.SpeechFinished(2, 300, 5_300, "and another thing")))
    assert (world.state.epoch, world.active) == (epoch, first)
    world.finish()
    assert world.active.answers == world.events(e.Commit)[-1].item_id


def test_a_client_may_drop_what_is_said_over_an_answer() -> None:
    world = talking()
    epoch = world.state.epoch
    world.do(c.SpeechHeard(2, 300))
    assert kinds(world.do(c.JudgeOverlap("drop", "client_overlap_action"))) == ["overlap_decided", "speech_stopped"]
    assert world.do(c.SpeechContinues(2, 5_000)).records == ()
    assert world.do(c.SpeechFinished(2, 300, 5_300, "a neighbour's dog")).records == ()
    assert world.state.epoch == epoch


def test_where_nothing_is_said_over_an_answer_a_client_judges_nothing() -> None:
    silent, over = talking(), World(SERVER_VAD)
    for action in ("listen", "drop"):
        assert silent.do(c.JudgeOverlap(action, "client_overlap_action")).records == ()
    assert over.do(c.JudgeOverlap("barge_in", "client_overlap_action")).records == ()
    assert over.do(c.JudgeOverlap("sing", "client_overlap_action")).refusal is not None


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (attrs.evolve(SERVER_VAD, overlap_policy="listen_only"), "policy_listen_only"),
        (attrs.evolve(SERVER_VAD, turn_detection=TurnDetection(interrupt_response=False)), "interrupt_response_off"),
    ],
)
def test_where_nothing_may_interrupt_the_turn_waits(config: object, why: str) -> None:
    world = talking(config)
    epoch, first = world.state.epoch, world.active
    world.do(c.SpeechHeard(2, 300))
    assert decision(world) == ("listen", why)
    world.do(c.SpeechContinues(2, 3_000))
    world.do(c.SpeechFinished(2, 300, 3_300, "and another thing"))
    assert (world.state.epoch, world.active) == (epoch, first)
    world.finish()
    assert world.active.answers == world.events(e.Commit)[-1].item_id


def test_an_answer_that_has_played_out_is_not_interrupted() -> None:
    world = talking()
    world.finish()
    world.deliver()
    world.wait(20 * UNIT_MS)
    speak(world, 2, 2_000)
    assert world.events(e.OverlapDecided) == []


def test_words_of_an_older_segment_decide_nothing() -> None:
    world = talking()
    world.do(c.SpeechHeard(3, 300))
    assert world.do(c.SpeechContinues(2, 5_000)).records == ()
    assert world.do(c.SpeechFinished(2, 0, 5_000, "x")).records == ()


@pytest.mark.parametrize("text", ["uh-huh", "Mm-hmm.", "OK", "right, right", "I see", "makes sense"])
def test_short_acknowledgements(text: str) -> None:
    assert is_short_ack(text)


@pytest.mark.parametrize("text", ["", "...", "no", "okay but why", "yes yes yes yes yes", "right now", "what"])
def test_what_is_no_short_acknowledgement(text: str) -> None:
    assert not is_short_ack(text)


def test_the_rate_of_the_world_is_the_configurations() -> None:
    assert SERVER_VAD.input_format.rate == RATE


@pytest.mark.parametrize(("rms", "speech"), [(0.0, False), (0.0029, False), (0.003, True), (0.4, True), (None, True)])
def test_loudness_decides_where_the_client_does_not_say(rms: float | None, speech: bool) -> None:
    world = World()
    world.do(c.AppendAudio("a", 960, 480, rms=rms))
    world.do(c.CommitInput(True))
    (commit,) = world.events(e.Commit)
    assert (commit.speech, commit.create_response) == (speech, speech)


def test_the_clients_word_counts_more_than_loudness() -> None:
    world = World()
    world.do(c.AppendAudio("a", 960, 480, is_speech=True, rms=0.0))
    assert world.events(e.Append)[0].is_speech is True
