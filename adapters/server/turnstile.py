"""Fairness among tasks when the event loop is behind.

In a turn of the event loop each task that can go on does so once. With hundreds of clients that all have sent something, a
turn is as long as all their messages take together, and whatever else there is gets one step in it: the one reader of a
worker's output, the one task that hears from the store, the sender of an answer, each step of a barge-in. So a server with
too much input would say nothing any more. When the loop is behind, clients' messages therefore go through here a few each
turn, in the order in which they came; what a client sends meanwhile waits in its own connection. What is small passes: a cut
must not wait for others' sound.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

EACH_TURN = 8
"""Some ms of work."""
SMALL_CHARS = 1_024
"""Less than any sound worth sending."""
LAG_S = 0.01
"""A loop that wakes later than that is behind."""


class Turnstile:
    """One server's. ``lag_s`` tells how late the event loop woke last."""

    def __init__(self, lag_s: Callable[[], float]) -> None:
        self._lag_s = lag_s
        self._places = trio.Semaphore(EACH_TURN)
        self.waiting = 0

    async def through(self, message: str | bytes) -> None:
        """Wait for a place, if the loop is behind or others wait already; else return at once, without a checkpoint."""
        if len(message) < SMALL_CHARS or (self._lag_s() < LAG_S and not self.waiting):
            return
        self.waiting += 1
        try:
            async with self._places:  # taking a place takes a turn of the loop, and then it is free for another
                pass
        finally:
            self.waiting -= 1
