"""The alarm for a session's deadlines, and what becomes of one that rings late.

It rings late when nobody here ran at its time: the process was stopped, or paused together with its machine, or its event
loop was far behind. Then nobody could say a word either; what clients said meanwhile waits in their sockets, unread. So such
a deadline is put off, once, until they had a moment to be heard. If they are, the machine names a later one by itself. What
is decided in the end is decided by the machine as ever, and stands in the log with its time.
"""

from __future__ import annotations

import attrs

from core.session.deadlines import earliest
from core.session.state import SessionState
from core.session.time_units import NS_PER_S

LATE_S = 1.0
"""So late was no timer of ours: nobody ran."""

REPRIEVE_S = 5.0
"""For what waits in the sockets, and for clients to connect that could not."""


@attrs.define
class Alarm:
    """One session's. Times on the log's clock, in ns."""

    _armed_ns: int | None = None
    """The deadline that was waited for, before it was due: one that had passed before there was an actor is not late."""
    _put_off_ns: int | None = None
    """The deadline that was late, once for each."""
    _until_ns: int = 0

    def set(self, state: SessionState, now_ns: int) -> int | None:
        """When to look next; None: there is no deadline."""
        due = earliest(state)
        if due is None:
            return None
        if due.at_ns > now_ns:
            self._armed_ns = due.at_ns
        return self._until_ns if due.at_ns == self._put_off_ns else due.at_ns

    def rings(self, state: SessionState, now_ns: int) -> bool:
        """Whether a deadline has passed, and its time has come."""
        due = earliest(state)
        if due is None or due.at_ns > now_ns:
            return False
        late = due.at_ns == self._armed_ns and now_ns > due.at_ns + LATE_S * NS_PER_S
        if late and due.at_ns != self._put_off_ns:
            self._put_off_ns, self._until_ns = due.at_ns, now_ns + round(REPRIEVE_S * NS_PER_S)
        return due.at_ns != self._put_off_ns or now_ns >= self._until_ns
