"""What many events do alike: the ledger of an answer moves, the client shows that it is there."""

from __future__ import annotations

from core.session.ledger import heard_chars
from core.session.state import EVENT_IDS_MAX, Response, SessionState
from core.session.telling import tell_anew


def note_unheard(state: SessionState, response: Response, heard_before: int) -> None:
    """Less was heard than was thought: the lane may have been told the difference."""
    if response.item_id in state.items and heard_chars(response) < heard_before:
        state.told_too_much[response.item_id] = None


def answer_changed(state: SessionState, response: Response) -> None:
    """Another part of it was made or heard."""
    item = state.items.get(response.item_id)
    if item is not None:
        tell_anew(state, item)


def raise_sent(response: Response, sent_ms: int) -> None:
    response.sent_ms = max(response.sent_ms, min(sent_ms, response.produced_ms))


def reset_sent(response: Response, sent_ms: int) -> None:
    """What a resumed client has is what was sent: what lies between its number and an old cursor was not heard."""
    response.sent_ms = min(sent_ms, response.produced_ms - response.invalidated_ms)
    if response.cut:  # what was lost on its way will not be sent again
        response.invalidated_ms = response.produced_ms - response.sent_ms
    response.played_ms = min(response.played_ms, response.sent_ms)
    response.committed_ms = min(response.committed_ms, response.played_ms)


def client_was_here(state: SessionState, event_id: str | None, at_ns: int) -> None:
    state.activity_ns = at_ns
    if event_id is None:
        return
    state.last_event_id = event_id
    state.event_ids[event_id] = None
    if len(state.event_ids) > EVENT_IDS_MAX:
        del state.event_ids[next(iter(state.event_ids))]
