"""A listener without a sound card: what would have been heard, and when.

The player plays at real time on a clock that the caller passes in. Responses play one after the other, in the order in
which they began; each starts when ``prebuffer_ms`` of it are here (or it has ended), and again after it ran dry. Silence
in between is part of what is heard. Nothing here waits or reads a clock, and nothing is rounded: the play head is a count
of samples.

Invariants, per response: played <= received; played only grows; after a cut it does not.
An underrun is counted when audio of a response comes after that response had run dry: the listener heard a hole.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import IO

SAMPLE_BYTES = 2
AUDIO_BYTES_MAX = 512 * 1024 * 1024
"""Heard audio that is kept (about three hours at 24 kHz); beyond it only the counts go on."""


@dataclass(frozen=True, slots=True)
class HeardSpan:
    """A stretch that was heard without a break. ``start_sample`` counts on the player's own clock from its start."""

    start_sample: int
    response_id: str
    pcm: bytes = field(repr=False)


@dataclass(slots=True)
class _Track:
    """One response in the player. Counts are samples."""

    response_id: str
    queue: bytearray = field(default_factory=bytearray)
    received: int = 0
    played: int = 0
    started: bool = False
    """It is sounding, or waits only for audio."""
    ended: bool = False
    cut: bool = False
    dry_at: int | None = None
    """Where it ran dry; None while it sounds, and before it first does."""
    hole_counted: bool = False
    underruns: int = 0
    underrun_samples: int = 0
    first_sound: int | None = None
    last_sound: int = 0

    @property
    def queued(self) -> int:
        return len(self.queue) // SAMPLE_BYTES

    @property
    def finished(self) -> bool:
        return self.cut or (self.ended and not self.queue)


@dataclass(frozen=True, slots=True)
class TrackStatistics:
    """How one response was heard; ``first_sound_ms`` on the player's clock, None if it never sounded."""

    response_id: str
    received_ms: int
    played_ms: int
    was_cut: bool
    underruns: int
    underrun_ms: int
    first_sound_ms: int | None


