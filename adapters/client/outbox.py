"""What the client has to say, until the server has it for sure.

Two lines: ``waiting`` has not been handed to a socket, ``unconfirmed`` has, and may or may not have arrived. A resumed
attachment says how far the input is durable; what lies behind that is sent again, in the old order and under the old
event ids, before anything new. Nothing is doubled, because what is durable is dropped here and a command that arrives
twice is one command to the server.

Invariant: ``unconfirmed`` followed by ``waiting`` is the order in which the caller sent.
Bounds: unconfirmed by audio (10 s), items and bytes, oldest forgotten first; waiting by items and bytes, newest
refused.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from adapters.client.errors import SendBufferFull

UNCONFIRMED_MS_MAX = 10_000
UNCONFIRMED_ITEMS_MAX = 4_096
UNCONFIRMED_BYTES_MAX = 4 * 1024 * 1024
WAITING_ITEMS_MAX = 4_096
WAITING_BYTES_MAX = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One client event. ``start_ms`` and ``audio_ms`` place an append on the session's input clock."""

    event_id: str
    text: str
    start_ms: int = 0
    audio_ms: int = 0
    resend: bool = True
    """False: only marks a place in the order (an ack, which is made afresh instead of sent again)."""

    @property
    def size_bytes(self) -> int:
        """Bytes that this event occupies here."""
        return len(self.text)


@dataclass(frozen=True, slots=True)
class OutboxStatistics:
    """Counts since the client began, and what is held now."""

    waiting_items: int
    waiting_bytes: int
    unconfirmed_items: int
    unconfirmed_ms: int
    resent_items: int
    forgotten_items: int
    lost_input_ms: int


class Outbox:
    """Waiting and unconfirmed events of one session."""

    def __init__(
        self, *, unconfirmed_ms_max: int = UNCONFIRMED_MS_MAX, waiting_bytes_max: int = WAITING_BYTES_MAX
    ) -> None:
        self._unconfirmed_ms_max = unconfirmed_ms_max
        self._waiting_bytes_max = waiting_bytes_max
        self._waiting: deque[Outgoing] = deque()
        self._unconfirmed: deque[Outgoing] = deque()
        self._waiting_bytes = 0
        self._unconfirmed_bytes = 0
        self._unconfirmed_ms = 0
        self._resent = 0
        self._forgotten = 0
        self._forgotten_end_ms = 0
        self._lost_ms = 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes not yet handed to a socket."""
        return self._waiting_bytes

    def put(self, outgoing: Outgoing) -> None:
        """Queue behind everything else. Raises SendBufferFull, and queues nothing then."""
        full = len(self._waiting) >= WAITING_ITEMS_MAX
        if full or self._waiting_bytes + outgoing.size_bytes > self._waiting_bytes_max:
            raise SendBufferFull(len(self._waiting), self._waiting_bytes)
        self._waiting.append(outgoing)
        self._waiting_bytes += outgoing.size_bytes

    def take(self) -> str | None:
        """The next event for the socket, kept as unconfirmed from here on; None when there is none."""
        if not self._waiting:
            return None
        outgoing = self._waiting.popleft()
        self._waiting_bytes -= outgoing.size_bytes
        self._keep(outgoing)
        return outgoing.text

    def mark(self, event_id: str) -> None:
        """An event that went out beside the line: remember its place, so that it can confirm what was before it."""
        self._keep(Outgoing(event_id, "", resend=False))

    def confirm(self, event_id: str) -> bool:
        """The server has this event, and so all before it. False: it is not among the unconfirmed."""
        if not any(outgoing.event_id == event_id for outgoing in self._unconfirmed):
            return False
        while self._forget().event_id != event_id:
            pass
        return True

    def confirm_input(self, input_ms: int) -> None:
        """The server has this much input audio. An append counts as had when its middle is: the two sides may round
        differently, but an append is taken whole or not at all."""
        had = 0
        for place, outgoing in enumerate(self._unconfirmed, start=1):
            if outgoing.audio_ms and outgoing.start_ms + outgoing.audio_ms // 2 < input_ms:
                had = place
        for _ in range(had):
            self._forget()

    def confirm_all(self) -> None:
        """The server does not say what it has: sending again might double, so nothing is."""
        while self._unconfirmed:
            self._forget()

    def resume(self, input_ms: int | None, last_event_id: str | None) -> None:
        """A new attachment stands: drop what is durable, put the rest before what waits."""
        if input_ms is None and last_event_id is None:
            self.confirm_all()
        elif last_event_id is None or not self.confirm(last_event_id):
            self.confirm_input(input_ms or 0)
        if input_ms is not None and self._forgotten_end_ms > input_ms:
            self._lost_ms += self._forgotten_end_ms - input_ms
            self._forgotten_end_ms = 0
        again = [outgoing for outgoing in self._unconfirmed if outgoing.resend]
        self._waiting.extendleft(reversed(again))
        self._waiting_bytes += sum(outgoing.size_bytes for outgoing in again)
        self._resent += len(again)
        self._unconfirmed.clear()
        self._unconfirmed_bytes = self._unconfirmed_ms = 0

    def statistics(self) -> OutboxStatistics:
        """Now."""
        return OutboxStatistics(
            waiting_items=len(self._waiting),
            waiting_bytes=self._waiting_bytes,
            unconfirmed_items=len(self._unconfirmed),
            unconfirmed_ms=self._unconfirmed_ms,
            resent_items=self._resent,
            forgotten_items=self._forgotten,
            lost_input_ms=self._lost_ms,
        )

    def _keep(self, outgoing: Outgoing) -> None:
        self._unconfirmed.append(outgoing)
        self._unconfirmed_bytes += outgoing.size_bytes
        self._unconfirmed_ms += outgoing.audio_ms
        while (
            self._unconfirmed_ms > self._unconfirmed_ms_max
            or self._unconfirmed_bytes > UNCONFIRMED_BYTES_MAX
            or len(self._unconfirmed) > UNCONFIRMED_ITEMS_MAX
        ):
            oldest = self._forget()
            self._forgotten += oldest.resend
            self._forgotten_end_ms = max(self._forgotten_end_ms, oldest.start_ms + oldest.audio_ms)

    def _forget(self) -> Outgoing:
        outgoing = self._unconfirmed.popleft()
        self._unconfirmed_bytes -= outgoing.size_bytes
        self._unconfirmed_ms -= outgoing.audio_ms
        return outgoing
