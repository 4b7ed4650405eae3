"""What the log says when a session's memory is thrown away."""

from __future__ import annotations

import logging

from core.ports.store import StoreError, TermRefused

log = logging.getLogger("duologue.supervisor")


def log_loss(session_id: str, error: StoreError) -> None:
    """A session's memory was thrown away, since its log cannot be written here: at once, before its socket is closed."""
    if isinstance(error, TermRefused):
        log.info("session %s is another server's now: %s", session_id, error)
    else:
        log.error("session %s lost its log: %s: %s", session_id, type(error).__name__, error)
