"""Refusals: the one table of stable codes that the machine, the wire and the docs share.

A refusal is an answer to a command; it changes nothing but the log (so that a replay shows it). Wire dialects may rename
a code where their protocol has its own name for the same thing.
"""

from __future__ import annotations

import attrs

CODES: dict[str, str] = {
    "session_not_open": "The session is closing or closed.",
    "session_paused": "The session is paused; unpause it first.",
    "invalid_value": "A field has a value that cannot be.",
    "input_empty": "There is no input to commit.",
    "input_unsupported": "This session's model does not take input of that kind.",
    "input_too_large": "More uncommitted input than the session may hold; commit or clear it.",
    "too_many_pending_commits": "Too many turns wait for an answer already.",
    "response_active": "An answer is being made; wait for its end or cancel it.",
    "response_not_active": "No answer is being made.",
    "response_unknown": "No response of that id.",
    "item_unknown": "No conversation item of that id.",
    "item_exists": "A conversation item of that id is there already.",
    "item_not_audio": "Only an answer that was spoken can be truncated.",
    "previous_item_unknown": "The item to insert after is not in the conversation.",
    "model_update_unsupported": "The model cannot be changed in a session that is open.",
    "voice_update_after_audio": "The voice cannot be changed once the assistant has spoken.",
    "input_format_update_pending": "The input format cannot be changed while input is pending.",
    "invalid_config": "A setting has a value that cannot be.",
    "runtime_unavailable": "The model is not there at the moment; it is being started again.",
}


@attrs.frozen
class Refusal:
    """Why a command was refused. ``param`` names the field at fault, ``event_id`` the client's event."""

    code: str
    message: str
    param: str | None = None
    event_id: str | None = None

    def __attrs_post_init__(self) -> None:
        assert self.code in CODES, self.code


def refuse(code: str, event_id: str | None = None, param: str | None = None, detail: str = "") -> Refusal:
    """A refusal with the table's sentence, and what is particular about this one after it."""
    return Refusal(code, f"{CODES[code]} {detail}".strip(), param, event_id)
