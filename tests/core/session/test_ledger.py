"""The playback ledger at its edges: when an answer is over for a cut, what an ack may claim, what out of band means."""

from __future__ import annotations

import attrs
import pytest

from core.session import commands as c
from core.session import events as e
from core.session.history import item_text
from core.session.ledger import PLAYED_OUT_MS, speaking
from core.session.overlap import is_short_ack
from core.session.parts import amount_needed
from core.session.sanity import AHEAD_MS_MAX
from core.session.state import IMAGES_A_TURN_MAX, IMAGES_BYTES_MAX
from tests.core.session.reading import code, said
from tests.core.session.world import CLIENT_VAD, SERVER_VAD, World


def test_time_goes_on_after_an_ack() -> None:
    """A client that acked and says nothing more goes on playing: by then nobody can cut what it has played out."""
    for wait_ms, refused in ((300, None), (800, "response_not_active")):
        world = World()
        world.answered(10, heard=False)
        world.wait(200)
        world.ack(200)
        world.wait(wait_ms)
        assert code(world.cancel()) == refused


@pytest.mark.parametrize(("left_ms", "refused"), [(PLAYED_OUT_MS, "response_not_active"), (PLAYED_OUT_MS + 1, None)])
def test_an_answer_of_which_next_to_nothing_is_left_is_over(left_ms: int, refused: str | None) -> None:
    world = World()
    world.answered(10, heard=False)
    world.wait(1_000 - left_ms)
    assert code(world.cancel()) == refused


def test_what_was_heard_is_over_whatever_a_later_clock_says() -> None:
    """The next turn took it for heard; a server that sends the end of it again times that anew."""
    world = World()
    first = world.answered()
    world.ask()
    world.finish()
    assert first.committed_ms == 500
    world.sent = {first.response_id: c.Sent(500, world.clock_ns + 10_000_000_000)}
    assert code(world.cancel()) == "response_not_active"


def test_an_answer_out_of_band_is_spoken_over_by_nobody() -> None:
    world = World(SERVER_VAD)
    world.do(c.CreateResponse(out_of_band=True))
    world.make(3)
    world.deliver()
    assert speaking(world.state, world.cursor(), world.clock_ns) is None
    world.say()
    world.do(c.SpeechHeard(1, 100))
    (started,) = world.events(e.SpeechStarted)
    assert not started.overlap


def test_an_answer_out_of_band_can_be_cancelled_by_its_name_while_another_plays() -> None:
    world = World()
    world.answered(10, heard=False)
    world.do(c.CreateResponse(out_of_band=True))
    apart = world.active.response_id
    world.make(1)
    assert code(world.cancel(response_id=apart)) is None
    assert world.events(e.ResponseEnded)[-1] == e.ResponseEnded(apart, "cancelled", "client_cancelled")


def test_a_truncate_says_nothing_of_what_was_played() -> None:
    world = World()
    world.answered()
    world.ack(400)
    world.truncate(100)
    assert (world.last.played_ms, world.last.committed_ms, world.last.limit_ms) == (400, 100, 100)


def test_a_truncate_below_the_beginning_is_one_at_it() -> None:
    world = World()
    world.answered()
    world.truncate(-5)
    assert (world.last.committed_ms, world.last.limit_ms) == (0, 0)
    assert said(world) == []


def test_of_a_truncated_answer_that_is_still_made_the_item_shows_what_was_heard() -> None:
    world = World()
    world.ask()
    world.make(4)
    world.deliver()
    world.truncate(200)
    world.make(2)
    assert item_text(world.state, world.state.items[world.active.item_id]) == " word" * 2


def test_pending_input_may_be_as_much_as_is_allowed_and_not_a_byte_more() -> None:
    world = World(attrs.evolve(CLIENT_VAD, max_pending_input_bytes=9_600))
    assert code(world.say(200)) is None
    assert code(world.do(c.AppendAudio("one", 2, 1))) == "input_too_large"


