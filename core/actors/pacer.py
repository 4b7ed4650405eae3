"""The pacer: holds model output back so that the client is never sent more than a given lead ahead of its playback.

It stands before the log, not behind it. What it holds is not in the log yet, so a cut has little to flush, nothing else in
the stream waits behind audio (a ``session.updated`` is not late by the length of an answer), and the numbers of the stream
stay in the order in which things are sent. When it holds enough, the lane is paused.

Invariant: what is held belongs to one response, the one being made.
"""

from __future__ import annotations

from collections import deque

import attrs

from core.actors.weight import weight
from core.ports.runtime import LaneEnded, LaneFailed, Produced, ToolCalled
from core.session.effects import PauseLane, ResumeLane
from core.session.time_units import NS_PER_MS

RESUME_FRACTION = 0.5
"""A paused lane goes on when this much of the bound is left."""

HELD_ITEMS_MAX = 4_096
HELD_BYTES_MAX = 16 * 1024 * 1024
"""How much may be held: far more than a lane makes that heeds its PauseLane."""

Held = Produced | ToolCalled | LaneEnded | LaneFailed


class PacerFull(Exception):
    """The lane goes on though it was paused, or makes very much at a time. Nothing was held."""


@attrs.define
class Pacer:
    """A bounded queue of model output with a release time for its head."""

    lead_ms: int | None
    lane_lead_ms: int
    queue: deque[tuple[Held, int, int]] = attrs.field(factory=deque)
    """Each with its bytes and the ms of its audio."""
    held_ms: int = 0
    held_bytes: int = 0
    response_id: str = ""
    paused: bool = False

    def put(self, message: Held) -> None:
        """Take one message of a lane, in order. A new response throws out what is held of an older one. Raises PacerFull."""
        if message.response_id != self.response_id:
            self.drop()
            self.response_id = message.response_id
        size_bytes = weight(message)
        if len(self.queue) >= HELD_ITEMS_MAX or self.held_bytes + size_bytes > HELD_BYTES_MAX:
            raise PacerFull
        audio_ms = _audio_ms(message)
        self.queue.append((message, size_bytes, audio_ms))
        self.held_ms += audio_ms
        self.held_bytes += size_bytes

    def drop(self) -> None:
        """Forget everything that is held (a cut)."""
        self.queue.clear()
        self.held_ms = self.held_bytes = 0
        self.paused = False

    def due_ns(self, undelivered_ms: int, played_out_ns: int, now_ns: int) -> int | None:
        """When the head may go; 0: now; None: nothing is held, or what was released must be handed over first.

        ``undelivered_ms`` were released and not yet handed over; ``played_out_ns``: when the client will have played all that
        it has, which may be the rest of an earlier answer. One that ran dry gets a lead anew, and not all that it missed.
        """
        if not self.queue:
            return None
        if self.lead_ms is None or not isinstance(self.queue[0][0], Produced):
            return 0
        early_ms = undelivered_ms - self.lead_ms
        if played_out_ns > now_ns:
            return played_out_ns + early_ms * NS_PER_MS
        return 0 if early_ms < 0 or undelivered_ms <= 0 else None  # a lead of 0 is one unit at a time, not none

    def take(self) -> Held:
        """The head, whose time has come."""
        message, size_bytes, audio_ms = self.queue.popleft()
        self.held_ms -= audio_ms
        self.held_bytes -= size_bytes
        return message

    def lane_word(self, undelivered_ms: int) -> type[PauseLane | ResumeLane] | None:
        """What the lane must be told now, if anything; ``undelivered_ms``: in the log, not yet handed to a socket."""
        ahead_ms = self.held_ms + undelivered_ms
        if not self.paused and ahead_ms > self.lane_lead_ms:
            self.paused = True
            return PauseLane
        if self.paused and ahead_ms < self.lane_lead_ms * RESUME_FRACTION:
            self.paused = False
            return ResumeLane
        return None


def _audio_ms(message: Held) -> int:
    return len(message.audio) // 2 * 1000 // message.rate if isinstance(message, Produced) else 0
