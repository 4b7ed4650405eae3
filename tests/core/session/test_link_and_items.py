"""Sockets, tokens, owners, pauses, deadlines; configuration, items, and the client's own event ids."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from core.session import commands as c
from core.session import effects as fx
from core.session import events as e
from core.session.config import AudioFormat, SessionConfig, TurnDetection
from core.session.deadlines import FIRST_ATTACH_MS, earliest
from core.session.decisions.items import invalid_param, wrong_setting
from core.session.state import EVENT_IDS_MAX, Phase
from tests.core.session.reading import code, kinds
from tests.core.session.world import CLIENT_VAD, MS, SERVER_VAD, World

# -- attachments and tokens -------------------------------------------------------------------------------------------


def valid_tokens(world: World) -> set[str]:
    link = world.state.attachment
    return {link.token_hash} | (set() if link.confirmed else {link.previous_token_hash})


def test_each_attachment_is_a_new_generation() -> None:
    world = World()
    assert world.state.attachment.generation == 1
    world.do(c.Attach("hash-2", 3))
    assert world.state.attachment.generation == 2


def test_a_detach_of_an_older_generation_decides_nothing() -> None:
    world = World()
    world.do(c.Attach("hash-2", 3))
    assert world.do(c.Detach(1, "gone")).records == ()
    assert world.state.attachment.attached
    assert kinds(world.do(c.Detach(2, "gone"))) == ["detached"]
    assert world.do(c.Detach(2, "gone")).records == ()


def test_the_old_token_is_good_until_the_new_one_is_known_to_have_arrived() -> None:
    world = World()
    world.do(c.Attach("hash-2", 3))
    assert valid_tokens(world) == {"hash-1", "hash-2"}
    assert world.do(c.ConfirmToken(1)).records == ()
    world.do(c.ConfirmToken(2))
    assert valid_tokens(world) == {"hash-2"}
    assert world.do(c.ConfirmToken(2)).records == ()


def test_r5_the_answer_may_be_lost_twice() -> None:
    """R5, twice in a row: the client still has nothing but its first token."""
    world = World()
    world.do(c.Attach("hash-2", 3))
    world.do(c.Attach("hash-3", 3))
    assert valid_tokens(world) == {"hash-1", "hash-3"}
    world.do(c.ConfirmToken(3))
    assert valid_tokens(world) == {"hash-3"}


def test_a_detach_records_what_was_sent() -> None:
    world = World()
    world.ask()
    world.make(5)
    world.deliver()
    world.do(c.Detach(1, "gone"))
    (detached,) = world.events(e.Detached)
    assert (detached.cursor, detached.response_id, detached.sent_ms) == (world.number, "resp_abc_1", 500)


def test_r7_what_was_lost_on_its_way_was_not_heard() -> None:
    """R7: audio in flight when the link drops counts as sent; the resuming client's number says it never came."""
    world = World()
    world.answered(10)
    world.ask()
    assert world.history()[1] == ("assistant", " word" * 10)
    world.resume(world.number - 8)
    world.finish()
    heard = world.history()[1][1]
    assert heard is not None
    assert len(heard) < len(" word" * 10)


def test_r7_what_was_lost_of_an_answer_that_was_cut_is_invalidated() -> None:
    world = World()
    world.ask()
    world.make(10)
    world.deliver()
    before = world.number
    world.wait(600)
    world.cancel("barge_in")
    world.resume(before - 5)
    response = world.last
    assert (response.sent_ms, response.invalidated_ms, response.committed_ms) == (500, 500, 500)


# -- owners -----------------------------------------------------------------------------------------------------------


def test_a_lane_that_was_told_what_was_lost_on_its_way_is_cut_back() -> None:
    world = World()
    first = world.answered()
    world.ask()
    world.make(1)
    world.finish()
    assert first.committed_ms == 500
    third = [record for record in world.records if isinstance(record.event, e.Output)][2].position
    result = world.resume(third)
    assert e.LaneTruncated(first.item_id, 15) in [record.event for record in result.records]


def test_the_grace_of_a_session_begins_with_its_new_owner() -> None:
    world = World()
    world.wait(3_600_000)
    world._write(e.OwnerChanged(2, "server-b"))
    deadline = earliest(world.state)
    assert deadline is not None
    assert (deadline.kind, deadline.at_ns) == ("disconnect_grace_expired", world.now_ns + 30_000 * MS)