def test_words_that_end_when_the_answer_is_over_cut_nothing() -> None:
    world = World(SERVER_VAD)
    world.do(c.CreateResponse())
    world.make(5)
    world.finish()
    world.deliver()
    world.wait(200)
    world.say()
    world.do(c.SpeechHeard(1, 100))
    world.wait(2_000)
    epoch = world.state.epoch
    world.do(c.SpeechFinished(1, 100, 900, "stop, what is that"))
    (decided,) = world.events(e.OverlapDecided)
    assert (decided.action, decided.reason) == ("barge_in", "answer_over")
    assert world.state.epoch == epoch
    assert len(world.events(e.Commit)) == 1


def test_what_was_cleared_was_not_said() -> None:
    """Neither the open segment nor the speech that was in it belongs to what comes next."""
    world = World(SERVER_VAD)
    world.say()
    world.do(c.SpeechHeard(1, 100))
    world.do(c.ClearInput())
    world.do(c.SpeechFinished(1, 100, 200, "hello"))
    assert not world.events(e.Commit)
    silent = World()
    silent.say(is_speech=True)
    silent.do(c.ClearInput())
    silent.say(is_speech=False)
    silent.do(c.CommitInput(True))
    assert [commit.speech for commit in silent.events(e.Commit)] == [False]


def test_without_a_barge_in_an_empty_context_is_a_whole_one() -> None:
    world = World(attrs.evolve(CLIENT_VAD, context_on_barge_in="empty"))
    world.answered()
    world.ask()
    assert [role for role, _ in world.history()] == ["user", "assistant", "user"]


@pytest.mark.parametrize("text", ["a-ha", "O-kay.", "hm-m"])
def test_a_hyphen_makes_one_word_of_two(text: str) -> None:
    assert is_short_ack(text)


def test_of_an_answer_with_a_call_nothing_more_is_heard_once_it_was_cut() -> None:
    """Its ledger is looked at for the call's sake; what still played was thrown away with the cut."""
    world = World()
    world.ask()
    world.make(8)
    world.call()
    world.deliver()
    world.wait(200)
    world.cancel("barge_in")
    assert said(world)[0] == " word" * 2
    world.wait(2_000)
    world.ask()
    assert said(world)[0] == " word" * 2


def test_a_detector_does_not_hear_hours_ahead_of_its_input() -> None:
    world = World(SERVER_VAD)
    world.say(200)
    world.do(c.SpeechHeard(1, 200 + AHEAD_MS_MAX + 1))
    assert not world.events(e.SpeechStarted)
    world.do(c.SpeechHeard(1, 200 + AHEAD_MS_MAX))
    assert len(world.events(e.SpeechStarted)) == 1


def test_of_too_many_images_a_turn_shows_the_newest() -> None:
    world = World()
    world.say()
    shown = [world.image(1_000 + number) for number in range(IMAGES_A_TURN_MAX + 2)]
    for image in shown:
        world.do(c.AppendAudio("", 0, 0, images=(image,)))
    world.do(c.CommitInput(True))
    (item,) = [item for item in world.state.items.values() if item.role == "user"]
    assert [image.digest for image in item.images] == [image.digest for image in shown[2:]]


def test_of_an_answer_out_of_band_nothing_is_assumed() -> None:
    world = World()
    world.do(c.CreateResponse(out_of_band=True))
    world.make(3)
    world.finish()
    world.deliver()
    world.wait(2_000)
    world.ask()
    assert not world.events(e.PlaybackAck)


def test_speech_that_ends_before_it_began_was_not_heard() -> None:
    world = World(SERVER_VAD)
    world.say(500)
    world.do(c.SpeechHeard(1, 300))
    world.do(c.SpeechFinished(1, 300, 299, "hello"))
    assert not world.events(e.SpeechStopped)


def test_an_item_shows_so_many_bytes_and_no_more() -> None:
    world = World()
    half = IMAGES_BYTES_MAX // 2
    assert code(world.do(c.CreateItem("user", "", "{}", "a", images=(world.image(half), world.image(half))))) is None
    result = world.do(c.CreateItem("user", "", "{}", "b", images=(world.image(half), world.image(half + 1))))
    assert code(result) == "input_too_large"
    assert "b" not in world.state.items


def test_what_a_new_worker_must_be_fed_are_bodies_and_typed_words_are_none() -> None:
    world = World()
    world.show("text", text="hello")
    assert amount_needed(world.state) == (0, 0)
    world.say(100)
    assert amount_needed(world.state) == (1, 4_800)
