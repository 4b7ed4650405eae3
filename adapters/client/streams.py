"""Bounded streams from the client's reader to its callers, for either event loop.

The reader never waits: a stream that is not drained loses its oldest items and counts them. ``Flag`` is the part that
``trio.Event`` and ``asyncio.Event`` have in common.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")

STREAM_ITEMS_MAX = 1_024
STREAM_BYTES_MAX = 16 * 1024 * 1024


class Flag(Protocol):
    """An event that is set once."""

    def set(self) -> Any:
        """Wake whoever waits, now and later."""

    async def wait(self) -> Any:
        """Return when it is set."""


class Bell:
    """Wakes all who wait, again and again."""

    def __init__(self, flag: Callable[[], Flag]) -> None:
        self._make = flag
        self._flag = flag()

    def ring(self) -> None:
        """Wake everyone who waits now."""
        flag, self._flag = self._flag, self._make()
        flag.set()

    async def wait(self) -> None:
        """Wait for the next ring. Look at what you wait for first: there is no await between look and wait."""
        await self._flag.wait()


class Stream(Generic[T]):
    """An async iterator over what was pushed since it was made. One consumer. ``dropped`` counts what it lost."""

    def __init__(
        self, flag: Callable[[], Flag], *, items_max: int = STREAM_ITEMS_MAX, bytes_max: int = STREAM_BYTES_MAX
    ) -> None:
        self.dropped = 0
        self._items: deque[tuple[T | Exception, int]] = deque()
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._bell = Bell(flag)
        self._ended = False
        self._failure: Exception | None = None
        self.on_taken: Callable[[T], None] | None = None
        """Called with each item that is handed out."""

    def push(self, item: T | Exception, size_bytes: int = 0) -> None:
        """Add an item; an exception is raised to the consumer at its place, and the stream goes on. Oldest items make
        room; the newest is always kept."""
        if self._ended:
            return
        self._items.append((item, size_bytes))
        self._bytes += size_bytes
        while len(self._items) > 1 and (len(self._items) > self._items_max or self._bytes > self._bytes_max):
            self._bytes -= self._items.popleft()[1]
            self.dropped += 1
        self._bell.ring()

    def end(self, failure: Exception | None = None) -> None:
        """Nothing more comes. What is held is still handed out; then ``failure`` is raised, or the iteration ends."""
        if not self._ended:
            self._ended = True
            self._failure = failure
            self._bell.ring()

    def clear(self) -> int:
        """Throw away what is held (a cut answer); how many items that were."""
        count = len(self._items)
        self._items.clear()
        self._bytes = 0
        return count

    def close(self) -> None:
        """The consumer is done with it."""
        self.clear()
        self.end()

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if self._ended:
                if self._failure is not None:
                    raise self._failure
                raise StopAsyncIteration
            await self._bell.wait()
        item, size_bytes = self._items.popleft()
        self._bytes -= size_bytes
        if isinstance(item, Exception):
            raise item
        if self.on_taken is not None:
            self.on_taken(item)
        return item

    async def __aenter__(self) -> Stream[T]:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()
