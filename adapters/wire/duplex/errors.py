"""Refusals and problems under the names that duplex clients know."""

from __future__ import annotations

from typing import Any

from adapters.wire.problems import error_body
from core.session.events import Refused

CODES = {
    "response_active": "response_already_active",
    "input_empty": "input_audio_buffer_empty",
    "item_unknown": "item_not_found",
    "voice_update_after_audio": "voice_update_after_audio_unsupported",
    "invalid_config": "invalid_session_config",
    "too_many_pending_commits": "input_backpressure",
    "input_too_large": "input_backpressure",
    "input_unsupported": "invalid_input_modality",
    "item_not_audio": "bad_event",
    "missing_required_parameter": "bad_event",
    "invalid_value": "bad_event",
}
"""Code of the machine or the transport -> the duplex dialect's own, where it has one."""


def rename(code: str) -> str:
    """The dialect's name for a code."""
    return CODES.get(code, code)


def refusal_body(event: Refused) -> dict[str, Any]:
    """A refusal of the machine as an ``error`` object. What the model does not take has another name in an item."""
    in_item = event.code == "input_unsupported" and event.command == "create_item"
    return error_body("unsupported" if in_item else rename(event.code), event.message, event.param, event.event_id)
