"""The conversation as the model may know it: of every answer, only what was heard."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from core.session.effects import HistoryTurn
from core.session.ledger import heard_text
from core.session.state import Item, SessionState

PREVIOUS_ID = ""
"""Stands for an item id in the turn that holds what is kept of turns that left the window."""

PREVIOUS_HEADING = "Earlier in this conversation:"
PREVIOUS_BYTES_PER_TOKEN = 4

_NOTHING: Mapping[str, int] = {}


def history(
    state: SessionState, upto: str | None = None, heard: Mapping[str, int] = _NOTHING
) -> tuple[HistoryTurn, ...]:
    """The turns in the context window up to and including item ``upto`` (None: all). Answers of which nothing was heard
    are left out. ``heard``: response id -> ms, where that is to count instead of what is recorded."""
    turns, items = [], state.items
    for item_id in state.window.items:
        item = items[item_id]
        if item.typed:
            turns.append(HistoryTurn(item.role, item.typed, item_id))
        turn = _turn(state, item, heard)
        if turn is not None:
            turns.append(turn)
        if item_id == upto:
            break
    if state.config.context_on_barge_in == "empty" and state.epoch > 1:
        return tuple(turns[-1:])
    if state.config.window_mode == "context" and state.window.previous:
        text = previous_text(state, state.window.previous, heard)
        if text:
            turns.insert(0, HistoryTurn("system", text, PREVIOUS_ID))
    return tuple(turns)


def previous_text(state: SessionState, item_ids: Collection[str], heard: Mapping[str, int] = _NOTHING) -> str:
    """What is kept of turns that left the window, the newest of them: at most ``window_previous_tokens``."""
    room = state.config.window_previous_tokens * PREVIOUS_BYTES_PER_TOKEN - len(PREVIOUS_HEADING)
    lines: list[str] = []
    for item_id in reversed(tuple(item_ids)):
        item = state.items.get(item_id)
        turn = _turn(state, item, heard) if item is not None else None
        if turn is None or not turn.text:
            continue
        line = f"\n{turn.role}: {turn.name}{turn.text}"
        size = len(line) if line.isascii() else len(line.encode())
        if size > room:
            break
        room -= size
        lines.append(line)
    return PREVIOUS_HEADING + "".join(reversed(lines)) if lines else ""


def item_text(state: SessionState, item: Item) -> str:
    """An item's text as it may be shown: of an answer that ended or was cut, what was heard."""
    response = state.responses.get(item.response_id or "")
    if response is None or (response.active and response.limit_ms is None):
        return item.text or (response.text if response else "")
    if response.cut or response.limit_ms is not None:
        return heard_text(response)
    return response.text


def _turn(state: SessionState, item: Item, heard: Mapping[str, int]) -> HistoryTurn | None:
    response = state.responses.get(item.response_id) if item.response_id is not None else None
    if response is None:
        silent = not item.text and not item.images and not item.name
        if silent and (item.role == "assistant" or (item.role == "user" and item.text is not None)):
            return None
        text, memo = item.text, item.turn
    else:
        heard_ms = heard.get(response.response_id)
        text, memo = heard_text(response, heard_ms), item.turn
        if not text or response.out_of_band:
            return None
    if memo is not None and memo.text == text:
        return memo
    role = item.role if response is None else "assistant"
    images = tuple(image.digest for image in item.images)
    item.turn = turn = HistoryTurn(role, text, item.item_id, images, item.name, item.call_id)
    return turn
