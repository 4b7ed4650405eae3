"""A session as one of its client's events meets it."""

from __future__ import annotations

import attrs

from core.session.config import SessionConfig
from core.session.state import SessionState


@attrs.frozen
class Seen:
    """Taken in the event loop, in one step, and never changed after: a thread that translates a big event reads it while the
    session goes on."""

    session_id: str
    position: int
    epoch: int
    config: SessionConfig
    inputs: tuple[str, ...]
    """Kinds of input that the model takes."""
    turn_state: str
    head: int
    """The last number of the stream."""

    @classmethod
    def of(cls, state: SessionState, head: int) -> Seen:
        """Now."""
        return cls(
            state.session_id, state.position, state.epoch, state.config, tuple(state.inputs), turn_state(state), head
        )


def turn_state(state: SessionState) -> str:
    """What the conversation is doing, in one word."""
    if state.input.speech is not None:
        return "user_speaking"
    if state.active is not None:
        return "assistant_playing" if state.active.sent_ms else "assistant_generating"
    if state.queued:
        return "user_committed"
    return "idle"
