"""The deadlines of a session. The machine names the earliest; the actor arms it and comes back when it has passed."""

from __future__ import annotations

import attrs

from core.session.state import Phase, SessionState
from core.session.time_units import NS_PER_MS

FIRST_ATTACH_MS = 10_000
"""A session is opened in the log, which may take a while, before its client is attached to it."""


@attrs.frozen
class Deadline:
    """``kind`` is also the reason with which the session is closed when it passes."""

    at_ns: int
    kind: str


def earliest(state: SessionState) -> Deadline | None:
    """The next deadline, if any."""
    if state.phase not in (Phase.OPEN, Phase.PAUSED):
        return None
    config, due = state.config, []
    if not state.attachment.attached:
        due.append(Deadline(_after(state.attachment.detached_ns, grace_ms(state)), "disconnect_grace_expired"))
    elif state.active is None:
        due.append(Deadline(_after(state.activity_ns, config.idle_timeout_ms), "idle_ttl_expired"))
    if state.phase is Phase.PAUSED:
        due.append(Deadline(_after(state.paused_ns, config.pause_watchdog_ms), "pause_expired"))
    if config.max_session_ms is not None:
        due.append(Deadline(_after(state.opened_ns, config.max_session_ms), "session_expired"))
    return min(due, key=lambda deadline: deadline.at_ns) if due else None


def grace_ms(state: SessionState) -> int:
    """How long the session waits for a client: for its first one a while in any case, for it is on its way."""
    grace = state.config.disconnect_grace_ms
    return grace if state.attachment.generation else max(grace, FIRST_ATTACH_MS)


def _after(since_ns: int, ms: int) -> int:
    return since_ns + ms * NS_PER_MS
