"""The outbox: a cursor over the projected stream. Purge, replay and the switch to live are moves of that cursor, each one
step without an await.

What may be written is decided at the last instant (``peek``): by generation (is this socket still the session's?), by
durability (is the record behind the frame safe, and is no cut waiting to be?), by epoch (was the frame's answer cut
after it was made?).

Invariant: frames are in the order of their numbers; those before the cursor's place were handed over or skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from core.ports.projection import DELTA, LIVE, Frame
from core.session.commands import Cursor, Sent

WAITING_FRAMES_MAX = 512
WAITING_BYTES_MAX = 2 * 1024 * 1024
"""How much may be released and not taken by the socket before the answer fails (output_backpressure)."""

ASIDES_MAX = 64
FRAME_OVERHEAD_BYTES = 400
CUTS_MAX = 256
SENT_MAX = 8

REVOKED = -1
"""A generation that no attachment has."""


class AsidesFull(Exception):
    """The client asks for transport answers (heartbeats, errors) faster than it reads them."""


@attrs.frozen
class Cut:
    """A cut as the outbox needs it: frames of lower epochs with a number above ``cursor`` are dead."""

    epoch: int
    cursor: int


@attrs.define
class Entry:
    """A frame in the stream, with the time of its record and, until it is handed over, its audio."""

    frame: Frame
    at_ns: int
    body: bytes | None = None


@attrs.frozen
class OutboxStatistics:
    """What waits for the socket now, and what a cut has thrown away so far."""

    waiting_frames: int
    waiting_bytes: int
    dead_frames: int


@attrs.define
class Outbox:
    """The stream of one session, from as far back as a client may resume."""

    window_ms: int
    window_bytes: int
    entries: deque[Entry] = attrs.field(factory=deque)
    first_number: int = 1
    """Numbers below this were let go: a client that lacks them must resynchronise."""
    place: int = 0
    """Index of the next entry to consider."""
    number: int = 0
    """The last number that was handed to the socket."""
    head: int = 0
    """The last number that the projection gave out."""
    generation: int = 0
    durable: int = 0
    """Records up to this position are safe."""
    fence: int = 0
    """Nothing is written until the record at this position is durable."""
    opening: deque[tuple[int, Mapping[str, Any]]] = attrs.field(factory=deque)
    asides: deque[Mapping[str, Any]] = attrs.field(factory=deque)
    cuts: deque[Cut] = attrs.field(factory=deque)
    sent: dict[str, Sent] = attrs.field(factory=dict)
    kept_bytes: int = 0
    waiting_frames: int = 0
    waiting_bytes: int = 0
    counted_above: int = 0
    """Frames up to this number are replayed for a client that came back: they do not count as waiting."""
    dead_frames: int = 0

    # -- what the actor does -----------------------------------------------------------------------------------

    def extend(self, frames: Iterable[Frame], at_ns: int, bodies: Mapping[str, bytes]) -> None:
        """New frames at the stream's head."""
        for frame in frames:
            entry = Entry(frame, at_ns, bodies.get(frame.digest) if frame.digest else None)
            self.entries.append(entry)
            self.head = frame.number
            self.kept_bytes += _size(frame)
            self._count(frame, 1)
        self._let_go(at_ns)

    def restore(self, frames: Iterable[Frame], at_ns: int) -> None:
        """Frames of a log that is read back: they count as handed over until a client names its number."""
        self.extend(frames, at_ns, {})
        self.place, self.number = len(self.entries), self.head
        self._count_anew()
        self._let_go(at_ns)

    def pass_over(self, frames: Iterable[Frame]) -> None:
        """Frames of a log that is read back, so old that they would be let go at once."""
        for frame in frames:
            self.head = self.number = frame.number
            self.first_number = frame.number + 1

    def cut(self, epoch: int, cursor: int, fence: int) -> None:
        """Undelivered audio of epochs below ``epoch`` above ``cursor`` is dead; write nothing before ``fence`` is safe."""
        self.cuts.append(Cut(epoch, cursor))
        if len(self.cuts) > CUTS_MAX:
            self.cuts.popleft()
        self.fence = max(self.fence, fence)
        self._count_anew()

    def attach(self, generation: int, number: int | None, opening: Iterable[Mapping[str, Any]], position: int) -> None:
        """A new socket: start behind ``number`` (None: at the head), after the ``opening`` events, once the attachment
        at log ``position`` is durable."""
        self.generation = generation
        self.asides.clear()
        self.opening = deque((position, payload) for payload in opening)
        self.number = self.head if number is None else number
        ahead = (i for i, entry in enumerate(self.entries) if entry.frame.number > self.number)
        self.place = next(ahead, len(self.entries))
        self.counted_above = self.head
        self._count_anew()

    def revoke(self) -> None:
        """Nobody may write any more."""
        self.generation = REVOKED

    def resent(self, number: int, now_ns: int) -> tuple[tuple[str, int], ...]:
        """Set what was sent of each answer to what a client that has ``number`` has; and return it."""
        covered: dict[str, int] = {}
        for entry in self.entries:
            frame = entry.frame
            if frame.kind != DELTA or frame.response_id is None or not frame.audio_ms:
                continue
            covered.setdefault(frame.response_id, frame.start_ms)  # what lies before was let go: the client has it
            if frame.number <= number:
                covered[frame.response_id] = frame.start_ms + frame.audio_ms
        for response_id, sent_ms in covered.items():
            before = self.sent.get(response_id)
            self.sent[response_id] = Sent(sent_ms, now_ns if before is None else before.first_ns)
        while len(self.sent) > SENT_MAX:
            del self.sent[next(iter(self.sent))]
        return tuple(covered.items())

    def answer(self, payload: Mapping[str, Any]) -> None:
        """A transport-level answer; goes before the next frame. Raises AsidesFull."""
        if len(self.asides) >= ASIDES_MAX:
            raise AsidesFull
        self.asides.append(payload)

    # -- what the sender does ----------------------------------------------------------------------------------

    def peek(self, generation: int) -> Mapping[str, Any] | Entry | None:
        """The next thing to write for this attachment; None: nothing may be written now. Moves past dead frames."""
        if generation != self.generation or self.fence > self.durable:
            return None
        if self.opening:
            position, payload = self.opening[0]
            return payload if position <= self.durable else None
        if self.asides:
            return self.asides[0]
        self._skip_dead()
        if self.place >= len(self.entries):
            return None
        entry = self.entries[self.place]
        return entry if entry.frame.position <= self.durable else None

    def hand_over(self, item: Mapping[str, Any] | Entry, now_ns: int) -> None:
        """``item`` (what ``peek`` gave) goes to the socket now. There must be no await since the peek."""
        if not isinstance(item, Entry):
            (self.opening or self.asides).popleft()
            return
        frame = item.frame
        self.number = frame.number
        self.place += 1
        self._count(frame, -1)
        item.body = None
        if frame.kind == DELTA and frame.response_id is not None and frame.audio_ms:
            before = self.sent.get(frame.response_id)
            first_ns = now_ns if before is None else before.first_ns
            self.sent[frame.response_id] = Sent(frame.start_ms + frame.audio_ms, first_ns)
            if len(self.sent) > SENT_MAX:
                del self.sent[next(iter(self.sent))]

    # -- what others ask ---------------------------------------------------------------------------------------

    def cursor(self) -> Cursor:
        """Where the stream stands, for the machine."""
        return Cursor(self.number, dict(self.sent))

    def knows(self, number: int) -> bool:
        """Whether a client that has ``number`` can be continued from here without a hole."""
        return self.first_number - 1 <= number <= self.head

    def skipped(self, number: int) -> tuple[tuple[int, int], ...]:
        """The ranges of numbers above ``number`` that a resumed client will not get, for they are dead."""
        ranges: list[tuple[int, int]] = []
        for entry in self.entries:
            n = entry.frame.number
            if n <= number or not self.is_dead(entry.frame):
                continue
            if ranges and ranges[-1][1] == n - 1:
                ranges[-1] = (ranges[-1][0], n)
            else:
                ranges.append((n, n))
        return tuple(ranges)

    def is_dead(self, frame: Frame) -> bool:
        """Whether the first cut after the frame's epoch has killed it.

        Above that cut's cursor both deltas and a completed end die. At or below it they were handed over once; when
        they are asked for again (a resume), audio is dead and an end is not, since no other end follows.
        """
        if frame.kind == LIVE:
            return False
        for cut in self.cuts:
            if cut.epoch > frame.epoch:
                return frame.number > cut.cursor or frame.kind == DELTA
        return False

    @property
    def overfull(self) -> bool:
        """More was released than the socket takes."""
        return self.waiting_frames > WAITING_FRAMES_MAX or self.waiting_bytes > WAITING_BYTES_MAX

    def statistics(self) -> OutboxStatistics:
        """Now."""
        return OutboxStatistics(self.waiting_frames, self.waiting_bytes, self.dead_frames)

    # -- inside ------------------------------------------------------------------------------------------------

    def _count(self, frame: Frame, sign: int) -> None:
        if frame.number > self.counted_above:
            self.waiting_frames += sign
            self.waiting_bytes += sign * _size(frame)

    def _count_anew(self) -> None:
        """What is dead does not wait, whether or not the sender has come to skip it."""
        self.waiting_frames = self.waiting_bytes = 0
        for i in range(self.place, len(self.entries)):
            frame = self.entries[i].frame
            if self.is_dead(frame):
                self.entries[i].body = None
            else:
                self._count(frame, 1)

    def _skip_dead(self) -> None:
        while self.place < len(self.entries) and self.is_dead(self.entries[self.place].frame):
            self.dead_frames += 1
            self.place += 1

    def _let_go(self, now_ns: int) -> None:
        """Forget frames that were handed over and lie beyond the replay window."""
        oldest_ns = now_ns - self.window_ms * 1_000_000
        while self.place and (self.entries[0].at_ns < oldest_ns or self.kept_bytes > self.window_bytes):
            entry = self.entries.popleft()
            self.kept_bytes -= _size(entry.frame)
            self.first_number = entry.frame.number + 1
            self.place -= 1


def _size(frame: Frame) -> int:
    """Roughly what the frame costs on the wire: audio is base64."""
    return frame.size_bytes * 4 // 3 + FRAME_OVERHEAD_BYTES
