"""The line to the runtime, and what becomes of a word that its full queue refuses (RuntimeBusy). One rule:

* sound and what is shown along with it are lost, and counted: the ear hears a gap;
* a request for an answer fails at once, so that nobody waits for it;
* every other word is owed. It is told as soon as there is room, in its order, and until then nothing overtakes it (sound
  that would is lost). What is owed is bounded; a session that owes more begins again from its log.

When the session ends, all that it may still owe is that its ear and lane are closed; the supervisor sees to that.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

import attrs

from core.actors.weight import weight
from core.ports import runtime as rt
from core.session.config import IMAGE

OWED_ITEMS_MAX = 64
OWED_BYTES_MAX = 4 * 1024 * 1024

RETRY_S = 0.05
"""How soon a runtime that refused is asked again."""


class Fate(Enum):
    """What became of a word."""

    TAKEN = "taken"
    OWED = "owed"
    LOST = "lost"
    REFUSED = "refused"
    """Too much is owed already."""


@attrs.frozen
class LineStatistics:
    """What is owed now."""

    owed_items: int
    owed_bytes: int


@attrs.define
class RuntimeLine:
    """One session's. Nothing here waits."""

    runtime: rt.Runtime
    _owed: deque[tuple[rt.ToRuntime, int]] = attrs.field(factory=deque)
    _owed_bytes: int = 0

    @property
    def owes(self) -> bool:
        """Something waits for room."""
        return bool(self._owed)

    def tell(self, message: rt.ToRuntime) -> Fate:
        """Say it now or, if it is one of those that are owed, later."""
        if self.settle() and self._take(message):
            return Fate.TAKEN
        if isinstance(message, rt.Feed | rt.Respond) or _is_of_the_moment(message):
            return Fate.LOST
        size_bytes = weight(message)
        if len(self._owed) >= OWED_ITEMS_MAX or self._owed_bytes + size_bytes > OWED_BYTES_MAX:
            return Fate.REFUSED
        self._owed.append((message, size_bytes))
        self._owed_bytes += size_bytes
        return Fate.OWED

    def settle(self) -> bool:
        """Tell what is owed, as far as there is room; whether nothing is owed any more."""
        while self._owed and self._take(self._owed[0][0]):
            self._owed_bytes -= self._owed.popleft()[1]
        return not self._owed

    def forget(self) -> None:
        """Whoever it was meant for is gone."""
        self._owed.clear()
        self._owed_bytes = 0

    def close(self, session_id: str) -> None:
        """The last word, which makes all that is owed idle."""
        self.forget()
        self.tell(rt.CloseSession(session_id))

    def statistics(self) -> LineStatistics:
        """Now."""
        return LineStatistics(len(self._owed), self._owed_bytes)

    def _take(self, message: rt.ToRuntime) -> bool:
        try:
            self.runtime.send(message)
        except rt.RuntimeBusy:
            return False
        return True


def _is_of_the_moment(message: rt.ToRuntime) -> bool:
    """An image of the turn that is being said; one of an item was meant to be looked at."""
    return isinstance(message, rt.Part) and message.kind == IMAGE and not message.item_id
