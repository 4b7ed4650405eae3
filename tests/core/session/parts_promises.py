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
    UNREAD_BYTES_MAX,
    UNREAD_TURNS_MAX,
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
    unread = [turn.size_bytes for turn in side.unread.values()]
    assert len(unread) <= UNREAD_TURNS_MAX, "bounded: turns to be read again"
    assert len(unread) <= 1 or sum(unread) <= UNREAD_BYTES_MAX, "bounded: bytes of turns to be read again"
    assert all(state.items[item_id].text is None for item_id in side.unread), "bounded: a turn that was read is kept"
    assert all(len(item.images) <= IMAGES_A_TURN_MAX for item in state.items.values()), "bounded: images of a turn"
    for record in result.records:
        if isinstance(record.event, e.Append) and isinstance(command, c.AppendAudio | c.AppendPart):
            assert record.event.kind in state.inputs, "told: input of a kind that the model does not take"
    check_turns(world, result)
    for effect in result.effects:
        _check_told(world, effect)


def _check_told(world: World, effect: fx.Effect) -> None:
    """A worker knows an image before a history names it; a new worker knows nothing."""
    _check_heard(world, effect)
    if isinstance(effect, fx.OpenSession):
        world.fed.clear()
    elif isinstance(effect, fx.FeedPart):
        world.fed.add(effect.digest)
    elif isinstance(effect, fx.OpenLane | fx.Respond):
        named = {digest for turn in effect.history for digest in turn.images}
        assert named <= world.fed, f"told: {named - world.fed} were never shown"


def _check_heard(world: World, effect: fx.Effect) -> None:
    """A worker hears nothing twice, and all of a turn before that is closed; and a turn whose transcript is not there is
    closed for it before it is asked about it. Its detector hears nothing of a turn that is closed."""
    if isinstance(effect, fx.OpenSession):
        world.heard_ms = 0
        world.heard.clear()
        world.closed.clear()
        world.detecting = effect.turn_detection is not None
    elif isinstance(effect, fx.ConfigureSession):
        world.detecting = effect.turn_detection is not None
    elif isinstance(effect, fx.FeedAudio):
        assert effect.start_ms >= world.heard_ms, f"told: {effect} again, up to {world.heard_ms} ms were heard"
        assert not world.detecting or effect.start_ms >= world.closed_ms, f"told: {effect} is found twice"
        world.heard_ms = effect.start_ms + effect.audio_ms
        world.heard.add((effect.start_ms, effect.digest))
    elif isinstance(effect, fx.CommitTurn):
        assert effect.item_id not in world.closed, f"told: {effect.item_id} is closed twice"
        world.closed.add(effect.item_id)
        unheard = [
            sound
            for sound in _said_before(world, effect.item_id)
            if sound.start_ms < effect.end_ms
            and effect.start_ms < sound.start_ms + sound.audio_ms
            and (sound.start_ms, sound.digest) not in world.heard
        ]
        assert not unheard, f"told: {effect.item_id} is closed without {unheard}"
    elif isinstance(effect, fx.OpenLane | fx.Respond) and _all_unread_is_kept(world):
        asked = {turn.item_id for turn in effect.history if turn.text is None}
        assert asked <= world.closed, f"told: {asked - world.closed} were never heard by this worker"


def _said_before(world: World, turn: str) -> list[e.Append]:
    """All audio that had come in when ``turn`` was committed."""
    sounds: list[e.Append] = []
    for record in world.records:
        match record.event:
            case e.Append(kind="audio"):
                sounds.append(record.event)
            case e.Commit(item_id=item_id) if item_id == turn:
                break
    return sounds


def check_turns(world: World, result: Step) -> None:
    """told: no turn takes what the detector did not say to be its own."""
    for record in result.records:
        if isinstance(record.event, e.Commit) and record.event.by == "detector":
            (stopped,) = [r.event for r in result.records if isinstance(r.event, e.SpeechStopped)]
            assert record.event.end_ms <= max(stopped.end_ms, record.event.start_ms), "told: another turn's words"


def _all_unread_is_kept(world: World) -> bool:
    """Nothing had to be let go yet: few turns were never transcribed, and little audio came in at all."""
    if len(world.spoke_ms.keys() - world.transcribed) > UNREAD_TURNS_MAX:
        return False
    return sum(event.size_bytes for event in world.events(e.Append)) <= UNREAD_BYTES_MAX


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
