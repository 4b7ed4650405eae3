"""The outbox: a cursor over the projected stream. Purge, replay and the switch to live are moves of that cursor, each one
step without an await.

What may be written is decided at the last instant (``peek``): by generation (is this socket still the session's?), by
durability (is the record behind the frame safe, and is no cut waiting to be?), by epoch (was the frame's answer cut
after it was made?).

The first cut after a frame's epoch settles its fate, for good: it is written into the frame's entry. So no cut has to be
remembered, and nothing that is forgotten here can bring a frame back to life.

Invariant: frames are in the order of their numbers; those before the cursor's place were handed over or skipped. What
waits is bounded in frames and bytes by who watches ``overfull``; what was handed over, by the replay window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from core.actors.weight import weight
from core.ports.projection import DELTA, LIVE, Frame
from core.session.commands import Cursor, Sent
from core.session.state import RESPONSES_MAX
from core.session.time_units import NS_PER_MS

WAITING_FRAMES_MAX = 512
WAITING_BYTES_MAX = 2 * 1024 * 1024
"""How much may be released and not taken by the socket before the answer fails (output_backpressure). What the newest step
added does not count yet: the socket had no chance to take it, and one item's echo may be larger than all of this."""

ASIDES_MAX = 64
ASIDES_BYTES_MAX = 256 * 1024
"""Transport answers that may wait; one that is larger than all of this may wait alone."""

FRAME_OVERHEAD_BYTES = 400
"""What a frame costs at the least, beside its audio."""

SENT_MAX = RESPONSES_MAX
"""The answers of which the cursor tells how much was sent: as many as the machine keeps a ledger of."""

REVOKED = -1
"""A generation that no attachment has."""


class AsidesFull(Exception):
    """The client asks for transport answers (heartbeats, errors) faster than it reads them."""


