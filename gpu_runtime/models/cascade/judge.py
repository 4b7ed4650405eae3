"""Whether a reading is speech. A recogniser that is given noise still writes something ("you", "Thank you.").

Measured with tiny.en: spoken questions have a no-speech probability of at most 0.27 (espeak's robot voice; 0.08 for the
better voices), noises, tones and clicks at least 0.78.
"""

from __future__ import annotations

import re
from itertools import pairwise

from gpu_runtime.models.cascade.parts import Reading

NO_SPEECH_CERTAIN = 0.7
NO_SPEECH_LIKELY = 0.45
CONFIDENCE_LOW = 0.4
CONFIDENCE_NIL = 0.12
"""Greedy tokens of so little probability are guesses about noise."""

VOICED_MS_PER_WORD_MIN = 60
"""No one speaks more words than this in the time that was loud."""

REPEATS_MAX = 6
FILLERS = re.compile(
    r"^\W*(?:you|bye|thank you|thanks for watching|thank you for watching|so|the|i)\W*$", re.IGNORECASE
)
"""What Whisper writes for sound without words. A speaker who means it is loud for long enough and read with confidence."""
FILLER_CONFIDENCE = 0.5

HUM = re.compile(r"m+(?:[hm]+)?|[hu]m+|em+|h[mu]+h?|u+[hm]+(?:u+h*)?(?:hu+h)?|a+h+|o+h+", re.IGNORECASE)
"""One word that is no word: a small recogniser writes a closed-mouth "mm-hmm" in a dozen ways."""

HUMMED = "Mm-hmm."

NOTES = re.compile(r"\[[^\]]*\]|\([^)]*\)|[♪♫]+")
"""Descriptions of sound in brackets, which are no speech."""


def spoken_text(reading: Reading, voiced_ms: int) -> str:
    """The text of a reading, "" when it is more likely no speech. ``voiced_ms``: how much of the audio was loud."""
    text = " ".join(NOTES.sub(" ", reading.text).split())
    words = text.split()
    if not any(character.isalnum() for character in text):
        return ""
    if reading.no_speech >= NO_SPEECH_CERTAIN or reading.confidence <= CONFIDENCE_NIL:
        return ""
    if reading.no_speech >= NO_SPEECH_LIKELY and reading.confidence <= CONFIDENCE_LOW:
        return ""
    if FILLERS.match(text) and reading.confidence < FILLER_CONFIDENCE:
        return ""
    if len(words) * VOICED_MS_PER_WORD_MIN > max(voiced_ms, VOICED_MS_PER_WORD_MIN):
        return ""
    if _repeats(words):
        return ""
    return HUMMED if _is_hum(words) else text


def _is_hum(words: list[str]) -> bool:
    """Hums of one sort or another; a clear "oh" or "ah" by itself stays what it is."""
    letters = [re.sub(r"[^a-z]", "", word.lower()) for word in words]
    return any("m" in word for word in letters) and all(HUM.fullmatch(word) for word in letters if word)


def _repeats(words: list[str]) -> bool:
    """One word over and over."""
    run = 1
    for before, word in pairwise(words):
        run = run + 1 if word == before else 1
        if run >= REPEATS_MAX:
            return True
    return False
