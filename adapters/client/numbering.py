"""The accounting of wire numbers: what came, what was declared dead, what is missing.

Numbers strictly increase. A hole is no loss when the server announces it: a cut answer's unsent audio is named by the
``response.done`` that ends it, and what died while the client was away is named by ``session.resumed``. The first of
these comes *after* the hole, so a hole stays open until every response that was running when it appeared has ended;
what is unannounced then is lost. With no response running, a cut may have taken even the answer's beginning: then the
hole waits for the next end of any response, but not for more than ``GRACE_NUMBERS`` numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from adapters.wire.schema.shapes import Ranges, merge_ranges, subtract_ranges

HOLES_MAX = 256
"""Open holes that are remembered; one more and the oldest is a loss."""

GRACE_NUMBERS = 32

ANY = "*"
"""Stands for whichever response ends next."""

UNSEEN = ""
"""Stands for a response that began before this client attached: its end is told by no id that we know."""


@dataclass(slots=True)
class _Hole:
    first: int
    last: int
    waiting: set[str]
    """Responses whose end may still announce this hole."""


class NumberLine:
    """Where one client stands in one session's stream."""

    def __init__(self, last: int | None = None) -> None:
        """``last`` is what an earlier client had; None: the stream begins with the first number that comes."""
        self.last = last or 0
        self._anchored = last is not None
        self.duplicates = 0
        self.skipped = 0
        self.lost: list[tuple[int, int]] = []
        self._dead: Ranges = ()
        self._holes: list[_Hole] = []
        self._running: set[str] = set() if last is None else {UNSEEN}

    def arrived(self, number: int) -> bool:
        """Take a number. False: it came before, drop the event. A jump opens a hole."""
        if not self._anchored:
            self._anchored, self.last = True, number - 1
        if number <= self.last:
            self.duplicates += 1
            return False
        for first, last in subtract_ranges([(self.last + 1, number - 1)] if number > self.last + 1 else [], self._dead):
            self._holes.append(_Hole(first, last, set(self._running) or {ANY}))
        self.last = number
        self._dead = tuple(pair for pair in self._dead if pair[1] > number)
        return True

    def began(self, response_id: str) -> None:
        """A response is running from here on. Only one speaks at a time: what ran before we came has ended."""
        if UNSEEN in self._running:
            self.ended(UNSEEN, known=False)
        self._running.add(response_id)

    def ended(self, response_id: str, known: bool) -> None:
        """A response has ended; an unknown one is the one that ran before this client came."""
        name = response_id if known else UNSEEN
        self._running.discard(name)
        for hole in self._holes:
            hole.waiting.discard(name)
            hole.waiting.discard(ANY)

    def announced(self, ranges: Ranges) -> None:
        """These numbers are dead, past or to come."""
        if not ranges:
            return
        kept: list[_Hole] = []
        for hole in self._holes:
            left = subtract_ranges([(hole.first, hole.last)], ranges)
            self.skipped += hole.last - hole.first + 1 - _size(left)
            kept += [_Hole(first, last, hole.waiting) for first, last in left]
        self._holes = kept
        ahead = [(max(first, self.last + 1), last) for first, last in ranges if last > self.last]
        self.skipped += _size(subtract_ranges(ahead, self._dead))
        self._dead = merge_ranges([*self._dead, *ahead])

    def take_lost(self) -> Ranges:
        """Holes that nobody can announce any more, once each."""
        overflow = len(self._holes) - HOLES_MAX
        overdue = self.last - GRACE_NUMBERS
        lost = [
            hole
            for index, hole in enumerate(self._holes)
            if not hole.waiting or index < overflow or (hole.waiting == {ANY} and hole.last < overdue)
        ]
        if not lost:
            return ()
        self._holes = [hole for hole in self._holes if hole not in lost]
        ranges = merge_ranges((hole.first, hole.last) for hole in lost)
        self.lost.extend(ranges)
        del self.lost[:-HOLES_MAX]
        return ranges

    @property
    def open_holes(self) -> Ranges:
        """Numbers that are missing and may still be announced."""
        return merge_ranges((hole.first, hole.last) for hole in self._holes)


def _size(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)
