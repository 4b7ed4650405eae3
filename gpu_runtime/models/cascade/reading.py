"""The reading of one segment of speech: in stretches, most of them while the segment still goes on.

A stretch is read on trial at each pause. If speech goes on and the stretch is short, it is read again with what follows;
a long one is kept, so that at the end of a long speech only the last stretch is left to read.
"""

from __future__ import annotations

import attrs

from gpu_runtime.models.cascade.outbox import Place
from gpu_runtime.models.cascade.parts import FRAME_SAMPLES, HEARING_RATE, Cancel
from gpu_runtime.models.cascade.segments import Frame

KEEP_STRETCH_SAMPLES = 12 * HEARING_RATE
"""A stretch of this length is not read again when speech goes on behind its pause ..."""

KEEP_PAUSE_MS = 96
"""... and the pause was no shorter than this: a shorter one may lie inside a word."""

LOOK_BACK_FRAMES = 90
"""A speech without a pause is parted at the quietest of its last frames, of so many."""


@attrs.define(eq=False)
class Stretch:
    """[start, stop) of the tape, and its text when it has been read."""

    start: int
    stop: int
    voiced_ms: int
    cancel: Cancel = attrs.field(factory=Cancel)
    text: str | None = None
    read_ns: int = 0


@attrs.define(eq=False)
class SegmentReading:
    """A segment that is being spoken, or one that has ended and waits for its text."""

    segment: int
    first: Frame
    read_from: int
    kept: list[Stretch] = attrs.field(factory=list)
    trial: Stretch | None = None
    last: Frame | None = None
    endpoint_ns: int = 0
    place: Place | None = None
    loud: list[tuple[int, float]] = attrs.field(factory=list)
    """(stop, probability) of the newest frames, for parting a speech without pauses."""
    voiced_ms: int = 0
    """Of what has not been kept yet."""
    quiet_ms: int = 0
    """Of the silence that lasts, or of the last one while there is none."""
    was_loud: bool = True

    def hear(self, frame: Frame, loud: bool, frame_ms: int) -> None:
        """Note one frame."""
        self.voiced_ms += frame_ms if loud else 0
        if not loud:
            self.quiet_ms = frame_ms if self.was_loud else self.quiet_ms + frame_ms
        self.was_loud = loud
        self.loud.append((frame.stop, frame.probability))
        del self.loud[:-LOOK_BACK_FRAMES]

    def try_at(self, stop: int) -> Stretch:
        """A pause: the stretch up to ``stop`` is to be read."""
        self.trial = Stretch(self.read_from, stop, self.voiced_ms)
        return self.trial

    def resume(self) -> bool:
        """Speech goes on. True: the last trial is kept; False: it was cancelled."""
        trial, self.trial = self.trial, None
        if trial is None:
            return False
        if trial.stop - trial.start < KEEP_STRETCH_SAMPLES or self.quiet_ms < KEEP_PAUSE_MS:
            trial.cancel.cancel()
            return False
        self._keep(trial)
        return True

    def part(self, stop: int) -> Stretch:
        """No pause for too long: everything up to the quietest of the last frames is a stretch of its own."""
        newest = [(probability, at) for at, probability in self.loud if at > self.read_from + FRAME_SAMPLES]
        _, cut = min(newest, default=(0.0, stop))
        stretch = Stretch(self.read_from, cut, self.voiced_ms)
        self._keep(stretch)
        return stretch

    def stretches(self) -> list[Stretch]:
        """All that the text is made of."""
        return [*self.kept, self.trial] if self.trial else list(self.kept)

    def text(self) -> str | None:
        """None while something of it is not read."""
        texts = [stretch.text for stretch in self.stretches()]
        if any(text is None for text in texts):
            return None
        return " ".join(text for text in texts if text)

    def drop(self) -> None:
        """Nobody wants it any more."""
        for stretch in self.stretches():
            stretch.cancel.cancel()

    def _keep(self, stretch: Stretch) -> None:
        self.kept.append(stretch)
        self.read_from = stretch.stop
        self.voiced_ms = 0
