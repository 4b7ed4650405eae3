"""Cuts and drains: what ends an answer before its time, and what is still delivered of it."""

from __future__ import annotations

import attrs
import pytest

from core.session import commands as c
from core.session import effects as fx
from core.session import events as e
from tests.core.session.reading import code, kinds, said
from tests.core.session.world import CLIENT_VAD, UNIT_MS, World

# -- cuts -------------------------------------------------------------------------------------------------------------


def test_a_cut_of_the_active_answer() -> None:
    world = World()
    world.ask()
    world.make(10)
    world.deliver(frames=len(world.records) - 6 - world.place)
    world.wait(5_000)
    result = world.cancel("barge_in", event_id="ev-9")
    assert kinds(result) == ["playback_ack", "epoch_bump", "output_invalidated", "response_ended", "lane_opened"]
    bump, invalidated, ended = (record.event for record in result.records[1:4])
    assert isinstance(bump, e.EpochBump)
    assert (bump.epoch, bump.reason, bump.disposition, bump.cursor) == (2, "barge_in", "cut", world.number)
    assert (bump.sent_ms, bump.event_id) == (400, "ev-9")
    assert invalidated == e.OutputInvalidated("resp_abc_1", 600)
    assert ended == e.ResponseEnded("resp_abc_1", "cancelled", "barge_in")
    assert [type(effect) for effect in result.effects] == [fx.FenceOutput, fx.AbortLane, fx.OpenLane]


def test_a_cut_of_an_answer_that_ended_but_is_not_played_out() -> None:
    world = World()
    response = world.answered(10, deliver=False, heard=False)
    world.deliver(frames=6)
    result = world.cancel("barge_in")
    assert kinds(result)[0] == "epoch_bump"
    assert "response_ended" not in kinds(result)
    assert response.status == "completed"
    assert response.cut


def test_a_cut_of_an_answer_that_was_handed_over_and_plays() -> None:
    world = World()
    world.answered(10, heard=False)
    world.wait(300)
    assert kinds(world.cancel("barge_in")) == ["playback_ack", "epoch_bump", "lane_opened"]
    assert world.last.committed_ms == 300


def test_openais_cancel_leaves_an_answer_alone_that_was_handed_over() -> None:
    world = World()
    world.answered(10, heard=False)
    assert code(world.cancel(unsent_only=True)) == "response_not_active"
    assert code(world.cancel(unsent_only=False)) is None


@pytest.mark.parametrize("played_out", [False, True])
def test_a_cancel_with_nothing_to_cut(played_out: bool) -> None:
    world = World()
    if played_out:
        world.answered()
    assert code(world.cancel()) == "response_not_active"
    assert world.cancel(quiet=True).records == ()
    assert world.state.epoch == 1


def test_two_cancels_in_a_row() -> None:
    world = World()
    world.ask()
    world.make()
    world.cancel()
    assert code(world.cancel()) == "response_not_active"
    assert world.cancel(quiet=True).records == ()
    assert world.state.epoch == 2


def test_a_cancel_of_an_answer_that_is_over_does_not_hit_the_next() -> None:
    world = World()
    first = world.answered()
    world.ask()
    assert code(world.cancel(response_id=first.response_id)) == "response_not_active"
    assert world.active.answers is not None


def test_a_cancel_that_races_with_the_end() -> None:
    """The end is decided first: the cancel finds nothing. The cancel first: the end comes from a lane that is over."""
    world = World()
    world.ask()
    late = c.ModelDone(1, world.active.response_id)
    world.cancel()
    assert world.do(late).records == ()
    assert world.ends == {"resp_abc_1": 1}


def test_create_straight_after_cancel_is_answered() -> None:
    world = World()
    world.ask()
    world.make()
    world.cancel()
    assert code(world.do(c.CreateResponse())) is None
    assert world.active.epoch == 2


# -- a model that decides by itself -----------------------------------------------------------------------------------


