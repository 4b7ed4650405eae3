"""Images, texts, reference voices and function calls: what becomes of them, and what a cut means for a call."""

from __future__ import annotations

import attrs
import pytest

from core.session import commands as c
from core.session import effects as fx
from core.session import events as e
from core.session.config import INPUT_KINDS, USUAL_INPUTS, Tool
from core.session.history import history
from core.session.machine import Step
from core.session.state import (
    CALL_BYTES_MAX,
    CALLS_MAX,
    IMAGES_BYTES_MAX,
    IMAGES_MAX,
    IMAGES_PENDING_MAX,
    REFERENCE_BYTES_MAX,
)
from tests.core.session.reading import code
from tests.core.session.world import CLIENT_VAD, SERVER_VAD, World

TOOL = Tool("look_up", "Looks things up.", '{"type":"object"}')


def fed(step: Step) -> list[tuple[str, str, str]]:
    return [(p.kind, p.digest or p.text, p.item_id) for p in step.effects if isinstance(p, fx.FeedPart)]


def shown(world: World) -> list[tuple[str, str | None, int]]:
    return [(turn.role, turn.text, len(turn.images)) for turn in history(world.state)]


# -- parts ----------------------------------------------------------------------------------------------------------


def test_what_is_shown_and_typed_goes_with_the_turn_that_is_being_said() -> None:
    world = World()
    world.say()
    assert fed(world.show("image", 70))[0][0] == "image"
    assert fed(world.show("text", text="look ")) == [("text", "look ", "")]
    world.show("text", text="here")
    world.do(c.CommitInput(True))
    assert world.state.input.pending_bytes == 0
    assert shown(world) == [("user", "look here", 0), ("user", None, 1)]
    world.do(c.TurnHeard(next(iter(world.state.items)), "what is that"))
    assert shown(world) == [("user", "look here what is that", 1)]


@pytest.mark.parametrize(("kind", "answered"), [("image", True), ("text", True)])
def test_a_turn_without_a_sound_is_answered_when_it_shows_or_says_something(kind: str, answered: bool) -> None:
    world = World()
    world.show(kind)
    world.do(c.CommitInput(True))
    assert (world.state.active is not None) == answered
    assert len(shown(world)) == 1


def test_silence_with_a_camera_on_is_not_answered() -> None:
    world = World()
    world.say(is_speech=False)
    world.show()
    world.do(c.CommitInput(True))
    assert world.state.active is None
    assert shown(world) == [("user", "", 1)]


def test_nobody_speaks_so_an_old_picture_belongs_to_no_turn() -> None:
    world = World(SERVER_VAD)
    world.show()
    for _ in range(30):
        world.say(100)
    assert not world.state.input.images


def test_a_cleared_input_shows_nothing() -> None:
    world = World()
    world.show()
    world.show("text")
    world.do(c.ClearInput())
    assert code(world.do(c.CommitInput(True))) == "input_empty"


def test_an_items_images_are_fed_before_a_lane_is_told_of_them() -> None:
    world = World()
    step = world.do(c.CreateItem("user", "what is this", "{}", "mine", images=(world.image(), world.image(7))))
    assert [item_id for _, _, item_id in fed(step)] == ["mine", "mine"]
    world.do(c.CreateResponse())
    assert shown(world) == [("user", "what is this", 2)]


def test_a_new_worker_is_fed_everything_again() -> None:
    world = World()
    world.show("reference_audio", 50)
    world.do(c.CreateItem("user", "x", "{}", "mine", images=(world.image(),)))
    world.show()
    world.show("text", text="so")
    world.do(c.LoseRuntime("killed"))
    told = fed(world.do(c.GainRuntime(0, INPUT_KINDS)))
    assert [kind for kind, _, _ in told] == ["reference_audio", "image", "image", "text"]
    assert [item_id for _, _, item_id in told] == ["", "mine", "", ""]