def test_a_detector_that_is_switched_off_hears_nothing_more() -> None:
    world = World(SERVER_VAD)
    world.say()
    world.do(c.SpeechHeard(1, 100))
    world.do(c.UpdateConfig(CLIENT_VAD))
    world.do(c.SpeechFinished(1, 100, 200, "hello"))
    assert not world.events(e.Commit)
    world.do(c.CommitInput(True))
    assert [commit.by for commit in world.events(e.Commit)] == ["client"]


def test_a_new_owner_has_no_socket_and_no_lane() -> None:
    world = World()
    world.ask()
    world._write(e.OwnerChanged(2, "server-b"))
    assert not world.state.attachment.attached
    assert (world.state.runtime_up, world.state.lane_epoch, world.state.term) == (False, 0, 2)


def test_r12_a_session_that_nobody_comes_back_to_ends() -> None:
    """R12: the server died in mid-answer, another folded the log, and the client never came."""
    world = World()
    world.ask()
    world.make()
    world._write(e.OwnerChanged(2, "server-b"))
    due = earliest(world.state)
    assert due is not None
    assert due.kind == "disconnect_grace_expired"
    world.wait(30_000)
    assert kinds(world.do(c.FireDeadline()))[-2:] == ["response_ended", "session_closed"]


# -- pauses and deadlines ---------------------------------------------------------------------------------------------


def test_a_paused_session_takes_no_input_and_starts_no_answer() -> None:
    world = World()
    world.ask()
    world.ask()
    world.do(c.Pause())
    for command in (c.AppendAudio("d", 2, 1), c.CommitInput(True), c.CreateResponse()):
        assert code(world.do(command)) == "session_paused"
    world.make()
    world.finish()
    assert world.state.active is None
    assert code(world.do(c.Pause())) is None
    assert kinds(world.do(c.Unpause())) == ["unpaused", "response_started"]
    assert world.do(c.Unpause()).records == ()


def due_in_ms(world: World) -> tuple[str, int]:
    due = earliest(world.state)
    assert due is not None
    return due.kind, (due.at_ns - world.now_ns) // MS


def test_each_deadline() -> None:
    world = World(attrs.evolve(CLIENT_VAD, max_session_ms=1_000_000))
    assert due_in_ms(world) == ("idle_ttl_expired", 300_000)
    world.do(c.Pause())
    assert due_in_ms(world) == ("pause_expired", 60_000)
    world.do(c.Unpause())
    world.do(c.Detach(1, "gone"))
    assert due_in_ms(world) == ("disconnect_grace_expired", 30_000)
    world.wait(10_000)
    world.do(c.Attach("hash-2", 3))
    world.ask()
    assert due_in_ms(world) == ("session_expired", 990_000)
    world.wait(990_000)
    assert kinds(world.do(c.FireDeadline()))[0] == "deadline_fired"
    assert earliest(world.state) is None


def test_a_deadline_that_has_not_passed_decides_nothing() -> None:
    world = World()
    world.wait(299_999)
    assert world.do(c.FireDeadline()).records == ()
    world.wait(1)
    result = world.do(c.FireDeadline())
    assert kinds(result) == ["deadline_fired", "session_closed"]
    assert [type(effect) for effect in result.effects] == [fx.CloseSession, fx.CloseSocket, fx.EndSession]


def test_idle_time_is_counted_from_the_last_thing_that_happened() -> None:
    world = World()
    world.wait(299_000)
    world.say()
    world.wait(299_000)
    assert world.do(c.FireDeadline()).records == ()


def test_a_close_ends_the_answer_first() -> None:
    world = World()
    world.ask()
    world.make(2)
    assert kinds(world.do(c.Close()))[-2:] == ["response_ended", "session_closed"]
    assert world.state.phase is Phase.CLOSED
    assert world.do(c.GainRuntime()).records == ()
    assert code(world.do(c.Close())) == "session_not_open"


# -- event ids --------------------------------------------------------------------------------------------------------


SENT_AGAIN: tuple[Any, ...] = (
    c.AppendAudio("d", 480, 240, "ev"),
    c.ClearInput("ev"),
    c.CreateResponse(event_id="ev"),
    c.CreateItem("user", "hello", "{}", event_id="ev"),
    c.DeleteItem("item_1", "ev"),
    c.RetrieveItem("item_1", "ev"),
    c.UpdateConfig(CLIENT_VAD, "ev"),
    c.Pause("ev"),
    c.AckPlayback(10, event_id="ev"),
    c.CancelOutput("barge_in", event_id="ev"),
)


