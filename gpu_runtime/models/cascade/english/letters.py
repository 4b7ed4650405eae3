"""How an unknown word is probably spoken: letters to phonemes by rules, in misaki's alphabet."""

from __future__ import annotations

import re

VOWELS = frozenset("aæɑɐəɛɜɪiɔʊuʌAIOWYᵊᵻ")

LETTER_NAMES = {
    "a": "ˈA",
    "b": "bˈi",
    "c": "sˈi",
    "d": "dˈi",
    "e": "ˈi",
    "f": "ˈɛf",
    "g": "ʤˈi",
    "h": "ˈAʧ",
    "i": "ˈI",
    "j": "ʤˈA",
    "k": "kˈA",
    "l": "ˈɛl",
    "m": "ˈɛm",
    "n": "ˈɛn",
    "o": "ˈO",
    "p": "pˈi",
    "q": "kjˈu",
    "r": "ˈɑɹ",
    "s": "ˈɛs",
    "t": "tˈi",
    "u": "jˈu",
    "v": "vˈi",
    "w": "dˈʌbəljˌu",
    "x": "ˈɛks",
    "y": "wˈI",
    "z": "zˈi",
}

_RULES = (
    # at the beginning
    (r"^kn", "n"),
    (r"^gn", "n"),
    (r"^wr", "ɹ"),
    (r"^ps", "s"),
    (r"^x", "z"),
    (r"^y", "j"),
    # at the end
    (r"tion$", "ʃən"),
    (r"sion$", "ʒən"),
    (r"cious$", "ʃəs"),
    (r"ous$", "əs"),
    (r"ture$", "ʧəɹ"),
    (r"ing$", "ɪŋ"),
    (r"le$", "əl"),
    (r"ey$", "i"),
    (r"ie$", "i"),
    (r"y$", "i"),
    (r"er$", "əɹ"),
    (r"or$", "əɹ"),
    (r"ar$", "ɑɹ"),
    (r"ia$", "iə"),
    (r"o$", "O"),
    (r"a$", "ə"),
    (r"i$", "i"),
    (r"u$", "u"),
    (r"es$", "z"),
    # a vowel, one consonant and a silent e
    (r"a(?=[bcdfgklmnpqrstvz]e$)", "A"),
    (r"e(?=[bcdfgklmnpqrstvz]e$)", "i"),
    (r"i(?=[bcdfgklmnpqrstvz]e$)", "I"),
    (r"o(?=[bcdfgklmnpqrstvz]e$)", "O"),
    (r"u(?=[bcdfgklmnpqrstvz]e$)", "u"),
    (r"(?<=[aeiouy][bcdfgklmnpqrstvz])e$", ""),
    (r"e$", "i"),
    # groups of consonants
    (r"tch", "ʧ"),
    (r"sch", "ʃ"),
    (r"ch", "ʧ"),
    (r"sh", "ʃ"),
    (r"th", "θ"),
    (r"ph", "f"),
    (r"wh", "w"),
    (r"ck", "k"),
    (r"qu", "kw"),
    (r"dge", "ʤ"),
    (r"ng(?=$|[^aeiouy])", "ŋ"),
    (r"gh", "ɡ"),
    (r"zh", "ʒ"),
    (r"nk", "ŋk"),
    # groups of vowels
    (r"igh", "I"),
    (r"eigh", "A"),
    (r"augh", "ɔ"),
    (r"ough", "O"),
    (r"air", "ɛɹ"),
    (r"ear", "ɪɹ"),
    (r"eer", "ɪɹ"),
    (r"oor", "ɔɹ"),
    (r"our", "ɔɹ"),
    (r"ai", "A"),
    (r"ay", "A"),
    (r"au", "ɔ"),
    (r"aw", "ɔ"),
    (r"ea", "i"),
    (r"ee", "i"),
    (r"ei", "I"),
    (r"eu", "u"),
    (r"ew", "u"),
    (r"ie", "i"),
    (r"oa", "O"),
    (r"oi", "Y"),
    (r"oy", "Y"),
    (r"oo", "u"),
    (r"ou", "W"),
    (r"ow", "O"),
    (r"ue", "u"),
    (r"ui", "u"),
    (r"ar", "ɑɹ"),
    (r"er", "ɜɹ"),
    (r"ir", "ɜɹ"),
    (r"ur", "ɜɹ"),
    (r"or", "ɔɹ"),
    # single letters
    (r"c(?=[eiy])", "s"),
    (r"g(?=[eiy])", "ʤ"),
    (r"([bcdfgklmnprstvz])\1", "\\1"),
    (r"a", "æ"),
    (r"e", "ɛ"),
    (r"i", "ɪ"),
    (r"o", "ɑ"),
    (r"u", "ʌ"),
    (r"y", "ɪ"),
    (r"c", "k"),
    (r"g", "ɡ"),
    (r"j", "ʤ"),
    (r"q", "k"),
    (r"r", "ɹ"),
    (r"x", "ks"),
)
_COMPILED = tuple((re.compile(pattern), phonemes) for pattern, phonemes in _RULES)
_DOUBLED = {"c": "k", "g": "ɡ", "r": "ɹ"}


def spell(word: str) -> str:
    """The names of its letters."""
    return " ".join(LETTER_NAMES[letter] for letter in word.lower() if letter in LETTER_NAMES)


def sound_out(word: str) -> str:
    """A guess at a word of ASCII letters. Without a vowel letter it can only be spelled."""
    word = re.sub(r"[^a-z]", "", word.lower())
    if not re.search(r"[aeiouy]", word):
        return spell(word)
    phonemes, at = "", 0
    while at < len(word):
        for pattern, sound in _COMPILED:
            match = pattern.match(word, at)
            if match and (not pattern.pattern.startswith("^") or at == 0):
                phonemes += _DOUBLED.get(match[1], match[1]) if sound == "\\1" else sound
                at = match.end()
                break
        else:
            phonemes += word[at]
            at += 1
    return _stressed(phonemes) if any(sound in VOWELS for sound in phonemes) else spell(word)


def _stressed(phonemes: str) -> str:
    """The first syllable of two, the last but one of more: right for most names."""
    vowels = [place for place, sound in enumerate(phonemes) if sound in VOWELS]
    full = [place for place in vowels if phonemes[place] != "ə"] or vowels
    at = full[-2] if len(full) >= 3 else full[0]
    return f"{phonemes[:at]}ˈ{phonemes[at:]}"