def test_what_a_model_does_not_take_is_refused() -> None:
    world = World()
    world.do(c.GainRuntime(0, USUAL_INPUTS))
    for kind in ("image", "reference_audio"):
        assert code(world.show(kind)) == "input_unsupported"
    assert code(world.do(c.CreateItem("user", "x", "{}", images=(world.image(),)))) == "input_unsupported"
    assert code(world.do(c.CreateItem("user", "x", "{}"))) is None
    world.do(c.GainRuntime(0, ("image",)))
    assert code(world.say()) == "input_unsupported"
    assert code(world.show("text")) == "input_unsupported"
    assert code(world.do(c.CreateItem("function_call_output", "1", "{}"))) == "input_unsupported"
    assert code(world.do(c.CreateItem("user", "x", "{}"))) == "input_unsupported"
    assert code(world.do(c.CreateItem("assistant", "x", "{}"))) is None
    assert code(world.show()) is None


def test_a_model_that_is_away_is_taken_for_what_it_was() -> None:
    world = World()
    world.do(c.LoseRuntime("killed"))
    assert code(world.show()) is None
    world = World(runtime=False)
    assert code(world.show()) == "input_unsupported"


def test_pending_input_is_bounded_in_bytes_and_in_pictures() -> None:
    world = World(attrs.evolve(CLIENT_VAD, max_pending_input_bytes=10_000))
    world.show("image", 6_000)
    assert code(world.show("image", 5_000)) == "input_too_large"
    assert code(world.show("text", text="x" * 5_000)) == "input_too_large"
    assert code(world.say(200)) == "input_too_large"
    world = World()
    world.checking = False
    for _ in range(IMAGES_PENDING_MAX):
        world.show("image", 1)
    assert code(world.show("image", 1)) == "input_too_large"
    assert code(world.show("reference_audio", REFERENCE_BYTES_MAX + 1)) == "input_too_large"


def test_the_history_shows_the_newest_pictures_only() -> None:
    world = World()
    for number in range(IMAGES_MAX + 5):
        world.do(c.CreateItem("user", f"{number}", "{}", images=(world.image(9),)))
    pictures = [len(turn.images) for turn in history(world.state)]
    assert pictures == [0] * 5 + [1] * IMAGES_MAX
    world.do(c.DeleteItem(next(reversed(world.state.items))))
    assert len(world.state.shown) == IMAGES_MAX - 1
    world.do(c.CreateItem("user", "big", "{}", images=(world.image(IMAGES_BYTES_MAX - 10),)))
    assert [len(turn.images) for turn in history(world.state)][-1] == 1
    assert len(world.state.shown) == 2
    too_many = tuple(world.image(number) for number in range(9))
    assert code(world.do(c.CreateItem("user", "x", "{}", images=too_many))) == "input_too_large"


def test_words_are_kept_of_a_turn_that_has_left_the_window_and_pictures_are_not() -> None:
    world = World(attrs.evolve(CLIENT_VAD, window_high_tokens=400, window_low_tokens=300, window_previous_tokens=20))
    world.do(c.CreateItem("user", "first", "{}", "first", images=(world.image(),)))
    world.do(c.CreateItem("assistant", "yes", "{}"))
    world.do(c.CreateItem("user", "second", "{}", images=(world.image(),)))
    world.do(c.CreateResponse())
    assert world.events(e.WindowSlid)
    assert "first" not in world.state.shown


# -- function calls ---------------------------------------------------------------------------------------------------


def test_a_call_and_its_result_are_told_to_the_next_lane() -> None:
    world = World()
    world.ask()
    world.call("look_up", '{"a":1}', "call-1")
    world.finish()
    world.deliver()
    world.do(c.CreateItem("function_call_output", "42", "{}", call_id="call-1"))
    step = world.do(c.CreateResponse())
    (asked,) = (effect for effect in step.effects if isinstance(effect, fx.Respond))
    call, result = asked.history[-2:]
    assert (call.role, call.name, call.text, call.call_id) == ("assistant", "look_up", '{"a":1}', "call-1")
    assert (result.role, result.text, result.call_id) == ("tool", "42", "call-1")


def test_a_call_that_was_handed_over_stands_whatever_is_cut() -> None:
    world = World()
    world.ask()
    world.make(2)
    world.call(call_id="call-1")
    world.deliver()
    step = world.cancel()
    assert not [r.event.calls for r in step.records if isinstance(r.event, e.OutputInvalidated)]
    assert [turn.call_id for turn in history(world.state) if turn.name] == ["call-1"]


