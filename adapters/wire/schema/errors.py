"""Stable error codes. A code is forever; the sentence beside it may change."""

from __future__ import annotations

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
RATE_LIMIT = "rate_limit_error"

RATE_LIMIT_CODES = frozenset({"resource_exhausted", "rate_limit_exceeded", "input_backpressure", "output_backpressure"})
SERVER_CODES = frozenset(
    {
        "internal_error",
        "engine_error",
        "engine_backpressure",
        "runtime_lost",
        "runtime_resume_failed",
        "server_vad_unavailable",
        "timeout",
        "shutdown",
    }
)

RETRYABLE_RESUME_CODES = frozenset(
    {"session_resume_conflict", "runtime_resume_failed", "resource_exhausted", "timeout", "shutdown"}
)
"""Refusals of ``session.resume`` after which the same token may be presented again."""


def error_type(code: str) -> str:
    """The ``error.type`` that belongs to a code; unknown codes are the caller's fault."""
    if code in RATE_LIMIT_CODES:
        return RATE_LIMIT
    if code in SERVER_CODES:
        return SERVER_ERROR
    return INVALID_REQUEST
