"""Why an answer ended otherwise than complete: the one table of the reasons that ``ResponseEnded`` and ``EpochBump`` carry.

Clients find them in ``status_details``, metrics and docs name them. A code is for ever; the sentence beside it may change. A
model plugin that is none of ours may give a failed answer a code of its own: the tables say what our code writes, and are no
limit of what a log may hold.
"""

from __future__ import annotations

CUT_REASONS: dict[str, str] = {
    "client_cancelled": "The client cancelled it.",
    "barge_in": "The user spoke over it, as the client or the server judged.",
    "turn_detected": "The user's next turn began, or the model gave way to it.",
    "output_audio_buffer_clear": "The client emptied its queue of audio.",
    "session_closed": "The session ended.",
}
"""Of an answer that was cut (``cancelled``)."""

INCOMPLETE_REASONS: dict[str, str] = {
    "max_output_tokens": "It is as long as was asked for at most.",
    "runtime_lost": "The session's worker died, or the whole server was killed. What of it was durable is delivered.",
}
"""Of an answer that ended early (``incomplete``)."""

FAILED_BY_SERVER: dict[str, str] = {
    "output_backpressure": "The client does not read as fast as audio is released.",
    "mailbox_overflow": "The server did not keep up with the model's output.",
    "runtime_busy": "The worker did not keep up with what it was asked.",
    "model_silent": "Nothing more of it came for too long: a fault of the model, whose process lives.",
    "model_error": "The model failed, or gave what cannot be.",
    "answer_too_long": "It has more text than an answer may have.",
    "invalid_function_call": "The model asks for a function in a way that no client could take.",
}
"""Of an answer that failed in the session itself, which goes on."""

FAILED_BY_MODEL: dict[str, str] = {
    "lane_full": "The conversation does not fit into the model, not even its last turn: the session ends too.",
    "lane_busy": "More answers wait in the model's lane than it takes, or none of its lanes is free.",
    "lane_unknown": "The model has no lane for it: a fault of ours.",
    "lane_exists": "The model has a lane of that name: a fault of ours.",
    "lane_stalled": "The engine gave nothing for too long, or takes nothing more.",
    "bad_unit": "What was fed to the lane cannot be: a fault of the model's plugin.",
    "bad_embedding": "What was fed to the lane is not of the engine's shape, or not a number.",
    "bad_position": "The lane was to go back to where it never was: a fault of the model's plugin.",
    "engine_fault": "What nobody foresaw happened between us and the engine.",
    "busy": "Too many answers wait for the language model or the voice.",
    "voice_error": "The voice failed.",
    "model_unreachable": "The language model's endpoint cannot be reached.",
    "sessions_full": "The engine holds as many sessions as it may.",
    "kv_full": "The engine has no room for one more session's KV.",
    "too_slow": "The engine would not keep up with one more session.",
    "session_exists": "The engine has a session of that name: a fault of ours.",
}
"""Of an answer that failed in the model, beside ``model_error`` and ``invalid_function_call``. The session goes on, but for
``lane_full``."""

FAILED_REASONS: dict[str, str] = {**FAILED_BY_SERVER, **FAILED_BY_MODEL}
"""Of an answer that failed."""

STATUSES: dict[str, dict[str, str]] = {
    "cancelled": CUT_REASONS,
    "incomplete": INCOMPLETE_REASONS,
    "failed": FAILED_REASONS,
}
"""The status that an answer ends with -> why it may."""