@attrs.define
class Entry:
    """A frame in the stream, with the time of its record and, until it is handed over, its audio."""

    frame: Frame
    at_ns: int
    size_bytes: int
    """Roughly what it costs on the wire and in memory."""
    body: bytes | None = None
    dead: bool | None = None
    """Whether the first cut after its epoch has killed it; None: none has come yet."""


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
    asides_bytes: int = 0
    cut_epoch: int = 0
    """The epoch that the last cut began: what comes in later of an older one is above that cut's cursor."""
    cut_position: int = 0
    """Up to this record the last cut has decided of all frames what becomes of them."""
    sent: dict[str, Sent] = attrs.field(factory=dict)
    played_out_ns: int = 0
    """When everything that was handed over will have been played; in the past: the client has run dry."""
    kept_bytes: int = 0
    waiting_frames: int = 0
    waiting_bytes: int = 0
    echoes: tuple[int, int] = (0, 0)
    """Of what waits, frames and bytes that no cut can kill: but for an answer's few, they are what the client asked for."""
    newest: tuple[int, int] = (0, 0)
    """Frames and bytes that the newest step added to what waits."""
    counted_above: int = 0
    """Frames up to this number are replayed for a client that came back: they do not count as waiting."""
    dead_frames: int = 0

    # -- what the actor does -----------------------------------------------------------------------------------

    def extend(self, frames: Iterable[Frame], at_ns: int, bodies: Mapping[str, bytes]) -> None:
        """New frames at the stream's head, all of one step."""
        frames_before, bytes_before = self.waiting_frames, self.waiting_bytes
        for frame in frames:
            body = bodies.get(frame.digest) if frame.digest else None
            entry = Entry(frame, at_ns, _size(frame), body)
            self.entries.append(entry)
            self.head = frame.number
            self.kept_bytes += entry.size_bytes
            if frame.epoch < self.cut_epoch:
                self._settle(entry, self.head - 1)
            if not entry.dead:
                self._count(entry, 1)
        if self.waiting_frames > frames_before:
            self.newest = (self.waiting_frames - frames_before, self.waiting_bytes - bytes_before)
        self._let_go(at_ns)

    def restore(self, frames: Iterable[Frame], at_ns: int) -> None:
        """Frames of a log that is read back: they count as handed over until a client names its number."""
        self.extend(frames, at_ns, {})
        self.place, self.number = len(self.entries), self.head
        self._count_anew()
        self._let_go(at_ns)

    def pass_over(self, number: int) -> None:
        """The stream of a log that is read back has come to ``number``, with frames so old that none of them is kept."""
        self.head = self.number = number
        self.first_number = number + 1

    def cut(self, epoch: int, cursor: int, fence: int) -> None:
        """Undelivered audio of epochs below ``epoch`` above ``cursor`` is dead; write nothing before ``fence`` is safe."""
        for entry in self.entries:
            if entry.dead is None and entry.frame.epoch < epoch:
                self._settle(entry, cursor)
        self.cut_epoch = max(self.cut_epoch, epoch)
        if self.entries:
            self.cut_position = self.entries[-1].frame.position
        self.fall_silent()
        self.fence = max(self.fence, fence)
        self._count_anew()

    def attach(self, generation: int, number: int | None, opening: Iterable[Mapping[str, Any]], position: int) -> None:
        """A new socket: start behind ``number`` (None: at the head), after the ``opening`` events, once the attachment
        at log ``position`` is durable."""
        self.generation = generation
        self.asides.clear()
        self.asides_bytes = 0
        self.opening = deque((position, payload) for payload in opening)
        self.rewind(self.head if number is None else number)

    def rewind(self, number: int) -> None:
        """Whoever takes the stream has ``number``: what lies behind it was not handed over, and so is not let go."""
        self.number = number
        ahead = (i for i, entry in enumerate(self.entries) if entry.frame.number > number)
        self.place = next(ahead, len(self.entries))
        self.counted_above = self.head
        self._count_anew()

    def fall_silent(self) -> None:
        """The client throws away what it has not played (a cut, a truncate)."""
        self.played_out_ns = 0

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
            before = self.sent.get(response_id) or Sent(sent_ms, now_ns + sent_ms * NS_PER_MS)
            lost_ns = max(0, before.sent_ms - sent_ms) * NS_PER_MS
            self.sent[response_id] = Sent(sent_ms, before.played_out_ns - lost_ns)
            self.played_out_ns -= lost_ns
        while len(self.sent) > SENT_MAX:
            del self.sent[next(iter(self.sent))]
        return tuple(covered.items())

    def answer(self, payload: Mapping[str, Any]) -> None:
        """A transport-level answer; goes before the next frame. Raises AsidesFull."""
        size_bytes = weight(payload)
        too_much = self.asides and self.asides_bytes + size_bytes > ASIDES_BYTES_MAX
        if len(self.asides) >= ASIDES_MAX or too_much:
            raise AsidesFull
        self.asides.append(payload)
        self.asides_bytes += size_bytes

    def give_up_waiting(self) -> None:
        """Nobody is there to take what waits, and it is more than may wait: the oldest frames leave. A client that lacks
        them must resynchronise."""
        while self.overfull:
            entry = self.entries[self.place]
            if not entry.dead:
                self._count(entry, -1)
            self.place += 1
            while self.place:
                self._drop_first()

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
            if self.opening:
                self.opening.popleft()
            else:
                self.asides_bytes -= weight(self.asides.popleft())
            return
        frame = item.frame
        self.number = frame.number
        self.place += 1
        self._count(item, -1)
        item.body = None
        if frame.kind == DELTA and frame.response_id is not None and frame.audio_ms:
            self.played_out_ns = max(self.played_out_ns, now_ns) + frame.audio_ms * NS_PER_MS
            self.sent[frame.response_id] = Sent(frame.start_ms + frame.audio_ms, self.played_out_ns)
            if len(self.sent) > SENT_MAX:
                del self.sent[next(iter(self.sent))]

    # -- what others ask ---------------------------------------------------------------------------------------

    def cursor(self) -> Cursor:
        """Where the stream stands, for the machine. What an earlier cut has spared and is sent again waits for no cut: it
        cannot be undone any more."""
        waiting = 0
        if self.place < len(self.entries):
            waiting = max(self.entries[self.place].frame.position, self.cut_position + 1)
        return Cursor(self.number, dict(self.sent), waiting)

    def knows(self, number: int) -> bool:
        """Whether a client that has ``number`` can be continued from here without a hole."""
        return self.first_number - 1 <= number <= self.head

    def skipped(self, number: int) -> tuple[tuple[int, int], ...]:
        """The ranges of numbers above ``number`` that a resumed client will not get, for they are dead."""
        ranges: list[tuple[int, int]] = []
        for entry in self.entries:
            n = entry.frame.number
            if n <= number or not entry.dead:
                continue
            if ranges and ranges[-1][1] == n - 1:
                ranges[-1] = (ranges[-1][0], n)
            else:
                ranges.append((n, n))
        return tuple(ranges)

    @property
    def ready(self) -> bool:
        """Something is there that may be handed over by what is durable; ``peek`` has the last word."""
        more = self.place < len(self.entries)
        return bool(self.opening or self.asides) or (more and self.entries[self.place].frame.position <= self.durable)

    @property
    def overfull(self) -> bool:
        """More was released than the socket takes."""
        frames, size_bytes = self.newest
        return self.waiting_frames - frames > WAITING_FRAMES_MAX or self.waiting_bytes - size_bytes > WAITING_BYTES_MAX

    @property
    def crowded(self) -> bool:
        """So much waits that nobody should ask for more of it."""
        return self.waiting_frames > WAITING_FRAMES_MAX // 2 or self.waiting_bytes > WAITING_BYTES_MAX // 2

    @property
    def echoing(self) -> bool:
        """So much waits of what the client itself asked for, that it should take some of it before anything else."""
        frames, size_bytes = self.echoes
        return frames > WAITING_FRAMES_MAX // 2 or size_bytes > WAITING_BYTES_MAX // 2

    def statistics(self) -> OutboxStatistics:
        """Now."""
        return OutboxStatistics(self.waiting_frames, self.waiting_bytes, self.dead_frames)

    # -- inside ------------------------------------------------------------------------------------------------

    def _settle(self, entry: Entry, cursor: int) -> None:
        """A cut with ``cursor`` is the first after the frame's epoch.

        Above the cursor deltas, calls and a completed end die. At or below it they were handed over once; when they are
        asked for again (a resume), audio is dead. An end is not, since no other end follows; nor is a call, since the
        model was told that it was made.
        """
        frame = entry.frame
        entry.dead = False if frame.kind == LIVE else frame.number > cursor or frame.kind == DELTA
        if entry.dead:
            entry.body = None

    def _count(self, entry: Entry, sign: int) -> None:
        if entry.frame.number > self.counted_above:
            self.waiting_frames += sign
            self.waiting_bytes += sign * entry.size_bytes
            if entry.frame.kind == LIVE:
                frames, size_bytes = self.echoes
                self.echoes = (frames + sign, size_bytes + sign * entry.size_bytes)

    def _count_anew(self) -> None:
        """What is dead does not wait, whether or not the sender has come to skip it."""
        self.waiting_frames = self.waiting_bytes = 0
        self.echoes = (0, 0)
        for i in range(self.place, len(self.entries)):
            if not self.entries[i].dead:
                self._count(self.entries[i], 1)

    def _skip_dead(self) -> None:
        while self.place < len(self.entries) and self.entries[self.place].dead:
            self.dead_frames += 1
            self.place += 1

    def _let_go(self, now_ns: int) -> None:
        """Forget frames that were handed over and lie beyond the replay window."""
        oldest_ns = now_ns - self.window_ms * NS_PER_MS
        while self.place and (self.entries[0].at_ns < oldest_ns or self.kept_bytes > self.window_bytes):
            self._drop_first()

    def _drop_first(self) -> None:
        entry = self.entries.popleft()
        self.kept_bytes -= entry.size_bytes
        self.first_number = entry.frame.number + 1
        self.place -= 1


def _size(frame: Frame) -> int:
    """Audio is base64 on the wire."""
    return frame.size_bytes * 4 // 3 + max(FRAME_OVERHEAD_BYTES, weight(frame.payload))
