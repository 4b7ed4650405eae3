"""Conversation items, and the window that the model is told of them."""

from __future__ import annotations

from core.session import events as e
from core.session.conversation import add_item, drop_item, item_changed
from core.session.folds.moves import client_was_here
from core.session.parts import hide
from core.session.state import Item, SessionState
from core.session.telling import tell_all_anew


def item_created(state: SessionState, event: e.ItemCreated, at_ns: int) -> None:
    kind = "message" if event.role in ("user", "assistant", "system") else event.role
    role = event.role if kind == "message" else _ITEM_ROLES.get(kind, "system")
    item = Item(event.item_id, role, kind, event.text, source=event.item, name=event.name, call_id=event.call_id)
    state.items_made += 1
    add_item(state, item, event.previous_item_id)
    client_was_here(state, event.event_id, at_ns)


_ITEM_ROLES = {"function_call": "assistant", "function_call_output": "tool"}
"""Whose word an item is that is no message."""


def item_deleted(state: SessionState, event: e.ItemDeleted, at_ns: int) -> None:
    drop_item(state, event.item_id)
    client_was_here(state, event.event_id, at_ns)


def item_retrieved(state: SessionState, event: e.ItemRetrieved, at_ns: int) -> None:
    client_was_here(state, event.event_id, at_ns)


def erased(state: SessionState, event: e.Erased, at_ns: int) -> None:
    for item_id in event.items:
        item = state.items.get(item_id)
        if item is not None:
            item.text, item.source = "", None
            item_changed(state, item)


def window_slid(state: SessionState, event: e.WindowSlid, at_ns: int) -> None:
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
