"""The writer thread: it groups what is queued and commits each group at once.

The first item of a group opens a window of a few ms in which others may join; an urgent item, a full group or the
store's closing ends it. While a commit runs the next group gathers, so under load the window costs nothing. The
database is only ever called from here: a checkpoint or a slow disk stalls this thread, never the event loop.

The thread knows no trio: it gets items by ``submit`` and gives outcomes to ``deliver``.

What trips in a group (a fault of ours, not the database's) fails that group, as if the database had failed: whether it is in
is unknown, its sessions begin again from the log, and the others go on. A writer that trips at CRASHES_MAX groups in a row
ends, and with it the server (``ended``): one that can write nothing is of no use, and whoever watches over it starts another.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import attrs

from core.ports.described import described, kind
from core.ports.store import StoreFailed
from store.queueing import Item, Outcome, all_failed

Execute = Callable[[Sequence[Item]], list[Outcome]]
"""Writes a group; blocks; one outcome for each item, in order."""
Deliver = Callable[[list[tuple[Item, Outcome]]], None]
"""Called in the writer's thread after each group; must not block."""
Ended = Callable[[], None]
"""Called in the writer's thread when it gives up."""

CRASHES_MAX = 3

logger = logging.getLogger(__name__)


@attrs.frozen
class GroupLimits:
    """When a group is closed: its age in s, its items, its bytes."""

    window_s: float = 0.005
    patience_s: float = 0.05
    """The window of a group of patient items only. A microphone sends a chunk each 20 ms, and nobody waits for any of
    them: without this, each costs a transaction of its own."""
    items_max: int = 1_024
    bytes_max: int = 8 * 1024 * 1024


class GroupWriter:
    """One thread that writes what is submitted, in order."""

    def __init__(self, execute: Execute, deliver: Deliver, limits: GroupLimits, ended: Ended = lambda: None) -> None:
        self._execute = execute
        self._deliver = deliver
        self._limits = limits
        self._ended = ended
        self._changed = threading.Condition()
        self._queue: deque[Item] = deque()
        """Guarded by _changed, like all below. Bounded by the store's admission."""
        self._queue_bytes = 0
        self._urgent = 0
        self._due_at = 0.0
        """When the window of the queue closes: the earliest of its items'."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="store-writer")

    def start(self) -> None:
        """Call once."""
        self._thread.start()

    def submit(self, item: Item) -> bool:
        """Queue an item. False: the writer is closing, or has crashed, and the item was not queued."""
        with self._changed:
            if self._closing:
                return False
            self._queue.append(item)
            self._queue_bytes += item.size_bytes
            self._urgent += item.urgent
            due_at, due_before = self._due_of(item), self._due_at
            self._due_at = due_at if len(self._queue) == 1 else min(due_at, due_before)
            # A thread that is awake costs the event loop its lock: wake it to open a window and to close one early.
            if len(self._queue) == 1 or self._due_at < due_before or self._is_due_early():
                self._changed.notify()
            return True

    def close(self) -> None:
        """Write what is queued, then end. Blocks until the last outcome was delivered."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _is_due_early(self) -> bool:
        limits = self._limits
        full = len(self._queue) >= limits.items_max or self._queue_bytes >= limits.bytes_max
        return full or self._urgent > 0 or self._closing

    def _run(self) -> None:
        closed = False
        try:
            closed = self._write_groups()
        finally:
            if not closed:
                self._abandon()
                self._ended()

    def _write_groups(self) -> bool:
        """True: until the store was closed. False: until it tripped too often."""
        crashes = 0
        while group := self._next_group():
            try:
                outcomes = self._execute(group)
                crashes = 0
            except Exception as fault:  # noqa: BLE001 - logged, but for its text; its group is answered
                crashes += 1
                logger.error("the store's writer tripped: %s", described(fault))
                outcomes = all_failed(group, StoreFailed(f"the store's writer tripped: {kind(fault)}"))
            self._deliver(list(zip(group, outcomes, strict=True)))
            if crashes == CRASHES_MAX:
                logger.error("the store's writer tripped at %d groups in a row, and ends", crashes)
                return False
        return True

    def _abandon(self) -> None:
        """Nobody may wait for ever for an answer."""
        with self._changed:
            self._closing = True
            lost = list(self._queue)
            self._queue.clear()
        if lost:
            outcomes = all_failed(lost, StoreFailed("the store's writer has stopped"))
            self._deliver(list(zip(lost, outcomes, strict=True)))

    def _next_group(self) -> list[Item]:
        """Wait for the next group; empty at the end."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            while self._queue and not self._is_due_early():
                left_s = self._due_at - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            return self._take()

    def _take(self) -> list[Item]:
        group: list[Item] = []
        size_bytes = 0
        while self._queue and len(group) < self._limits.items_max and size_bytes < self._limits.bytes_max:
            item = self._queue.popleft()
            group.append(item)
            size_bytes += item.size_bytes
            self._urgent -= item.urgent
        self._queue_bytes -= size_bytes
        self._due_at = min((self._due_of(item) for item in self._queue), default=0.0)
        return group

    def _due_of(self, item: Item) -> float:
        return item.queued_at + (self._limits.patience_s if item.patient else self._limits.window_s)