class Player:
    """Plays pcm16 mono at ``rate`` Hz. All methods that take ``now_ns`` first play up to that instant."""

    def __init__(self, start_ns: int, *, rate: int = 24_000, prebuffer_ms: int = 0, keep_audio: bool = True) -> None:
        self.rate = rate
        self.prebuffer_ms = prebuffer_ms
        self._start_ns = start_ns
        self._clock = 0
        self._tracks: dict[str, _Track] = {}
        self._order: list[_Track] = []
        self._spans: list[tuple[int, str, bytearray]] = []
        self._kept_bytes = 0
        self._keep_audio = keep_audio
        self.tap: bytearray | None = None
        """When set, everything that sounds is added to it too, silence included: a loudspeaker's feed, emptied by its
        owner."""

    # -- driving --------------------------------------------------------------------------------------------------

    def feed(self, response_id: str, pcm: bytes, now_ns: int) -> bool:
        """Audio has come. False when the response was cut: nobody will hear it. Raises ValueError for half a sample."""
        if len(pcm) % SAMPLE_BYTES:
            raise ValueError("pcm16 has two bytes a sample")
        self.advance(now_ns)
        track = self._track(response_id)
        if track.cut:
            return False
        if track.dry_at is not None and pcm and not track.hole_counted:
            track.underruns += 1
            track.hole_counted = True
        track.queue += pcm
        track.received += len(pcm) // SAMPLE_BYTES
        self._start_head()
        return True

    def end(self, response_id: str, now_ns: int) -> None:
        """No more audio of this response will come: what is here plays out."""
        self.advance(now_ns)
        track = self._tracks.get(response_id)
        if track is not None:
            track.ended = True
            self._start_head()

    def cut(self, now_ns: int, response_id: str | None = None) -> int:
        """Fall silent: drop what is queued of one response, or of all. The played ms of that response, or of the one
        that sounded; 0 when none did."""
        self.advance(now_ns)
        targets = [track for track in self._order if response_id in (None, track.response_id)]
        played = targets[0].played if targets else self._played_samples(response_id)
        for track in targets:
            track.queue.clear()
            track.cut = True
        self._start_head()
        return self._ms(played)

    def advance(self, now_ns: int) -> None:
        """Play up to ``now_ns``; a clock that goes back plays nothing."""
        target = (now_ns - self._start_ns) * self.rate // 1_000_000_000
        while self._clock < target:
            head = self._head()
            if head is None or not head.started or not head.queue:
                break
            count = min(target - self._clock, head.queued)
            self._sound(head, count)
            if not head.queue and not head.ended:
                head.dry_at = self._clock
                head.started = False
            self._start_head()
        if self.tap is not None and target > self._clock:
            self.tap += bytes((target - self._clock) * SAMPLE_BYTES)
        self._clock = max(self._clock, target)

    # -- facts ----------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Nothing sounds and nothing waits to sound."""
        return self._head() is None

    @property
    def sounding_id(self) -> str | None:
        """The response that is being heard, or would be if its audio were here."""
        head = self._head()
        return head.response_id if head is not None and head.played else None

    @property
    def clock_ms(self) -> int:
        """The player's clock."""
        return self._ms(self._clock)

    def played_ms(self, response_id: str) -> int:
        """What has been heard of a response, whole ms; 0 for one that is unknown."""
        return self._ms(self._played_samples(response_id))

    def received_ms(self, response_id: str) -> int:
        """What came of a response, whole ms."""
        track = self._tracks.get(response_id)
        return self._ms(track.received) if track is not None else 0

    def statistics(self) -> list[TrackStatistics]:
        """One line for each response, in order of their beginning."""
        return [
            TrackStatistics(
                track.response_id,
                self._ms(track.received),
                self._ms(track.played),
                track.cut,
                track.underruns,
                self._ms(track.underrun_samples),
                None if track.first_sound is None else self._ms(track.first_sound),
            )
            for track in self._tracks.values()
        ]

    # -- what was heard -------------------------------------------------------------------------------------------

    def spans(self) -> list[HeardSpan]:
        """Everything heard, in order, with its place in time."""
        return [HeardSpan(start, response_id, bytes(pcm)) for start, response_id, pcm in self._spans]

    def heard_samples(self, response_id: str) -> tuple[int, int]:
        """From where to where a response sounded, on the player's own clock."""
        track = self._tracks.get(response_id)
        return (0, 0) if track is None or track.first_sound is None else (track.first_sound, track.last_sound)

    def heard_pcm(self, response_id: str) -> bytes:
        """One response as it sounded, from its first sound to its last, with the silence of its underruns."""
        return self._render([span for span in self._spans if span[1] == response_id], None)

    def timeline_pcm(self, until_ms: int | None = None) -> bytes:
        """All that was heard since the player's start, silence included; padded or cut to ``until_ms`` when given."""
        rendered = self._render(self._spans, 0)
        if until_ms is None:
            return rendered
        size = until_ms * self.rate // 1_000 * SAMPLE_BYTES
        return rendered[:size].ljust(size, b"\0")

    # -- inside ---------------------------------------------------------------------------------------------------

    def _track(self, response_id: str) -> _Track:
        track = self._tracks.get(response_id)
        if track is None:
            track = self._tracks[response_id] = _Track(response_id)
            self._order.append(track)
        return track

    def _head(self) -> _Track | None:
        while self._order and self._order[0].finished:
            self._order.pop(0)
        return self._order[0] if self._order else None

    def _start_head(self) -> None:
        """Let the head sound once enough of it is here."""
        head = self._head()
        if head is not None and not head.started and head.queue:
            head.started = head.ended or head.queued >= self.prebuffer_ms * self.rate // 1_000

    def _sound(self, track: _Track, count: int) -> None:
        if track.first_sound is None:
            track.first_sound = self._clock
        if track.dry_at is not None:
            track.underrun_samples += self._clock - track.dry_at
            track.dry_at, track.hole_counted = None, False
        chunk = track.queue[: count * SAMPLE_BYTES]
        del track.queue[: count * SAMPLE_BYTES]
        if self._keep_audio and self._kept_bytes + len(chunk) <= AUDIO_BYTES_MAX:
            self._keep(track.response_id, chunk)
        if self.tap is not None:
            self.tap += chunk
        track.played += count
        self._clock += count
        track.last_sound = self._clock

    def _keep(self, response_id: str, chunk: bytearray) -> None:
        self._kept_bytes += len(chunk)
        if self._spans:
            start, last_id, pcm = self._spans[-1]
            if last_id == response_id and start + len(pcm) // SAMPLE_BYTES == self._clock:
                pcm += chunk
                return
        self._spans.append((self._clock, response_id, chunk))

    def _render(self, spans: list[tuple[int, str, bytearray]], origin: int | None) -> bytes:
        if not spans:
            return b""
        first = spans[0][0] if origin is None else origin
        rendered = bytearray()
        for start, _, pcm in spans:
            rendered.extend(bytes((start - first) * SAMPLE_BYTES - len(rendered)))
            rendered += pcm
        return bytes(rendered)

    def _played_samples(self, response_id: str | None) -> int:
        track = self._tracks.get(response_id or "")
        return track.played if track is not None else 0

    def _ms(self, samples: int) -> int:
        return samples * 1_000 // self.rate


def write_wav(out: str | IO[bytes], pieces: Iterable[bytes], rate: int, channels: int = 1) -> None:
    """pcm16 into a WAV file, piece by piece. Raises OSError."""
    with wave.open(out, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(SAMPLE_BYTES)
        file.setframerate(rate)
        for piece in pieces:
            file.writeframesraw(piece)


def wav_bytes(pcm: bytes, rate: int, channels: int = 1) -> bytes:
    """pcm16 as a WAV file."""
    out = io.BytesIO()
    write_wav(out, [pcm], rate, channels)
    return out.getvalue()


def stereo(left: bytes, right: bytes) -> bytes:
    """Two pcm16 mono tracks interleaved; the shorter one is padded with silence."""
    size = max(len(left), len(right)) // SAMPLE_BYTES * SAMPLE_BYTES
    mixed = bytearray(size * 2)
    for channel, track in enumerate((left, right)):
        padded = track[:size].ljust(size, b"\0")
        mixed[channel * 2 :: 4] = padded[0::2]
        mixed[channel * 2 + 1 :: 4] = padded[1::2]
    return bytes(mixed)
