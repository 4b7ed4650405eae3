"""Written words to spoken words: numbers, units, abbreviations, symbols, initials, foreign scripts.

Works on one word of the text at a time (what stands between spaces), so that every spoken word belongs to a written one.
A spoken word that must be spelled is given as its letters, each followed by a dot ("f. b. i."): see Lexicon.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

import attrs

from gpu_runtime.models.cascade.english import numerals

ABBREVIATIONS = {
    "dr.": "doctor",
    "mr.": "mister",
    "mrs.": "missus",
    "ms.": "miz",
    "prof.": "professor",
    "st.": "saint",
    "mt.": "mount",
    "jr.": "junior",
    "sr.": "senior",
    "vs.": "versus",
    "vs": "versus",
    "etc.": "et cetera",
    "etc": "et cetera",
    "e.g.": "for example",
    "i.e.": "that is",
    "approx.": "approximately",
    "dept.": "department",
    "gov.": "governor",
    "capt.": "captain",
    "ave.": "avenue",
    "blvd.": "boulevard",
    "a.m.": "a. m.",
    "p.m.": "p. m.",
    "am": "am",
    "w/": "with",
    "w/o": "without",
}

UNITS = {
    "km": "kilometers",
    "m": "meters",
    "cm": "centimeters",
    "mm": "millimeters",
    "mi": "miles",
    "ft": "feet",
    "ft.": "feet",
    "in.": "inches",
    "kg": "kilograms",
    "g": "grams",
    "mg": "milligrams",
    "lb": "pounds",
    "lbs": "pounds",
    "oz": "ounces",
    "l": "liters",
    "ml": "milliliters",
    "h": "hours",
    "hr": "hours",
    "hrs": "hours",
    "min": "minutes",
    "s": "seconds",
    "sec": "seconds",
    "ms": "milliseconds",
    "hz": "hertz",
    "khz": "kilohertz",
    "mhz": "megahertz",
    "ghz": "gigahertz",
    "kb": "kilobytes",
    "mb": "megabytes",
    "gb": "gigabytes",
    "tb": "terabytes",
    "mph": "miles per hour",
    "km/h": "kilometers per hour",
    "am": "a. m.",
    "pm": "p. m.",
    "°": "degrees",
    "°c": "degrees celsius",
    "°f": "degrees fahrenheit",
    "%": "percent",
    "k": "thousand",
    "x": "times",
}

CURRENCIES = {"$": ("dollar", "cent"), "€": ("euro", "cent"), "£": ("pound", "penny"), "¥": ("yen", "sen")}
SCALES = ("hundred", "thousand", "million", "billion", "trillion")

SYMBOLS = {
    "&": "and",
    "+": "plus",
    "=": "equals",
    "@": "at",
    "%": "percent",
    "#": "number",
    "/": "slash",
    "\\": "backslash",
    "<": "less than",
    ">": "greater than",
    "×": "times",
    "÷": "divided by",
    "±": "plus or minus",
    "°": "degrees",
    "$": "dollars",
    "€": "euros",
    "£": "pounds",
    "¥": "yen",
    "^": "to the power of",
    "²": "squared",
    "³": "cubed",
    "½": "one half",
    "¼": "one quarter",
    "¾": "three quarters",
    "√": "square root of",
    "→": "to",
    "−": "minus",
}

SILENT = frozenset("*_`~|\"“”„«»()[]{}<>•·–—-'‘’")
"""Formatting and punctuation that is not pronounced."""

FOLDED = str.maketrans({"ß": "ss", "æ": "ae", "Æ": "Ae", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "œ": "oe"})

SCRIPTS = {"cjk": "chinese", "hiragana": "japanese", "katakana": "japanese", "hangul": "korean", "devanagari": "hindi"}
"""A word in a script that cannot be read is announced ("a Chinese word"); most scripts are called as Unicode calls them."""

NUMBER = r"\d{1,3}(?:,\d{3})+|\d+"


@attrs.frozen
class Around:
    """What stands next to a word, as written; empty at the ends."""

    before: str = ""
    after: str = ""


def spoken_words(word: str, around: Around) -> list[str]:
    """The spoken words of a written one without its outer punctuation; empty for what has no sound (an asterisk)."""
    word = unicodedata.normalize("NFC", word).replace("’", "'").replace("‘", "'")
    known = ABBREVIATIONS.get(word.lower())
    if known is not None and not (word.lower() == "am" and _is_number(around.before)):
        return known.split()
    if _is_number(around.before) and word.lower() in UNITS and word not in ("I", "in", "x"):
        return UNITS[word.lower()].split()
    for pattern, say in _FORMS:
        match = pattern.fullmatch(word)
        if match:
            return say(match, around).split()
    return [spoken for part in _runs(word) for spoken in _run_words(part)]


def _is_number(word: str) -> bool:
    return bool(re.fullmatch(rf"[-−]?[$€£¥]?(?:{NUMBER})?(?:\.\d+)?", word)) and any(c.isdigit() for c in word)


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def _number(match: re.Match[str], _around: Around) -> str:
    sign = "minus " if match["sign"] else ""
    if match["fraction"]:
        return sign + numerals.decimal(match["whole"].replace(",", ""), match["fraction"])
    whole = match["whole"]
    if len(whole) > 1 and whole.startswith("0"):
        return sign + numerals.digits(whole)
    number = _int(whole)
    if len(whole) == 4 and (1100 <= number <= 1999 or 2010 <= number <= 2099) and not sign:
        return numerals.year(number)
    return sign + numerals.cardinal(number)


def _money(match: re.Match[str], around: Around) -> str:
    one, part = CURRENCIES[match["currency"]]
    whole = _int(match["whole"])
    if around.after.lower().rstrip(".,!?;:") in SCALES or (match["fraction"] and len(match["fraction"]) != 2):
        amount = numerals.decimal(str(whole), match["fraction"]) if match["fraction"] else numerals.cardinal(whole)
        # "$5 million": the currency's name comes after the scale, see _scale
        return amount if around.after else f"{amount} {one}s"
    said = f"{numerals.cardinal(whole)} {_plural(one, whole)}"
    cents = int(match["fraction"] or 0)
    return f"{said} and {numerals.cardinal(cents)} {_plural(part, cents)}" if cents else said


def _scale(match: re.Match[str], around: Around) -> str:
    currency = CURRENCIES.get(around.before[:1])
    return f"{match[0]} {_plural(currency[0], 2)}" if currency and _is_number(around.before) else match[0]


def _plural(noun: str, count: int) -> str:
    if count == 1 or noun in ("yen", "sen"):
        return noun
    return "pence" if noun == "penny" else f"{noun}s"


def _clock(match: re.Match[str], _around: Around) -> str:
    hours, minutes, half = int(match["hours"]), int(match["minutes"]), (match["half"] or "").lower()
    if not half:
        return numerals.clock(hours, minutes)
    spoken = numerals.cardinal(hours) if minutes == 0 else numerals.clock(hours, minutes)
    return f"{spoken} {half[0]}. m."


def _with_unit(match: re.Match[str], around: Around) -> str:
    unit = UNITS.get(match["unit"].lower())
    number = _number(match, around)
    return f"{number} {unit}" if unit else f"{number} {' '.join(_run_words(match['unit']))}"


def _initials(match: re.Match[str], _around: Around) -> str:
    return " ".join(f"{letter.lower()}." for letter in match[0] if letter.isalpha())


_Say = Callable[[re.Match[str], Around], str]
_AMOUNT = rf"(?P<whole>{NUMBER})(?:\.(?P<fraction>\d+))?"
_FORMS: tuple[tuple[re.Pattern[str], _Say], ...] = (
    (re.compile(rf"(?P<sign>[-−]?){_AMOUNT}"), _number),
    (re.compile(r"(?P<sign>[-−]?)(?P<whole>)\.(?P<fraction>\d+)"), _number),
    (re.compile(rf"(?P<currency>[$€£¥]){_AMOUNT}"), _money),
    (re.compile(rf"(?:{'|'.join(SCALES)})", re.IGNORECASE), _scale),
    (re.compile(r"(?P<hours>[01]?\d|2[0-3]):(?P<minutes>[0-5]\d)(?P<half>[ap]\.?m\.?)?", re.IGNORECASE), _clock),
    (re.compile(r"(?P<number>\d+)(?:st|nd|rd|th)", re.IGNORECASE), lambda m, _: numerals.ordinal(int(m["number"]))),
    (re.compile(r"(?P<decade>(?:1[1-9]|20)\d0)'?s"), lambda m, _: _decade(int(m["decade"]))),
    (
        re.compile(r"(?P<above>\d{1,3})/(?P<below>\d{1,3})"),
        lambda m, _: numerals.fraction(int(m["above"]), int(m["below"])),
    ),
    (re.compile(rf"(?P<sign>[-−]?){_AMOUNT}(?P<unit>[a-zA-Z°%/]+)"), _with_unit),
    (re.compile(r"(?:[A-Za-z]\.){2,}"), _initials),
)


def _decade(number: int) -> str:
    *front, last = numerals.year(number).split()
    return " ".join([*front, f"{last[:-1]}ies" if last.endswith("y") else f"{last}s"])


def _runs(word: str) -> list[str]:
    """Letters (with inner apostrophes), digits, and every other character by itself."""
    return re.findall(r"[²³½¼¾]|[^\W\d_²³½¼¾]+(?:'[^\W\d_]+)*'?|\d+(?:[.,]\d+)*|[^\w\s]|_", word)


def _run_words(run: str) -> list[str]:
    if run in SYMBOLS:
        return SYMBOLS[run].split()
    if run[0].isdigit():
        match = _FORMS[0][0].fullmatch(run)
        return (_number(match, Around()) if match else numerals.digits(re.sub(r"\D", "", run))).split()
    if run in SILENT:
        return []
    if run[0].isalpha():
        return [_letters(run)]
    if run == ".":
        return ["dot"]
    if run == ":":
        return []
    if unicodedata.category(run) in ("So", "Sm", "Sc"):
        return unicodedata.name(run, "symbol").lower().replace("-", " ").split()
    return []


def _letters(run: str) -> str:
    folded = unicodedata.normalize("NFKD", run.translate(FOLDED))
    plain = "".join(character for character in folded if not unicodedata.combining(character))
    if plain.isascii():
        return plain
    foreign = next(character for character in plain if not character.isascii())
    script = unicodedata.name(foreign, "foreign").split()[0].split("-")[0].lower()
    return f"<{SCRIPTS.get(script, script)}>"
