"""Stable error codes of the wire and of HTTP: the one table. A code is forever; the sentence beside it may change.

The machine's refusals have a table of their own (``core.session.refusals``); those that are not the caller's fault are here
too, for their type. Dialects give some codes the names that their clients know.
"""

from __future__ import annotations

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
RATE_LIMIT = "rate_limit_error"

CODES: dict[str, tuple[str, str]] = {
    "invalid_json": (INVALID_REQUEST, "The frame is not JSON, or is nested too deep."),
    "bad_event": (INVALID_REQUEST, "The frame is no event: not an object, no type, or binary where text is spoken."),
    "event_too_large": (INVALID_REQUEST, "The frame, or what is in it, has more bytes than one may have."),
    "unknown_event": (INVALID_REQUEST, "No event of that type is known."),
    "missing_required_parameter": (INVALID_REQUEST, "A field that is needed is missing."),
    "invalid_value": (INVALID_REQUEST, "A field has a value of the wrong kind, or outside its range."),
    "invalid_config": (INVALID_REQUEST, "The settings, taken together, cannot be."),
    "invalid_input_modality": (INVALID_REQUEST, "The input is of a kind that the session does not take."),
    "invalid_image": (INVALID_REQUEST, "The image is no base64, too large, or no PNG, JPEG or WebP file."),
    "invalid_video_frames": (INVALID_REQUEST, "The frames are too many, or one of them is no image."),
    "bad_audio": (INVALID_REQUEST, "The audio is not in the session's format."),
    "unsupported_audio_format": (INVALID_REQUEST, "No audio format of that name is known."),
    "unsupported_turn_detection": (INVALID_REQUEST, "Turns are not detected in that way."),
    "model_not_found": (INVALID_REQUEST, "The server has no model of that name."),
    "ref_audio_update_unsupported": (INVALID_REQUEST, "A reference voice is given when the session is opened."),
    "unsupported_ref_audio_path": (INVALID_REQUEST, "A reference voice is sent, not named by a path of the server's."),
    "invalid_voice": (INVALID_REQUEST, "The model has no voice of that name."),
    "unsupported": (INVALID_REQUEST, "The protocol has it, and this server does not."),
    "native_text_append_unsupported": (INVALID_REQUEST, "Text is sent as a conversation item."),
    "invalid_event_ack": (INVALID_REQUEST, "The acknowledged number is not one of the stream's."),
    "config_timeout": (INVALID_REQUEST, "The first message did not come in time."),
    "invalid_session_resume": (INVALID_REQUEST, "A field of session.resume is missing or wrong."),
    "unsupported_session_resume": (INVALID_REQUEST, "A session cannot be resumed here, or not in this dialect."),
    "invalid_resume_token": (INVALID_REQUEST, "The token does not open this session."),
    "session_resume_expired": (INVALID_REQUEST, "The session has ended, or never was."),
    "session_resume_conflict": (INVALID_REQUEST, "The stream is not where the client thinks, or somebody else has it."),
    "resync_required": (INVALID_REQUEST, "What the client lacks is not kept any more; start afresh."),
    "session_expired": (INVALID_REQUEST, "The session has reached its greatest length."),
    "rate_limit_exceeded": (RATE_LIMIT, "The key holds, opens or sends more than it may."),
    "resource_exhausted": (RATE_LIMIT, "All sessions are taken, and the line is full."),
    "input_backpressure": (RATE_LIMIT, "More input waits than the session may hold."),
    "runtime_unavailable": (SERVER_ERROR, "The model is not there at the moment."),
    "runtime_resume_failed": (SERVER_ERROR, "The session's log cannot be read at the moment."),
    "store_unavailable": (SERVER_ERROR, "The session's log cannot be written at the moment."),
    "shutdown": (SERVER_ERROR, "The server is shutting down; come back, perhaps to another one."),
}
"""Code -> (type, what it means): in ``error`` events, and in the close reason of a connection that was refused."""

HTTP_CODES: dict[str, str] = {
    "bad_request": "400 and others: not HTTP as it is spoken here.",
    "bad_handshake": "400, 426: not a WebSocket handshake of version 13.",
    "invalid_api_key": "401: no key, or a wrong one.",
    "origin_not_allowed": "403: a page of another site, or a name that is not this machine's.",
    "not_found": "404: there is nothing at this path.",
    "method_not_allowed": "405: the path takes another method.",
    "upgrade_required": "426: the path is a WebSocket.",
    "too_many_connections": "503: try again later.",
    "loading": "503: the model is still loading.",
}
"""Code -> the status it comes with, and what it means: in the JSON of a plain answer, beside the codes above."""

RETRYABLE_RESUME_CODES = frozenset(
    {"session_resume_conflict", "runtime_resume_failed", "resource_exhausted", "timeout", "shutdown"}
)
"""Refusals of ``session.resume`` after which the same token may be presented again."""


def error_type(code: str) -> str:
    """The ``error.type`` that belongs to a code; others (the machine's refusals) are the caller's fault."""
    return CODES[code][0] if code in CODES else INVALID_REQUEST