@pytest.mark.parametrize("command", SENT_AGAIN, ids=lambda command: type(command).__name__)
def test_a_command_that_is_sent_again_is_not_done_again(command: Any) -> None:
    """Also one that was refused the first time: its refusal stands in the stream."""
    world = World()
    world.do(c.CreateItem("user", "first", "{}", "item_1"))
    first = world.do(command)
    assert first.records
    assert world.state.last_event_id == "ev"
    again = world.do(command)
    assert (again.records, again.refusal) == ((), None)


def test_a_pause_that_is_sent_again_after_the_unpause_does_not_pause() -> None:
    world = World()
    for command in (c.Pause("ev-1"), c.Unpause("ev-2"), c.Pause("ev-1"), c.Unpause("ev-2")):
        world.do(command)
    assert (len(world.events(e.Paused)), len(world.events(e.Unpaused))) == (1, 1)


def test_event_ids_are_remembered_so_far_and_no_further() -> None:
    world = World()
    world.checking = False
    for number in range(EVENT_IDS_MAX + 1):
        world.say(1, event_id=f"ev-{number}")
        world.do(c.ClearInput())
    assert len(world.state.event_ids) == EVENT_IDS_MAX
    assert "ev-0" not in world.state.event_ids


# -- items ------------------------------------------------------------------------------------------------------------


def test_items_are_put_where_the_client_says() -> None:
    world = World()
    world.do(c.CreateItem("user", "b", "{}", "b"))
    world.do(c.CreateItem("user", "a", "{}", "a", "root"))
    world.do(c.CreateItem("user", "ab", "{}", "ab", "a"))
    assert [text for _, text in world.history()] == ["a", "ab", "b"]
    assert code(world.do(c.CreateItem("user", "x", "{}", "x", "nowhere"))) == "previous_item_unknown"
    assert code(world.do(c.CreateItem("user", "a", "{}", "a"))) == "item_exists"
    assert code(world.do(c.DeleteItem("x"))) == "item_unknown"
    world.do(c.DeleteItem("ab"))
    assert [text for _, text in world.history()] == ["a", "b"]


def test_a_client_cannot_take_an_id_that_the_machine_will_give() -> None:
    world = World(SERVER_VAD)
    assert code(world.do(c.CreateItem("user", "x", "{}", "item_abc_1"))) == "item_exists"
    world.do(c.SpeechHeard(1, 0))
    assert code(world.do(c.CreateItem("user", "x", "{}", "item_abc_1"))) == "item_exists"
    world.say(300)
    world.do(c.SpeechFinished(1, 0, 300, "hello"))
    assert list(world.state.items) == ["item_abc_1", "item_abc_2"]


def test_an_item_that_was_deleted_may_be_made_again() -> None:
    world = World()
    world.ask()
    item_id = world.events(e.Commit)[0].item_id
    world.do(c.DeleteItem(item_id))
    assert code(world.do(c.CreateItem("user", "edited", "{}", item_id))) is None


# -- configuration ----------------------------------------------------------------------------------------------------


def test_a_configuration_changes_as_a_whole() -> None:
    world = World()
    new = attrs.evolve(CLIENT_VAD, instructions="Be brief.", voice="b")
    result = world.do(c.UpdateConfig(new))
    assert world.state.config == new
    assert [type(effect) for effect in result.effects] == [fx.ConfigureSession]


NAN, INFINITE = float("nan"), float("inf")
DETECTION = "session.audio.input.turn_detection"


@pytest.mark.parametrize(
    ("change", "expected", "param"),
    [
        ({"model": "other"}, "model_update_unsupported", "session.model"),
        ({"voice": "b"}, "voice_update_after_audio", "session.audio.output.voice"),
        (
            {"input_format": AudioFormat("g711_ulaw", 8_000)},
            "input_format_update_pending",
            "session.audio.input.format",
        ),
        ({"unacked": "maybe"}, "invalid_config", "session.unacked"),
        ({"temperature": NAN}, "invalid_config", "session.temperature"),
        ({"temperature": 2.5}, "invalid_config", "session.temperature"),
        ({"overlap_silence_rms": INFINITE}, "invalid_config", "session.overlap_silence_rms"),
        ({"overlap_short_ack_ms": 1_201}, "invalid_config", "session.overlap_barge_in_ms"),
        ({"window_low_tokens": 8_001}, "invalid_config", "session.basic_window_low_tokens"),
        ({"window_previous_tokens": 3_001}, "invalid_config", "session.context_previous_max_tokens"),
        ({"idle_timeout_ms": 10**20}, "invalid_config", "session.idle_timeout_s"),
        ({"max_pending_commits": 0}, "invalid_config", "session.max_pending_commits"),
        ({"turn_detection": TurnDetection(threshold=NAN)}, "invalid_config", f"{DETECTION}.threshold"),
        ({"turn_detection": TurnDetection(type="telepathy")}, "invalid_config", f"{DETECTION}.type"),
    ],
)
def test_a_refused_change_changes_nothing_and_is_named(change: dict[str, Any], expected: str, param: str) -> None:
    world = World()
    world.ask()
    world.make()
    world.say()
    before = world.state.config
    refusal = world.do(c.UpdateConfig(attrs.evolve(CLIENT_VAD, instructions="other", **change))).refusal
    assert refusal is not None
    assert (refusal.code, refusal.param) == (expected, param)
    assert world.state.config is before


