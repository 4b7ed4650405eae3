"""One session's ear: the client's audio in, findings on the input clock out.

Everything is decided by counting audio, never by looking at a clock, so that audio that comes faster than real time
gives the same turns. The ear's methods run on the hearing thread, transcripts come in on the recogniser's; what the two
share is kept under the ear's lock.

    Feed -> decode -> 16 kHz -> 32 ms frames -> detector -> Segmenter -> SpeechBegan, SpeechGoesOn
                                   |                           |-- a pause --> read on trial --> anticipate
                                   '--> tape                   '-- the end --> SpeechEnded, when the text is there
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

import attrs
import numpy as np

from core.ports.runtime import (
    CommitTurn,
    ConfigureSession,
    Feed,
    Heard,
    OpenSession,
    SpeechBegan,
    SpeechEnded,
    SpeechGoesOn,
)
from core.session.config import AudioFormat, TurnDetection
from gpu_runtime.models.cascade.clock import InputClock
from gpu_runtime.models.cascade.judge import spoken_text
from gpu_runtime.models.cascade.outbox import Outbox
from gpu_runtime.models.cascade.parts import (
    FRAME_SAMPLES,
    HEARING_RATE,
    Cancel,
    Detector,
    PartFailed,
    Recogniser,
    Samples,
)
from gpu_runtime.models.cascade.reading import SegmentReading, Stretch
from gpu_runtime.models.cascade.segments import (
    FRAME_MS,
    Began,
    Ended,
    Finding,
    Frame,
    GoesOn,
    Pause,
    Resumed,
    Segmenter,
    SegmentRules,
)
from gpu_runtime.models.cascade.settings import Settings
from gpu_runtime.models.cascade.stage import Stage, StageFull
from gpu_runtime.models.cascade.tape import Tape
from gpu_runtime.models.cascade.transcripts import Transcripts
from gpu_runtime.pcm import decode
from gpu_runtime.plugin import Emit
from gpu_runtime.resampler import Resampler

logger = logging.getLogger(__name__)

STEP_FRAMES = 50
"""How many frames one step takes, so that one session's long chunk does not keep the others waiting: about 10 ms."""

UNREAD_MAX = 4
"""Ended segments that may wait for their text before the ear stops listening (input that comes very fast)."""

TEXTS_MAX = 64
"""Segments whose text is remembered for their CommitTurn."""


class Anticipation(Protocol):
    """Who wants to know early what was said."""

    def expect_turn(self, text: str) -> None:
        """The turn will be ``text``, if nothing more is said."""

    def turn_goes_on(self) -> None:
        """It was not all."""

    def turn_is_over(self) -> None:
        """The hang-over has passed; an answer will be asked for now, or not at all."""


@attrs.frozen
class EarParts:
    """What all ears share."""

    make_detector: Callable[[], Detector]
    recogniser: Recogniser
    stage: Stage
    settings: Settings
    emit: Emit
    wake: Callable[[], None]
    """Called when an ear that stopped may go on."""


