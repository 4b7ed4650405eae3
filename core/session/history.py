"""The conversation as the model may know it: of every answer, only what was heard."""

from __future__ import annotations

from core.session.effects import HistoryTurn
from core.session.ledger import heard_chars, heard_text
from core.session.state import Item, SessionState


def history(state: SessionState, upto: str | None = None) -> tuple[HistoryTurn, ...]:
    """The turns up to and including item ``upto`` (None: all). Answers of which nothing was heard are left out."""
    turns = []
    for item in state.items.values():
        turn = _turn(state, item)
        if turn is not None:
            turns.append(turn)
        if item.item_id == upto:
            break
    if state.config.context_on_barge_in == "empty" and state.epoch > 1:
        return tuple(turns[-1:])
    return tuple(turns)


def lane_parts(state: SessionState, upto: str | None = None) -> tuple[tuple[str, int], ...]:
    """What a lane is made of that is told the history up to ``upto``: (item id, characters) in order."""
    return tuple((turn.item_id, len(turn.text or "")) for turn in history(state, upto))


def item_text(state: SessionState, item: Item) -> str:
    """An item's text as it may be shown: of an answer that ended or was cut, what was heard."""
    response = state.responses.get(item.response_id or "")
    if response is None or (response.active and response.limit_ms is None):
        return item.text or (response.text if response else "")
    if response.cut or response.limit_ms is not None:
        return heard_text(response)
    return response.text


def _turn(state: SessionState, item: Item) -> HistoryTurn | None:
    if item.kind == "function_call":
        return None
    response = state.responses.get(item.response_id) if item.response_id is not None else None
    if response is None:
        if item.role == "assistant" and not item.text:
            return None
        if item.role == "user" and item.text == "":
            return None
        return HistoryTurn(item.role, item.text, item.item_id)
    if response.out_of_band or heard_chars(response) == 0:
        return None
    return HistoryTurn("assistant", heard_text(response), item.item_id)
