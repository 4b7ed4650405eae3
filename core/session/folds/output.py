"""The assistant's side: lanes and answers begin, are made, cut, heard, and end."""

from __future__ import annotations

from core.session import events as e
from core.session.conversation import add_item, drop_item, item_changed
from core.session.folds.moves import answer_changed, client_was_here, note_unheard, raise_sent
from core.session.ledger import heard_chars, heard_text
from core.session.state import RESPONSES_MAX, Item, Response, SessionState


def lane_opened(state: SessionState, event: e.LaneOpened, at_ns: int) -> None:
    state.lane_epoch = state.epoch
    state.told_too_much.clear()


def lane_truncated(state: SessionState, event: e.LaneTruncated, at_ns: int) -> None:
    state.told_too_much.pop(event.item_id, None)


def response_started(state: SessionState, event: e.ResponseStarted, at_ns: int) -> None:
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
    client_was_here(state, event.event_id, at_ns)


def _forget_old_responses(state: SessionState) -> None:
    while len(state.responses) > RESPONSES_MAX:
        oldest = state.responses.pop(next(iter(state.responses)))
        item = state.items.get(oldest.item_id)
        if item is not None:
            item.text, item.response_id = heard_text(oldest), None
            item_changed(state, item)


def output(state: SessionState, event: e.Output, at_ns: int) -> None:
    response = state.responses.get(event.response_id)
    if response is None:
        return
    response.units = event.unit + 1
    response.text += event.text
    response.produced_samples += event.samples
    response.produced_ms = event.start_ms + event.audio_ms
    response.marks.extend([(mark.chars, mark.audio_end_ms) for mark in event.marks])
    answer_changed(state, response)
    state.activity_ns = at_ns
    if event.audio_ms:
        state.spoken = True


def _call_of(event: e.ToolCalled) -> Item:
    return Item(event.item_id, "assistant", "function_call", event.arguments, name=event.name, call_id=event.call_id)


def tool_called(state: SessionState, event: e.ToolCalled, at_ns: int) -> None:
    state.items_made += 1
    response = state.responses.get(event.response_id)
    if response is not None:
        response.calls[event.item_id] = state.position
    if response is None or not response.out_of_band:
        add_item(state, _call_of(event))


def response_ended(state: SessionState, event: e.ResponseEnded, at_ns: int) -> None:
    response = state.responses.get(event.response_id)
    if response is not None:
        response.status, response.reason, response.usage = event.status, event.reason, event.usage
        answer_changed(state, response)
        if event.usage is not None and event.usage[0] > 0 and response.prompt_tokens:
            estimate = response.prompt_tokens - state.window.excess_tokens
            state.window.excess_tokens = max(0, event.usage[0] - estimate)
        nothing_made = response.units == 0 and not response.calls
        if event.reason == "runtime_lost" and nothing_made and response.answers in state.items:
            state.queued.appendleft(response.answers)  # nothing of it was made: it is asked for again
    if state.active is response:
        state.active = None
    state.activity_ns = at_ns


def epoch_bump(state: SessionState, event: e.EpochBump, at_ns: int) -> None:
    state.epoch = event.epoch
    if event.disposition == "cut":
        state.queued.clear()
    response = state.responses.get(event.response_id or "")
    if response is not None:
        raise_sent(response, event.sent_ms)
        if event.disposition == "cut":
            response.cut = True
    client_was_here(state, event.event_id, at_ns)


def output_invalidated(state: SessionState, event: e.OutputInvalidated, at_ns: int) -> None:
    response = state.responses.get(event.response_id)
    for item_id in event.calls:
        drop_item(state, item_id)
    if response is not None:
        for item_id in event.calls:
            response.calls.pop(item_id, None)
        response.invalidated_ms += event.invalidated_ms
        response.sent_ms = response.produced_ms - response.invalidated_ms  # nothing of it is pending any more
        response.cut = True


def playback_ack(state: SessionState, event: e.PlaybackAck, at_ns: int) -> None:
    response = state.responses.get(event.response_id)
    if response is not None:
        raise_sent(response, event.sent_ms)
        heard_before = heard_chars(response) if event.committed_ms < response.committed_ms else 0
        response.played_ms = event.played_ms
        response.committed_ms = event.committed_ms
        answer_changed(state, response)
        note_unheard(state, response, heard_before)
        if event.source == "client":
            response.acked = True
            response.last_ack_ns = at_ns
        if event.truncate:
            response.limit_ms = event.committed_ms
    client_was_here(state, event.event_id, at_ns)
