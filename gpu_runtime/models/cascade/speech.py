"""What all voices do after synthesis: trim silence, add the pause that the punctuation asks for, time the words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_runtime.models.cascade.parts import SPEAKING_RATE, Samples, Speech

QUIET = 0.01
"""Below this a voice's lead-in and tail count as silence."""

LEAD_IN_S = 0.02
PAUSE_S = {".": 0.32, "!": 0.32, "?": 0.32, ";": 0.2, ":": 0.2, ",": 0.16, "": 0.03}
"""Silence after a piece that ends so."""

FADE_SAMPLES = 96
STOP_WEIGHT = {".": 8.0, "!": 8.0, "?": 8.0, ";": 6.0, ":": 6.0, ",": 4.0}
"""How long the pause at a stop inside a piece is, in phonemes."""

SILENT_PIECE_S = 0.1
"""What a piece without any sound takes (a line of asterisks, say)."""


def finish(audio: Samples, words: Sequence[tuple[int, float, str]], length: int) -> Speech:
    """``words``: (end in characters, weight in phonemes, stop behind it) of a piece of ``length`` characters, whose
    synthesis at ``SPEAKING_RATE`` is ``audio``."""
    voiced = np.flatnonzero(np.abs(audio) > QUIET)
    if not len(voiced):
        silence = np.zeros(int(SILENT_PIECE_S * SPEAKING_RATE), np.int16)
        return Speech(silence, ((length, len(silence)),))
    start = max(0, int(voiced[0]) - int(LEAD_IN_S * SPEAKING_RATE))
    stop = min(len(audio), int(voiced[-1]) + 1 + int(PAUSE_S[""] * SPEAKING_RATE))
    kept = audio[start:stop].copy()
    fade = min(FADE_SAMPLES, len(kept) // 2)
    ramp = np.linspace(0.0, 1.0, fade, dtype=np.float32)
    kept[:fade] *= ramp
    kept[len(kept) - fade :] *= ramp[::-1]
    pause_s = PAUSE_S[words[-1][2] if words else ""]
    silence = np.zeros(int(pause_s * SPEAKING_RATE), np.float32)
    pcm = (np.clip(np.concatenate([kept, silence]), -1.0, 1.0) * 32_767).astype(np.int16)
    return Speech(pcm, _marks(words, length, int(voiced[0]) - start, int(voiced[-1]) - start))


def _marks(words: Sequence[tuple[int, float, str]], length: int, first: int, last: int) -> tuple[tuple[int, int], ...]:
    """Word ends in proportion to phonemes between the first and the last loud sample; the last word ends with the piece."""
    total = sum(weight + STOP_WEIGHT.get(stop, 0.0) for _, weight, stop in words[:-1])
    total += words[-1][1] if words else 0.0
    marks: list[tuple[int, int]] = []
    passed = 0.0
    for end, weight, stop in words:
        passed += weight
        marks.append((end, first + int((last - first) * min(1.0, passed / total)) if total else last))
        passed += STOP_WEIGHT.get(stop, 0.0)
    if not marks or marks[-1][0] != length:
        marks.append((length, last))
    return tuple(marks)
