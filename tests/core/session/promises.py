"""The promises of the machine, each worked out from what a world knows and not with the machine's own functions. Those about
parts and calls and about the window have files of their own.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from core.session import commands as c
from core.session import effects as fx
from core.session import events as e
from core.session.apply import apply, fold
from core.session.history import history
from core.session.machine import Step
from core.session.react import effects_of
from core.session.refusals import CODES
from core.session.state import (
    EVENT_IDS_MAX,
    ITEMS_MAX,
    PENDING_CHUNKS_MAX,
    RESPONSES_MAX,
    Phase,
    SessionState,
    ToldPrefix,
)
from core.session.telling import tell
from tests.core.session.parts_promises import pending_bytes

if TYPE_CHECKING:
    from tests.core.session.world import World


def marks_of(state: SessionState) -> tuple[int, ...]:
    """What never goes back."""
    return (state.epoch, state.position, state.attachment.generation, state.term, state.at_ns, state.input.now_ms)


def check_replay_is_live(world: World) -> None:
    """replay-is-live: folding the records gives the live state."""
    assert world.replayed == world.state, "replay-is-live"


def check_told(world: World) -> None:
    """heard-only: what is kept of how the conversation is told is what telling it anew gives."""
    state = world.state
    for item in state.items.values():
        assert item.told in (None, tell(state, item)), f"heard-only: {item.item_id} is kept as {item.told}"
    told, kept = history(state), state.window.told
    first = [tell(state, state.items[item_id]) for item_id in islice(state.window.items, len(kept.item_ids))]
    assert kept.item_ids == set(islice(state.window.items, len(kept.item_ids))), "heard-only: another prefix is kept"
    assert kept.turns == [turn for one in first for turn in one.turns], "heard-only: the prefix is kept wrongly"
    assert kept.parts == [(turn.item_id, len(turn.text or "")) for turn in kept.turns], "heard-only: so are its parts"
    assert kept.tokens == sum(one.tokens for one in first), "window: the prefix is counted wrongly"
    state.window.told = ToldPrefix()
    assert history(state) == told, "heard-only: the conversation is told as it was"
    state.window.told = kept


def check_replay_from_the_start(world: World) -> None:
    """replay-is-live, the long way: the state from nothing, and each record's effects."""
    state = SessionState()
    for record in world.records:
        apply(state, record)
        effects_of(record, state)
    assert state == world.state == fold(world.records), "replay-is-live"


def check_conservation(world: World) -> None:
    """conservation: committed <= played <= sent <= produced, and what was made is pending, sent or invalidated."""
    cut_epoch = max(world.cut_ends, default=0)
    for response in world.state.responses.values():
        where = f"conservation of {response.response_id}: {response}"
        made, gone, sent = response.produced_ms, response.invalidated_ms, response.sent_ms
        assert 0 <= response.committed_ms <= response.played_ms <= sent <= made, where
        assert sent + gone <= made, where
        if response.cut:
            assert sent + gone == made, where
            assert response.epoch < cut_epoch, where
        else:
            assert gone == 0, where


def check_heard_only(world: World, result: Step) -> None:
    """heard-only: no text stands in the history, or goes to a lane, that cannot have been heard by now."""
    for turn in history(world.state):
        _check_turn(world, turn)
    for effect in result.effects:
        if isinstance(effect, fx.OpenLane | fx.Respond):
            for turn in effect.history:
                _check_turn(world, turn)


def _check_turn(world: World, turn: fx.HistoryTurn) -> None:
    item = world.state.items.get(turn.item_id)
    if turn.role != "assistant" or item is None or item.response_id is None:
        return
    ear = world.ears[item.response_id]
    assert turn.text is not None
    assert ear.text.startswith(turn.text), "heard-only"
    heard = ear.heard_chars_at_most(world.clock_ns)
    assert len(turn.text) <= heard, f"heard-only: {turn.text!r} of {item.response_id}, at most {heard}: {ear}"


def check_one_end(world: World) -> None:
    """one-end: what ended had started, and ended once; the one that has not ended is the active one."""
    assert all(count == 1 for count in world.ends.values()), f"one-end: {world.ends}"
    open_ones = world.started - set(world.ends)
    active = {world.state.active.response_id} if world.state.active else set()
    assert open_ones == active, f"one-end: {open_ones} have no end, {active} is active"
    if world.state.phase is Phase.CLOSED:
        assert not open_ones, "one-end: a closed session has an open answer"


def check_bounded(world: World) -> None:
    """bounded: everything that waits or is remembered has a bound."""
    state = world.state
    side = state.input
    assert side.pending_bytes == pending_bytes(state), "bounded: bytes are miscounted"
    assert side.pending_bytes <= state.config.max_pending_input_bytes, "bounded: pending input"
    assert len(side.pending) <= PENDING_CHUNKS_MAX, "bounded: pending chunks"
    # A turn of whose answer nothing was made when the runtime died waits once more.
    assert len(state.queued) <= state.config.max_pending_commits + 1, "bounded: queued turns"
    assert len(state.event_ids) <= EVENT_IDS_MAX, "bounded: event ids"
    assert len(state.responses) <= RESPONSES_MAX, "bounded: responses"
    assert len(state.items) <= ITEMS_MAX, "bounded: items"
    assert state.items_bytes == sum(item.size_bytes for item in state.items.values()), "bounded: texts are miscounted"


def check_fences_grow(before: tuple[int, ...], state: SessionState) -> None:
    """Epoch, position, generation, term, the log's clock and the input clock never go back."""
    assert all(old <= new for old, new in zip(before, marks_of(state), strict=True)), "fences"


def check_generation(before: tuple[int, ...], result: Step) -> None:
    """fences: only the present attachment's end is one, and only its first frame confirms its token."""
    for record in result.records:
        if isinstance(record.event, e.TokenConfirmed):
            assert record.event.generation == before[2], "fences: an older attachment confirmed the newest token"
        if isinstance(record.event, e.Detached):
            assert record.event.generation == before[2], "fences: an older attachment's end was taken for this one's"


def check_refusal(result: Step) -> None:
    """A refusal is one of the table's, and the only record of its step, whatever settles after it."""
    refused = [record.event for record in result.records if isinstance(record.event, e.Refused)]
    if result.refusal is None:
        assert not refused
        return
    assert result.refusal.code in CODES
    assert [event.code for event in refused] == [result.refusal.code]
    assert isinstance(result.records[0].event, e.Refused)


def check_first_fence(world: World, command: c.Command, result: Step) -> None:
    """no-stale-audio, where output comes in: it belongs to an answer of the epoch in which it is recorded, and no lane that
    is over begins one."""
    for record in result.records:
        if isinstance(record.event, e.ResponseStarted) and isinstance(command, c.ModelSpeaks):
            assert command.epoch == record.epoch, "no-stale-audio: an answer that was begun by a lane that is over"
        if isinstance(record.event, e.Output):
            response = world.state.responses[record.event.response_id]
            assert response.epoch == record.epoch, "no-stale-audio: output of a lane that is over"
