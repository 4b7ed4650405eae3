"""The conversation as the model may know it: of every answer, only what was heard."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice

import attrs

from core.session.effects import HistoryTurn
from core.session.ledger import heard_text
from core.session.state import Item, SessionState, Told, ToldPrefix
from core.session.telling import tell, told_of, told_prefix, turn_tokens

PREVIOUS_ID = ""
"""Stands for an item id in the turn that holds what is kept of turns that left the window."""

PREVIOUS_HEADING = "Earlier in this conversation:"
PREVIOUS_BYTES_PER_TOKEN = 4

_NOTHING: Mapping[str, int] = {}


@attrs.frozen
class Conversation:
    """What a lane is told: the turns, (item id, characters) of each, and the estimated tokens of those that are items."""

    turns: tuple[HistoryTurn, ...]
    parts: tuple[tuple[str, int], ...]
    tokens: int


def history(
    state: SessionState, upto: str | None = None, heard: Mapping[str, int] = _NOTHING
) -> tuple[HistoryTurn, ...]:
    """The turns in the context window up to and including item ``upto`` (None: all). Answers of which nothing was heard
    are left out. ``heard``: response id -> ms, where that is to count instead of what is recorded."""
    return conversation(state, upto, heard).turns


def conversation(state: SessionState, upto: str | None = None, heard: Mapping[str, int] = _NOTHING) -> Conversation:
    """The same, with its lengths. Takes as long as what has changed, and a copy of the rest."""
    first, rest = _told(state, upto, heard)
    turns = (*first.turns, *[turn for told in rest for turn in told.turns])
    parts = (*first.parts, *[part for told in rest for part in told.parts])
    tokens = first.tokens + sum([told.tokens for told in rest])
    if state.config.context_on_barge_in == "empty" and state.epoch > 1:
        last = turns[-1:]
        return Conversation(last, parts[-1:], sum(turn_tokens(turn, state.items[turn.item_id]) for turn in last))
    if state.config.window_mode == "context" and state.window.previous:
        text = previous_text(state, state.window.previous, heard)
        if text:
            turns = (HistoryTurn("system", text, PREVIOUS_ID), *turns)
            parts = ((PREVIOUS_ID, len(text)), *parts)
    return Conversation(turns, parts, tokens)


def _told(state: SessionState, upto: str | None, heard: Mapping[str, int]) -> tuple[ToldPrefix, list[Told]]:
    """How the window's items are told: the first of them together, the others each."""
    items, window, first = state.items, state.window.items, told_prefix(state)
    hearing = {state.responses[response_id].item_id: ms for response_id, ms in heard.items()}
    if not first.item_ids.isdisjoint(hearing) or upto in first.item_ids:
        first = ToldPrefix()
    rest = []
    for item_id in islice(window, len(first.item_ids), None):
        heard_ms = hearing.get(item_id)
        rest.append(told_of(state, items[item_id]) if heard_ms is None else tell(state, items[item_id], heard_ms))
        if item_id == upto:
            break
    return first, rest


def previous_text(state: SessionState, item_ids: Collection[str], heard: Mapping[str, int] = _NOTHING) -> str:
    """What is kept of turns that left the window, the newest of them: at most ``window_previous_tokens``."""
    room = state.config.window_previous_tokens * PREVIOUS_BYTES_PER_TOKEN - len(PREVIOUS_HEADING)
    lines: list[str] = []
    for item_id in reversed(tuple(item_ids)):
        item = state.items.get(item_id)
        turn = _said(state, item, heard) if item is not None else None
        if turn is None or not turn.text:
            continue
        line = f"\n{turn.role}: {turn.name}{turn.text}"
        size = len(line) if line.isascii() else len(line.encode())
        if size > room:
            break
        room -= size
        lines.append(line)
    return PREVIOUS_HEADING + "".join(reversed(lines)) if lines else ""


def _said(state: SessionState, item: Item, heard: Mapping[str, int]) -> HistoryTurn | None:
    heard_ms = heard.get(item.response_id or "")
    return (told_of(state, item) if heard_ms is None else tell(state, item, heard_ms)).said


def item_text(state: SessionState, item: Item) -> str:
    """An item's text as it may be shown: of an answer that ended or was cut, what was heard."""
    response = state.responses.get(item.response_id or "")
    if response is None or (response.active and response.limit_ms is None):
        return item.text or (response.text if response else "")
    if response.cut or response.limit_ms is not None:
        return heard_text(response)
    return response.text
