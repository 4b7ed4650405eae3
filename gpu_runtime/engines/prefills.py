"""Whose long prompt is computed now: a few at once, the earliest due first.

An engine computes a long prompt in pieces beside those who speak (``RequestEngine``), so one costs them little. Sixty at
once, when a worker has died and all of its lanes are opened again on another one, would fill every step, and all of them
would be late. One after another, each is back as soon as it can be, and the units of those that are back are in time.

Whoever waits here holds no room of the engine's yet, so that nobody who has room waits for one who has none.
"""

from __future__ import annotations

import asyncio
import heapq

import attrs


@attrs.define(eq=False)
class Turn:
    """``await prefills.take(...)`` gives one; ``leave`` it once the prompt is computed, or is not wanted any more."""

    _line: Prefills
    due_ns: int
    serial: int
    given: asyncio.Event = attrs.field(factory=asyncio.Event)
    over: bool = False

    def __lt__(self, other: Turn) -> bool:
        return (self.due_ns, self.serial) < (other.due_ns, other.serial)

    def leave(self) -> None:
        """The next may begin; whoever waits for this turn waits no more. Idempotent."""
        if self.over:
            return
        self.over = True
        if self.given.is_set():
            self._line.next_one(left=1)
        else:
            self.given.set()

    async def give_way(self) -> None:
        """Between two pieces: let those go first who are due earlier."""
        if not self.over and self._line.is_pressed(self):
            await self._line.go_back(self)


class Prefills:
    """``at_once`` of them have a turn. Those that wait are bounded by the lanes there are: one each, and its successor."""

    def __init__(self, at_once: int) -> None:
        if at_once < 1:
            raise ValueError("somebody has to go on")
        self._at_once = at_once
        self._running = 0
        self._serial = 0
        self._waiting: list[Turn] = []
        """A heap. Those that were left meanwhile are passed over."""

    def turn(self, due_ns: int) -> Turn:
        """One that waits for nothing yet."""
        self._serial += 1
        return Turn(self, due_ns, self._serial)

    async def take(self, turn: Turn) -> None:
        """Wait for it; at once for one that was left."""
        if turn.over:
            return
        heapq.heappush(self._waiting, turn)
        self.next_one()
        try:
            await turn.given.wait()
        except asyncio.CancelledError:
            turn.leave()
            raise

    async def go_back(self, turn: Turn) -> None:
        """Give it up, and wait for it again in its own place."""
        turn.given.clear()
        self.next_one(left=1)
        await self.take(turn)

    def is_pressed(self, turn: Turn) -> bool:
        """Whether somebody waits who is due earlier."""
        self._forget()
        return bool(self._waiting) and self._waiting[0] < turn

    def next_one(self, left: int = 0) -> None:
        """Give out what is free, and the turns of ``left`` that have just ended."""
        self._running -= left
        self._forget()
        while self._waiting and self._running < self._at_once:
            heapq.heappop(self._waiting).given.set()
            self._running += 1
            self._forget()

    def _forget(self) -> None:
        while self._waiting and self._waiting[0].over:
            heapq.heappop(self._waiting)


NO_TURN = Prefills(1).turn(0)
"""For what needs none: it is over already."""
NO_TURN.leave()
