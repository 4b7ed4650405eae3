"""Conversation items as the client sees them."""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any

from core.session.history import item_text
from core.session.state import Item, SessionState

COMPLETED = "completed"
INCOMPLETE = "incomplete"
IN_PROGRESS = "in_progress"


def previous_item_id(state: SessionState, item_id: str, hidden: Container[str] = ()) -> str | None:
    """The item before ``item_id`` in the conversation, leaving out what the client does not know of."""
    found = item_id not in state.items
    for candidate in reversed(state.items):
        if found and candidate not in hidden:
            return candidate
        found = found or candidate == item_id
    return None


def assistant_part(spoken: bool, text: str) -> dict[str, Any]:
    """The one content part of an answer's message."""
    return {"type": "output_audio", "transcript": text} if spoken else {"type": "output_text", "text": text}


def message(item_id: str, role: str, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    """A message item."""
    return {
        "id": item_id,
        "object": "realtime.item",
        "type": "message",
        "status": status,
        "role": role,
        "content": content,
    }


def assistant_message(item_id: str, spoken: bool, text: str, status: str) -> dict[str, Any]:
    """An answer's message; one without text, and not (or not yet) completed, has no content."""
    content = [assistant_part(spoken, text)] if text or status == COMPLETED else []
    return message(item_id, "assistant", content, status)


def function_call(item_id: str, call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A function call that the model asks for."""
    return {
        "id": item_id,
        "object": "realtime.item",
        "type": "function_call",
        "status": COMPLETED,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


def user_turn(item: Item, transcript: str | None) -> dict[str, Any]:
    """A turn of the user's that was said; its transcript follows in an event of its own. What was typed and shown with it
    stands there too, the images without their bytes."""
    typed = [{"type": "input_text", "text": item.typed}] if item.typed else []
    shown = [{"type": "input_image", "detail": "auto"} for _ in item.images]
    spoken = {"type": "input_audio", "transcript": transcript}
    return message(item.item_id, "user", [*typed, *shown, spoken], COMPLETED)


def client_item(item_id: str, source: str) -> dict[str, Any]:
    """An item as the client made it."""
    item: dict[str, Any] = json.loads(source)
    return {**item, "id": item_id, "object": "realtime.item", "status": item.get("status") or COMPLETED}


def render(state: SessionState, item: Item) -> dict[str, Any]:
    """Any item as it stands now: of an answer that was cut or truncated, only what was heard."""
    if item.source is not None:
        return client_item(item.item_id, item.source)
    if item.kind == "function_call":
        return function_call(item.item_id, item.call_id, item.name, item.text or "")
    if item.role == "user":
        return user_turn(item, item.text)
    response = state.responses.get(item.response_id or "")
    if response is not None and response.active:
        status = IN_PROGRESS
    elif response is not None and (response.status != COMPLETED or response.cut):
        status = INCOMPLETE
    else:
        status = COMPLETED
    if item.role == "assistant":
        return assistant_message(item.item_id, item.spoken, item_text(state, item), status)
    return message(item.item_id, item.role, [{"type": "input_text", "text": item.text or ""}], status)


def usage(tokens: tuple[int, int] | None) -> dict[str, Any] | None:
    """(input tokens, output tokens) as a response.done has them."""
    if tokens is None:
        return None
    tokens_in, tokens_out = tokens
    return {
        "total_tokens": tokens_in + tokens_out,
        "input_tokens": tokens_in,
        "output_tokens": tokens_out,
        "input_token_details": {"cached_tokens": 0, "text_tokens": tokens_in, "audio_tokens": 0},
        "output_token_details": {"text_tokens": tokens_out, "audio_tokens": 0},
    }
