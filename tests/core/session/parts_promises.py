"""Promises about input that is no audio, and about function calls, worked out from what a world knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.session import commands as c
from core.session import effects as fx
from core.session import events as e
from core.session.history import history
from core.session.machine import Step
from core.session.state import (
    CALLS_MAX,
    IMAGES_A_TURN_MAX,
    IMAGES_BYTES_MAX,
    IMAGES_MAX,
    IMAGES_PENDING_MAX,
    SessionState,
)

if TYPE_CHECKING:
    from tests.core.session.world import World


def check_parts(world: World, command: c.Command, result: Step) -> None:
    """bounded and told: what is shown has a bound, and a model is fed it before it is named, if it takes it."""
    state = world.state
    side = state.input
    assert len(side.images) <= IMAGES_PENDING_MAX, "bounded: pending images"
    shown = [image for item_id in state.shown for image in state.items[item_id].images]
    assert {i for i, item in state.items.items() if item.images} == set(state.shown), "bounded: images unaccounted for"
    assert len(shown) <= IMAGES_MAX, "bounded: images of the history"
    assert sum(image.size_bytes for image in shown) <= IMAGES_BYTES_MAX, "bounded: bytes of the history's images"
    assert all(len(item.images) <= IMAGES_A_TURN_MAX for item in state.items.values()), "bounded: images of a turn"
    for record in result.records:
        if isinstance(record.event, e.Append) and isinstance(command, c.AppendAudio | c.AppendPart):
            assert record.event.kind in state.inputs, "told: input of a kind that the model does not take"
    for effect in result.effects:
        _check_told(world, effect)


def _check_told(world: World, effect: fx.Effect) -> None:
    """A worker knows an image before a history names it; a new worker knows nothing."""
    if isinstance(effect, fx.OpenSession):
        world.fed.clear()
    elif isinstance(effect, fx.FeedPart):
        world.fed.add(effect.digest)
    elif isinstance(effect, fx.OpenLane | fx.Respond):
        named = {digest for turn in effect.history for digest in turn.images}
        assert named <= world.fed, f"told: {named - world.fed} were never shown"


def pending_bytes(state: SessionState) -> int:
    """What lies uncommitted."""
    side = state.input
    parts = sum(image.size_bytes for image in side.images) + len(side.typed.encode())
    return sum(chunk.size_bytes for chunk in side.pending) + parts


def check_calls(world: World, result: Step) -> None:
    """calls: a cut unmakes exactly the function calls that were not handed over; what was unmade is told to nobody."""
    cut = any(isinstance(r.event, e.EpochBump) and r.event.disposition == "cut" for r in result.records)
    unmade = {i for r in result.records if isinstance(r.event, e.OutputInvalidated) for i in r.event.calls}
    if cut:
        waiting = {item_id for item_id in world.open_calls if world.calls[item_id] not in world.handed}
        assert unmade == waiting, f"calls: {unmade} were unmade, {waiting} were not handed over"
    else:
        assert not unmade, "calls: unmade without a cut"
    world.unmade |= unmade
    for record in result.records:
        if isinstance(record.event, e.ToolCalled):
            asked_by = world.state.responses[record.event.response_id]
            assert asked_by.epoch == record.epoch, "calls: one of a lane that is over"
    assert not world.unmade & set(world.state.items), "calls: one that was unmade is in the conversation"
    told = {turn.item_id for turn in history(world.state)}
    assert not world.unmade & told, "calls: one that was unmade is told"
    assert all(len(response.calls) <= CALLS_MAX for response in world.state.responses.values()), "bounded: calls"
