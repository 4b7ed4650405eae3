"""A session's one mailbox, bounded in items and bytes. Posting never waits; only the actor waits, and only here."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import attrs
import trio
from trio.lowlevel import ParkingLot

T = TypeVar("T")

ITEMS_MAX = 2_048
BYTES_MAX = 16 * 1024 * 1024


class MailboxFull(Exception):
    """The session takes no more for now; nothing was queued."""


@attrs.frozen
class MailboxStatistics:
    """What waits now."""

    items: int
    bytes: int


class Mailbox(Generic[T]):
    """First in, first out, for many senders and one receiver."""

    def __init__(self, items_max: int = ITEMS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._queue: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._lot = ParkingLot()
        self._awake = False

    def post(self, item: T, size_bytes: int = 0) -> None:
        """Queue ``item``, which holds ``size_bytes``. Raises MailboxFull."""
        if len(self._queue) >= self._items_max or self._bytes + size_bytes > self._bytes_max:
            raise MailboxFull
        self._queue.append((item, size_bytes))
        self._bytes += size_bytes
        self.nudge()

    def nudge(self) -> None:
        """Wake the receiver without an item: something that it looks at by itself has changed."""
        self._awake = True
        if self._lot:
            self._lot.unpark_all()

    async def wait(self) -> None:
        """Until there is an item or a nudge."""
        if self._awake:
            await trio.lowlevel.checkpoint()
        else:
            await self._lot.park()

    def take(self) -> T | None:
        """The next item; None when there is none (and then the next wait waits)."""
        if not self._queue:
            self._awake = False
            return None
        item, size_bytes = self._queue.popleft()
        self._bytes -= size_bytes
        return item

    def statistics(self) -> MailboxStatistics:
        """Now."""
        return MailboxStatistics(len(self._queue), self._bytes)
