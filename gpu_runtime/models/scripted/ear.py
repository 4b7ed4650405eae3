"""The scripted ear: a detector that hears loudness, a recogniser that reads from a script, and the input clock.

All times are audio times, so a question that is sent faster than real time is heard just as in real time. The one
exception is the idle fill: when a client stops sending in mid-speech, its silence is supplied by the real clock. It
ends the segment, but the input clock, and so every reported time, goes on to count only what the client sent.
"""

from __future__ import annotations

from collections import OrderedDict

import attrs
import numpy as np

from core.ports.runtime import (
    CommitTurn,
    ConfigureSession,
    Feed,
    FromRuntime,
    OpenSession,
    SpeechBegan,
    SpeechEnded,
    SpeechGoesOn,
)
from core.session.time_units import NS_PER_MS
from gpu_runtime import pcm
from gpu_runtime.models.scripted.settings import ScriptedSettings

FRAMES_PER_S = 50
GOES_ON_MS = 100
CHUNK_MS_MAX = 1_000
"""How much of a chunk's own length counts before the client is called idle."""
ITEMS_MAX = 1_024
"""Transcripts that are kept for histories which leave the text to the runtime; the oldest goes first."""


@attrs.define
class _Segment:
    """Speech that has not ended. Times in ms on the input clock; ``loud_at_ns``: arrival of the last loud frame."""

    number: int
    start_ms: int
    loud_end_ms: int
    loud_at_ns: int
    reported_ms: int = 0


class Ear:
    """One session's ear. ``wall_ns`` is what turns the shell's clock into the log's, for timings."""

    def __init__(self, opened: OpenSession, settings: ScriptedSettings, wall_ns: int) -> None:
        self._session = opened.session
        self._settings = settings
        self._wall_ns = wall_ns
        self._format = opened.input_format
        self._turn_detection = opened.turn_detection
        self._base_ms = opened.input_ms
        self._samples = 0
        self._rest = np.zeros(0, dtype=np.float32)
        self._segment: _Segment | None = None
        self._segments = 0
        self._commits = 0
        self._loud_since_commit = False
        self._fed_at_ns = 0
        self._transcripts: OrderedDict[str, str] = OrderedDict()

    def configure(self, message: ConfigureSession) -> None:
        """A new format or detection. The clock goes on; what was not a whole frame yet is forgotten."""
        self._rebase(self._clock_ms())
        self._format = message.input_format
        self._turn_detection = message.turn_detection
        if self._turn_detection is None:
            self._segment = None

    def clear(self) -> None:
        """Forget what was fed and not committed, a segment that is open included."""
        self._rebase(self._clock_ms())
        self._segment = None
        self._loud_since_commit = False

    def feed(self, message: Feed, now_ns: int) -> list[FromRuntime]:
        """Hear a chunk."""
        if abs(message.start_ms - self._clock_ms()) > 1000 // FRAMES_PER_S:
            self._rebase(message.start_ms)
        self._fed_at_ns = now_ns + min(message.audio_ms, CHUNK_MS_MAX) * NS_PER_MS
        samples = np.concatenate([self._rest, pcm.decode(message.audio, self._format)])
        frame = max(1, self._format.rate // FRAMES_PER_S)
        whole = len(samples) // frame
        self._rest = samples[whole * frame :]
        loudness = np.sqrt(np.mean(np.square(samples[: whole * frame].reshape(whole, frame)), axis=1))
        said: list[FromRuntime] = []
        for loud in (loudness >= self._settings.speech_rms).tolist():
            start_ms = self._frame_ms()
            self._samples += frame
            said += self._frame(loud, start_ms, self._frame_ms(), now_ns)
        return said

    def commit(self, message: CommitTurn) -> str:
        """Name a turn's text: the segment's, or else the next one's ("" when nothing loud was in it). The same item
        again is the same text."""
        if message.item_id in self._transcripts:
            return self._transcripts[message.item_id]
        if message.segment is not None:
            text = self._script(message.segment, message.end_ms - message.start_ms)
        else:
            self._commits += 1
            spoken = self._loud_since_commit
            text = self._script(self._commits, message.end_ms - message.start_ms) if spoken else ""
        self._loud_since_commit = False
        self._transcripts[message.item_id] = text
        if len(self._transcripts) > ITEMS_MAX:
            self._transcripts.popitem(last=False)
        return text

    def transcript(self, item_id: str) -> str:
        """What a committed item said; "" for one that is not known here."""
        return self._transcripts.get(item_id, "")

    def idle_due_ns(self) -> int | None:
        """When supplied silence will end the open segment, unless more audio comes. None: nothing is open."""
        if self._segment is None or self._turn_detection is None:
            return None
        wanted_ms = self._turn_detection.silence_duration_ms - (self._clock_ms() - self._segment.loud_end_ms)
        return self._fed_at_ns + max(self._settings.idle_fill_ms, wanted_ms) * NS_PER_MS

    def idle(self, now_ns: int) -> list[FromRuntime]:
        """End the open segment if its silence is over by now."""
        due_ns = self.idle_due_ns()
        return self._end(now_ns) if due_ns is not None and now_ns >= due_ns else []

    def _frame(self, loud: bool, start_ms: int, end_ms: int, now_ns: int) -> list[FromRuntime]:
        self._loud_since_commit |= loud
        if self._turn_detection is None:
            return []
        segment = self._segment
        if segment is None:
            if not loud:
                return []
            self._segments += 1
            self._segment = _Segment(self._segments, start_ms, end_ms, now_ns)
            return [SpeechBegan(self._session, self._segments, start_ms)]
        if not loud:
            over = end_ms - segment.loud_end_ms >= self._turn_detection.silence_duration_ms
            return self._end(now_ns) if over else []
        segment.loud_end_ms, segment.loud_at_ns = end_ms, now_ns
        speech_ms = end_ms - segment.start_ms
        if speech_ms - segment.reported_ms < GOES_ON_MS:
            return []
        segment.reported_ms = speech_ms
        return [SpeechGoesOn(self._session, segment.number, speech_ms)]

    def _end(self, now_ns: int) -> list[FromRuntime]:
        segment, self._segment = self._segment, None
        assert segment is not None
        timings = (
            ("last_speech", segment.loud_at_ns + self._wall_ns),
            ("endpoint", now_ns + self._wall_ns),
            ("transcript", now_ns + self._wall_ns),
        )
        text = self._script(segment.number, segment.loud_end_ms - segment.start_ms)
        return [SpeechEnded(self._session, segment.number, segment.start_ms, segment.loud_end_ms, text, timings)]

    def _script(self, segment: int, length_ms: int) -> str:
        return self._settings.transcript.format(segment=segment, ms=length_ms)

    def _frame_ms(self) -> int:
        """The input clock at the next frame's first sample."""
        return self._base_ms + self._samples * 1000 // self._format.rate

    def _clock_ms(self) -> int:
        """The input clock behind everything that was fed."""
        return self._base_ms + (self._samples + len(self._rest)) * 1000 // self._format.rate

    def _rebase(self, clock_ms: int) -> None:
        self._base_ms, self._samples = clock_ms, 0
        self._rest = np.zeros(0, dtype=np.float32)
