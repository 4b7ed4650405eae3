"""The conversation in the fold: items come, stand in their order, and leave."""

from __future__ import annotations

from typing import TypeVar

from core.session.parts import hide
from core.session.state import ITEMS_BYTES_MAX, ITEMS_MAX, Item, SessionState
from core.session.telling import tell_all_anew, tell_anew

WIDE_CHAR_BYTES = 4
"""What a character of a text that is not all ASCII costs in memory at the most."""

V = TypeVar("V")


def add_item(state: SessionState, item: Item, after: str | None = None) -> None:
    """At the end, or behind the item ``after`` (``root``: at the beginning); beyond the bound the oldest leaves."""
    window = state.window
    if after == "root" or (after is not None and after in state.items):
        state.items = _put_after(state.items, after, item.item_id, item)
        # After an item that has left the window is before all that has not.
        tell_all_anew(state)
        window.items = _put_after(window.items, after if after in window.items else "root", item.item_id, None)
    else:
        state.items[item.item_id] = item
        window.items[item.item_id] = None
    _weigh(state, item)
    while len(state.items) > ITEMS_MAX or (state.items_bytes > ITEMS_BYTES_MAX and len(state.items) > 1):
        oldest = next(iter(state.items))
        hide(state, oldest)
        state.input.unread.pop(oldest, None)
        state.items_bytes -= state.items.pop(oldest).size_bytes
        if oldest in window.items:
            del window.items[oldest]
            tell_all_anew(state)


def item_changed(state: SessionState, item: Item) -> None:
    """Its text is another."""
    if item.text is not None:
        state.input.unread.pop(item.item_id, None)
    _weigh(state, item)
    tell_anew(state, item)


def _weigh(state: SessionState, item: Item) -> None:
    texts = (item.text, item.source, item.typed, item.name)
    size_bytes = sum([len(text) * (1 if text.isascii() else WIDE_CHAR_BYTES) for text in texts if text])
    state.items_bytes += size_bytes - item.size_bytes
    item.size_bytes = size_bytes


def _put_after(there: dict[str, V], after: str | None, key: str, value: V) -> dict[str, V]:
    if after == "root":
        return {key: value, **there}
    rebuilt: dict[str, V] = {}
    for old, kept in there.items():
        rebuilt[old] = kept
        if old == after:
            rebuilt[key] = value
    return rebuilt


def drop_item(state: SessionState, item_id: str) -> None:
    """The item leaves the conversation, and whatever waits for it."""
    hide(state, item_id)
    state.input.unread.pop(item_id, None)
    item = state.items.pop(item_id, None)
    state.items_bytes -= item.size_bytes if item is not None else 0
    if item_id in state.window.items:
        del state.window.items[item_id]
        tell_all_anew(state)
    state.told_too_much.pop(item_id, None)
    if item_id in state.queued:
        state.queued.remove(item_id)
