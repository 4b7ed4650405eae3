"""What was asked, and how far off a transcript is."""

from __future__ import annotations

import re
from pathlib import Path

from adapters.command_line.audio_files import Recording, read_wav, recording

RATE = 24_000
DATA = Path(__file__).parents[1] / "data"

QUESTIONS = (
    "What is the capital of France?",
    "How many legs does a spider have?",
    "Who wrote Romeo and Juliet?",
    "What color is the sky on a clear day?",
    "Can you tell me a short story about a cat?",
    "What is two plus two?",
    "How do you make a cup of tea?",
    "Which planet is closest to the sun?",
    "What is the opposite of hot?",
    "Why do birds fly south in the winter?",
)
STORY = 4
_SAME = {"2": "two", "4": "four", "+": "plus", "colour": "color"}


def question(voice: str, number: int) -> tuple[str, bytes]:
    """(name, pcm16 at 24 kHz) of a spoken question."""
    path = DATA / "questions" / f"{voice}_{number}.wav"
    return path.stem, read_wav(path, RATE)


def backchannel(name: str) -> tuple[str, bytes]:
    """A spoken remark that asks for nothing."""
    path = DATA / "backchannels" / f"{name}.wav"
    return path.stem, read_wav(path, RATE)


def sound(spoken: tuple[str, bytes]) -> tuple[str, Recording]:
    """The same for a talk's plan."""
    name, pcm = spoken
    return name, recording(lambda: iter([pcm]), RATE)


def words(text: str) -> list[str]:
    spaced = text.lower().replace("+", " plus ")
    return [_SAME.get(word, word) for word in re.sub(r"[^a-z0-9' ]", " ", spaced).split()]


def edits(reference: list[str], heard: list[str]) -> int:
    """Words to change, insert or delete (Levenshtein)."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(reference, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1]
