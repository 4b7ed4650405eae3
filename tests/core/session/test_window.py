"""The context window: marks, units, what is kept of dropped turns, and a model that cannot hold a conversation."""

from __future__ import annotations

import attrs
import pytest

from core.session import commands as c
from core.session import events as e
from core.session.config import INPUT_KINDS
from core.session.history import PREVIOUS_HEADING, previous_text
from core.session.state import Phase
from core.session.window import high_low, text_tokens
from tests.core.session.world import CLIENT_VAD, World

NARROW = attrs.evolve(
    CLIENT_VAD, window_mode="basic", window_high_tokens=90, window_low_tokens=60, window_previous_tokens=20
)


def talk(config: object = NARROW, turns: int = 12) -> World:
    """A conversation of ``turns`` questions and heard answers; the world checks every lane that is told."""
    world = World(config)  # type: ignore[arg-type]
    for _ in range(turns):
        world.answered(3)
    return world


def test_the_window_slides_rarely_and_far() -> None:
    world = talk()
    slid = world.events(e.WindowSlid)
    assert len(slid) > 1
    for event in slid:
        assert event.tokens_before > 90
        assert event.tokens_after <= 60
        assert event.dropped_units >= 1
    assert len(slid) < 12 / 2


def test_whole_units_leave_the_oldest_first() -> None:
    world = talk()
    roles = [role for role, _ in world.history()]
    assert roles[0] == "user"
    assert list(world.state.window.items) == list(world.state.items)[-len(world.state.window.items) :]
    assert len(world.state.items) == 24  # what has left the window can still be retrieved


def test_mode_context_keeps_the_newest_text_of_what_left() -> None:
    world = talk(attrs.evolve(NARROW, window_mode="context"))
    role, text = world.history()[0]
    assert role == "system"
    assert text is not None
    assert text.startswith(PREVIOUS_HEADING)
    assert "assistant:  word word word" in text
    assert len(text) <= 20 * 4


def test_of_an_answer_that_left_only_what_was_heard_is_kept() -> None:
    world = World(attrs.evolve(NARROW, window_mode="context", unacked="heard_nothing", window_previous_tokens=30))
    first = world.answered(3)
    world.ack(300, first.response_id)
    for _ in range(6):
        world.answered(3)
        world.ack(300)
    assert world.events(e.WindowSlid)
    last = world.state.window.previous[-1]
    assert previous_text(world.state, [last]) == PREVIOUS_HEADING + "\nassistant:  word word word"
    world.do(c.AckPlayback(100, item_id=last, truncate=True))
    assert previous_text(world.state, [last]) == PREVIOUS_HEADING + "\nassistant:  word"


def test_a_dropped_turn_that_is_deleted_is_told_no_more() -> None:
    world = talk(attrs.evolve(NARROW, window_mode="context"))
    for item_id in tuple(world.state.window.previous):
        if item_id in world.state.items:
            world.do(c.DeleteItem(item_id))
    assert all(role != "system" for role, _ in world.history())


def test_the_marks_leave_room_for_the_answer() -> None:
    world = World()
    assert high_low(world.state) == (6_000, 4_500)  # three quarters of 8,000, and of that
    world.do(c.GainRuntime(2_048))
    assert high_low(world.state) == (1_536, 1_152)
    world.do(c.GainRuntime(0))
    assert high_low(world.state) == (8_000, 6_000)


def test_what_the_runtime_counts_is_learned() -> None:
    world = World()
    world.ask()
    told = world.events(e.ResponseStarted)[0].prompt_tokens
    world.make(2)
    world.finish(usage=(told + 150, 9))
    assert world.state.window.excess_tokens == 150
    world.ask()
    assert world.events(e.ResponseStarted)[1].prompt_tokens > told + 150


@pytest.mark.parametrize("mode", ["off", "basic"])
def test_a_conversation_that_the_model_cannot_hold_ends_the_session(mode: str) -> None:
    world = World(attrs.evolve(NARROW, window_mode=mode))
    world.do(c.GainRuntime(100))
    for number in range(12):
        world.do(c.CreateItem("user", "word " * 8, "{}", f"item-{number}"))
    result = world.do(c.CreateResponse())
    assert world.state.phase is Phase.CLOSED
    assert world.state.close_reason == "lane_full"
    assert result.refusal is None


def test_a_turn_that_the_model_cannot_hold_ends_the_session_also_when_others_could_leave() -> None:
    """Found by the hunt: the older unit left, and an answer was asked for to the newer one, which was too long alone."""
    world = World(runtime=False)
    world.do(c.GainRuntime(200, INPUT_KINDS))
    world.do(c.CreateItem("system", "hello", "{}"))
    world.do(c.CreateItem("user", "hello", "{}", images=(world.image(1_000), world.image(10))))
    world.do(c.CreateResponse())
    assert world.state.close_reason == "lane_full"
    assert not world.events(e.ResponseStarted)


def test_without_a_window_a_long_talk_fills_the_lane() -> None:
    world = World(attrs.evolve(NARROW, window_mode="off"))
    world.do(c.GainRuntime(100))
    for number in range(12):
        world.do(c.CreateItem("user" if number % 2 else "assistant", "word " * 8, "{}", f"item-{number}"))
    world.ask()
    assert world.state.close_reason == "lane_full"
    assert not world.events(e.WindowSlid)


def test_an_engine_that_says_its_lane_is_full_ends_the_session() -> None:
    world = World()
    world.ask()
    world.make(2)
    world.finish("failed", "lane_full")
    assert world.state.close_reason == "lane_full"


def test_an_item_put_after_one_that_left_comes_first() -> None:
    world = talk()
    world.do(c.CreateItem("system", "be brief", "{}", "note", next(iter(world.state.items))))
    assert world.history()[0] == ("system", "be brief")


def test_tokens_are_counted_in_bytes() -> None:
    assert text_tokens("a" * 40) == 18
    assert text_tokens("ä" * 40) == 28


def test_what_is_kept_of_turns_that_left_has_no_gap() -> None:
    """A turn that has no room ends it: an older one that would fit is not told as if it stood next to the newer."""
    world = World(attrs.evolve(CLIENT_VAD, window_previous_tokens=30))
    for number, text in enumerate(("old", "far too long " * 20, "new")):
        world.do(c.CreateItem("user", text, "{}", f"item-{number}"))
    assert previous_text(world.state, ["item-0", "item-1", "item-2"]) == PREVIOUS_HEADING + "\nuser: new"


def test_what_a_runtimes_prompt_has_beyond_ours_is_learned_up_and_down() -> None:
    world = World()
    world.ask()
    world.make(1)
    estimate = world.active.prompt_tokens
    world.finish(usage=(estimate + 500, 1))
    assert world.state.window.excess_tokens == 500
    for beyond in (200, 200, 0):
        world.ask()
        world.make(1)
        own = world.active.prompt_tokens - world.state.window.excess_tokens
        world.finish(usage=(own + beyond, 1))
        assert world.state.window.excess_tokens == beyond


def test_what_was_learned_of_a_prompt_ends_no_session() -> None:
    """The model holds 100 tokens and said once that its prompt had 95 more than ours: the next turn is still tried."""
    world = World()
    world.do(c.GainRuntime(100, INPUT_KINDS))
    world.ask()
    world.finish(usage=(world.active.prompt_tokens + 95, 1))
    world.ask()
    assert world.state.phase is Phase.OPEN
    assert world.state.active is not None
