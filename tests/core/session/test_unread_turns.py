"""Committed turns whose transcript is not there: what a new worker is fed of them."""

from __future__ import annotations

import attrs

from core.session import commands as c
from core.session import effects as fx
from core.session import events as e
from core.session.config import INPUT_KINDS, AudioFormat, TurnDetection
from core.session.machine import Step
from core.session.state import UNREAD_BYTES_MAX, UNREAD_TURNS_MAX
from tests.core.session.world import RATE, SERVER_VAD, World

NARROW = AudioFormat("pcm16", 16_000)


def new_worker(world: World) -> Step:
    world.do(c.LoseRuntime("killed"))
    return world.do(c.GainRuntime(0, INPUT_KINDS))


def told(step: Step) -> list[object]:
    """What the ear was told, in short: where each chunk begins, each turn, and each change of the detector or format."""
    words: list[object] = []
    for effect in step.effects:
        match effect:
            case fx.OpenSession() | fx.ConfigureSession():
                words.append((effect.input_format.rate, effect.turn_detection is not None))
            case fx.FeedAudio():
                words.append(effect.start_ms)
            case fx.CommitTurn():
                words.append(effect.item_id)
    return words


def test_turns_come_before_what_is_pending_and_the_detector_between() -> None:
    world = World(SERVER_VAD)
    world.ask(200)
    (first,) = world.state.input.unread
    world.say(300)
    assert told(new_worker(world)) == [(RATE, False), 0, first, (RATE, True), 200]


def test_a_turn_is_fed_to_every_new_worker_until_its_transcript_comes() -> None:
    world = World()
    world.ask(200)
    (asked,) = world.state.input.unread
    for _ in range(2):
        assert told(new_worker(world)) == [(RATE, False), 0, asked]
    world.do(c.TurnHeard(asked, ""))
    assert told(new_worker(world)) == [(RATE, False)]


def late_end(world: World) -> str:
    """A turn that ended at 250 ms, in the middle of the second chunk, as the detector says at 300 ms. Its item."""
    world.say(100)
    world.do(c.SpeechHeard(1, 0))
    world.say(200)
    world.do(c.SpeechFinished(1, 0, 250, None))
    (turn,) = world.state.input.unread
    return turn


def test_a_chunk_in_which_a_turn_ends_is_fed_before_that_is_closed_and_no_second_time() -> None:
    world = World(SERVER_VAD)
    turn = late_end(world)
    world.say(100)
    assert told(new_worker(world)) == [(RATE, False), 0, 100, turn, (RATE, True), 300]


def test_what_is_left_of_a_turn_that_was_read_is_not_found_again() -> None:
    world = World(SERVER_VAD)
    world.do(c.TurnHeard(late_end(world), "a question"))
    assert told(new_worker(world)) == [(RATE, False), 100, (RATE, True)]
    world.say(100)
    assert told(new_worker(world)) == [(RATE, False), 100, (RATE, True), 300]


def test_what_is_said_while_a_turn_is_being_read_is_the_next_ones() -> None:
    world = World(attrs.evolve(SERVER_VAD, turn_detection=TurnDetection(create_response=False)))
    first = late_end(world)
    world.do(c.SpeechHeard(2, 290))
    (_, second) = world.events(e.SpeechStarted)
    assert second.start_ms == 250, "the padding reaches back to the first turn's end"
    world.say(100)
    world.do(c.SpeechFinished(2, 290, 400, None))
    turns = world.state.input.unread
    assert list(turns) == [first, second.item_id]
    assert [[chunk.start_ms for chunk in turn.chunks] for turn in turns.values()] == [[0, 100], [100, 300]]
    assert told(new_worker(world)) == [(RATE, False), 0, 100, first, 300, second.item_id, (RATE, True)]


def test_an_ear_that_is_ahead_of_a_silent_client_closes_the_turn_before_what_comes_then() -> None:
    world = World(SERVER_VAD)
    world.say(200)
    world.do(c.SpeechHeard(1, 0))
    world.do(c.SpeechFinished(1, 0, 500, None))
    (turn,) = world.state.input.unread
    world.say(100)
    assert told(new_worker(world)) == [(RATE, False), 0, turn, (RATE, True), 200]


def test_a_turn_that_was_deleted_is_not_read() -> None:
    world = World()
    world.ask(200)
    world.do(c.DeleteItem(*world.state.input.unread))
    assert told(new_worker(world)) == [(RATE, False)]


def test_audio_is_fed_again_in_the_format_that_it_was_sent_in() -> None:
    world = World()
    world.ask(200)
    (asked,) = world.state.input.unread
    world.do(c.UpdateConfig(attrs.evolve(world.state.config, input_format=NARROW)))
    world.do(c.AppendAudio("narrow", 3_200, 1_600))
    assert told(new_worker(world)) == [(RATE, False), 0, asked, (16_000, False), 200]
    world.do(c.ClearInput())
    assert told(new_worker(world)) == [(RATE, False), 0, asked, (16_000, False)]


def test_of_too_many_turns_the_oldest_are_let_go() -> None:
    world = World()
    for _ in range(UNREAD_TURNS_MAX + 2):
        world.say(100)
        world.do(c.CommitInput(create_response=False))
    starts_ms = [word for word in told(new_worker(world)) if isinstance(word, int)]
    assert starts_ms == list(range(200, 200 + 100 * UNREAD_TURNS_MAX, 100))


def test_of_too_much_audio_the_newest_turn_is_kept_whole() -> None:
    world = World()
    ms = UNREAD_BYTES_MAX // 2 * 1000 // RATE + 1_000
    for _ in range(2):
        world.say(ms)
        world.do(c.CommitInput(create_response=False))
    assert [word for word in told(new_worker(world)) if isinstance(word, int)] == [ms]
