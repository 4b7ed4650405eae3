"""Streaming resampling with the shortest delay there is: a polyphase FIR whose output does not depend on how the input
was cut into chunks.

A block-based resampler holds back 20 ms at 24 kHz and 60 ms at 8 kHz, which every turn of a conversation would pay; this
one holds back half its filter: 8 samples of the lower rate, 1 ms at 8 kHz.
"""

from __future__ import annotations

from math import gcd

import numpy as np

from gpu_runtime.models.cascade.parts import Samples

ZERO_CROSSINGS = 8
"""Half the filter's length, in samples of the lower of the two rates."""

ROLL_OFF = 0.94
"""Where the pass band ends, as a part of the lower rate's Nyquist frequency."""

BLOCK_SAMPLES = 16_384
"""Output is computed in blocks of so many samples, so that a long chunk takes no more memory than a short one."""


class Resampler:
    """float32 mono from ``source_rate`` to ``target_rate`` (Hz), chunk by chunk. Output sample n lies at the input's time
    n / target_rate."""

    def __init__(self, source_rate: int, target_rate: int) -> None:
        common = gcd(source_rate, target_rate)
        self._up, self._down = target_rate // common, source_rate // common
        self._bank = _filter_bank(self._up, self._down)
        self._reach = self._bank.shape[1] // 2
        self._pending = np.zeros(self._reach - 1, np.float32)
        """The input from sample ``_first`` on."""
        self._first = 1 - self._reach
        self._next = 0
        """The next output sample."""

    def push(self, chunk: Samples) -> Samples:
        """What the input so far is enough for."""
        if self._up == self._down:
            return chunk
        self._pending = np.concatenate([self._pending, chunk])
        ready = self._first + len(self._pending) - self._reach
        # output n needs the input up to floor(n * down / up) + reach
        stop = -(-ready * self._up // self._down) if ready > 0 else 0
        blocks = [self._compute(at, min(stop, at + BLOCK_SAMPLES)) for at in range(self._next, stop, BLOCK_SAMPLES)]
        self._next = max(self._next, stop)
        keep_from = self._next * self._down // self._up - self._reach + 1
        if keep_from > self._first:
            self._pending = self._pending[keep_from - self._first :]
            self._first = keep_from
        return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)

    def _compute(self, start: int, stop: int) -> Samples:
        ticks = np.arange(start, stop, dtype=np.int64) * self._down
        index, phase = ticks // self._up, ticks % self._up
        windows = np.lib.stride_tricks.sliding_window_view(self._pending, 2 * self._reach)
        rows = windows[index - self._reach + 1 - self._first]
        # not einsum: its order of summation depends on where the rows lie
        weighed: Samples = (rows * self._bank[phase]).sum(axis=1)
        return weighed


def _filter_bank(up: int, down: int) -> Samples:
    """[up, 2 * reach]: row p weighs the inputs around an output that lies p / up behind an input sample."""
    scale = min(1.0, up / down)
    reach = int(np.ceil(ZERO_CROSSINGS / scale))
    offsets = np.arange(-reach + 1, reach + 1)[None, :] - np.arange(up)[:, None] / up
    window = np.i0(9.0 * np.sqrt(np.maximum(0.0, 1 - (offsets / reach) ** 2))) / np.i0(9.0)
    bank = np.sinc(offsets * scale * ROLL_OFF) * window
    return np.ascontiguousarray((bank / bank.sum(axis=1, keepdims=True)).astype(np.float32))
