"""What the records say beside their kinds: which field a refusal names, how long was spoken, how much was sent. Whoever reads
a log, or is told by the wire, goes by these."""

from __future__ import annotations

import attrs
import pytest

from core.session import commands as c
from core.session import events as e
from core.session.config import TurnDetection
from core.session.state import IMAGES_PENDING_MAX, PENDING_CHUNKS_MAX
from tests.core.session.reading import kinds
from tests.core.session.world import CLIENT_VAD, SERVER_VAD, UNIT_MS, World

# -- refusals -------------------------------------------------------------------------------------------------------


def refused_field(world: World, command: c.Command) -> str | None:
    refusal = world.do(command).refusal
    assert refusal is not None
    return refusal.param


def both(world: World, size_bytes: int = 1_000) -> c.AppendAudio:
    """A sound with a picture."""
    return c.AppendAudio("sound", 960, 480, "c-1", images=(world.image(size_bytes),))


def test_an_input_that_the_model_does_not_take_is_named() -> None:
    world = World(runtime=False)
    world.do(c.GainRuntime(8_000, ("text", "image")))
    assert refused_field(world, c.AppendAudio("sound", 960, 480)) == "audio"
    assert refused_field(world, both(world)) == "audio"
    deaf = World(runtime=False)
    deaf.do(c.GainRuntime(8_000, ("text", "audio")))
    assert refused_field(deaf, c.AppendAudio("", 0, 0, images=(deaf.image(),))) == "video_frames"
    assert refused_field(deaf, both(deaf)) == "video_frames"


def test_what_is_too_large_is_named() -> None:
    world = World(attrs.evolve(CLIENT_VAD, max_pending_input_bytes=10_000))
    assert refused_field(world, c.AppendAudio("", 0, 0, images=(world.image(10_001),))) == "video_frames"
    assert refused_field(world, both(world, 10_000)) == "audio"
    assert world.do(c.AppendAudio("", 0, 0, images=(world.image(10_000),))).refusal is None


def test_so_many_pictures_may_wait_and_no_more() -> None:
    world = World()
    for _ in range(IMAGES_PENDING_MAX):
        assert world.show("image", 10).refusal is None
    assert refused_field(world, c.AppendAudio("", 0, 0, images=(world.image(10),))) == "video_frames"
    assert refused_field(world, both(world, 10)) == "audio"
    assert world.say().refusal is None


def test_so_many_sounds_may_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.session.decisions.input.PENDING_CHUNKS_MAX", 2)
    assert PENDING_CHUNKS_MAX > 2
    world = World()
    assert [world.do(c.AppendAudio("d", 2, 1)).refusal is None for _ in range(3)] == [True, True, False]
    assert refused_field(world, c.AppendAudio("d", 2, 1)) == "audio"


# -- what comes in ----------------------------------------------------------------------------------------------------


def test_a_sound_and_its_pictures_are_all_recorded_and_the_last_has_the_clients_name_for_them() -> None:
    world = World()
    pictures = tuple(world.image(size_bytes) for size_bytes in (10, 20))
    world.do(c.AppendAudio("sound", 960, 480, "c-1", images=pictures))
    world.do(c.AppendAudio("", 0, 0, "c-2", images=pictures))
    appended = [(made.kind, made.size_bytes, made.event_id) for made in world.events(e.Append)]
    assert appended == [
        ("image", 10, None),
        ("image", 20, None),
        ("audio", 960, "c-1"),
        ("image", 10, None),
        ("image", 20, "c-2"),
    ]
    shown = [(made.audio_ms, made.rate, made.samples) for made in world.events(e.Append) if made.kind == "image"]
    assert set(shown) == {(0, 0, 0)}


# -- speech -----------------------------------------------------------------------------------------------------------


def talking(config: object = SERVER_VAD) -> World:
    """The assistant speaks: a second was made, 200 ms of it handed over just now."""
    world = World(config)  # type: ignore[arg-type]
    world.ask()
    world.make(5)
    world.deliver(frames=len(world.records) - 4 - world.place)
    return world


def test_the_preroll_reaches_neither_before_the_beginning_nor_into_a_turn_that_was_closed() -> None:
    world = World(SERVER_VAD)
    world.do(c.SpeechHeard(1, 100))
    assert world.events(e.SpeechStarted)[-1].start_ms == 0
    world = World(SERVER_VAD)
    world.say(500)
    world.do(c.CommitInput(False))
    world.do(c.SpeechHeard(1, 300))
    assert world.events(e.SpeechStarted)[-1].start_ms == 500
    world.do(c.SpeechFinished(1, 300, 450, "so"))  # all of it lies in the turn that the client closed
    turn = world.events(e.Commit)[-1]
    assert (turn.start_ms, turn.end_ms) == (500, 500)


