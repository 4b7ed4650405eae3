"""The hearing thread: it serves every session's ear in turn, so hearing goes on whatever the other stages do.

Each ear has a bounded inbox. Audio that finds it full is lost, which is logged; the input clock jumps over the gap.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque

import attrs

from core.ports.runtime import ClearTurn, CommitTurn, ConfigureSession, Feed
from gpu_runtime.models.cascade.ear import Ear

logger = logging.getLogger(__name__)

INBOX_ITEMS_MAX = 16_384
INBOX_BYTES_MAX = 32 * 2**20
BEHIND_S = 3.0
"""An ear that is further behind than this says so."""

ForEar = Feed | ConfigureSession | ClearTurn | CommitTurn


@attrs.frozen
class HearingStatistics:
    """Now, and so far."""

    ears: int
    inbox_items: int
    inbox_bytes: int
    lost_chunks: int


@attrs.define(eq=False)
class _Inbox:
    ear: Ear
    line: deque[tuple[ForEar, int]] = attrs.field(factory=deque)
    bytes_: int = 0
    behind: bool = False
    closed: bool = False


class Hearing:
    """One thread for all ears."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inboxes: OrderedDict[str, _Inbox] = OrderedDict()
        self._lost_chunks = 0
        self._stop = False
        self.failure: BaseException | None = None
        """What ended the thread, if something did: a fault of ours."""
        self._thread = threading.Thread(target=self._run, name="hearing", daemon=True)
        self._thread.start()

    def add(self, ear: Ear) -> None:
        """Serve an ear; it takes the place of an older one of its session."""
        with self._changed:
            self._drop(ear.session)
            self._inboxes[ear.session] = _Inbox(ear)

    def remove(self, session: str) -> None:
        """Serve it no longer."""
        with self._changed:
            self._drop(session)
            self._changed.notify()

    def put(self, message: ForEar) -> None:
        """For the session's ear, in order. Audio is dropped when the inbox is full."""
        size = len(message.audio) if isinstance(message, Feed) else 0
        with self._changed:
            inbox = self._inboxes.get(message.session)
            if inbox is None:
                return
            full = len(inbox.line) >= INBOX_ITEMS_MAX or inbox.bytes_ + size > INBOX_BYTES_MAX
            if full and isinstance(message, Feed):
                self._lost_chunks += 1
                logger.warning("session %s: the ear is too far behind, a chunk of audio is lost", message.session)
                return
            inbox.line.append((message, time.time_ns()))
            inbox.bytes_ += size
            self._changed.notify()

    def wake(self) -> None:
        """An ear may go on."""
        with self._changed:
            self._changed.notify()

    def statistics(self) -> HearingStatistics:
        """Now."""
        with self._changed:
            inboxes = list(self._inboxes.values())
            return HearingStatistics(
                len(inboxes),
                sum(len(inbox.line) for inbox in inboxes),
                sum(inbox.bytes_ for inbox in inboxes),
                self._lost_chunks,
            )

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._stop = True
            self._changed.notify()
        self._thread.join()

    def _drop(self, session: str) -> None:
        old = self._inboxes.pop(session, None)
        if old is not None:
            old.closed = True

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while (turn := self._next()) is None and not self._stop:
                        self._changed.wait(self._until_fill_s())
                    if self._stop or turn is None:
                        return
                self._serve(*turn)
        except BaseException as failure:
            self.failure = failure
            raise

    def _next(self) -> tuple[_Inbox, ForEar | None, int] | None:
        """The next ear with something to do, and the message to give it first (None: it goes on with what it has)."""
        now_s = time.monotonic()
        for session, inbox in self._inboxes.items():
            ear = inbox.ear
            if ear.blocked:
                continue
            due_s = None if inbox.line else ear.fill_due_s()
            if ear.has_work or (due_s is not None and due_s <= now_s):
                self._inboxes.move_to_end(session)
                return inbox, None, 0
            if inbox.line:
                self._inboxes.move_to_end(session)
                message, arrived_ns = inbox.line.popleft()
                inbox.bytes_ -= len(message.audio) if isinstance(message, Feed) else 0
                return inbox, message, arrived_ns
        return None

    def _until_fill_s(self) -> float | None:
        due = [inbox.ear.fill_due_s() for inbox in self._inboxes.values() if not inbox.line]
        times = [due_s for due_s in due if due_s is not None]
        return max(0.001, min(times) - time.monotonic()) if times else None

    def _serve(self, inbox: _Inbox, message: ForEar | None, arrived_ns: int) -> None:
        ear = inbox.ear
        match message:
            case Feed():
                self._watch(inbox, arrived_ns)
                ear.feed(message, arrived_ns)
            case ConfigureSession():
                ear.configure(message)
            case ClearTurn():
                ear.clear()
            case CommitTurn():
                ear.commit(message)
            case None if not ear.has_work:
                ear.fill(time.monotonic())
        ear.step()
        if inbox.closed:
            ear.close()

    def _watch(self, inbox: _Inbox, arrived_ns: int) -> None:
        behind_s = (time.time_ns() - arrived_ns) / 1e9
        if behind_s > BEHIND_S and not inbox.behind:
            logger.warning("session %s: the ear is %.1f s behind its audio", inbox.ear.session, behind_s)
        inbox.behind = behind_s > BEHIND_S
