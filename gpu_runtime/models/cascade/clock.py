"""The ear's two scales and how they lie on each other: samples it has processed, and the input clock of the client.

They differ because the client may lose audio (its clock jumps) and because silence is filled in for a client that
stopped sending (samples go on, the clock stands).
"""

from __future__ import annotations

from collections import deque

import attrs

from gpu_runtime.models.cascade.parts import HEARING_RATE

PER_MS = HEARING_RATE // 1000
JUMP_MS = 40
"""A chunk whose start is off by more than this begins a new stretch; less is rounding."""

STRETCHES_MAX = 64


@attrs.define
class _Stretch:
    at: float
    ms: int
    end_ms: int


class InputClock:
    """Stretches of input, each beginning at a sample and a clock time."""

    def __init__(self, input_ms: int) -> None:
        self._stretches: deque[_Stretch] = deque([_Stretch(0.0, input_ms, input_ms)], maxlen=STRETCHES_MAX)

    @property
    def end_ms(self) -> int:
        """Up to where the client has sent."""
        return self._stretches[-1].end_ms

    def feed(self, at: float, start_ms: int, audio_ms: int) -> None:
        """A chunk of the client's begins at sample ``at``."""
        last = self._stretches[-1]
        if abs(last.ms + (at - last.at) / PER_MS - start_ms) > JUMP_MS:
            last = _Stretch(at, start_ms, start_ms)
            self._stretches.append(last)
        last.end_ms = max(last.end_ms, start_ms + audio_ms)

    def ms_at(self, at: float) -> int:
        """The clock at a sample: never past what the client has sent."""
        stretch = next((s for s in reversed(self._stretches) if s.at <= at), self._stretches[0])
        return min(int(stretch.ms + max(0.0, at - stretch.at) / PER_MS), stretch.end_ms)

    def sample_at(self, ms: int) -> int:
        """The first sample at clock time ``ms``."""
        stretch = next((s for s in reversed(self._stretches) if s.ms <= ms), self._stretches[0])
        return int(stretch.at + max(0, min(ms, stretch.end_ms) - stretch.ms) * PER_MS)
