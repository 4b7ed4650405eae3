"""The fold: one small function for each event, each total. ``apply`` is the only place where a state changes.

Events are facts and cannot be refused. What the log says is taken as it is, so nothing in here looks at a clock, asks for
an id, or decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from core.session import events as e
from core.session.config import AUDIO
from core.session.conversation import add_item, drop_item, item_changed
from core.session.ledger import heard_chars, heard_text
from core.session.parts import forget_shown_before, hide, show, take_in, take_pending
from core.session.state import (
    EVENT_IDS_MAX,
    PREROLL_MS,
    RESPONSES_MAX,
    Chunk,
    Item,
    Phase,
    Response,
    SessionState,
    Speech,
)
from core.session.telling import tell_all_anew, tell_anew


class LogBroken(Exception):
    """The log is not dense: a row is missing or stands twice. This is a fault of the store, never of a client."""


def apply(state: SessionState, record: e.Record) -> SessionState:
    """Fold one record into ``state``, in place, and return it. Raises LogBroken when positions are not dense."""
    if record.position != state.position + 1:
        raise LogBroken(f"position {record.position} follows {state.position}")
    state.position = record.position
    state.at_ns = record.at_ns
    _APPLY[type(record.event)](state, record.event, record.at_ns)
    return state


def fold(records: Iterable[e.Record], state: SessionState | None = None) -> SessionState:
    """Fold a whole log, or the rest of one."""
    state = SessionState() if state is None else state
    for record in records:
        apply(state, record)
    return state


# -- the session and its owner ------------------------------------------------------------------------------------


def _session_opened(state: SessionState, event: e.SessionOpened, at_ns: int) -> None:
    state.session_id = event.session_id
    state.dialect = event.dialect
    state.projection_version = event.projection_version
    state.config = event.config
    state.phase = Phase.OPEN
    state.epoch = 1
    state.opened_ns = state.activity_ns = at_ns
    state.attachment.detached_ns = at_ns


def _config_changed(state: SessionState, event: e.ConfigChanged, at_ns: int) -> None:
    if event.config.input_format != state.config.input_format:
        state.input.base_ms, state.input.base_samples = state.input.now_ms, state.input.samples
    if event.config.turn_detection is None:
        state.input.speech = None
    state.config = event.config
    _client_was_here(state, event.event_id, at_ns)


def _session_closed(state: SessionState, event: e.SessionClosed, at_ns: int) -> None:
    state.phase = Phase.CLOSED
    state.close_reason = event.reason
    state.queued.clear()
    state.input.pending.clear()
    take_pending(state.input)
    state.input.pending_bytes = 0


def _owner_changed(state: SessionState, event: e.OwnerChanged, at_ns: int) -> None:
    state.term, state.server = event.term, event.server
    state.runtime_up = False  # the new owner has no ear and no lane of this session yet
    state.lane_epoch = 0
    state.attachment.attached = False  # nor the client's socket: if nobody comes back, the grace time ends the session
    state.attachment.detached_ns = at_ns


def _attached(state: SessionState, event: e.Attached, at_ns: int) -> None:
    state.attachment.attach(event)
    state.activity_ns = at_ns
    for response_id, sent_ms in event.sent:
        response = state.responses.get(response_id)
        if response is not None:
            heard_before = heard_chars(response)
            _reset_sent(response, sent_ms)
            _answer_changed(state, response)
            _note_unheard(state, response, heard_before)


def _token_confirmed(state: SessionState, event: e.TokenConfirmed, at_ns: int) -> None:
    state.attachment.confirm(event)


def _detached(state: SessionState, event: e.Detached, at_ns: int) -> None:
    link = state.attachment
    if event.generation == link.generation:
        link.attached = False
        link.detached_ns = at_ns
    response = state.responses.get(event.response_id or "")
    if response is not None:
        _raise_sent(response, event.sent_ms)


def _paused(state: SessionState, event: e.Paused, at_ns: int) -> None:
    state.phase = Phase.PAUSED
    state.paused_ns = at_ns
    _client_was_here(state, event.event_id, at_ns)


def _unpaused(state: SessionState, event: e.Unpaused, at_ns: int) -> None:
    state.phase = Phase.OPEN
    _client_was_here(state, event.event_id, at_ns)


def _nothing(state: SessionState, event: e.Event, at_ns: int) -> None:
    """deadline_fired: a fact that no decision needs."""


def _touched(state: SessionState, event: e.Touched, at_ns: int) -> None:
    state.activity_ns = at_ns


def _refused(state: SessionState, event: e.Refused, at_ns: int) -> None:
    _client_was_here(state, event.event_id, at_ns)


def _erased(state: SessionState, event: e.Erased, at_ns: int) -> None:
    for item_id in event.items:
        item = state.items.get(item_id)
        if item is not None:
            item.text, item.source = "", None
            item_changed(state, item)


# -- input --------------------------------------------------------------------------------------------------------


def _append(state: SessionState, event: e.Append, at_ns: int) -> None:
    side = state.input
    if event.kind != AUDIO:
        take_in(state, event)
        _client_was_here(state, event.event_id, at_ns)
        return
    side.samples += event.samples
    side.now_ms = event.start_ms + event.audio_ms
    side.pending.append(Chunk(event.digest, event.size_bytes, event.start_ms, event.audio_ms))
    side.pending_bytes += event.size_bytes
    if event.is_speech is not False:
        side.heard_speech = True
    if state.config.turn_detection is not None and side.speech is None:
        _take_input(state, side.now_ms - PREROLL_MS)
        forget_shown_before(side, side.now_ms - PREROLL_MS)
    _client_was_here(state, event.event_id, at_ns)


def _input_cleared(state: SessionState, event: e.InputCleared, at_ns: int) -> None:
    _take_input(state, state.input.now_ms)
    take_pending(state.input)
    state.input.speech = None
    state.input.heard_speech = False
    _client_was_here(state, event.event_id, at_ns)


def _speech_started(state: SessionState, event: e.SpeechStarted, at_ns: int) -> None:
    state.input.speech = Speech(event.segment, event.start_ms, event.item_id, event.overlap, judged=not event.overlap)
    state.items_made += 1
    state.activity_ns = at_ns


def _speech_stopped(state: SessionState, event: e.SpeechStopped, at_ns: int) -> None:
    state.input.speech = None
    state.activity_ns = at_ns


def _overlap_decided(state: SessionState, event: e.OverlapDecided, at_ns: int) -> None:
    speech = state.input.speech
    if speech is not None and speech.segment == event.segment:
        speech.judged = True


def _commit(state: SessionState, event: e.Commit, at_ns: int) -> None:
    _take_input(state, event.end_ms)
    typed, images = take_pending(state.input)
    state.input.heard_speech = False
    if event.by == "client":
        state.items_made += 1
        state.input.speech = None
    add_item(
        state,
        Item(
            event.item_id,
            "user",
            "message",
            None if event.speech else "",
            spoken=True,
            audio_ms=event.end_ms - event.start_ms,
            typed=typed,
        ),
    )
    if images:
        show(state, event.item_id, images)
    if event.create_response:
        state.queued.append(event.item_id)
    _client_was_here(state, event.event_id, at_ns)


def _input_transcript(state: SessionState, event: e.InputTranscript, at_ns: int) -> None:
    item = state.items.get(event.item_id)
    if item is not None:
        item.text = event.text
        item.transcribed = True
        item_changed(state, item)


def _take_input(state: SessionState, upto_ms: int) -> None:
    """The input up to ``upto_ms`` is no longer pending; a chunk leaves once all of it is taken."""
    side = state.input
    side.taken_ms = max(side.taken_ms, min(upto_ms, side.now_ms))
    while side.pending and side.pending[0].start_ms + side.pending[0].audio_ms <= side.taken_ms:
        side.pending_bytes -= side.pending.popleft().size_bytes


# -- conversation items -------------------------------------------------------------------------------------------


def _item_created(state: SessionState, event: e.ItemCreated, at_ns: int) -> None:
    kind = "message" if event.role in ("user", "assistant", "system") else event.role
    role = event.role if kind == "message" else _ITEM_ROLES.get(kind, "system")
    item = Item(event.item_id, role, kind, event.text, source=event.item, name=event.name, call_id=event.call_id)
    state.items_made += 1
    add_item(state, item, event.previous_item_id)
    _client_was_here(state, event.event_id, at_ns)


_ITEM_ROLES = {"function_call": "assistant", "function_call_output": "tool"}
"""Whose word an item is that is no message."""


def _item_deleted(state: SessionState, event: e.ItemDeleted, at_ns: int) -> None:
    drop_item(state, event.item_id)
    _client_was_here(state, event.event_id, at_ns)


def _item_retrieved(state: SessionState, event: e.ItemRetrieved, at_ns: int) -> None:
    _client_was_here(state, event.event_id, at_ns)


def _window_slid(state: SessionState, event: e.WindowSlid, at_ns: int) -> None:
    window = state.window
    if event.upto not in window.items:
        return
    tell_all_anew(state)
    for item_id in tuple(window.items):
        del window.items[item_id]
        hide(state, item_id)
        window.previous.append(item_id)
        if item_id == event.upto:
            break


# -- answers ------------------------------------------------------------------------------------------------------


def _response_started(state: SessionState, event: e.ResponseStarted, at_ns: int) -> None:
    response = Response(
        event.response_id,
        event.item_id,
        state.epoch,
        event.trigger,
        event.answers,
        event.metadata,
        event.modalities,
        event.out_of_band,
        at_ns,
        event.prompt_tokens,
    )
    state.responses_made += 1
    state.items_made += 1
    state.responses[event.response_id] = state.active = response
    if not event.out_of_band:
        item = Item(event.item_id, "assistant", "message", None, event.response_id, spoken="audio" in event.modalities)
        add_item(state, item)
    if event.answers is not None and event.answers in state.queued:
        state.queued.remove(event.answers)
    state.told_too_much.clear()  # the runtime is told the whole heard conversation with it
    _forget_old_responses(state)
    _client_was_here(state, event.event_id, at_ns)


def _forget_old_responses(state: SessionState) -> None:
    while len(state.responses) > RESPONSES_MAX:
        oldest = state.responses.pop(next(iter(state.responses)))
        item = state.items.get(oldest.item_id)
        if item is not None:
            item.text, item.response_id = heard_text(oldest), None
            item_changed(state, item)


def _output(state: SessionState, event: e.Output, at_ns: int) -> None:
    response = state.responses.get(event.response_id)
    if response is None:
        return
    response.units = event.unit + 1
    response.text += event.text
    response.produced_samples += event.samples
    response.produced_ms = event.start_ms + event.audio_ms
    response.marks.extend([(mark.chars, mark.audio_end_ms) for mark in event.marks])
    _answer_changed(state, response)
    state.activity_ns = at_ns
    if event.audio_ms:
        state.spoken = True


def _call_of(event: e.ToolCalled) -> Item:
    return Item(event.item_id, "assistant", "function_call", event.arguments, name=event.name, call_id=event.call_id)


def _tool_called(state: SessionState, event: e.ToolCalled, at_ns: int) -> None:
    state.items_made += 1
    response = state.responses.get(event.response_id)
    if response is not None:
        response.calls[event.item_id] = state.position
    if response is None or not response.out_of_band:
        add_item(state, _call_of(event))


def _response_ended(state: SessionState, event: e.ResponseEnded, at_ns: int) -> None:
    response = state.responses.get(event.response_id)
    if response is not None:
        response.status, response.reason, response.usage = event.status, event.reason, event.usage
        _answer_changed(state, response)
        if event.usage is not None and event.usage[0] > 0 and response.prompt_tokens:
            estimate = response.prompt_tokens - state.window.excess_tokens
            state.window.excess_tokens = max(0, event.usage[0] - estimate)
        nothing_made = response.units == 0 and not response.calls
        if event.reason == "runtime_lost" and nothing_made and response.answers in state.items:
            state.queued.appendleft(response.answers)  # nothing of it was made: it is asked for again
    if state.active is response:
        state.active = None
    state.activity_ns = at_ns


def _epoch_bump(state: SessionState, event: e.EpochBump, at_ns: int) -> None:
    state.epoch = event.epoch
    if event.disposition == "cut":
        state.queued.clear()
    response = state.responses.get(event.response_id or "")
    if response is not None:
        _raise_sent(response, event.sent_ms)
        if event.disposition == "cut":
            response.cut = True
    _client_was_here(state, event.event_id, at_ns)


def _output_invalidated(state: SessionState, event: e.OutputInvalidated, at_ns: int) -> None:
    response = state.responses.get(event.response_id)
    for item_id in event.calls:
        drop_item(state, item_id)
    if response is not None:
        for item_id in event.calls:
            response.calls.pop(item_id, None)
        response.invalidated_ms += event.invalidated_ms
        response.sent_ms = response.produced_ms - response.invalidated_ms  # nothing of it is pending any more
        response.cut = True


def _playback_ack(state: SessionState, event: e.PlaybackAck, at_ns: int) -> None:
    response = state.responses.get(event.response_id)
    if response is not None:
        _raise_sent(response, event.sent_ms)
        heard_before = heard_chars(response) if event.committed_ms < response.committed_ms else 0
        response.played_ms = event.played_ms
        response.committed_ms = event.committed_ms
        _answer_changed(state, response)
        _note_unheard(state, response, heard_before)
        if event.source == "client":
            response.acked = True
            response.last_ack_ns = at_ns
        if event.truncate:
            response.limit_ms = event.committed_ms
    _client_was_here(state, event.event_id, at_ns)


def _note_unheard(state: SessionState, response: Response, heard_before: int) -> None:
    """Less was heard than was thought: the lane may have been told the difference."""
    if response.item_id in state.items and heard_chars(response) < heard_before:
        state.told_too_much[response.item_id] = None


def _answer_changed(state: SessionState, response: Response) -> None:
    """Another part of it was made or heard."""
    item = state.items.get(response.item_id)
    if item is not None:
        tell_anew(state, item)


def _raise_sent(response: Response, sent_ms: int) -> None:
    response.sent_ms = max(response.sent_ms, min(sent_ms, response.produced_ms))


def _reset_sent(response: Response, sent_ms: int) -> None:
    """What a resumed client has is what was sent: what lies between its number and an old cursor was not heard."""
    response.sent_ms = min(sent_ms, response.produced_ms - response.invalidated_ms)
    if response.cut:  # what was lost on its way will not be sent again
        response.invalidated_ms = response.produced_ms - response.sent_ms
    response.played_ms = min(response.played_ms, response.sent_ms)
    response.committed_ms = min(response.committed_ms, response.played_ms)


# -- the runtime --------------------------------------------------------------------------------------------------


def _lane_opened(state: SessionState, event: e.LaneOpened, at_ns: int) -> None:
    state.lane_epoch = state.epoch
    state.told_too_much.clear()


def _lane_truncated(state: SessionState, event: e.LaneTruncated, at_ns: int) -> None:
    state.told_too_much.pop(event.item_id, None)


def _runtime_changed(state: SessionState, event: e.RuntimeChanged, at_ns: int) -> None:
    state.runtime_up = event.up
    state.lane_epoch = 0
    state.input.speech = None
    if event.up:
        state.lane_tokens_max = event.lane_tokens_max
        state.inputs, state.can_truncate = event.inputs, event.can_truncate


def _client_was_here(state: SessionState, event_id: str | None, at_ns: int) -> None:
    state.activity_ns = at_ns
    if event_id is None:
        return
    state.last_event_id = event_id
    state.event_ids[event_id] = None
    if len(state.event_ids) > EVENT_IDS_MAX:
        del state.event_ids[next(iter(state.event_ids))]


_APPLY: dict[type, Callable[[SessionState, Any, int], None]] = {
    e.SessionOpened: _session_opened,
    e.ConfigChanged: _config_changed,
    e.SessionClosed: _session_closed,
    e.OwnerChanged: _owner_changed,
    e.Attached: _attached,
    e.TokenConfirmed: _token_confirmed,
    e.Detached: _detached,
    e.Append: _append,
    e.InputCleared: _input_cleared,
    e.SpeechStarted: _speech_started,
    e.SpeechStopped: _speech_stopped,
    e.InputTranscript: _input_transcript,
    e.OverlapDecided: _overlap_decided,
    e.Commit: _commit,
    e.LaneOpened: _lane_opened,
    e.LaneTruncated: _lane_truncated,
    e.WindowSlid: _window_slid,
    e.ResponseStarted: _response_started,
    e.Output: _output,
    e.ToolCalled: _tool_called,
    e.ResponseEnded: _response_ended,
    e.EpochBump: _epoch_bump,
    e.OutputInvalidated: _output_invalidated,
    e.PlaybackAck: _playback_ack,
    e.ItemCreated: _item_created,
    e.ItemDeleted: _item_deleted,
    e.ItemRetrieved: _item_retrieved,
    e.Refused: _refused,
    e.Touched: _touched,
    e.Paused: _paused,
    e.Unpaused: _unpaused,
    e.DeadlineFired: _nothing,
    e.RuntimeChanged: _runtime_changed,
    e.Erased: _erased,
}
"""One function for each event type; a test holds the table total over ``events.EVENT_TYPES``."""
