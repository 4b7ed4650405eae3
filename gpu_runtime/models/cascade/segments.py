"""When speech begins, pauses, goes on and ends: a pure machine over the detector's frames.

It counts frames and nothing else, so audio that is fed faster than real time gives the same segments as audio that is
fed live. A frame is ``loud`` when the detector gives it at least the threshold.

    idle --enough loud frames close together--> speaking --a pause--> paused --hang-over--> idle
                                                   ^--------a loud frame-----'
"""

from __future__ import annotations

from collections import deque

import attrs

from gpu_runtime.models.cascade.parts import FRAME_SAMPLES

FRAME_MS = 32
GOES_ON_FRAMES = 3
"""SpeechGoesOn is said about every 100 ms."""

ONSET_SLACK = 1
"""The loud frames that make an onset may have so many quiet ones in a row between them."""


@attrs.frozen
class Frame:
    """One detector step that ends at ``stop`` (16 kHz samples since the ear was made); times on the input clock."""

    probability: float
    stop: int
    start_ms: int
    end_ms: int
    arrived_ns: int = 0


@attrs.frozen
class Began:
    """Speech began with ``first``."""

    first: Frame


@attrs.frozen
class GoesOn:
    """It has gone on for ``speech_ms``."""

    speech_ms: int


@attrs.frozen
class Pause:
    """The silence behind ``last`` is long enough to read the turn on trial; the audio to read stops at ``stop``."""

    last: Frame
    stop: int


@attrs.frozen
class Resumed:
    """Speech went on after a Pause."""


@attrs.frozen
class Ended:
    """The hang-over has passed; ``last`` was the last loud frame. ``voiced_ms``: how much of the segment was loud."""

    first: Frame
    last: Frame
    voiced_ms: int


Finding = Began | GoesOn | Pause | Resumed | Ended


@attrs.frozen
class SegmentRules:
    """Thresholds, in the detector's probability and in ms."""

    threshold: float = 0.5
    min_speech_ms: int = 96
    pause_ms: int = 96
    silence_ms: int = 320


def frames_of(ms: int) -> int:
    """How many frames cover ``ms``; one at least."""
    return max(1, -(-ms // FRAME_MS))


class Segmenter:
    """Folds frames into findings."""

    def __init__(self, rules: SegmentRules) -> None:
        self.rules = rules
        """May be replaced at any time; a segment that is open goes on under the new ones."""
        self._onset: deque[Frame] = deque()
        self._first: Frame | None = None
        self._last: Frame | None = None
        self._quiet = 0
        self._total = 0
        self._loud = 0
        self._paused = False

    @property
    def speaking(self) -> bool:
        """A segment is open, its hang-over included."""
        return self._first is not None

    @property
    def paused(self) -> bool:
        """Inside the hang-over of a segment, after its Pause."""
        return self._paused

    def reset(self) -> None:
        """Forget an open segment."""
        self._onset.clear()
        self._first = self._last = None
        self._quiet = self._total = self._loud = 0
        self._paused = False

    def push(self, frame: Frame) -> list[Finding]:
        """The findings of one more frame, in order."""
        loud = frame.probability >= self.rules.threshold
        if self._first is None:
            return self._listen(frame, loud)
        self._total += 1
        found: list[Finding] = []
        if loud:
            self._loud += 1
            self._quiet = 0
            self._last = frame
            if self._paused:
                self._paused = False
                found.append(Resumed())
        else:
            self._quiet += 1
        if self._total % GOES_ON_FRAMES == 0 and not self._paused:
            found.append(GoesOn(self._total * FRAME_MS))
        return found + self._silence(frame)

    def _listen(self, frame: Frame, loud: bool) -> list[Finding]:
        """Not in a segment: an onset is ``min_speech_ms`` of loud frames, close together."""
        self._quiet = 0 if loud else self._quiet + 1
        if self._quiet > ONSET_SLACK:
            self._onset.clear()
        if not loud:
            return []
        self._onset.append(frame)
        if len(self._onset) < frames_of(self.rules.min_speech_ms):
            return []
        self._first, self._last = self._onset[0], frame
        self._loud = len(self._onset)
        self._total = (frame.stop - self._first.stop) // FRAME_SAMPLES + 1
        self._onset.clear()
        return [Began(self._first)]

    def _silence(self, frame: Frame) -> list[Finding]:
        assert self._first is not None
        assert self._last is not None
        hang_over = frames_of(self.rules.silence_ms)
        found: list[Finding] = []
        if not self._paused and self._quiet >= min(frames_of(self.rules.pause_ms), hang_over):
            self._paused = True
            found.append(Pause(self._last, frame.stop))
        if self._quiet >= hang_over:
            found.append(Ended(self._first, self._last, self._loud * FRAME_MS))
            self.reset()
        return found
