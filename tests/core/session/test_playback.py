"""The playback ledger: acks, truncates, and what of an answer becomes history."""

from __future__ import annotations

from itertools import permutations

import attrs
import pytest

from core.session import commands as c
from core.session import effects as fx
from core.session import events as e
from core.session.config import UNACKED_POLICIES
from core.session.history import item_text
from core.session.state import RESPONSES_MAX
from tests.core.session.reading import NOTHING_ASSUMED, code, kinds, said
from tests.core.session.world import CLIENT_VAD, UNIT_MS, World

# -- acks -------------------------------------------------------------------------------------------------------------


def test_acks_are_clamped_to_what_was_sent_and_never_refused_for_it() -> None:
    world = World()
    world.ask()
    world.make(5)
    for played_ms, wanted in ((100, 0), (-5, 0), (10**12, 0)):
        assert code(world.ack(played_ms)) is None
        assert world.last.committed_ms == wanted
    world.deliver()
    world.ack(10**12)
    assert (world.last.played_ms, world.last.committed_ms) == (500, 500)


def test_acks_in_any_order_and_repeated_keep_the_most() -> None:
    world = World()
    world.answered(heard=False)
    for played_ms in (300, 100, 300, 200):
        world.ack(played_ms)
    assert (world.last.played_ms, world.last.committed_ms) == (300, 300)


def test_played_and_committed_may_differ() -> None:
    world = World()
    world.answered(heard=False)
    world.ack(400, committed_ms=200)
    assert (world.last.played_ms, world.last.committed_ms) == (400, 200)
    assert said(world) == [" word" * 2]
    world.ack(100, committed_ms=300)
    assert (world.last.played_ms, world.last.committed_ms) == (400, 300)


def test_an_ack_for_an_older_answer() -> None:
    world = World()
    first = world.answered(heard=False)
    world.ask()
    world.ack(200, first.response_id)
    assert (first.committed_ms, world.last.committed_ms) == (200, 0)


def test_a_late_ack_for_an_answer_that_was_cut() -> None:
    world = World(NOTHING_ASSUMED)
    world.ask()
    world.make(5)
    world.deliver()
    world.cancel("barge_in")
    assert said(world) == []
    assert code(world.ack(300)) is None
    assert said(world) == [" word" * 3]


def test_acks_of_what_nobody_knows() -> None:
    world = World()
    assert code(world.ack(100)) == "response_unknown"
    assert code(world.ack(100, "resp_none")) == "response_unknown"
    assert code(world.ack(100, item_id="item_none")) == "item_unknown"
    world.ask()
    user_item = world.events(e.Commit)[0].item_id
    assert code(world.ack(100, item_id=user_item, truncate=True)) == "item_not_audio"


def test_the_ledger_of_old_answers_is_let_go_and_their_text_stays() -> None:
    world = World()
    world.checking = False
    for _ in range(RESPONSES_MAX + 1):
        world.answered(2)
        world.ack(100)
    assert len(world.state.responses) == RESPONSES_MAX
    assert said(world)[0] == " word"


# -- truncate ---------------------------------------------------------------------------------------------------------


def test_truncate_is_for_good() -> None:
    world = World()
    world.answered()
    world.truncate(200)
    world.ack(500)
    assert (world.last.committed_ms, world.last.limit_ms) == (200, 200)
    world.truncate(400)
    assert world.last.limit_ms == 200
    world.truncate(0)
    assert said(world) == []


def test_truncate_takes_back_what_was_acked() -> None:
    world = World()
    world.answered()
    world.ack(500)
    world.truncate(100)
    assert said(world) == [" word"]


def test_truncate_in_mid_generation() -> None:
    world = World()
    world.ask()
    world.make(4)
    world.deliver()
    world.truncate(200)
    world.make(4)
    world.deliver()
    world.ack(800)
    world.finish()
    assert said(world) == [" word" * 2]


ORDERS = tuple(permutations(("truncate", "cancel", "end")))


