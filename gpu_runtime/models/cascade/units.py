"""Spoken pieces into units: short stretches of audio, each with the text whose sound ends in it."""

from __future__ import annotations

from itertools import pairwise

import attrs
import numpy as np

from core.session.events import TextMark
from gpu_runtime.models.cascade.parts import SPEAKING_RATE, Speech

SAMPLES_PER_MS = SPEAKING_RATE // 1000


@attrs.frozen
class Unit:
    """``audio`` is pcm16; ``text`` is what the unit adds to the answer; marks count from the answer's beginning."""

    text: str
    audio: bytes
    marks: tuple[TextMark, ...]


class UnitCutter:
    """Cuts one answer's pieces. A unit never spans two pieces, so nothing waits for what is not spoken yet."""

    def __init__(self, unit_ms: int) -> None:
        self._unit_ms = unit_ms
        self._text = ""
        self._told = 0
        self._ms = 0

    @property
    def text(self) -> str:
        """Of all pieces so far."""
        return self._text

    @property
    def audio_ms(self) -> int:
        """Of all pieces so far."""
        return self._ms

    def cut(self, text: str, speech: Speech) -> list[Unit]:
        """The units of the next piece: of equal length, whole milliseconds, at most ``unit_ms`` each."""
        piece_ms = -(-len(speech.audio) // SAMPLES_PER_MS)
        audio = np.pad(speech.audio, (0, piece_ms * SAMPLES_PER_MS - len(speech.audio)))
        marks = [
            TextMark(len(self._text) + chars, self._ms + min(piece_ms, -(-samples // SAMPLES_PER_MS)))
            for chars, samples in speech.marks
        ]
        self._text += text
        count = max(1, -(-piece_ms // self._unit_ms))
        edges = [piece_ms * number // count for number in range(count + 1)]
        units = []
        for start, stop in pairwise(edges):
            inside = [mark for mark in marks if self._ms + start < mark.audio_end_ms <= self._ms + stop]
            if stop == piece_ms:
                # marks of words without a sound, and whatever rounding left over
                inside = [mark for mark in marks if mark.chars > self._told]
            units.append(self._unit(audio[start * SAMPLES_PER_MS : stop * SAMPLES_PER_MS].tobytes(), inside))
        self._ms += piece_ms
        return units

    def silent(self, text: str) -> Unit:
        """A piece that is only written."""
        self._text += text
        self._told = len(self._text)
        return Unit(text, b"", ())

    def _unit(self, audio: bytes, marks: list[TextMark]) -> Unit:
        end = marks[-1].chars if marks else self._told
        text, self._told = self._text[self._told : end], max(end, self._told)
        return Unit(text, audio, tuple(marks))
