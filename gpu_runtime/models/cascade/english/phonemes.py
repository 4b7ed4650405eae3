"""A text to phonemes, written word by written word."""

from __future__ import annotations

import re

import attrs

from gpu_runtime.models.cascade.english.letters import VOWELS
from gpu_runtime.models.cascade.english.lexicon import Lexicon
from gpu_runtime.models.cascade.english.normalise import ABBREVIATIONS, UNITS, Around, spoken_words

WRITTEN = re.compile(r"\S+")
OPENING = "\"'“‘„«([{*_`~#-–—•"
CLOSING = "\"'”’»)]}*_`~"
STOPS = {".": ".", "!": "!", "?": "?", ",": ",", ";": ";", ":": ":", "…": ".", "—": ",", "–": ","}


@attrs.frozen
class Spoken:
    """A written word that ends at ``end`` characters of the text. ``phonemes``: misaki's alphabet, spoken words parted by
    spaces; ``stop``: the punctuation behind it, or ""."""

    end: int
    phonemes: str
    stop: str


class English:
    """Text to phonemes over a lexicon."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon

    def speak(self, text: str) -> list[Spoken]:
        """Every written word of ``text``, in order; only punctuation and formatting have no phonemes."""
        written = [(match.group(), match.end()) for match in WRITTEN.finditer(text)]
        cores = [_core(word) for word, _ in written]
        words: list[list[str]] = []
        for place, (core, _) in enumerate(cores):
            before = cores[place - 1][0] if place else ""
            after = cores[place + 1][0] if place + 1 < len(cores) else ""
            words.append(spoken_words(core, Around(before, after)) if core else [])
        flat = [word for group in words for word in group]
        sounds = self._sounds(flat)
        spoken, at = [], 0
        for group, (_, stop), (_, end) in zip(words, cores, written, strict=True):
            spoken.append(Spoken(end, " ".join(sounds[at : at + len(group)]), stop))
            at += len(group)
        return spoken

    def _sounds(self, words: list[str]) -> list[str]:
        sounds = [self._lexicon.phonemes(word, words[place - 1] if place else "") for place, word in enumerate(words)]
        for place, word in enumerate(words):
            following = sounds[place + 1].lstrip("ˈˌ")[:1] if place + 1 < len(words) else ""
            match word.lower():
                case "a":
                    sounds[place] = "ɐ"
                case "the":
                    sounds[place] = "ði" if following in VOWELS and following else "ðə"
                case "to":
                    sounds[place] = "tʊ" if following in VOWELS and following else "tə"
        return sounds


def _core(written: str) -> tuple[str, str]:
    """(the word without outer punctuation, the stop behind it). Abbreviations keep their dot."""
    stop = ""
    core = written
    while core and core[0] in OPENING and not re.match(r"[-–—]\d", core):
        core = core[1:]
    while core and (core[-1] in CLOSING or core[-1] in STOPS):
        if core.lower() in ABBREVIATIONS or core.lower() in UNITS or re.fullmatch(r"(?:[A-Za-z]\.){2,}", core):
            break
        stop = STOPS.get(core[-1], stop)
        core = core[:-1]
    if not core:
        stop = next((STOPS[mark] for mark in reversed(written) if mark in STOPS), "")
    return core, stop
