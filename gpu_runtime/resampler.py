"""Rate conversion of a stream, with a short and constant delay: for ears, and for audio that goes out on the wire.

soxr's streams are the better filter but work in blocks: they hold back 20 ms at 24 kHz and up to 72 ms to 8 kHz. In the
detector's path every turn would wait for that; behind an answer it would be lost, since one unit of the model is one event
and no event follows for a tail. This is a plain windowed-sinc polyphase filter: it holds back 17 samples of the lower rate
(1.1 ms from 24 to 16 kHz, 2.2 ms from 24 to 8), whatever the chunks are.

Invariant: the same samples come out, to the bit, however the input is cut into chunks.
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

PHASES_MAX = 1_024
"""Rates without a common divisor would need one set of taps for each of their phases. The nearest of so many is off by 1/2048
of a sample at most (-80 dB at 1 kHz), and they are computed in a few ms: a client's odd rate holds nobody up."""

BLOCK_SAMPLES = 16_384
"""Each output sample needs a copy of its inputs: so many at a time, however long the chunk is."""


@lru_cache(maxsize=8)
def _taps(up: int, down: int) -> tuple[int, Samples]:
    """(half the filter's length in input samples, taps as [phase, 2 * half]); each phase sums to 1. The last phase is a whole
    sample: the nearest to what lies just below it."""
    cutoff = min(1.0, up / down) * PASS_BAND
    half = int(np.ceil(ZERO_CROSSINGS / cutoff))
    phases = min(up, PHASES_MAX)
    offsets = np.arange(1 - half, half + 1)[None, :] - (np.arange(phases + 1) / phases)[:, None]
    inside = np.clip(1.0 - (offsets / half) ** 2, 0.0, None)
    window = np.i0(KAISER_BETA * np.sqrt(inside)) / np.i0(KAISER_BETA)
    taps = np.sinc(cutoff * offsets) * window
    return half, (taps / taps.sum(axis=1, keepdims=True)).astype(np.float32)


class Resampler:
    """One stream from ``rate_in`` to ``rate_out`` Hz, mono float32 of any scale. Output sample n lies at the input's time
    n / ``rate_out``. Between equal rates the samples pass as they are."""

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
        if self._up == self._down:
            return samples
        held = np.concatenate((self._held, samples))
        ready = self._held_from + len(held) - self._half
        """Output at places below this has all the input that it needs."""
        upto = max(self._made, -(-max(ready, 0) * self._up // self._down))
        made = np.zeros(upto - self._made, np.float32)
        if len(made):
            self._filter(np.lib.stride_tricks.sliding_window_view(held, 2 * self._half), made)
        self._made = upto
        keep_from = max(0, upto * self._down // self._up - self._half + 1 - self._held_from)
        self._held, self._held_from = held[keep_from:], self._held_from + keep_from
        return made

    def _filter(self, windows: Samples, made: Samples) -> None:
        """[places, 2 * half] in -> all of ``made``."""
        for start in range(0, len(made), BLOCK_SAMPLES):
            stop = min(start + BLOCK_SAMPLES, len(made))
            ticks = np.arange(self._made + start, self._made + stop, dtype=np.int64) * self._down
            rows = windows[ticks // self._up - self._half + 1 - self._held_from]
            phases = len(self._phase_taps) - 1
            taps = self._phase_taps[(ticks % self._up * phases + self._up // 2) // self._up]
            # One dot product a row: matmul and einsum add in an order that depends on the chunk's size and place.
            np.vecdot(rows, taps, out=made[start:stop])
