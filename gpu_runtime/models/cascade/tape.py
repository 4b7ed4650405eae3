"""The last minutes of what an ear heard, for transcription."""

from __future__ import annotations

from collections import deque

import numpy as np

from gpu_runtime.models.cascade.parts import HEARING_RATE, Pcm, Samples


class Tape:
    """16 kHz audio by sample number. Keeps the newest ``keep_s`` seconds, in 16 bit: 32 kB a second."""

    def __init__(self, keep_s: float) -> None:
        self._keep = int(keep_s * HEARING_RATE)
        self._blocks: deque[Pcm] = deque()
        self._start = 0
        self._end = 0

    @property
    def start(self) -> int:
        """The oldest sample that is still there."""
        return self._start

    @property
    def end(self) -> int:
        """The number of the sample that comes next."""
        return self._end

    def append(self, audio: Samples) -> None:
        """Record; what is too old is forgotten."""
        self._blocks.append((np.clip(audio, -1.0, 1.0) * 32_767).astype(np.int16))
        self._end += len(audio)
        self.forget(self._end - self._keep)

    def forget(self, before: int) -> None:
        """Drop blocks that lie wholly before sample ``before``."""
        while self._blocks and self._start + len(self._blocks[0]) <= before:
            self._start += len(self._blocks.popleft())

    def cut(self, start: int, stop: int) -> Samples:
        """[stop - start] samples, fewer where the tape does not reach."""
        parts: list[Pcm] = []
        at = self._start
        for block in self._blocks:
            if at >= stop:
                break
            if at + len(block) > start:
                parts.append(block[max(0, start - at) : stop - at])
            at += len(block)
        if not parts:
            return np.zeros(0, np.float32)
        return np.concatenate(parts).astype(np.float32) / np.float32(32_768)
