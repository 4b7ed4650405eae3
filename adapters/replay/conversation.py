"""A recorded session as a conversation that people can read: who said what, what was cut, how fast it went."""

from __future__ import annotations

import attrs

from adapters.replay.replaying import Replay
from core.session import events as e
from core.session.history import item_text
from core.session.ledger import heard_chars
from core.session.state import Item, Response, SessionState
from core.session.time_units import NS_PER_MS


@attrs.frozen
class Line:
    """One turn. ``cut`` is what was made of an answer and not heard; ``notes`` say what happened to it."""

    at_ms: int
    speaker: str
    text: str
    cut: str = ""
    notes: tuple[str, ...] = ()


def conversation(replay: Replay) -> list[Line]:
    """The turns in order, with what was heard of each answer and what was cut."""
    state = replay.state
    times = _item_times(replay.records)
    lines = []
    for item in state.items.values():
        at_ms = (times.get(item.item_id, state.opened_ns) - state.opened_ns) // NS_PER_MS
        response = state.responses.get(item.response_id or "")
        if response is None:
            lines.append(Line(at_ms, item.role, _words(state, item), notes=_shown(item)))
        else:
            lines.append(_answer(state, response, at_ms))
    return lines


def _words(state: SessionState, item: Item) -> str:
    """A function call as it is written, a turn as it was typed and said."""
    if item.name:
        return f"{item.name}({item.text or ''})"
    said = (item.typed, item_text(state, item))
    return " ".join(filter(None, said)) or ("" if item.images else "(not transcribed)")


def _shown(item: Item) -> tuple[str, ...]:
    count = len(item.images)
    return (f"{count} picture{'s' if count > 1 else ''}",) if count else ()


def _answer(state: SessionState, response: Response, at_ms: int) -> Line:
    whole = not response.cut and response.limit_ms is None and response.status == "completed"
    kept = len(response.text) if whole else heard_chars(response)
    notes = [f"{response.produced_ms / 1000:.1f} s made"]
    if response.acked or response.played_ms:
        notes.append(f"{response.played_ms / 1000:.1f} s heard")
    if response.status != "completed":
        notes.append(f"{response.status}: {response.reason}" if response.reason else response.status)
    elif response.cut:
        notes.append("cut while it played")
    return Line(at_ms, "assistant", response.text[:kept], response.text[kept:], tuple(notes))


def _item_times(records: list[e.Record]) -> dict[str, int]:
    times: dict[str, int] = {}
    for record in records:
        event = record.event
        if isinstance(event, e.SpeechStarted | e.Commit | e.ItemCreated | e.ToolCalled | e.ResponseStarted):
            times.setdefault(event.item_id, record.at_ns)
    return times