class Ear:
    """See the module."""

    def __init__(
        self, message: OpenSession, parts: EarParts, transcripts: Transcripts, anticipation: Anticipation
    ) -> None:
        self.session = message.session
        self._parts = parts
        self._transcripts = transcripts
        self._anticipation = anticipation
        self._outbox = Outbox(parts.emit)
        self._lock = threading.RLock()
        self._clock = InputClock(message.input_ms)
        self._tape = Tape(parts.settings.keep_audio_s)
        self._detector = parts.make_detector()
        self._segmenter = Segmenter(SegmentRules())
        self._segments = 0
        self._reading: SegmentReading | None = None
        self._unread: list[SegmentReading] = []
        self._texts: dict[int, str] = {}
        self._format = message.input_format
        self._detection: TurnDetection | None = None
        self._resampler = Resampler(self._format.rate, HEARING_RATE)
        self._fed_from = 0.0
        """The ear's sample at which the current resampler began."""
        self._fed_samples = 0
        """What it was given since, at the client's rate."""
        self._samples = np.zeros(0, np.float32)
        """Heard, not processed yet."""
        self._arrived_ns = 0
        self._last_feed_s = 0.0
        self._filled_to_s = 0.0
        self._configure(message.input_format, message.turn_detection)

    # --- what the hearing thread asks -------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has something to do."""
        return len(self._samples) >= FRAME_SAMPLES

    @property
    def blocked(self) -> bool:
        """Too many segments wait for their text; ``wake`` is called when that changes."""
        return len(self._unread) >= UNREAD_MAX

    def configure(self, message: ConfigureSession) -> None:
        """From here on the input has this format, and turns are found so."""
        self._configure(message.input_format, message.turn_detection)

    def feed(self, message: Feed, arrived_ns: int) -> None:
        """The next chunk; it is processed by ``step``."""
        self._last_feed_s = self._filled_to_s = time.monotonic()
        self._arrived_ns = arrived_ns
        self._clock.feed(
            self._fed_from + self._fed_samples * HEARING_RATE / self._format.rate, message.start_ms, message.audio_ms
        )
        self._push(decode(message.audio, self._format))

    def step(self) -> None:
        """Process some frames of what was fed."""
        for _ in range(STEP_FRAMES):
            if not self.has_work or self.blocked:
                break
            frame, self._samples = self._samples[:FRAME_SAMPLES], self._samples[FRAME_SAMPLES:]
            self._hear(frame)

    def clear(self) -> None:
        """Forget what was fed and not committed."""
        with self._lock:
            for reading in [*self._unread, *([self._reading] if self._reading else [])]:
                reading.drop()
            self._unread.clear()
            self._outbox.clear()
            self._reading = None
        self._segmenter.reset()
        self._samples = self._samples[:0]
        self._anticipation.turn_goes_on()

    def commit(self, message: CommitTurn) -> None:
        """A turn is closed. The text of a segment is known already; anything else is read now."""
        with self._lock:
            text = self._texts.pop(message.segment, None) if message.segment is not None else None
        if text is not None:
            self._transcripts.put(message.item_id, text)
            return
        stop = self._clock.sample_at(message.end_ms)
        # what is too short for a frame is on no tape yet
        rest = self._samples[: max(0, stop - self._tape.end)]
        audio = np.concatenate([self._tape.cut(self._clock.sample_at(message.start_ms), stop), rest])
        if not len(audio):
            self._heard(message.item_id, "")
            return
        voiced_ms = len(audio) * 1000 // HEARING_RATE
        self._submit(lambda: self._heard(message.item_id, self._read(audio, voiced_ms, Cancel())))

    def close(self) -> None:
        """Forget everything."""
        self.clear()

    # --- silence for a client that stopped sending ----------------------------------------------------------------

    def fill_due_s(self) -> float | None:
        """When silence has to be filled in (monotonic s): real time goes on for a turn whose client says no more."""
        if not self._segmenter.speaking or self.has_work or self.blocked:
            return None
        return max(self._last_feed_s + self._parts.settings.idle_fill_ms / 1000, self._filled_to_s + FRAME_MS / 1000)

    def fill(self, now_s: float) -> None:
        """One frame of silence."""
        self._filled_to_s = now_s
        self._arrived_ns = time.time_ns()
        self._push(np.zeros(-(-self._format.rate * FRAME_MS // 1000), np.float32))

    # --- frames -----------------------------------------------------------------------------------------------------

    def _configure(self, input_format: AudioFormat, detection: TurnDetection | None) -> None:
        if input_format != self._format:
            self._fed_from += self._fed_samples * HEARING_RATE / self._format.rate
            self._fed_samples = 0
            self._format = input_format
            self._resampler = Resampler(input_format.rate, HEARING_RATE)
        if detection is None and self._detection is not None:
            self.clear()
        self._detection = detection
        if detection is not None:
            self._segmenter.rules = SegmentRules(
                detection.threshold,
                self._parts.settings.min_speech_ms,
                self._parts.settings.speculate_ms,
                detection.silence_duration_ms,
            )

    def _push(self, audio: Samples) -> None:
        self._fed_samples += len(audio)
        self._samples = np.concatenate([self._samples, self._resampler.push(audio)])

    def _hear(self, samples: Samples) -> None:
        start = self._tape.end
        self._tape.append(samples)
        if self._detection is None:
            return
        end_ms = self._clock.ms_at(self._tape.end)
        # the clock may have jumped inside the frame
        start_ms = max(self._clock.ms_at(start), end_ms - FRAME_MS)
        loudness = self._detector.probability(samples)
        frame = Frame(loudness, self._tape.end, start_ms, end_ms, self._arrived_ns)
        with self._lock:
            if self._reading is not None:
                self._reading.hear(frame, frame.probability >= self._detection.threshold, FRAME_MS)
            for finding in self._segmenter.push(frame):
                self._find(finding)
            self._part_long_speech(frame)

    def _find(self, finding: Finding) -> None:
        match finding:
            case Began():
                self._began(finding)
            case GoesOn():
                self._outbox.say(SpeechGoesOn(self.session, self._segments, finding.speech_ms))
            case Pause():
                assert self._reading is not None
                self._read_stretch(self._reading, self._reading.try_at(finding.stop))
            case Resumed():
                assert self._reading is not None
                self._reading.resume()
                self._anticipation.turn_goes_on()
            case Ended():
                self._ended(finding)

    def _began(self, finding: Began) -> None:
        assert self._detection is not None
        self._segments += 1
        lead_in = (self._detection.prefix_padding_ms * HEARING_RATE) // 1000
        read_from = max(self._tape.start, finding.first.stop - FRAME_SAMPLES - lead_in)
        self._reading = SegmentReading(self._segments, finding.first, read_from)
        self._reading.voiced_ms = self._parts.settings.min_speech_ms
        self._outbox.say(SpeechBegan(self.session, self._segments, finding.first.start_ms))

    def _ended(self, finding: Ended) -> None:
        assert self._reading is not None
        reading, self._reading = self._reading, None
        reading.last = finding.last
        reading.endpoint_ns = time.time_ns()
        reading.place = self._outbox.keep_place()
        self._unread.append(reading)
        self._tell_if_read(reading)

    def _part_long_speech(self, frame: Frame) -> None:
        reading = self._reading
        longest = self._parts.recogniser.longest_s * HEARING_RATE
        if reading is not None and reading.trial is None and frame.stop - reading.read_from > longest - HEARING_RATE:
            self._read_stretch(reading, reading.part(frame.stop))

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read_stretch(self, reading: SegmentReading, stretch: Stretch) -> None:
        audio = self._tape.cut(stretch.start, stretch.stop)

        def read() -> None:
            text = self._read(audio, stretch.voiced_ms, stretch.cancel)
            with self._lock:
                stretch.text, stretch.read_ns = text, time.time_ns()
                self._stretch_read(reading, stretch)

        self._submit(read, stretch.cancel)

    def _stretch_read(self, reading: SegmentReading, stretch: Stretch) -> None:
        if reading.last is not None:
            self._tell_if_read(reading)
            return
        wanted = self._detection is not None and self._detection.create_response
        if wanted and reading is self._reading and reading.trial is stretch and (text := reading.text()):
            self._anticipation.expect_turn(text)

    def _tell_if_read(self, reading: SegmentReading) -> None:
        """Say SpeechEnded, if all of it has been read."""
        text = reading.text()
        if text is None or reading not in self._unread:
            return
        assert reading.last is not None
        assert reading.place is not None
        self._unread.remove(reading)
        self._texts[reading.segment] = text
        while len(self._texts) > TEXTS_MAX:
            del self._texts[next(iter(self._texts))]
        if text:
            self._anticipation.turn_is_over()
        else:
            self._anticipation.turn_goes_on()
        timings = (
            ("last_speech", reading.last.arrived_ns),
            ("endpoint", reading.endpoint_ns),
            ("transcript", max(stretch.read_ns for stretch in reading.stretches())),
        )
        self._outbox.fill(
            reading.place,
            SpeechEnded(self.session, reading.segment, reading.first.start_ms, reading.last.end_ms, text, timings),
        )
        self._parts.wake()

    def _read(self, audio: Samples, voiced_ms: int, cancel: Cancel) -> str:
        """Read audio of any length; what cannot be read is "". On the recogniser's thread."""
        longest = int(self._parts.recogniser.longest_s * HEARING_RATE)
        texts = []
        for start in range(0, len(audio), longest):
            try:
                reading = self._parts.recogniser.read(audio[start : start + longest], cancel)
            except PartFailed as failure:
                logger.warning("session %s: a stretch of speech was not read: %s", self.session, failure.code)
                continue
            texts.append(spoken_text(reading, voiced_ms))
        return " ".join(text for text in texts if text)

    def _heard(self, item_id: str, text: str) -> None:
        self._outbox.say(Heard(self.session, item_id, text))
        self._transcripts.put(item_id, text)

    def _submit(self, read: Callable[[], None], cancel: Cancel | None = None) -> None:
        try:
            self._parts.stage.submit(self.session, read, Cancel() if cancel is None else cancel)
        except StageFull:
            # the turn must end all the same: it is read here, and this ear's input waits meanwhile
            read()