def test_a_call_that_was_not_handed_over_was_never_made() -> None:
    world = World()
    world.ask()
    world.make(1)
    world.deliver()
    world.call(call_id="call-1")
    before = set(world.state.items)
    step = world.cancel("barge_in")
    (gone,) = (r.event.calls for r in step.records if isinstance(r.event, e.OutputInvalidated))
    assert set(gone) == before - set(world.state.items)
    assert not [turn for turn in history(world.state) if turn.name]
    assert world.do(c.CreateItem("function_call_output", "late", "{}", call_id="call-1")).refusal is None


def test_a_completed_answer_of_calls_alone_is_cut_too_while_it_waits() -> None:
    world = World()
    world.ask()
    world.call()
    world.finish()
    world.cancel("barge_in", always=True)
    assert [len(event.calls) for event in world.events(e.OutputInvalidated)] == [1]


def test_a_late_call_is_no_call() -> None:
    world = World()
    world.ask()
    response_id = world.active.response_id
    world.cancel()
    assert world.do(c.ModelCall(1, response_id, "", "look_up", "{}")).records == ()
    assert world.do(c.ModelCall(world.state.epoch, response_id, "", "look_up", "{}")).records == ()


@pytest.mark.parametrize(("name", "arguments"), [("", "{}"), ("x", "a" * CALL_BYTES_MAX)])
def test_a_call_that_no_client_could_take_fails_its_answer(name: str, arguments: str) -> None:
    world = World()
    world.ask()
    world.call(name, arguments)
    assert [(ended.status, ended.reason) for ended in world.events(e.ResponseEnded)] == [
        ("failed", "invalid_function_call")
    ]


def test_an_answer_may_not_call_without_end() -> None:
    world = World()
    world.ask()
    for _ in range(CALLS_MAX + 1):
        world.call()
    assert [ended.status for ended in world.events(e.ResponseEnded)] == ["failed"]


def test_two_calls_never_have_one_id() -> None:
    world = World()
    world.ask()
    for call_id in ("same", "same", ""):
        world.call(call_id=call_id)
    ids = [event.call_id for event in world.events(e.ToolCalled)]
    assert ids[0] == "same"
    assert len(set(ids)) == 3
    assert all(ids)


def test_a_worker_that_dies_after_a_call_is_not_asked_again() -> None:
    world = World()
    world.ask()
    world.call()
    world.do(c.LoseRuntime("killed"))
    world.do(c.GainRuntime(0, INPUT_KINDS))
    assert world.state.active is None
    assert [turn.name for turn in history(world.state)][-1] == "look_up"


def test_the_call_of_an_answer_out_of_band_is_no_part_of_the_conversation() -> None:
    world = World()
    world.do(c.CreateResponse(out_of_band=True))
    world.call()
    assert world.state.items == {}


# -- configuration ----------------------------------------------------------------------------------------------------


def test_tools_reach_the_model_at_every_change_and_with_a_new_worker() -> None:
    world = World()
    config = attrs.evolve(CLIENT_VAD, tools=(TOOL,), tool_choice="required")
    (told,) = world.do(c.UpdateConfig(config)).effects
    assert isinstance(told, fx.ConfigureSession)
    assert (told.tools, told.tool_choice) == ((TOOL,), "required")
    opened = world.do(c.GainRuntime(0)).effects[0]
    assert isinstance(opened, fx.OpenSession)
    assert (opened.tools, opened.tool_choice) == ((TOOL,), "required")


def test_one_answer_may_have_other_tools() -> None:
    world = World()
    step = world.do(c.CreateResponse(tools=(TOOL,), tool_choice="none"))
    (asked,) = (effect for effect in step.effects if isinstance(effect, fx.Respond))
    assert (asked.tools, asked.tool_choice) == ((TOOL,), "none")


def test_a_lane_that_can_be_cut_back_is_not_opened_anew() -> None:
    for can_truncate, kind in ((True, fx.TruncateLane), (False, fx.OpenLane)):
        world = World()
        world.do(c.GainRuntime(0, INPUT_KINDS, can_truncate))
        response = world.answered()
        world.do(c.CreateResponse())
        world.finish()
        step = world.truncate(100, response)
        (told,) = (effect for effect in step.effects if isinstance(effect, fx.TruncateLane | fx.OpenLane))
        assert isinstance(told, kind)
        if isinstance(told, fx.TruncateLane):
            assert (told.item_id, told.chars) == (response.item_id, len(" word"))