def test_speech_over_an_answer_that_nothing_may_cut_is_told_as_it_is() -> None:
    world = talking(attrs.evolve(SERVER_VAD, turn_detection=TurnDetection(interrupt_response=False)))
    world.do(c.SpeechHeard(2, 300))
    step = world.do(c.SpeechHeard(3, 700))  # the end of the other never came
    assert kinds(step) == ["speech_stopped", "speech_started", "overlap_decided"]
    begun, decided = world.events(e.SpeechStarted)[-1], world.events(e.OverlapDecided)[-1]
    assert (begun.segment, begun.overlap) == (3, False)
    assert (decided.segment, decided.speech_ms, decided.item_id) == (3, 0, begun.item_id)


def test_a_judgement_says_how_long_was_spoken() -> None:
    world = talking()
    world.do(c.SpeechHeard(2, 500))
    begun_ms = world.events(e.SpeechStarted)[-1].start_ms
    world.say(900)
    world.do(c.JudgeOverlap("listen", "client_force_listen"))
    assert world.events(e.OverlapDecided)[-1].speech_ms == world.state.input.now_ms - begun_ms > 0
    world = talking()
    world.do(c.SpeechHeard(2, 500))
    world.do(c.SpeechFinished(2, 500, 850, "mm-hmm"))
    assert world.events(e.OverlapDecided)[-1].speech_ms == 350


# -- how much was sent ------------------------------------------------------------------------------------------------


def test_a_cut_says_how_much_was_sent_and_of_which_answer() -> None:
    world = talking()
    world.cancel()
    (bump,) = world.events(e.EpochBump)
    assert (bump.response_id, bump.sent_ms) == (world.last.response_id, UNIT_MS)
    assert [(one.response_id, one.invalidated_ms) for one in world.events(e.OutputInvalidated)] == [
        (world.last.response_id, 4 * UNIT_MS)
    ]


def test_a_cut_of_an_answer_that_was_wholly_sent_invalidates_nothing() -> None:
    world = World()
    world.answered(heard=False)
    world.cancel("barge_in")
    (bump,) = world.events(e.EpochBump)
    assert (bump.response_id, bump.sent_ms) == (world.last.response_id, 5 * UNIT_MS)
    assert world.events(e.OutputInvalidated) == []


def test_a_drain_says_how_much_was_sent_of_the_answer_that_it_ends() -> None:
    world = talking()
    epoch = world.state.epoch
    world.do(c.LoseRuntime("killed"))
    assert world.do(c.LoseRuntime("killed")).records == ()
    (bump,) = world.events(e.EpochBump)
    assert (bump.epoch, bump.disposition) == (epoch + 1, "drain")
    assert (bump.response_id, bump.sent_ms) == (world.last.response_id, UNIT_MS)
    idle = World()
    idle.do(c.LoseRuntime("killed"))
    (bump,) = idle.events(e.EpochBump)
    assert (bump.response_id, bump.sent_ms) == (None, 0)


def test_a_connection_that_ends_says_how_much_was_sent() -> None:
    world = talking()
    world.do(c.Detach(world.state.attachment.generation, "connection_lost"))
    (gone,) = world.events(e.Detached)
    assert (gone.response_id, gone.sent_ms) == (world.last.response_id, UNIT_MS)
    for silent in (World(), World()):
        silent.do(c.Detach(silent.state.attachment.generation, "connection_lost"))
        (gone,) = silent.events(e.Detached)
        assert (gone.response_id, gone.sent_ms) == (None, 0)
    unsent = World()
    unsent.ask()
    unsent.make(2)
    unsent.do(c.Detach(unsent.state.attachment.generation, "connection_lost"))
    (gone,) = unsent.events(e.Detached)
    assert (gone.response_id, gone.sent_ms) == (None, 0)


# -- what is so already -----------------------------------------------------------------------------------------------


def test_what_is_so_already_is_not_recorded_again() -> None:
    world = World()
    assert kinds(world.do(c.Pause())) == ["paused"]
    assert world.do(c.Pause()).records == ()
    assert kinds(world.do(c.Unpause())) == ["unpaused"]
    assert world.do(c.Unpause()).records == ()
    assert world.do(c.FireDeadline()).records == (), "nothing is due"


def test_a_heartbeat_is_recorded_once_a_good_part_of_the_idle_time_is_over() -> None:
    world = World(attrs.evolve(CLIENT_VAD, idle_timeout_ms=40_000))
    world.wait(10_000)
    assert world.do(c.Touch()).records == ()
    world.wait(1)
    assert kinds(world.do(c.Touch())) == ["touched"]