@pytest.mark.parametrize("unacked", UNACKED_POLICIES)
@pytest.mark.parametrize("heard_ms", [0, 200, 10_000])
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_whichever_comes_first_of_truncate_cancel_and_end(order: tuple[str, ...], heard_ms: int, unacked: str) -> None:
    """The next lane, the turn after that, and whoever looks at the item, find the same heard words."""
    world = World(attrs.evolve(CLIENT_VAD, unacked=unacked))
    world.ask()
    response, epoch = world.active, world.state.epoch
    world.make(5)
    world.deliver()
    world.wait(400)
    for step in order:
        match step:
            case "truncate":
                world.truncate(heard_ms, response)
            case "cancel":
                world.cancel("barge_in")
            case "end":
                world.do(c.ModelDone(epoch, response.response_id))
    heard = " word" * min(heard_ms // UNIT_MS, 5)
    assert item_text(world.state, world.state.items[response.item_id]) == heard
    assert said(world) == ([heard] if heard else [])
    assert len(world.events(e.ResponseEnded)) == 1
    result = world.ask()
    (asked,) = [effect for effect in result.effects if isinstance(effect, fx.Respond)]
    assert [turn.text for turn in asked.history if turn.role == "assistant"] == ([heard] if heard else [])


def test_truncate_before_the_first_audio() -> None:
    world = World()
    world.ask()
    world.truncate(0)
    world.make(3)
    world.finish()
    world.deliver()
    world.wait(1_000)
    world.ask()
    assert said(world) == []


def test_what_a_lane_was_told_too_much_is_cut_back() -> None:
    """An answer without acks is assumed to be heard; a truncate that comes after the next lane was told corrects it."""
    world = World()
    world.ask()
    world.make(10)
    world.deliver()
    world.wait(800)
    world.cancel("barge_in")
    assert said(world) == [" word" * 8]
    result = world.truncate(300)
    assert kinds(result) == ["playback_ack", "lane_truncated"]
    assert result.records[-1].event == e.LaneTruncated(world.last.item_id, 15)
    (reopened,) = [effect for effect in result.effects if isinstance(effect, fx.OpenLane)]
    assert reopened.history[-1].text == " word" * 3


def test_a_truncate_while_an_answer_is_made_counts_for_the_turn_that_waits() -> None:
    world = World()
    first = world.answered(5)
    world.ask()
    world.make(2)
    world.ask()
    during = world.truncate(200, first)
    assert not any(isinstance(effect, fx.OpenLane) for effect in during.effects), "the answer that is made goes on"
    result = world.finish()
    (respond,) = [effect for effect in result.effects if isinstance(effect, fx.Respond)]
    assert next(turn.text for turn in respond.history if turn.role == "assistant") == " word word"


def test_many_truncates_while_an_answer_is_made_settle_in_one_step() -> None:
    """The next answer's end finds more lane parts to cut back than there are rounds to settle in."""
    world = World()
    told = [world.answered(3) for _ in range(12)]
    world.ask()
    for response in told:
        world.truncate(100, response)
    result = world.finish()
    assert kinds(result) == ["response_ended", *["lane_truncated"] * 12]


# -- what was heard ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("heard_ms", "words"), [(0, 0), (99, 0), (100, 1), (350, 3), (499, 4), (500, 5)])
def test_heard_text_ends_at_a_mark(heard_ms: int, words: int) -> None:
    world = World()
    world.answered(heard=False)
    world.ack(heard_ms)
    assert said(world) == ([" word" * words] if words else [])


@pytest.mark.parametrize(
    ("heard_ms", "heard"),
    [(0, None), (250, "one"), (400, "one "), (540, "one two"), (700, "one two "), (1_000, "one two three")],
)
def test_without_marks_it_is_proportional_and_ends_at_a_word(heard_ms: int, heard: str | None) -> None:
    world = World()
    world.ask()
    world.make(1, text="one two three", audio_ms=1_000, marks=False)
    world.deliver()
    world.finish()
    world.ack(heard_ms)
    assert said(world) == ([heard] if heard else [])


def test_an_answer_heard_to_its_end_is_heard_to_its_full_stop() -> None:
    world = World()
    world.ask()
    world.make(2)
    world.make(1, text=".", marks=False)
    world.finish()
    world.deliver()
    world.ack(300)
    assert said(world) == [" word word."]


def test_words_without_audio_yet_were_not_heard() -> None:
    """A model may give its text ahead of the sound; cut before the sound, nothing of it was heard."""
    world = World()
    world.ask()
    world.make(1, text="I think", audio_ms=0, marks=False)
    world.cancel()
    assert said(world) == []


def test_an_answer_in_text_is_read_as_it_comes() -> None:
    world = World(attrs.evolve(CLIENT_VAD, output_modalities=("text",)))
    world.ask()
    world.make(2, audio_ms=0)
    world.cancel()
    assert said(world) == [" word word"]


def test_unacked_heard_nothing() -> None:
    world = World(NOTHING_ASSUMED)
    world.answered()
    world.ask()
    assert said(world) == []


def test_unacked_is_the_time_since_the_first_delta_and_at_most_what_was_sent() -> None:
    world = World()
    world.answered(heard=False)
    world.wait(250)
    world.ask()
    assert said(world) == [" word word"]
    world.finish()
    world.wait(10_000)
    world.ask()
    assert said(world) == [" word" * 5]
    assert {ack.source for ack in world.events(e.PlaybackAck)} == {"assumed"}


def test_an_answer_behind_another_is_heard_only_once_the_first_has_been() -> None:
    """livekit/agents#6424 and its kin: a client plays one after the other, whatever it has been sent."""
    world = World()
    world.answered(5, heard=False)
    world.do(c.CreateResponse())
    world.make(5)
    world.deliver()
    world.wait(700)
    world.cancel("barge_in")
    assert said(world) == [" word" * 5, " word" * 2]


def test_a_client_that_ran_dry_has_not_heard_what_comes_later() -> None:
    """The model stalls for two seconds: they are not time in which what it says then was played."""
    world = World()
    world.ask()
    world.make(2)
    world.deliver()
    world.wait(2_000)
    world.make(6)
    world.deliver()
    world.wait(100)
    world.cancel("barge_in")
    assert said(world) == [" word" * 3]


def test_nothing_more_is_assumed_to_be_heard_when_the_clock_steps_back() -> None:
    """What is handed over then is timed by the session's clock, which stands still; found by the hunt."""
    world = World()
    world.ask()
    world.make(1)
    world.wait(-3_600_000)
    world.deliver()
    world.do(c.FailOutput())
    assert world.last.committed_ms == 0
    assert said(world) == []


def test_an_ack_below_what_was_assumed_counts() -> None:
    world = World()
    world.answered()
    world.ask()
    assert said(world) == [" word" * 5]
    world.finish()
    world.ack(200, "resp_abc_1")
    assert said(world) == [" word" * 2]


def test_an_empty_context_keeps_only_the_turn() -> None:
    world = World(attrs.evolve(CLIENT_VAD, context_on_barge_in="empty"))
    world.answered()
    world.ask()
    world.cancel()
    world.ask()
    assert len(world.history()) == 1


def test_items_show_what_was_heard_of_a_cut_answer() -> None:
    world = World()
    world.ask()
    world.make(6)
    world.deliver()
    item = world.state.items[world.active.item_id]
    assert item_text(world.state, item) == " word" * 6
    world.wait(200)
    world.cancel("barge_in")
    assert item_text(world.state, item) == " word" * 2


def test_a_rate_that_changes_in_mid_answer_does_not_turn_time_back() -> None:
    world = World()
    world.ask()
    world.make(2)
    for rate, samples in ((48_000, 10), (0, 100), (-1, 0), (24_000, 0)):
        world.do(c.ModelOutput(1, world.active.response_id, 2, "speak", "x", "d", 2 * samples, rate, samples))
    assert world.active.produced_ms == 2 * UNIT_MS


def test_marks_that_go_back_are_put_in_order() -> None:
    world = World()
    world.ask()
    for chars, end_ms in ((5, 900), (3, 50)):
        marks = (e.TextMark(chars, end_ms),)
        world.do(c.ModelOutput(1, world.active.response_id, 0, "speak", " word", "d", 4_800, 24_000, 2_400, marks))
    assert world.active.marks == [(5, 100), (5, 100)]