def test_a_model_may_begin_an_answer_that_nobody_asked_for() -> None:
    world = World()
    world.answered()
    result = world.do(c.ModelSpeaks(world.state.epoch))
    assert kinds(result) == ["playback_ack", "response_started"]
    assert (world.active.trigger, world.active.answers) == ("model", None)
    (respond,) = [effect for effect in result.effects if isinstance(effect, fx.Respond)]
    assert [turn.role for turn in respond.history] == ["user", "assistant"]
    assert world.do(c.ModelSpeaks(world.state.epoch)).records == (), "it speaks already"


def test_a_model_does_not_begin_where_it_may_not() -> None:
    world = World()
    world.ask()
    world.cancel()
    assert world.do(c.ModelSpeaks(1)).records == (), "its lane is over"
    world.do(c.Pause())
    assert world.do(c.ModelSpeaks(world.state.epoch)).records == ()
    world.do(c.Unpause())
    world.do(c.LoseRuntime("killed"))
    assert world.do(c.ModelSpeaks(world.state.epoch)).records == (), "there is no lane"


def test_a_model_that_goes_over_to_listening_gives_way() -> None:
    """What it made ahead of the listener is cut, and the next lane knows what was heard."""
    world = World()
    world.ask()
    world.make(10)
    world.deliver()
    world.wait(300)
    result = world.do(c.ModelOutput(1, world.active.response_id, 10, "listen"))
    assert kinds(result)[0] == "overlap_decided"
    (decided,) = world.events(e.OverlapDecided)
    assert (decided.action, decided.reason) == ("barge_in", "model_listen")
    (ended,) = world.events(e.ResponseEnded)
    assert (ended.status, ended.reason) == ("cancelled", "turn_detected")
    assert world.history()[-1] == ("assistant", " word" * 3)


def test_a_model_that_listens_when_all_was_heard_has_come_to_its_end() -> None:
    world = World()
    world.ask()
    world.make(3)
    world.deliver()
    world.wait(5_000)
    assert kinds(world.do(c.ModelOutput(1, world.active.response_id, 3, "listen"))) == ["response_ended"]
    assert world.events(e.ResponseEnded)[0].status == "completed"
    assert world.state.epoch == 1


def test_a_model_that_begins_with_listening_goes_on() -> None:
    world = World()
    world.ask()
    assert kinds(world.do(c.ModelOutput(1, world.active.response_id, 0, "listen"))) == ["output"]
    world.make(1)
    assert world.active.units == 2


def test_create_while_an_answer_is_made_is_refused() -> None:
    world = World()
    world.ask()
    assert code(world.do(c.CreateResponse())) == "response_active"


def test_output_of_a_lane_that_is_over_decides_nothing() -> None:
    world = World()
    world.ask()
    stale = c.ModelOutput(1, world.active.response_id, 0, "speak", "old", "o", 4_800, 24_000, 2_400)
    world.cancel()
    world.ask()
    assert world.do(stale).records == ()
    forged = attrs.evolve(stale, epoch=2)
    assert world.do(forged).records == ()


def test_input_cancel_clears_the_input_and_cuts() -> None:
    world = World()
    world.ask()
    world.say()
    result = world.cancel("input_cancel", quiet=True, clear_input=True)
    assert kinds(result)[:2] == ["input_cleared", "epoch_bump"]
    assert kinds(world.cancel("input_cancel", clear_input=True, event_id="ev-1")) == ["input_cleared"]
    assert world.cancel("input_cancel", clear_input=True, event_id="ev-1").records == ()


def test_an_answer_out_of_band_can_be_cancelled_and_is_no_history() -> None:
    world = World()
    world.ask()
    world.finish()
    world.do(c.CreateResponse(out_of_band=True))
    world.make()
    aside = world.active
    assert code(world.cancel(response_id=aside.response_id)) is None
    assert aside.status == "cancelled"
    assert said(world) == []


def test_a_cut_hits_every_answer_that_is_not_played_out() -> None:
    world = World()
    first = world.answered(20, deliver=False, heard=False)
    world.deliver(frames=10)
    second = world.answered(5, deliver=False, heard=False)
    result = world.cancel("barge_in")
    assert (first.cut, second.cut) == (True, True)
    assert {event.response_id for event in world.events(e.OutputInvalidated)} == {
        first.response_id,
        second.response_id,
    }
    assert kinds(result).count("epoch_bump") == 1