def test_a_format_does_not_change_in_mid_speech() -> None:
    world = World(SERVER_VAD)
    world.say()
    world.do(c.SpeechHeard(1, 100))
    changed = attrs.evolve(SERVER_VAD, input_format=AudioFormat("g711_ulaw", 8_000))
    assert code(world.do(c.UpdateConfig(changed))) == "input_format_update_pending"


def test_a_session_that_waits_for_nobody_still_waits_for_its_first_client() -> None:
    world = World(attrs.evolve(CLIENT_VAD, disconnect_grace_ms=0), attached=False)
    deadline = earliest(world.state)
    assert deadline is not None
    assert deadline.at_ns == world.now_ns + FIRST_ATTACH_MS * MS
    world.do(c.Attach("hash-1"))
    world.do(c.Detach(1, "gone"))
    deadline = earliest(world.state)
    assert deadline is not None
    assert deadline.at_ns == world.now_ns


def test_the_voice_may_change_before_the_first_sound() -> None:
    world = World()
    assert code(world.do(c.UpdateConfig(attrs.evolve(CLIENT_VAD, voice="b")))) is None


def test_with_a_detector_preroll_does_not_hold_up_a_new_format() -> None:
    world = World(SERVER_VAD)
    world.say()
    new = attrs.evolve(SERVER_VAD, input_format=AudioFormat("pcm16", 16_000))
    assert code(world.do(c.UpdateConfig(new))) is None


def test_what_is_default_is_valid() -> None:
    assert invalid_param(SessionConfig()) is None


def test_what_may_be_is_said_with_what_cannot() -> None:
    default = SessionConfig()
    for wrong, said in (
        ({"idle_timeout_ms": 0}, ("session.idle_timeout_s", "more than 0 and at most 2,592,000")),
        ({"max_session_ms": 0}, ("session.max_session_ms", "1 to 2,592,000,000 or null")),
        ({"window_low_tokens": 9_000}, ("session.basic_window_low_tokens", "1 to 8,000")),
        ({"unacked": "x"}, ("session.unacked", "one of assume_elapsed, heard_nothing")),
        (
            {"turn_detection": TurnDetection(threshold=0.0)},
            ("session.audio.input.turn_detection.threshold", "more than 0 and at most 1"),
        ),
        ({"overlap_silence_rms": float("nan")}, ("session.overlap_silence_rms", "0 to 1")),
    ):
        assert wrong_setting(attrs.evolve(default, **wrong)) == said


def test_heartbeats_keep_a_session_and_do_not_fill_its_log() -> None:
    world = World()
    for _ in range(100):
        world.wait(10_000)
        world.do(c.FireDeadline())
        world.do(c.Touch())
    assert world.state.phase is Phase.OPEN
    assert len(world.events(e.Touched)) == 12  # at the first beat after more than 75 s each
    world.wait(300_000)
    world.do(c.FireDeadline())
    assert world.state.close_reason == "idle_ttl_expired"


def test_heartbeats_do_not_keep_a_paused_session() -> None:
    world = World()
    world.do(c.Pause())
    for _ in range(6):
        world.wait(10_000)
        world.do(c.Touch())
    world.do(c.FireDeadline())
    assert world.state.close_reason == "pause_expired"


def test_a_tools_result_is_told_to_the_model_and_the_call_keeps_its_name() -> None:
    world = World()
    world.do(c.CreateItem("function_call", "{}", "{}", "call-item", call_id="call-1", name="look_up"))
    world.do(c.CreateItem("function_call_output", "42", "{}", "result", call_id="call-1"))
    assert world.history() == [("assistant", "{}"), ("tool", "42")]
    call, result = world.state.items["call-item"], world.state.items["result"]
    assert (call.name, call.call_id, result.call_id) == ("look_up", "call-1", "call-1")
    world.do(c.CreateResponse())
    assert world.active.response_id
