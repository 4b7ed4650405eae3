"""The hearing thread: it serves every session's ear in turn, so hearing goes on whatever the other stages do.

Each ear has a bounded inbox, and all of them together have a bound too. Audio that finds no room is lost, which is logged;
the input clock jumps over the gap. Words that steer an ear have room of their own beyond that, and two of a kind that say the
same take the place of one; a client that sends more of them than that while its ear stands still loses them.
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
INBOX_RESERVE_ITEMS = 1_024
"""For words that steer, beyond the audio."""
ALL_BYTES_MAX = 128 * 2**20
"""Over all ears: some 70 minutes at 16 kHz."""
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
    lost_words: int


@attrs.define(eq=False)
class _Inbox:
    ear: Ear
    line: deque[tuple[ForEar, int]] = attrs.field(factory=deque)
    bytes_: int = 0
    behind: bool = False
    full: bool = False
    """The last message found no room."""
    closed: bool = False


class Hearing:
    """One thread for all ears."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inboxes: OrderedDict[str, _Inbox] = OrderedDict()
        self._bytes = 0
        """In all inboxes."""
        self._lost_chunks = self._lost_words = 0
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
        """For the session's ear, in order. Dropped when there is no room, and counted."""
        with self._changed:
            inbox = self._inboxes.get(message.session)
            if inbox is None or _says_it_already(inbox, message):
                return
            fits = self._fits(inbox, message)
            if not fits and not inbox.full:
                logger.warning("session %s: the ear is too far behind, what comes for it is lost", message.session)
            inbox.full = not fits
            if fits:
                inbox.line.append((message, time.time_ns()))
                self._count(inbox, message, 1)
                self._changed.notify()
            elif isinstance(message, Feed):
                self._lost_chunks += 1
            else:
                self._lost_words += 1

    def _fits(self, inbox: _Inbox, message: ForEar) -> bool:
        if not isinstance(message, Feed):
            return len(inbox.line) < INBOX_ITEMS_MAX + INBOX_RESERVE_ITEMS
        size = len(message.audio)
        fits_all = self._bytes + size <= ALL_BYTES_MAX
        return fits_all and len(inbox.line) < INBOX_ITEMS_MAX and inbox.bytes_ + size <= INBOX_BYTES_MAX

    def _count(self, inbox: _Inbox, message: ForEar, sign: int) -> None:
        size = len(message.audio) if isinstance(message, Feed) else 0
        inbox.bytes_ += sign * size
        self._bytes += sign * size

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
                self._lost_words,
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
            self._bytes -= old.bytes_

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
                self._count(inbox, message, -1)
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


def _says_it_already(inbox: _Inbox, message: ForEar) -> bool:
    """Whether the last message in line does what this one would."""
    if not inbox.line or isinstance(message, Feed | CommitTurn):
        return False
    return inbox.line[-1][0] == message
