"""Spoken words to phonemes: misaki's two lexicons, then endings, then compounds, then rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gpu_runtime.models.cascade.english.letters import LETTER_NAMES, sound_out

SIBILANTS = frozenset("szʃʒʧʤ")
VOICELESS = frozenset("ptkfθ")
COMPOUND_PART_MIN = 3

Entry = str | Mapping[str, str | None]

ALWAYS = {
    "i": "ˌI",
    "ok": "ˌOkˈA",
    "okay": "ˌOkˈA",
    "hm": "hˈʌm",
    "hmm": "hˈʌm",
    "mm": "ˈʌm",
    "mmm": "ˈʌm",
    "vs": "vˈɜɹsəs",
}
"""Where the lexicons are silent, or give what no voice can say."""

_BEFORE_VERB = "to will would can could should shall may might must do does did don't i you we they who let please"
_BEFORE_NOUN = "a an the my your his her its our their this that these those of no some any each"
BEFORE_VERB, BEFORE_NOUN = frozenset(_BEFORE_VERB.split()), frozenset(_BEFORE_NOUN.split())


class Lexicon:
    """``gold`` is looked up before ``silver``; keys are words, values phonemes in misaki's alphabet, or a choice of them
    by part of speech."""

    def __init__(self, gold: Mapping[str, Entry], silver: Mapping[str, Entry]) -> None:
        self._tables = (gold, silver)

    @classmethod
    def load(cls, folder: Path) -> Lexicon:
        """From misaki's data folder. Raises OSError, ValueError."""
        gold, silver = (json.loads((folder / f"us_{name}.json").read_text("utf-8")) for name in ("gold", "silver"))
        return cls(gold, silver)

    def phonemes(self, word: str, before: str = "") -> str:
        """Of one spoken word; never empty for a word with a letter in it. ``before``: the spoken word in front."""
        if len(word) == 2 and word[1] == ".":
            return LETTER_NAMES.get(word[0], "")
        if word.startswith("<"):
            return f"ɐ {self.phonemes(word[1:-1])} wˈɜɹd"
        word = word.strip("'")
        lowered = word.lower()
        return (
            ALWAYS.get(lowered)
            or self._look_up(word, before)
            or self._with_ending(lowered)
            or self._initials(word)
            or self._compound(lowered)
            or sound_out(word)
        )

    def _look_up(self, word: str, before: str = "") -> str:
        for key in dict.fromkeys((word, word.lower(), word.capitalize())):
            for table in self._tables:
                found = table.get(key)
                if isinstance(found, Mapping):
                    found = found.get(_part_of_speech(before)) or found.get("DEFAULT") or ""
                if found and not (word != key and key.isupper()):
                    return found
        return ""

    def _with_ending(self, word: str) -> str:
        """A known stem with 's, s, ed, ing, er, ly, un-."""
        if word.endswith(("'s", "s'")) and (stem := self._look_up(word[:-2])):
            return stem + _plural_sound(stem)
        if word.endswith("s") and len(word) > 3:
            stem = self._look_up(word[:-1]) or (self._look_up(word[:-2]) if word.endswith("es") else "")
            stem = stem or (self._look_up(f"{word[:-3]}y") if word.endswith("ies") else "")
            if stem:
                return stem + _plural_sound(stem)
        if word.endswith("ed") and (stem := self._stem(word[:-2])):
            return stem + ("ᵻd" if stem[-1] in "td" else "t" if stem[-1] in VOICELESS | {"s", "ʃ", "ʧ"} else "d")
        for ending, sound in (("ing", "ɪŋ"), ("er", "əɹ"), ("est", "ᵻst")):
            if word.endswith(ending) and (stem := self._stem(word[: -len(ending)])):
                return stem + sound
        for ending, sound in (
            ("ly", "li"),
            ("ness", "nəs"),
            ("less", "ləs"),
            ("ful", "fəl"),
            ("n't", "ᵊnt"),
            ("'ll", "əl"),
        ):
            if word.endswith(ending) and (stem := self._look_up(word[: -len(ending)])):
                return stem + sound
        for ending, sound in (("'d", "d"), ("'ve", "v"), ("'re", "əɹ")):
            if word.endswith(ending) and (stem := self._look_up(word[: -len(ending)])):
                return stem + sound
        for start, sound in (("un", "ʌn"), ("re", "ɹi"), ("non", "nɑn"), ("pre", "pɹi")):
            if word.startswith(start) and len(word) > len(start) + 2 and (stem := self._look_up(word[len(start) :])):
                return sound + stem
        return ""

    def _stem(self, stem: str) -> str:
        """As it was before an ending that takes a final e away or doubles a consonant."""
        if len(stem) < 2:
            return ""
        doubled = self._look_up(stem[:-1]) if len(stem) > 3 and stem[-1] == stem[-2] else ""
        from_y = self._look_up(f"{stem[:-1]}y") if stem.endswith("i") else ""
        return self._look_up(stem) or self._look_up(f"{stem}e") or doubled or from_y

    def _initials(self, word: str) -> str:
        """FBI, HTTP: capitals that make no known word."""
        if 2 <= len(word) <= 5 and word.isupper():
            return " ".join(LETTER_NAMES[letter] for letter in word.lower() if letter in LETTER_NAMES)
        return ""

    def _compound(self, word: str) -> str:
        """Two known words written as one."""
        for at in range(len(word) - COMPOUND_PART_MIN, COMPOUND_PART_MIN - 1, -1):
            front, back = self._look_up(word[:at]), self._look_up(word[at:])
            if front and back:
                return front + back.replace("ˈ", "ˌ")
        return ""


def _plural_sound(stem: str) -> str:
    if stem[-1] in SIBILANTS:
        return "ᵻz"
    return "s" if stem[-1] in VOICELESS else "z"


def _part_of_speech(before: str) -> str:
    word = before.lower()
    return "VERB" if word in BEFORE_VERB else "NOUN" if word in BEFORE_NOUN else "DEFAULT"