def test_backpressure_fails_the_answer_and_not_the_session() -> None:
    world = World()
    world.ask()
    world.make(3)
    world.do(c.FailOutput())
    assert world.events(e.ResponseEnded) == [e.ResponseEnded("resp_abc_1", "failed", "output_backpressure")]
    assert world.do(c.FailOutput()).records == ()
    assert code(world.ask()) is None


# -- drains -----------------------------------------------------------------------------------------------------------


def test_a_lost_runtime_drains() -> None:
    world = World()
    world.ask()
    world.make(5)
    result = world.do(c.LoseRuntime("killed"))
    assert kinds(result) == ["runtime_changed", "epoch_bump", "response_ended"]
    assert result.effects == ()
    assert world.events(e.ResponseEnded) == [e.ResponseEnded("resp_abc_1", "incomplete", "runtime_lost")]
    assert world.deliver() == 5 * UNIT_MS
    assert not world.last.cut
    assert code(world.do(c.CreateResponse())) == "runtime_unavailable"
    world.wait(1_000)
    assert kinds(world.do(c.GainRuntime())) == ["runtime_changed", "playback_ack", "lane_opened"]
    assert said(world) == [" word" * 5]


def test_an_answer_of_which_nothing_was_made_is_asked_for_again() -> None:
    world = World()
    world.ask()
    turn = world.active.answers
    world.do(c.LoseRuntime("killed"))
    assert kinds(world.do(c.GainRuntime())) == ["runtime_changed", "lane_opened", "response_started"]
    assert world.active.answers == turn
    assert world.active.response_id == "resp_abc_2"


def test_turns_that_waited_outlive_the_runtime() -> None:
    world = World()
    world.ask()
    world.make()
    world.ask()
    world.do(c.LoseRuntime("killed"))
    world.do(c.LoseRuntime("killed"))
    world.do(c.GainRuntime())
    assert world.active.answers == world.events(e.Commit)[1].item_id


def test_a_turn_committed_without_a_runtime_waits_for_one() -> None:
    world = World(runtime=False)
    world.ask()
    assert world.state.active is None
    world.do(c.GainRuntime())
    assert world.state.active is not None


def test_a_runtime_that_comes_while_an_answer_hangs_ends_it_first() -> None:
    """The owner changed: the old server's lane is gone with it."""
    world = World()
    world.ask()
    world.make(2)
    world.deliver()
    world.move_server()
    assert world.events(e.ResponseEnded) == [e.ResponseEnded("resp_abc_1", "incomplete", "runtime_lost")]


def test_speech_that_a_lost_ear_heard_is_over() -> None:
    for lose in (World.move_server, lambda world: world.do(c.LoseRuntime("killed"))):
        world = World(attrs.evolve(CLIENT_VAD, turn_detection=e.SessionConfig().turn_detection))
        world.say()
        world.do(c.SpeechHeard(1, 0))
        lose(world)
        assert [stopped.segment for stopped in world.events(e.SpeechStopped)] == [1]


def test_a_cut_while_the_rest_of_a_lost_answer_drains() -> None:
    world = World()
    world.ask()
    world.make(10)
    world.do(c.LoseRuntime("killed"))
    world.cancel("barge_in")
    assert world.deliver() == 0
    assert world.last.invalidated_ms == 1_000
    assert world.ends == {"resp_abc_1": 1}


@pytest.mark.parametrize("clear_input", [False, True])
def test_a_cut_that_always_counts_begins_the_lane_anew(clear_input: bool) -> None:
    world = World()
    world.say()
    result = world.cancel("barge_in", always=True, quiet=True, clear_input=clear_input)
    assert kinds(result) == ["input_cleared"] * clear_input + ["epoch_bump", "lane_opened"]
    assert world.state.epoch == 2
    assert (world.state.input.pending_bytes == 0) is clear_input
    stale = world.cancel("barge_in", always=True, response_id="resp_abc_9")
    assert code(stale) == "response_not_active"


def test_a_refusal_says_what_it_answers() -> None:
    world = World()
    world.do(c.DeleteItem("item_none"))
    world.ack(10, "resp_none")
    assert [refused.command for refused in world.events(e.Refused)] == ["delete_item", "ack_playback"]
