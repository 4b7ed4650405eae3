"""Refusals and problems under the names that OpenAI's clients know."""

from __future__ import annotations

from typing import Any

from adapters.wire.problems import error_body
from core.session.events import Refused

CODES = {
    "response_not_active": "response_cancel_not_active",
    "response_active": "conversation_already_has_active_response",
    "input_empty": "input_audio_buffer_commit_empty",
    "item_unknown": "item_retrieve_invalid_item_id",
    "item_exists": "item_create_duplicate_item_id",
    "voice_update_after_audio": "cannot_update_voice",
    "too_many_pending_commits": "input_backpressure",
    "input_too_large": "input_backpressure",
    "input_unsupported": "unsupported",
    "bad_audio": "invalid_value",
}
"""Code of the machine or the transport -> OpenAI's own, where it has one. Clients take some of these for harmless by
their code (pipecat) or by the start of their message (livekit)."""

MESSAGES = {
    "response_not_active": "Cancellation failed: no active response found.",
    "response_active": "Conversation already has an active response in progress. Wait until it is finished.",
    "input_empty": "Error committing input audio buffer: the buffer is empty.",
}


def rename(code: str) -> str:
    """The dialect's name for a code."""
    return CODES.get(code, code)


ITEM_UNKNOWN = {
    "retrieve_item": "item_retrieve_invalid_item_id",
    "delete_item": "item_delete_invalid_item_id",
    "ack_playback": "item_truncate_invalid_item_id",
}
"""An item that is not there has a code for each command that names one."""


def names_of(code: str) -> tuple[str, ...]:
    """All names that a code of the machine has in this dialect."""
    return tuple(ITEM_UNKNOWN.values()) if code == "item_unknown" else (rename(code),)


def refusal_body(event: Refused) -> dict[str, Any]:
    """A refusal of the machine as an ``error`` object."""
    code = ITEM_UNKNOWN.get(event.command) if event.code == "item_unknown" else None
    return error_body(code or rename(event.code), MESSAGES.get(event.code, event.message), event.param, event.event_id)
