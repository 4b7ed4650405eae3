"""What a decision may look at: the state, the time, the delivery cursor. It changes none of them."""

from __future__ import annotations

import attrs

from core.session.commands import Cursor
from core.session.events import Event
from core.session.refusals import Refusal
from core.session.state import SessionState

Decision = tuple[Event, ...] | Refusal


@attrs.frozen
class Context:
    """``now_ns`` is the wall clock, never below the log's last ``at_ns``."""

    state: SessionState
    now_ns: int
    cursor: Cursor
