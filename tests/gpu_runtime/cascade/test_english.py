"""From written to spoken English."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.models.cascade.english import numerals
from gpu_runtime.models.cascade.english.letters import VOWELS, sound_out, spell
from gpu_runtime.models.cascade.english.lexicon import Lexicon
from gpu_runtime.models.cascade.english.normalise import Around, spoken_words
from gpu_runtime.models.cascade.english.phonemes import English

GOLD = {
    "cat": "kˈæt",
    "bus": "bˈʌs",
    "dog": "dˈɔɡ",
    "make": "mˈAk",
    "stop": "stˈɑp",
    "happy": "hˈæpi",
    "try": "tɹˈI",
    "apple": "ˈæpᵊl",
    "to": "tu",
    "the": "ði",
    "a": "A",
    "sun": "sˈʌn",
    "flower": "flˈWəɹ",
    "word": "wˈɜɹd",
    "wait": "wˈAt",
    "NASA": "nˈæsə",
    "record": {"DEFAULT": "ɹˈɛkəɹd", "VERB": "ɹəkˈɔɹd"},
    "us": "ˈʌs",
}
LEXICON = Lexicon(GOLD, {"zebra": "zˈibɹə"})


def say(text: str) -> list[str]:
    return [word.phonemes for word in English(LEXICON).speak(text)]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (40, "forty"),
        (99, "ninety nine"),
        (342, "three hundred forty two"),
        (1_000, "one thousand"),
        (1_000_007, "one million seven"),
        (10**15, "one zero zero zero zero zero zero zero zero zero zero zero zero zero zero zero"),
    ],
)
def test_cardinals(number: int, words: str) -> None:
    assert numerals.cardinal(number) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [(1, "first"), (12, "twelfth"), (20, "twentieth"), (21, "twenty first"), (100, "one hundredth")],
)
def test_ordinals(number: int, words: str) -> None:
    assert numerals.ordinal(number) == words


@given(st.integers(0, 10**15 - 1))
def test_a_cardinal_can_be_counted_back(number: int) -> None:
    small = {numerals.cardinal(n): n for n in range(100)}
    scales = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
    total, group = 0, 0
    words = numerals.cardinal(number).split()
    while words:
        if " ".join(words[:2]) in small:
            group, words = group + small[" ".join(words[:2])], words[2:]
        elif words[0] in small:
            group, words = group + small[words[0]], words[1:]
        elif words[0] == "hundred":
            group, words = group * 100, words[1:]
        else:
            total, group, words = total + group * scales[words[0]], 0, words[1:]
    assert total + group == number


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("1,234", "one thousand two hundred thirty four"),
        ("3.14", "three point one four"),
        (".5", "zero point five"),
        ("-5", "minus five"),
        ("007", "zero zero seven"),
        ("1945", "nineteen forty five"),
        ("1905", "nineteen oh five"),
        ("1900", "nineteen hundred"),
        ("2005", "two thousand five"),
        ("2026", "twenty twenty six"),
        ("1990s", "nineteen nineties"),
        ("$5", "five dollars"),
        ("$1", "one dollar"),
        ("$5.50", "five dollars and fifty cents"),
        ("£2.01", "two pounds and one penny"),
        ("20%", "twenty percent"),
        ("20°C", "twenty degrees celsius"),
        ("5km", "five kilometers"),
        ("3:30", "three thirty"),
        ("3:05pm", "three oh five p. m."),
        ("10:00", "ten o'clock"),
        ("21st", "twenty first"),
        ("1/2", "one half"),
        ("3/4", "three quarters"),
        ("7/300", "seven over three hundred"),
        ("Dr.", "doctor"),
        ("e.g.", "for example"),
        ("U.S.", "u. s."),
        ("a.m.", "a. m."),
        ("AT&T", "AT and T"),
        ("B2B", "B two B"),
        ("mm-hmm", "mm hmm"),
        ("and/or", "and slash or"),
        ("example.com", "example dot com"),
        ("café", "cafe"),
        ("Straße", "Strasse"),
        ("x²", "x squared"),
        ("😀", "grinning face"),
        ("Привет", "<cyrillic>"),
        ("東京", "<chinese>"),
        ("**", ""),
    ],
)
def test_spoken_words(written: str, spoken: str) -> None:
    assert " ".join(spoken_words(written, Around())) == spoken


@pytest.mark.parametrize(
    ("around", "written", "spoken"),
    [
        (Around("5", ""), "km", "kilometers"),
        (Around("the", ""), "m", "m"),
        (Around("", "million"), "$5", "five"),
        (Around("$5", ""), "million", "million dollars"),
        (Around("five", ""), "million", "million"),
        (Around("3", ""), "am", "a. m."),
        (Around("I", ""), "am", "am"),
    ],
)
def test_neighbours_matter(around: Around, written: str, spoken: str) -> None:
    assert " ".join(spoken_words(written, around)) == spoken


@pytest.mark.parametrize(
    ("word", "phonemes"),
    [
        ("cats", "kˈæts"),
        ("dogs", "dˈɔɡz"),
        ("buses", "bˈʌsᵻz"),
        ("cat's", "kˈæts"),
        ("tries", "tɹˈIz"),
        ("stopped", "stˈɑpt"),
        ("making", "mˈAkɪŋ"),
        ("waited", "wˈAtᵻd"),
        ("stopping", "stˈɑpɪŋ"),
        ("unhappy", "ʌnhˈæpi"),
        ("happier", "hˈæpiəɹ"),
        ("sunflower", "sˈʌnflˌWəɹ"),
        ("zebra", "zˈibɹə"),
        ("Cat", "kˈæt"),
        ("NASA", "nˈæsə"),
        ("FBI", "ˈɛf bˈi ˈI"),
        ("brr", "bˈi ˈɑɹ ˈɑɹ"),
        ("b.", "bˈi"),
    ],
)
def test_words_that_the_lexicon_does_not_have(word: str, phonemes: str) -> None:
    assert LEXICON.phonemes(word) == phonemes


def test_part_of_speech_by_the_word_before() -> None:
    assert LEXICON.phonemes("record", "to") == "ɹəkˈɔɹd"
    assert LEXICON.phonemes("record", "the") == "ɹˈɛkəɹd"


def test_small_words_lean_on_what_follows() -> None:
    assert say("the cat") == ["ðə", "kˈæt"]
    assert say("the apple") == ["ði", "ˈæpᵊl"]
    assert say("a dog to stop") == ["ɐ", "dˈɔɡ", "tə", "stˈɑp"]


def test_stops_and_marks() -> None:
    words = English(LEXICON).speak('"Cat," (dog) - **bus**! wait...')
    assert [word.stop for word in words] == [",", "", "", "!", "."]
    assert [bool(word.phonemes) for word in words] == [True, True, False, True, True]


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=60))
def test_any_text_can_be_spoken(text: str) -> None:
    words = English(LEXICON).speak(text)
    assert [word.end for word in words] == sorted(word.end for word in words)
    assert len(words) == len(text.split())


@given(st.text(string.ascii_letters, min_size=1, max_size=14))
def test_no_word_of_letters_is_dropped(word: str) -> None:
    [spoken] = English(LEXICON).speak(word)
    assert any(sound in VOWELS or sound.isalpha() for sound in spoken.phonemes)


@pytest.mark.parametrize(
    ("word", "phonemes"),
    [("zorblax", "zˈɔɹblæks"), ("knight", "nˈIt"), ("bake", "bˈAk"), ("phone", "fˈOn"), ("brrr", spell("brrr"))],
)
def test_unknown_words_are_sounded_out(word: str, phonemes: str) -> None:
    assert sound_out(word) == phonemes
