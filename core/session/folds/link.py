"""Who owns the session, who holds its stream, the worker it is on; its beginning, pauses and end."""

from __future__ import annotations

from core.session import events as e
from core.session.folds.moves import answer_changed, client_was_here, note_unheard, raise_sent, reset_sent
from core.session.ledger import heard_chars
from core.session.parts import take_pending
from core.session.state import Phase, SessionState


def session_opened(state: SessionState, event: e.SessionOpened, at_ns: int) -> None:
    state.session_id = event.session_id
    state.dialect = event.dialect
    state.projection_version = event.projection_version
    state.config = event.config
    state.phase = Phase.OPEN
    state.epoch = 1
    state.opened_ns = state.activity_ns = at_ns
    state.attachment.detached_ns = at_ns


def config_changed(state: SessionState, event: e.ConfigChanged, at_ns: int) -> None:
    if event.config.input_format != state.config.input_format:
        state.input.base_ms, state.input.base_samples = state.input.now_ms, state.input.samples
    if event.config.turn_detection is None:
        state.input.speech = None
    state.config = event.config
    client_was_here(state, event.event_id, at_ns)


def session_closed(state: SessionState, event: e.SessionClosed, at_ns: int) -> None:
    state.phase = Phase.CLOSED
    state.close_reason = event.reason
    state.queued.clear()
    state.input.pending.clear()
    state.input.unread.clear()
    take_pending(state.input)
    state.input.pending_bytes = 0


def owner_changed(state: SessionState, event: e.OwnerChanged, at_ns: int) -> None:
    state.term, state.server = event.term, event.server
    state.runtime_up = False  # the new owner has no ear and no lane of this session yet
    state.lane_epoch = 0
    state.attachment.attached = False  # nor the client's socket: if nobody comes back, the grace time ends the session
    state.attachment.detached_ns = at_ns


def attached(state: SessionState, event: e.Attached, at_ns: int) -> None:
    state.attachment.attach(event)
    state.activity_ns = at_ns
    for response_id, sent_ms in event.sent:
        response = state.responses.get(response_id)
        if response is not None:
            heard_before = heard_chars(response)
            reset_sent(response, sent_ms)
            answer_changed(state, response)
            note_unheard(state, response, heard_before)


def token_confirmed(state: SessionState, event: e.TokenConfirmed, at_ns: int) -> None:
    state.attachment.confirm(event)


def detached(state: SessionState, event: e.Detached, at_ns: int) -> None:
    link = state.attachment
    if event.generation == link.generation:
        link.attached = False
        link.detached_ns = at_ns
    response = state.responses.get(event.response_id or "")
    if response is not None:
        raise_sent(response, event.sent_ms)


def paused(state: SessionState, event: e.Paused, at_ns: int) -> None:
    state.phase = Phase.PAUSED
    state.paused_ns = at_ns
    client_was_here(state, event.event_id, at_ns)


def unpaused(state: SessionState, event: e.Unpaused, at_ns: int) -> None:
    state.phase = Phase.OPEN
    client_was_here(state, event.event_id, at_ns)


def nothing(state: SessionState, event: e.Event, at_ns: int) -> None:
    """deadline_fired: a fact that no decision needs."""


def touched(state: SessionState, event: e.Touched, at_ns: int) -> None:
    state.activity_ns = at_ns


def refused(state: SessionState, event: e.Refused, at_ns: int) -> None:
    client_was_here(state, event.event_id, at_ns)


def runtime_changed(state: SessionState, event: e.RuntimeChanged, at_ns: int) -> None:
    state.runtime_up = event.up
    state.lane_epoch = 0
    state.input.speech = None
    if event.up:
        state.lane_tokens_max = event.lane_tokens_max
        state.inputs, state.can_truncate = event.inputs, event.can_truncate
