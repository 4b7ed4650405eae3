"""Rate conversion for audio that goes out chunk by chunk, with a short and constant delay.

soxr's streams are the better filter but work in blocks: 24 to 8 kHz holds back between 16 and 72 ms, which is added to
the time until an answer is heard and is lost at its end, since one unit of the model is one event and no event follows for
a tail. This is a plain windowed-sinc polyphase filter: it holds back 16 zero crossings, 0.7 ms from 24 to 16 kHz and
2 ms to 8 kHz, whatever the chunks are, and gives the same samples however the input is cut into chunks.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]

ZERO_CROSSINGS = 16
KAISER_BETA = 8.0
"""About 80 dB of stop band."""

PASS_BAND = 0.94
"""Of the lower Nyquist frequency: where the transition begins."""

PHASES_MAX = 4_096
"""Rates without a common divisor would need one set of taps for each of their phases; nearer than this is inaudible."""

PHASES_IN_TURN_MAX = 16
"""Up to so many phases (8, 16, 32, 48 kHz from 24) are filtered one after the other, which is ten times as fast."""


@lru_cache(maxsize=32)
def _taps(up: int, down: int) -> tuple[int, Samples]:
    """(half the filter's length in input samples, taps as [phase, 2 * half]); each phase sums to 1."""
    cutoff = min(1.0, up / down) * PASS_BAND
    half = int(np.ceil(ZERO_CROSSINGS / cutoff))
    phases = min(up, PHASES_MAX)
    offsets = np.arange(1 - half, half + 1)[None, :] - (np.arange(phases) / phases)[:, None]
    inside = np.clip(1.0 - (offsets / half) ** 2, 0.0, None)
    window = np.i0(KAISER_BETA * np.sqrt(inside)) / np.i0(KAISER_BETA)
    taps = np.sinc(cutoff * offsets) * window
    return half, (taps / taps.sum(axis=1, keepdims=True)).astype(np.float32)


class Resampler:
    """One stream from ``rate_in`` to ``rate_out`` Hz, mono."""

    def __init__(self, rate_in: int, rate_out: int) -> None:
        common = gcd(rate_in, rate_out)
        self._up, self._down = rate_out // common, rate_in // common
        self._half, self._phase_taps = _taps(self._up, self._down)
        self._held: Samples = np.zeros(self._half - 1, np.float32)
        self._held_from = 1 - self._half
        """Place of the first held sample; places count input samples of the stream from 0."""
        self._made = 0

    def push(self, samples: Samples) -> Samples:
        """[n] float32 in -> what can be given out now, [about n * rate_out / rate_in] float32."""
        held = np.concatenate((self._held, samples))
        ready = self._held_from + len(held) - self._half
        """Output at places below this has all the input that it needs."""
        upto = max(self._made, -(-max(ready, 0) * self._up // self._down))
        made = self._filter(held, upto)
        self._made = upto
        keep_from = max(0, upto * self._down // self._up - self._half + 1 - self._held_from)
        self._held, self._held_from = held[keep_from:], self._held_from + keep_from
        return made

    def _filter(self, held: Samples, upto: int) -> Samples:
        """Output samples from ``_made`` to ``upto``."""
        made = np.zeros(upto - self._made, np.float32)
        if not len(made):
            return made
        windows = np.lib.stride_tricks.sliding_window_view(held, 2 * self._half)
        if self._up > PHASES_IN_TURN_MAX:
            ticks = np.arange(self._made, upto, dtype=np.int64) * self._down
            first = ticks // self._up - self._half + 1 - self._held_from
            taps = self._phase_taps[ticks % self._up * len(self._phase_taps) // self._up]
            return np.einsum("ij,ij->i", windows[first], taps, out=made)
        for turn in range(min(self._up, len(made))):
            # Outputs of one phase lie ``down`` input samples apart: one product of strided windows with its taps.
            place, phase = divmod((self._made + turn) * self._down, self._up)
            first_window = place - self._half + 1 - self._held_from
            count = len(range(turn, len(made), self._up))
            made[turn :: self._up] = windows[first_window :: self._down][:count] @ self._phase_taps[phase]
        return made
